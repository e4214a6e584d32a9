"""How the loss is cut into chunks of tokens: pure arithmetic, for train/loss.py and for its description here."""

from __future__ import annotations

from itertools import accumulate

from onecard.units import MIB

CHUNK_BYTES = 400 * MIB  # of logits in half precision; each chunk costs a pass over the weight's gradient: ADR 0005
SHOWN = 16  # chunks of a pass that a description writes out
TILE_TOKENS = 128  # chunks are whole tiles of the matrix units where they can be


def whole_tiles(tokens: int) -> int:
    """The most tokens, up to `tokens`, that fill whole tiles; part of a tile if there are fewer."""
    return max(1, tokens - tokens % TILE_TOKENS if tokens >= TILE_TOKENS else tokens)


def default_chunk_tokens(vocab_size: int) -> int:
    """Tokens per chunk: their logits take at most 400 MiB in half precision (800 MiB in float32)."""
    return whole_tiles(CHUNK_BYTES // (2 * vocab_size))


def chunk_sizes(tokens: int, chunk_tokens: int) -> list[int]:
    """Tokens of each chunk: at most `chunk_tokens`, about equal, in whole tiles."""
    size = _chunk_size(tokens, chunk_tokens)
    return [min(size, tokens - start) for start in range(0, tokens, size)]


def chunk_slices(tokens: int, chunk_tokens: int) -> list[slice]:
    """Where each chunk begins and ends."""
    ends = list(accumulate(chunk_sizes(tokens, chunk_tokens)))
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def some_chunk_sizes(tokens: int, chunk_tokens: int) -> list[int]:
    """The same, but of more than `SHOWN` chunks only the first ones and the last. Those between repeat them."""
    size = _chunk_size(tokens, chunk_tokens)
    count = -(-tokens // size)
    return chunk_sizes(tokens, chunk_tokens) if count <= SHOWN else [*[size] * (SHOWN - 1), tokens - (count - 1) * size]


def _chunk_size(tokens: int, chunk_tokens: int) -> int:
    pieces = -(-tokens // chunk_tokens)
    even = -(-tokens // max(1, pieces))
    return max(1, min(chunk_tokens, -(-even // TILE_TOKENS) * TILE_TOKENS))
