"""A model of ours as lm-eval asks models: texts in, log-likelihoods out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from onecard.errors import ConfigError

if TYPE_CHECKING:
    from onecard.inputs.opened import Opened

_REMEMBERED = 1024  # texts: the answers to a question share its context


class Model(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """It needs no export: it runs the model as it was opened."""

    def __init__(self, opened: Opened, *, on_progress: Callable[[float], None] = lambda share: None) -> None:
        super().__init__()
        self._opened = opened
        self._on_progress = on_progress
        self._encoded = lru_cache(_REMEMBERED)(self._encode)

    @property
    def eot_token_id(self) -> int:
        """The token that begins a text."""
        from onecard.data.tokenizers import new_text

        return new_text(self._opened.tokenizer, self._opened.config.vocab_size)[-1]

    @property
    def max_length(self) -> int:
        return self._opened.config.block_size

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return list(self._encoded(string))

    def _encode(self, text: str) -> Sequence[int]:
        try:
            tokens = self._opened.tokenizer.encode(text)
        except ValueError as problem:  # tiktoken refuses a million spaces
            raise self._not_encoded(text, str(problem)) from problem
        known = self._opened.config.vocab_size
        if tokens and max(tokens) >= known:
            raise self._not_encoded(text, f"it has token {max(tokens)}, and the model knows {known:,}")
        return tokens

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return answers

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        from onecard.train.answer_score import Asked, likelihoods

        asked = []
        for text, context, answer in requests:
            if not answer and len(context) > 1:  # the tokenizer joined it with the end of the context
                context, answer = context[:-1], context[-1:]
            if not answer or len(answer) > self.max_length:
                raise self._not_encoded(
                    text[-1] if text else "", f"it has {len(answer)} tokens, and the model reads 1 to {self.max_length}"
                )
            asked.append(Asked(context, answer))
        done = 0

        def progress(scored: int) -> None:
            nonlocal done
            done += scored
            self._on_progress(done / len(asked))

        return [(found.log, found.greedy) for found in likelihoods(self._opened.model, asked, on_progress=progress)]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Of whole texts, each token after as much context as lm-eval's own models give it."""
        windows = []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            parts = get_rolling_token_windows(tokens, self.eot_token_id, self.max_length, 1)
            windows += [(number, *make_disjoint_window(part)) for part in parts]
        sums = [0.0] * len(requests)
        scores = self._loglikelihood_tokens([(None, context, answer) for _, context, answer in windows])
        for (number, _, _), (log, _) in zip(windows, scores, strict=True):
            sums[number] += log
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        raise AssertionError("tasks that want texts are refused before a model is asked")

    @staticmethod
    def _not_encoded(text: str, why: str) -> ConfigError:
        return ConfigError(
            f"the model cannot read {text[:40]!r}",
            why=why[:200],
            fix="--tasks with tasks whose answers are shorter, or --limit N before it",
            name="not-encoded",
        )
