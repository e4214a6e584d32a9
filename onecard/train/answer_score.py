"""How likely a model finds each answer to a question: log-likelihoods, with the context of a question read once.

Letters: B questions or texts of a batch, R their answers, T tokens, N tokens that are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from onecard.errors import is_out_of_memory
from onecard.train.model import GPT
from onecard.train.oom import OutOfMemory, release_memory
from onecard.train.past import Continuations, Past

_GPU_TOKENS, _CPU_TOKENS = 16_384, 512  # of a batch: enough to fill a card, and few enough for a processor's caches
_LOGITS_AT_ONCE = 512  # tokens whose logits exist at a time
_WORTH_SHARING = 8  # tokens of context, from which reading them once is faster than in one pass with each answer
_MOST_ANSWERS = 32  # that share a reading


class Asked(NamedTuple):
    """An answer to score after a context, both in tokens; neither is empty."""

    context: Sequence[int]
    answer: Sequence[int]


class Likelihood(NamedTuple):
    """ln of the probability of an answer, and whether each of its tokens is the likeliest."""

    log: float
    greedy: bool


class _Row(NamedTuple):
    """A text that is read: its last `scored` tokens are the answer."""

    number: int  # among those asked
    tokens: Sequence[int]
    scored: int


@dataclass(frozen=True)
class _Question:
    """Rows that begin with the same tokens; `shared` of them are read once."""

    rows: list[_Row]
    shared: int


def likelihoods(
    model: GPT, asked: Sequence[Asked], *, on_progress: Callable[[int], None] = lambda scored: None
) -> list[Likelihood]:
    """The likelihood of each answer, in order; `on_progress` hears how many were scored by each batch.

    A text that is longer than the model's context loses its beginning. Answers must not be longer.
    FloatingPointError if the logits are not numbers, as after a run that diverged.
    """
    training = model.training
    model.eval()
    found: list[Likelihood | None] = [None] * len(asked)
    tokens = _GPU_TOKENS if model.lm_head.weight.device.type == "cuda" else _CPU_TOKENS
    waiting = sorted(_questions(asked, model.config.block_size), key=_order)
    try:
        with torch.no_grad():
            while waiting:
                batch = _last_that_fit(waiting, tokens)
                scores = _scored(model, batch)
                if scores is None:
                    if len(batch) == 1 and len(batch[0].rows) == 1:
                        raise OutOfMemory("one answer does not fit into memory")
                    tokens = max(1, sum(_cost(question) for question in batch) // 2)
                    if len(batch) == 1:  # a question whose answers do not fit together
                        waiting[-1:] = [_Question([row], 0) for row in batch[0].rows]
                    continue
                del waiting[-len(batch) :]
                for row, score in scores:
                    found[row.number] = score
                on_progress(len(scores))
    finally:
        model.train(training)
    return [each for each in found if each is not None]


def _questions(asked: Sequence[Asked], block_size: int) -> Iterator[_Question]:
    """Answers that follow each other and have the same context, together."""
    together: list[_Row] = []
    before: tuple[int, ...] | None = None

    def closed() -> Iterator[_Question]:
        shared = len(before or ()) - 1  # the last token is read with each answer: it predicts the answer's first
        if len(together) > 1 and shared >= _WORTH_SHARING:
            yield _Question(together, shared)
        else:
            yield from (_Question([row], 0) for row in together)

    for number, (context, answer) in enumerate(asked):
        assert context, "a question has tokens"
        assert answer, "an answer has tokens"
        assert len(answer) <= block_size, f"{len(answer)} tokens do not fit block_size={block_size}"
        tokens = [*context, *answer]
        whole = tuple(context) if len(tokens) <= block_size + 1 else None
        if whole is None or whole != before or len(together) == _MOST_ANSWERS:
            yield from closed()
            together = []
        together.append(_Row(number, tokens[-(block_size + 1) :], len(answer)))
        before = whole
    yield from closed()


def _order(question: _Question) -> tuple[int, int]:
    """Questions that share their context after those that do not; the longest last, so that memory is short early."""
    return question.shared, max(len(row.tokens) for row in question.rows)


def _cost(question: _Question) -> int:
    """Tokens that a batch pays for it: keys and values of a shared context count for each answer."""
    return len(question.rows) * max(len(row.tokens) for row in question.rows)


def _last_that_fit(waiting: Sequence[_Question], tokens: int) -> list[_Question]:
    """The last questions, alike in kind, that `tokens` are enough for; at least one."""
    longest = answers = count = 0
    for question in reversed(waiting):
        longest = max(longest, *(len(row.tokens) for row in question.rows))
        answers += len(question.rows)
        if count and (answers * longest > tokens or (question.shared > 0) != (waiting[-1].shared > 0)):
            break
        count += 1
    return list(waiting[-count:])


def _scored(model: GPT, batch: Sequence[_Question]) -> list[tuple[_Row, Likelihood]] | None:
    """The likelihoods of a batch; None if it did not fit into memory."""
    try:
        return _read(model, batch)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    release_memory(model.lm_head.weight.device)
    return None


def _read(model: GPT, batch: Sequence[_Question]) -> list[tuple[_Row, Likelihood]]:
    device = model.lm_head.weight.device
    rows = [row for question in batch for row in question.rows]
    shared = min(question.shared for question in batch)  # the longer ones read a few tokens with each answer
    unread_RT = _padded([row.tokens[shared:-1] for row in rows]).to(device)
    if shared:
        past = Past(model.config, room=shared)
        context_BT = torch.tensor([question.rows[0].tokens[:shared] for question in batch])
        model.hidden_after(context_BT.to(device), past)
        question_R = [number for number, question in enumerate(batch) for _ in question.rows]
        x_RTC = model.hidden_after(unread_RT, Continuations(past, torch.tensor(question_R, device=device)))
    else:
        x_RTC = model.hidden(unread_RT)
    places: list[int] = []
    targets: list[int] = []
    for number, row in enumerate(rows):
        end = len(row.tokens) - 1 - shared
        places += [number * unread_RT.shape[1] + place for place in range(end - row.scored, end)]
        targets += row.tokens[-row.scored :]
    x_NC = x_RTC.flatten(0, 1)[torch.tensor(places, device=device)]
    log_N, likeliest_N = _of_tokens(model, x_NC, torch.tensor(targets, device=device))
    scores, begin = [], 0
    for row in rows:
        part = slice(begin, begin := begin + row.scored)
        scores.append((row, Likelihood(float(log_N[part].sum()), bool(likeliest_N[part].all()))))
    return scores


def _of_tokens(model: GPT, x_NC: Tensor, target_N: Tensor) -> tuple[Tensor, Tensor]:
    """ln of each token's probability (float64), and whether it is the likeliest, on the CPU."""
    logs, likeliest = [], []
    for begin in range(0, len(x_NC), _LOGITS_AT_ONCE):
        some_N = target_N[begin : begin + _LOGITS_AT_ONCE]
        logits_NV = model.logits(x_NC[begin : begin + _LOGITS_AT_ONCE]).float()
        chosen_N = logits_NV.gather(1, some_N[:, None])[:, 0]
        logs.append(chosen_N - logits_NV.logsumexp(1))
        likeliest.append(logits_NV.argmax(1) == some_N)
    log_N = torch.cat(logs).double().cpu()
    if not bool(log_N.isfinite().all()):
        raise FloatingPointError("the model's logits are not all numbers")
    return log_N, torch.cat(likeliest).cpu()


def _padded(texts: Sequence[Sequence[int]]) -> Tensor:
    """tokens_BT with what is too short filled up behind: no token sees what comes after it."""
    tokens_BT = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
    for row, text in enumerate(texts):
        tokens_BT[row, : len(text)] = torch.as_tensor(text)
    return tokens_BT
