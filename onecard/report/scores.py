"""What `onecard eval` measured, as text and as the JSON of the contract."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from onecard import units
from onecard.runs.scores import TextScore


def text_score_lines(score: TextScore, bits: Sequence[float], *, source: str) -> Iterator[str]:
    """The answer, what it was measured on, and how the documents differ."""
    tokens = f"{with_error(score.nats_per_token, score.token_error)} nats per token"
    yield f"{with_error(score.bits_per_byte, score.error)} bits per byte of {score.text}   ({tokens})"
    yield (
        f"{source}, step {score.step:,}; {units.things(score.documents, 'document')}, {score.bytes:,} bytes, "
        f"{score.tokens:,} tokens; {score.context:,} tokens of context, "
        f"at least {max(1, score.context // 2):,} of them before each token (fewer where a document begins)"
    )
    if len(bits) > 1:
        low, high = min(range(len(bits)), key=bits.__getitem__), max(range(len(bits)), key=bits.__getitem__)
        yield (
            f"by document: {bits[low]:.4f} (document {low + 1:,}) to {bits[high]:.4f} (document {high + 1:,}), "
            f"median {median(bits):.4f}"
        )
    else:
        yield "one document: how exact the score is cannot be known"


def text_score_json(score: TextScore, bits: Sequence[float]) -> dict[str, object]:
    """The results, with each document."""
    return {
        "results": text_rows(score),
        "text": {
            "name": score.text,
            "sha256": score.text_sha256,
            "bytes": score.bytes,
            "tokens": score.tokens,
            "context": score.context,
            "documents": [{"bits_per_byte": each} for each in bits],
        },
    }


def text_rows(score: TextScore) -> list[dict[str, object]]:
    """A row for each of the two measures."""
    same = {"task": f"text:{score.text}", "chance": None, "questions": score.documents}
    return [
        {**same, "metric": "bits_per_byte", "value": score.bits_per_byte, "error": score.error},
        {**same, "metric": "nats_per_token", "value": score.nats_per_token, "error": score.token_error},
    ]


def with_error(value: float, error: float | None) -> str:
    """`1.0312 ± 0.0041`; the value alone where its error is not known."""
    return f"{value:.4f}" + ("" if error is None else f" ± {error:.4f}")
