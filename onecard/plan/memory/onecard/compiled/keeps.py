"""What the forward graph of a block keeps of the stream that comes in: the partitioner's choice, by weight.

Source: torch/_functorch/partitioners.py, get_node_weight: bytes, 1.1 times less for each step nearer to the backward
pass, twice if keeping it makes a buffer of what would stay in registers.
"""

from __future__ import annotations

from typing import Literal

from onecard.plan.memory.kernels import FLOAT
from onecard.plan.memory.nanogpt.compiled.shape import Shape

Mode = Literal["evaluation", "none", "selective", "full"]
Kept = Literal["nothing", "inputs", "sum", "norm"]

NEARER = 1.1
BUFFER = 2
STEPS_TO_NORM = 3  # the sum, the difference from the mean, the product with the scale


def kept_of_stream(shape: Shape, mode: Mode) -> Kept:
    """Both inputs (x and what is added to it), their sum, or that sum normalised, with the row statistics it needs.

    A norm that is made again may not be kept. Weights are per token, in float32 elements: in half precision the inputs
    are lighter than the sum, and without recomputation than the norm from a width of 692 on (the mean comes with them);
    in float32 they never are. Checked against the partitioner: tests/train/test_kept_by_a_block.py.
    """
    if mode == "evaluation":
        return "nothing"
    inputs = (1 + shape.item / FLOAT) * shape.C
    total = BUFFER * shape.C / NEARER
    if mode != "none":
        return "inputs" if inputs < total else "sum"
    mean = BUFFER / NEARER
    return "inputs" if inputs + mean < BUFFER * shape.C / NEARER**STEPS_TO_NORM else "norm"
