"""What the forward graph of a block, or of the last norm, keeps of the incoming stream: the partitioner's choice.

Source: torch/_functorch/partitioners.py, get_node_weight: bytes, 1.1 times less for each step nearer to the backward
pass, and doubled if keeping it makes a buffer of something that would stay in registers.
"""

from __future__ import annotations

from typing import Literal

from onecard.plan.memory.nanogpt.compiled.shape import Shape

Mode = Literal["evaluation", "none", "selective", "full"]
Kept = Literal["nothing", "sum", "norm"]


def kept_of_stream(shape: Shape, mode: Mode) -> Kept:
    """The sum of x and what is added to it, or that sum normalised, with the row statistics it needs.

    A recomputed norm may not be kept. The weights, for each of a token's values: the two inputs 2 · item, their sum
    item · 2 / 1.1, and the norm, which is float32, 4 · 2 / 1.1³ (in half precision one cast later: 1.1⁴). So in float32
    the norm is kept, and in half precision the sum. Checked against the partitioner:
    tests/train/test_kept_by_a_block.py.
    """
    if mode == "evaluation":
        return "nothing"
    return "norm" if mode == "none" and not shape.is_half else "sum"
