"""How the loss is cut into chunks of tokens."""

from __future__ import annotations

from onecard.units import MIB

CHUNK_BYTES = 400 * MIB  # of logits in half precision; each chunk costs a pass over the weight's gradient: ADR 0005
TILE_TOKENS = 128  # chunks are whole tiles of the matrix units where they can be


def whole_tiles(tokens: int) -> int:
    """The most tokens, up to `tokens`, that fill whole tiles; part of a tile if there are fewer."""
    return max(1, tokens - tokens % TILE_TOKENS if tokens >= TILE_TOKENS else tokens)


def default_chunk_tokens(vocab_size: int) -> int:
    """Tokens per chunk: their logits take at most 400 MiB in half precision (800 MiB in float32)."""
    return whole_tiles(CHUNK_BYTES // (2 * vocab_size))


def chunk_starts(tokens: int, chunk_tokens: int) -> range:
    """Where each chunk begins; its step is their size: at most `chunk_tokens`, about equal, in whole tiles."""
    pieces = -(-tokens // chunk_tokens)
    even = -(-tokens // max(1, pieces))
    return range(0, tokens, max(1, min(chunk_tokens, -(-even // TILE_TOKENS) * TILE_TOKENS)))


def chunk_slices(tokens: int, chunk_tokens: int) -> list[slice]:
    """Where each chunk begins and ends."""
    starts = chunk_starts(tokens, chunk_tokens)
    return [slice(start, min(tokens, start + starts.step)) for start in starts]
