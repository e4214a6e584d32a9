"""How fast text is made by a model that keeps keys and values, beside one that reads the whole past for each token.

    python -m bench.text_speed                    # the packaged default, 1,024 tokens, on two cores of the CPU
    python -m bench.text_speed --model=nanochat   # with other keys

Both ways in turn, greedy; the weights are new ones. At the packaged block_size of 128 and at one that
holds the whole text: beyond block_size the window slides, and then every token is read again either way.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterator
from itertools import islice

import torch

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.train.model import GPT
from onecard.train.sample import generate

TOKENS, AT_A_TIME, CORES = 1024, 32, 2


def reading_all(model: GPT, tokens: list[int]) -> Iterator[int]:
    """The same text, as it was made before keys and values were kept."""
    for _ in range(TOKENS):
        with torch.no_grad():
            context_1T = torch.tensor([tokens[-model.config.block_size :]])
            token = int(model.logits(model.hidden(context_1T)[0, -1]).argmax())
        tokens = [*tokens, token]
        yield token


def timed_in_turn(ways: list[Iterator[int]]) -> list[tuple[float, list[int]]]:
    """Seconds and tokens of each, a few tokens of one, then of the other: what else runs slows both alike."""
    found: list[tuple[float, list[int]]] = [(0.0, [])] * len(ways)
    for _ in range(TOKENS // AT_A_TIME):
        for number, tokens in enumerate(ways):
            began = time.perf_counter()
            made = list(islice(tokens, AT_A_TIME))
            seconds, before = found[number]
            found[number] = seconds + time.perf_counter() - began, before + made
    return found


def measure(config: RunConfig) -> None:
    torch.manual_seed(1337)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)  # otherwise it would say one token again and again
    ways = [generate(model, [10], max_new_tokens=TOKENS, temperature=0), reading_all(model, [10])]
    (kept, text), (read, again) = timed_in_turn(ways)
    same = next((number for number, pair in enumerate(zip(text, again, strict=True)) if pair[0] != pair[1]), TOKENS)
    print(
        f"block_size {config.block_size:5,}: {kept:6.2f} s with keys and values kept, {read:6.2f} s reading all; "
        f"{read / kept:.1f} times as fast; "
        f"the first {same:,} of {TOKENS:,} tokens are the same, {len(set(text))} of them different ones",
        flush=True,
    )


def _key(flag: str) -> tuple[str, str]:
    name, _, value = flag.removeprefix("--").partition("=")
    return name, value


def main(flags: list[str]) -> None:
    torch.set_num_threads(CORES)
    packaged = resolve(None, flags=[_key(flag) for flag in flags]).config
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {CORES} cores, {TOKENS:,} tokens, float32")
    for block_size in (TOKENS + 1, packaged.block_size):
        measure(packaged.replace({"block_size": block_size}))


if __name__ == "__main__":
    main(sys.argv[1:])
