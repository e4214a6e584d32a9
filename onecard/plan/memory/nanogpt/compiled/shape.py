"""What Inductor and its partitioner decide from a model's sizes alone: paddings, fusions, what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil

from onecard.config.schema import RunConfig
from onecard.plan.memory import kernels
from onecard.plan.memory.device import Device
from onecard.plan.memory.inductor.tuning import WHOLE_ROW, is_timed, loop_is_timed
from onecard.plan.memory.nanogpt.sizes import Sizes

# The outcome of a timing, not of a formula: read off 14 runs with odd vocabularies on an H200; other cards may differ.
PADDED_DIMENSION = 640  # from here on padding pays for a copy: at 512 it did not, at 768 it did
PADDED_VOCABULARY = 1024  # below, two runs of one config may differ: see Shape.possible_paddings


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Which of the head's matmuls Inductor pads to an aligned vocabulary (fx_passes/pad_mm.py)."""

    forward: bool = False  # logits = x W^T
    weight: bool = False  # W's gradient = dlogits^T x
    input: bool = False  # x's gradient = dlogits W


class Shape(Sizes):
    """Sizes of one compiled model, and the choices that follow from them."""

    def __init__(
        self, config: RunConfig, device: Device, *, returns_logits: bool = True, padding: Padding | None = None
    ) -> None:
        super().__init__(config, device, returns_logits=returns_logits)
        self.kind = "half" if self.is_half else "float"  # element type of activations
        self.alignment = 8 if self.is_half else 4  # elements to which pad_mm aligns: 16 bytes
        self.V_padded = kernels.round_up(self.V, self.alignment)
        self.padded_head = kernels.flash_head_size(self.D) if self.kernel == "flash" else self.D
        self.padding = padding or self.usual_padding

    @property
    def usual_padding(self) -> Padding:
        """Which products of the head are padded for a vocabulary that is not a multiple of 8 (4 in float32).

        Inductor times each product with and without padding (fx_passes/pad_mm.py, _should_pad), so this is a choice of
        the card. Padding wins when the faster product pays for the copy of the operand that must be padded, that is
        when the dimension the copy does not have is long enough: the tokens for a copy of the weight, the width for a
        copy of the logits' gradient. The gradient in its own layout, and under autocast the weight too, are padded
        where they are made, which is not timed. For tiny vocabularies none is assumed (`possible_paddings`).
        """
        if self.V_padded == self.V or self.V < PADDED_VOCABULARY:
            return Padding()
        many = self.N >= PADDED_DIMENSION
        return Padding(forward=many, weight=self.C >= PADDED_DIMENSION, input=many or self.is_half)

    @property
    def possible_paddings(self) -> tuple[Padding, ...]:
        """What the timing may come to: one outcome, or all eight where a tiny vocabulary's products take microseconds.

        Under autocast they differ by a few columns of the logits. In float32 the weight's product decides more:
        unpadded it is fused with the sum of the tied weight's two gradients (addmm) at the very end of the backward,
        and keeps the last norm's result and the logits' gradient alive until then. One config, run twice on one card,
        padded it once and once did not; the plan shows the larger.
        """
        if self.V_padded == self.V or self.V >= PADDED_VOCABULARY:
            return (self.usual_padding,)
        return tuple(Padding(forward=f, weight=w, input=i) for f, w, i in product((False, True), repeat=3))

    @cached_property
    def splits(self) -> int:
        """Rows of partial sums of a fused LayerNorm backward; 0 where Inductor does not fuse it.

        Source: scheduler.py, MixOrderReduction.can_fuse: worth it for big, tall matrices only.
        """
        if self.N * self.C < 5 * 2**20 or self.N < 2 * self.C or self.N < 4096:
            return 0
        rows = self.N // (self.device.multiprocessors * 8)
        return ceil(self.N / max(16, min(128, 1 << (max(rows, 1).bit_length() - 1))))

    @cached_property
    def keeps_embeddings(self) -> bool:
        """Whether the forward keeps both embeddings and recomputes the first norm, or keeps the norm's result.

        The min-cut's weights (partitioners.py, get_node_weight), per token and in embedding elements: bytes, 1.1 times
        less for each step nearer to the backward, twice if keeping it makes a buffer of what would stay in registers.
        On one side the embeddings of tokens and, shared by B sequences, of positions, and the mean, two steps before
        the norm's result, twice; on the other that result, behind the sum, dropout's mask and scale, the difference and
        the product, twice (the mask and the norm's scale are kept on both). So without dropout B >= 3, or 2 from a
        width of 692 on; with it B >= 5, from a width of 36 on. Checked at these bounds against the partitioner of torch
        2.13 on a CPU; measured rows lie on both sides.
        """
        steps = 5 if self.drops else 3
        embeddings = (1 + 1 / self.B) * self.C + 2 / 1.1 ** (steps - 2)
        return embeddings < 2 * self.C / 1.1**steps

    @property
    def times_norms(self) -> bool:
        """Whether Triton times the kernels of LayerNorm: the narrowest, and those that loop over wide rows."""
        if self.C > WHOLE_ROW:
            return loop_is_timed(self.device, self.N, self.C)
        return is_timed(self.N, self.C)

    def next_norm(self, layer: int) -> str:
        """The norm behind a layer: the first of the next layer, or the last of all."""
        return f"{layer + 1}.ln_1" if layer + 1 < self.layers else "ln_f"
