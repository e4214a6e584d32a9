"""onecard's block without torch.compile: what it keeps and recomputes with grad_checkpoint none, selective and full."""

from __future__ import annotations

from onecard.plan.memory.nanogpt.eager.forward import Layer, Linear, Norm
from onecard.plan.memory.onecard.model import Model, Passed
from onecard.plan.memory.tags import ACTIVATIONS, GRADIENTS_IN_FLIGHT, WEIGHT_CASTS


class EagerTrainer(Model):
    """The trainer with compile=False."""

    head_order = (0, 1, 2)  # model.py makes q, k, v in this order

    def linear(self, name: str, x: int | None, train: bool, *, cast_input: bool = True) -> Linear:
        """F.linear. A cast that the backward pass keeps (`train`) outlives autocast's cache."""
        found = super().linear(name, x, train, cast_input=cast_input)
        if train and found.weight_cast is not None:
            self.weight_casts.pop()
        return found

    def autocast_ends(self, *, training: bool) -> None:
        """`with autocast` ends: what only its cache holds is freed."""
        super().autocast_ends(training=False)

    # forward

    def block(self, layer: int, x: int, added: int, *, train: bool) -> Passed:
        """x + added, then both halves; grad_checkpoint decides how much is kept."""
        mode = self.config.grad_checkpoint
        total = self.alloc(self.stream, ACTIVATIONS)
        keeps = train and mode != "full"
        x, added, kept = self.halves(layer, total, train, keeps_parts=train and mode == "none", keeps_attention=keeps)
        if not train:
            self.free(total)
        return Passed(x, added, keeps, kept)

    def halves(
        self, index: int, x: int, train: bool, *, keeps_parts: bool, keeps_attention: bool, to_the_end: bool = True
    ) -> tuple[int, int, Layer]:
        """Block._layers: x after attention, what the MLP adds, and what is kept of both.

        `to_the_end=False`: recomputation stops at the last tensor that the backward pass needs.
        """
        alloc, free = self.alloc, self.free
        ln_1, c_attn = self.into(f"{index}.ln_1", f"{index}.c_attn", x, keeps_parts)
        attention = self.attention(c_attn.out, train, keeps=keeps_attention)
        own = attention.out if self.copies_heads else None  # otherwise attention also saves its output
        attn_c_proj = self.linear(f"{index}.attn.c_proj", own, keeps_attention, cast_input=False)
        branch, attn_mask = self.dropped(attn_c_proj.out, train, keeps_attention)
        if not keeps_attention:
            free(attention.out)
        middle = alloc(self.stream, ACTIVATIONS)
        free(branch)

        ln_2, c_fc = self.into(f"{index}.ln_2", f"{index}.c_fc", middle, keeps_parts)
        gelu = alloc(self.N * 4 * self.C * self.item, ACTIVATIONS)
        name = f"{index}.mlp.c_proj"
        if to_the_end:
            mlp_c_proj = self.linear(name, gelu, keeps_parts, cast_input=False)
            if not keeps_parts:
                free(gelu)
            added, mlp_mask = self.dropped(mlp_c_proj.out, train, keeps_attention)
        else:
            mlp_c_proj = self.operands(name, gelu)
            added, mlp_mask = -1, None
        if not keeps_attention or self.copies_heads:
            free(c_attn.out)
        if not keeps_attention:
            free(c_fc.out)
        kept = Layer(ln_1, c_attn, attention, attn_c_proj, attn_mask, ln_2, c_fc, gelu, mlp_c_proj, mlp_mask)
        return middle, added, kept

    def into(self, norm: str, linear: str, x: int, keeps: bool) -> tuple[Norm, Linear]:
        """_into_attention and _into_mlp: a norm and the product behind it."""
        ln = self.norm(norm, x, keeps)
        product = self.linear(linear, ln.out, keeps)
        if self.is_half or not keeps:
            self.free(ln.out)  # in float32 it is the product's saved input
        return ln, product

    def dropped(self, x: int, train: bool, keeps: bool) -> tuple[int, int | None]:
        out, mask = self.dropout(x, train)
        if mask is not None and not keeps:
            self.free(mask)
            mask = None
        return out, mask

    # backward

    def backward_block(self, kept: Layer, gradient: int, branch: int, *, first: bool) -> tuple[int, int]:
        """Block.forward in reverse; `gradient` of the stream is added to in place."""
        mode, owned = self.config.grad_checkpoint, branch != gradient
        remade = mode != "none"
        if mode == "full":
            kept = self.remade_block(kept)
        if kept.mlp_mask is not None:
            dropped = self.alloc(self.narrow, GRADIENTS_IN_FLIGHT)
            self.free(*[branch] if owned else [], kept.mlp_mask)
            branch, owned = dropped, True
        index = kept.mlp_c_proj.name.partition(".")[0]
        if mode == "selective":
            gelu = self.alloc(self.N * 4 * self.C * self.item, ACTIVATIONS)
            kept.mlp_c_proj = self.operands(f"{index}.mlp.c_proj", gelu)
            self.autocast_ends(training=True)
        dx = self.backward_linear(kept.mlp_c_proj, branch, first, owned=owned, cast_input=False, remade=remade)
        dx = self.replaced(dx, self.N * 4 * self.C * self.item, GRADIENTS_IN_FLIGHT)  # GELU
        self.free(kept.c_fc.out)
        if mode == "selective":
            kept.ln_2, kept.c_fc = self.remade_into(kept.ln_2, f"{index}.c_fc")
        dx = self.backward_linear(kept.c_fc, dx, first, owned=True, cast_input=True, remade=remade)
        self.backward_norm(kept.ln_2, dx, first, residual=True)

        branch, owned = self.backward_branch(gradient, kept.attn_mask)
        dx = self.backward_linear(kept.attn_c_proj, branch, first, owned=owned, cast_input=False, remade=mode == "full")
        dx = self.backward_attention(kept.attention, dx)
        if mode == "selective":
            kept.ln_1, kept.c_attn = self.remade_into(kept.ln_1, f"{index}.c_attn")
        dx = self.backward_linear(kept.c_attn, dx, first, owned=True, cast_input=True, remade=remade)
        self.backward_norm(kept.ln_1, dx, first, residual=True)
        return gradient, self.of_added(gradient)

    def operands(self, name: str, x: int, *, cast_input: bool = False) -> Linear:
        """A product that is not repeated: what its backward pass needs of it, and a cast of the bias nobody uses."""
        inputs, outputs = self.linears[name.partition(".")[2]]
        if not self.is_half:
            return Linear(name, -1, x, None)
        if self.bias:
            self.bias_casts.append(self.alloc(outputs * self.item, WEIGHT_CASTS))
        cast = self.alloc(inputs * outputs * self.item, WEIGHT_CASTS)
        if cast_input:
            x = self.alloc(self.N * inputs * self.item, ACTIVATIONS)
        return Linear(name, -1, x, cast)

    def remade_into(self, norm: Norm, linear: str) -> tuple[Norm, Linear]:
        """_into_attention or _into_mlp again, without the product."""
        again = self.norm(norm.name, norm.x, True)
        product = self.operands(linear, again.out, cast_input=True)
        self.autocast_ends(training=True)
        if self.is_half:
            self.free(again.out)
        return again, product

    def remade_block(self, kept: Layer) -> Layer:
        """The whole block again, up to its last product; with dropout to its end, because its mask is needed."""
        index = int(kept.ln_1.name.partition(".")[0])
        self.thread = "backward"
        _, added, again = self.halves(
            index, kept.ln_1.x, True, keeps_parts=True, keeps_attention=True, to_the_end=self.drops
        )
        self.thread = "forward"
        if self.drops:
            self.free(added)
        self.autocast_ends(training=True)
        return again
