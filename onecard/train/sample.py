"""Text from a model, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from onecard.errors import UsageError
from onecard.train.model import GPT
from onecard.train.past import Past

_COLDEST = 1e-30  # that float32 can divide by


class Drawn(NamedTuple):
    """A token, and the logits that it was drawn by."""

    token: int
    logits: Tensor

    @property
    def probability(self) -> float:
        """The model's own, of all tokens with text: neither temperature nor top_k count."""
        return float(torch.softmax(self.logits, dim=0)[self.token])


def generate(
    model: GPT,
    prompt_tokens: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.8,
    top_k: int | None = 200,
    seed: int = 1337,
    vocab_size: int | None = None,
) -> Iterator[int]:
    """The tokens that follow `prompt_tokens`, one at a time; the same for the same seed, device and weights.

    Temperature 0 takes the likeliest token each time; `top_k` keeps the k likeliest. `vocab_size` is the tokenizer's,
    where the model's is larger (50304 for 50257): ids beyond it have no text, and are never drawn. The model sees the
    last block_size tokens: up to then it reads each token once, afterwards the whole window for each new token, as
    positions count from its beginning. It is in evaluation mode while a token is made, and as it was before in between.
    FloatingPointError if the logits are NaN, as after a run that diverged.
    """
    found = draw(
        model,
        prompt_tokens,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        vocab_size=vocab_size,
    )
    return (each.token for each in found)


def draw(
    model: GPT,
    prompt_tokens: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    vocab_size: int | None,
) -> Iterator[Drawn]:
    """The same tokens, each with its probability."""
    _check(prompt_tokens, temperature=temperature, top_k=top_k)
    return _drawn(model, list(prompt_tokens), max_new_tokens, temperature, top_k, seed, vocab_size)


def _drawn(
    model: GPT,
    tokens: list[int],
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    vocab_size: int | None,
) -> Iterator[Drawn]:
    device = model.lm_head.weight.device
    generator = torch.Generator(device).manual_seed(seed)  # the run's own random numbers stay untouched
    longest = min(model.config.block_size, len(tokens) + max_new_tokens)
    past, unread = Past(model.config, room=longest), tokens[-longest:]
    for _ in range(max_new_tokens):
        if past.length + len(unread) > longest:  # the window slides: all its positions change
            past.forget()
            unread = tokens[-longest:]
        unread_1T = torch.tensor([unread], device=device)
        logits_V = _last_logits(model, unread_1T, past)[:vocab_size]
        token = _pick(logits_V, temperature, top_k, generator)
        tokens.append(token)
        unread = [token]
        yield Drawn(token, logits_V)


def _last_logits(model: GPT, tokens_1T: Tensor, past: Past) -> Tensor:
    """logits_V after the last token. Uncompiled: every length is a new shape, and compiling each would take minutes."""
    training = model.training
    if training:
        model.eval()
    try:
        with torch.no_grad():
            logits_V = model.logits(model.hidden_after(tokens_1T, past)[0, -1]).float()
    finally:
        if training:
            model.train()
    if not bool(logits_V.isfinite().all()):
        raise FloatingPointError("the model's logits are not all numbers")
    return logits_V


def _pick(logits_V: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    likeliest_k, token_k = logits_V.topk(min(top_k or len(logits_V), len(logits_V)))
    below_best_k = likeliest_k - likeliest_k[0]  # so that a tiny temperature makes no infinity
    probability_k = torch.softmax(below_best_k / max(temperature, _COLDEST), dim=0)
    return int(token_k[torch.multinomial(probability_k, 1, generator=generator)])


def _check(prompt_tokens: Sequence[int], *, temperature: float, top_k: int | None) -> None:
    if not prompt_tokens:
        raise UsageError(
            "the prompt is empty",
            why="a model continues a text and needs at least one token",
            fix="leave --prompt out: then the model begins a text",
        )
    if not temperature >= 0:
        raise UsageError(
            f"a temperature of {temperature} is not valid",
            why="0 takes the likeliest token each time, 1 the model's own probabilities, more is more random",
            fix="--temperature 0.8",
        )
    if top_k is not None and top_k < 1:
        raise UsageError(
            f"top_k={top_k} leaves no token", why="it is how many tokens are considered", fix="--top-k 200"
        )
