"""What Inductor and its partitioner decide from a model's sizes alone: paddings, fusions, what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil

from onecard.config.schema import RunConfig
from onecard.paper import kernels
from onecard.paper.device import Device
from onecard.plan.memory.inductor.tuning import WHOLE_ROW, is_timed, loop_is_timed
from onecard.plan.memory.nanogpt.sizes import Sizes

# Outcomes of timings, not of a formula: read off 14 runs with odd vocabularies on an H200. Other cards may differ.
PADDED_DIMENSION = 640  # from here on padding pays for a copy: at 512 it did not, at 768 it did
PADDED_VOCABULARY = 1024  # below this, two runs of one config may differ: see Shape.possible_paddings


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

        Inductor times each product with and without padding (fx_passes/pad_mm.py, _should_pad), so the card decides.
        Padding wins if the faster product pays for copying the operand that must be padded. It does if the dimension
        that the copy does not have is long enough: the tokens for a copy of the weight, the width for a copy of the
        logits' gradient. The gradient in its own layout, and under autocast also the weight, are padded where they are
        made, which is not timed. For tiny vocabularies no padding is assumed (`possible_paddings`).
        """
        if self.V_padded == self.V or self.V < PADDED_VOCABULARY:
            return Padding()
        many = self.N >= PADDED_DIMENSION
        return Padding(forward=many, weight=self.C >= PADDED_DIMENSION, input=many or self.is_half)

    @property
    def possible_paddings(self) -> tuple[Padding, ...]:
        """The possible outcomes of the timing: one, or all eight if a tiny vocabulary's products take microseconds.

        Under autocast they differ by a few columns of the logits. In float32 the weight's product decides more:
        unpadded, it is fused with the sum of the tied weight's two gradients (addmm) at the very end of the backward,
        and keeps the last norm's result and the logits' gradient alive until then. One config, run twice on one card,
        padded it once and did not pad it once. The plan shows the larger.
        """
        if self.V_padded == self.V or self.V >= PADDED_VOCABULARY:
            return (self.usual_padding,)
        return tuple(Padding(forward=f, weight=w, input=i) for f, w, i in product((False, True), repeat=3))

    @cached_property
    def splits(self) -> int:
        """Rows of partial sums of a fused LayerNorm backward; 0 if Inductor does not fuse it.

        Source: scheduler.py, MixOrderReduction.can_fuse: worth it for big, tall matrices only.
        """
        if self.N * self.C < 5 * 2**20 or self.N < 2 * self.C or self.N < 4096:
            return 0
        rows = self.N // (self.device.multiprocessors * 8)
        return ceil(self.N / max(16, min(128, 1 << (max(rows, 1).bit_length() - 1))))

    @cached_property
    def keeps_embeddings(self) -> bool:
        """Whether the forward keeps both embeddings and recomputes the first norm, instead of keeping its result.

        The min-cut's weights (partitioners.py, get_node_weight) are per token, in embedding elements: bytes, 1.1 times
        less for each step nearer to the backward, and doubled if keeping it makes a buffer of something that would stay
        in registers. One side has the embeddings of tokens and of positions, which B sequences share, and the mean, two
        steps before the norm's result, doubled. The other side has that result, doubled; it comes after the sum,
        dropout's mask and scale, the difference and the product. Both sides keep the mask and the norm's scale. So the
        embeddings are kept without dropout if B >= 3, or 2 from a width of 692 on; with dropout if B >= 5, from a width
        of 36 on. Checked at these bounds against the partitioner of torch 2.13 on a CPU; measured rows lie on both
        sides.
        """
        steps = 5 if self.drops else 3
        embeddings = (1 + 1 / self.B) * self.C + 2 / 1.1 ** (steps - 2)
        return embeddings < 2 * self.C / 1.1**steps

    @property
    def times_norms(self) -> bool:
        """Whether Triton times LayerNorm's kernels: the narrowest, and those that loop over wide rows."""
        if self.C > WHOLE_ROW:
            return loop_is_timed(self.device, self.N, self.C)
        return is_timed(self.N, self.C)

    def next_norm(self, layer: int) -> str:
        """The norm behind a layer: the first of the next layer, or the last of all."""
        return f"{layer + 1}.ln_1" if layer + 1 < self.layers else "ln_f"
