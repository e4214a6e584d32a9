"""The operations of models, passes and training steps with torch; `onecard/paper/operations.py` has them on paper.

Letters: B sequences, T tokens of a sequence, N = B·T, C channels, H heads, D = C / H, E = 3C, V words.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from onecard.models.training import MicroBatch
from onecard.paper.tags import Section
from onecard.train import block_kernels, gelu, loss, nanochat_kernels
from onecard.train.oom import release_memory
from onecard.train.precision import Precision
from onecard.train.products import multiply
from onecard.train.recorded_micro_batch import RecordedMicroBatch, zero_gradients

SMALLEST_NORM = 1e-7  # of a gradient that is made orthogonal: smaller ones stay small

_PRODUCTS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default})


def _keep_products(_ctx: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


_keep_products_contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)


class TensorOperations:
    """What models and passes ask of tensors, wherever those are."""

    float32 = torch.float32
    no_grad = staticmethod(torch.no_grad)

    def section(self, section: Section) -> None:
        """For paper only, like `moment`: what the forward pass comes to."""

    def moment(self, what: str) -> None:
        """What is happening."""

    def repeated(self, items: range, *, enough: int) -> range:
        """All of them; for paper `enough` are."""
        return items

    def remembered(self, function: Callable[..., Any], parameters: Sequence[Tensor] = ()) -> Callable[..., Any]:
        """The function; paper copies its events when it runs again."""
        return function

    # tensors

    def empty(self, shape: Sequence[int], *, dtype: torch.dtype, like: Tensor, part: str) -> Tensor:
        """A new tensor where `like` is; `part` is what it is for."""
        return own_part(like).new_empty(shape, dtype=dtype)

    def zeros(self, shape: Sequence[int], *, dtype: torch.dtype, like: Tensor, part: str) -> Tensor:
        """The same, of zeros."""
        return like.new_zeros(shape, dtype=dtype)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x in another type."""
        return x.to(dtype)

    def wide_type(self, x: Tensor) -> torch.dtype:
        """The type of sums: at least float32."""
        return torch.promote_types(x.dtype, torch.float32)

    def in_compute_type(self, x: Tensor) -> Tensor:
        """x in the type that linear layers return here."""
        return x.to(_compute_dtype(x))

    def zeros_to_add(self, x: Tensor) -> Tensor:
        """Zeros like x, in the type that linear layers return here."""
        return torch.zeros_like(x, dtype=_compute_dtype(x), requires_grad=x.requires_grad)

    def copy_all(self, copies: list[Tensor], originals: list[Tensor]) -> None:
        """Tensors copied into others, in place."""
        with torch.no_grad():
            pairs = zip(copies, originals, strict=True)
            torch._foreach_copy_(copies, [whole(original, copy.dtype) for copy, original in pairs])

    # Muon's updates

    def move_towards(self, tensors: list[Tensor], ends: list[Tensor], share: float) -> None:
        """A share of the way to other tensors, in place."""
        torch._foreach_lerp_([own_part(each) for each in tensors], [own_part(each) for each in ends], share)

    def multiply_batch(
        self,
        a_nMK: Tensor,
        b_nKN: Tensor,
        out_nMN: Tensor,
        *,
        added: Tensor | None = None,
        factor: float = 1.0,
        share: float = 0.0,
    ) -> None:
        """out = factor · a @ b + share · added, all matrices at once; `out` is none of the others."""
        if added is None:
            torch.bmm(a_nMK, b_nKN, out=out_nMN)
        else:
            torch.baddbmm(added, a_nMK, b_nKN, alpha=factor, beta=share, out=out_nMN)

    def normalise(self, x_nRC: Tensor, gram_nSS: Tensor, norms_n: Tensor, *, safety: float) -> None:
        """x divided by `safety` times its norm, and its Gram matrix with it; the norm's square is the Gram's trace."""
        torch.sum(gram_nSS.diagonal(dim1=1, dim2=2), dim=1, dtype=norms_n.dtype, out=norms_n)
        norms_n.mul_(safety**2).add_(SMALLEST_NORM**2).rsqrt_()
        factors_n11 = norms_n[:, None, None]
        x_nRC.mul_(factors_n11)
        gram_nSS.mul_(factors_n11).mul_(factors_n11)

    def add_updates(self, weights: list[Tensor], updates: list[Tensor], *, kept: float, by: float) -> None:
        """weight = kept · weight + by · update, in place; updates are whole, also where weights are shared by ranks."""
        updates = [own_rows(update, weight) for update, weight in zip(updates, weights, strict=True)]
        weights = [own_part(weight) for weight in weights]
        if kept != 1:
            torch._foreach_mul_(weights, kept)
        torch._foreach_add_(weights, updates, alpha=by)

    # layers

    def linear(self, x: Tensor, layer: nn.Linear) -> Tensor:
        return functional.linear(x, layer.weight, layer.bias)

    def layer_norm(self, x: Tensor, layer: nn.LayerNorm) -> Tensor:
        return functional.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)

    def embedding(self, ids: Tensor, layer: nn.Embedding) -> Tensor:
        return functional.embedding(ids, layer.weight)

    def positions(self, tokens_BT: Tensor) -> Tensor:
        return torch.arange(tokens_BT.shape[1], device=tokens_BT.device)

    def tied_embedding(self, weight_VC: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the weight that the head shares, and that weight for the head to use."""
        return _TiedEmbedding.apply(weight_VC, tokens_BT)  # type: ignore[no-untyped-call, no-any-return]

    def dropout(self, x: Tensor, p: float, training: bool) -> Tensor:
        return functional.dropout(x, p, training)

    def gelu(self, x: Tensor) -> Tensor:
        return gelu.gelu(x)

    def torch_gelu(self, x: Tensor) -> Tensor:
        return functional.gelu(x)

    def normed_embedding(self, tokens_BT: Tensor, layer: nn.Embedding) -> Tensor:
        """Rows of the weight, divided by their root mean square, in the type that linear layers return."""
        return _NormedEmbedding.apply(layer.weight, tokens_BT, _compute_dtype(layer.weight))  # type: ignore[no-untyped-call, no-any-return]

    def rms_norm(self, x: Tensor) -> Tensor:
        """x divided by its root mean square."""
        return _RmsNorm.apply(x)  # type: ignore[no-untyped-call, no-any-return]

    def rotated(self, qkv_BTE: Tensor, heads: int, first: int = 0) -> Tensor:
        """Queries and keys rotated by their position, counted from `first`, and normed, in place."""
        if first:  # text is made: nothing is kept for a backward pass
            nanochat_kernels.rotate(qkv_BTE.flatten(0, 1), batch=len(qkv_BTE), heads=heads, first=first)
            return qkv_BTE
        return _Rotated.apply(qkv_BTE, heads)  # type: ignore[no-untyped-call, no-any-return]

    def relu_squared(self, x: Tensor) -> Tensor:
        """The square of what is above zero, in place."""
        return _ReluSquared.apply(x)  # type: ignore[no-untyped-call, no-any-return]

    def thirds(self, x: Tensor) -> Sequence[Tensor]:
        """Three views of the last dimension."""
        return x.chunk(3, dim=-1)

    def heads(self, x_BTC: Tensor, number: int) -> Tensor:
        B, T, _ = x_BTC.shape
        return x_BTC.view(B, T, number, -1).transpose(1, 2)

    def joined(self, y_BHTD: Tensor) -> Tensor:
        return y_BHTD.transpose(1, 2).flatten(2)

    def attention(self, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, dropout: float) -> Tensor:
        return functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, dropout_p=dropout, is_causal=True)

    def recomputed(
        self, part: Callable[[Tensor], Any], x: Tensor, *, random: bool = False, keep_products: bool = False
    ) -> Any:
        """part(x), with its inner tensors computed again in the backward pass; `random`: with the same random numbers.

        `keep_products` is for a part that ends in a matrix product. In eager mode recomputation stops at the last
        tensor that the backward pass asks for, the input of that product, so the product itself is never repeated. A
        compiler does not stop there; it gets a policy that keeps products instead.
        """
        if not torch.is_grad_enabled():
            return part(x)
        if keep_products and torch.compiler.is_compiling():
            contexts = _keep_products_contexts
            return checkpoint(part, x, use_reentrant=False, preserve_rng_state=random, context_fn=contexts)
        return checkpoint(part, x, use_reentrant=False, preserve_rng_state=random)

    def draw_normal(self, weight: Tensor, *, std: float) -> None:
        """First weights."""
        nn.init.normal_(weight, std=std)

    def set_to_zero(self, x: Tensor) -> None:
        with torch.no_grad():
            x.zero_()

    # the loss

    def logits(self, hidden_nC: Tensor, weight_VC: Tensor) -> Tensor:
        return torch.mm(hidden_nC, weight_VC.t())

    def product_into(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        torch.mm(a, b, out=out)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """total += a @ b, without rounding the product to half precision in between."""
        if total.dtype == a.dtype:
            total.addmm_(a, b)
        elif total.is_cuda:
            torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
        else:
            total.addmm_(a.to(total.dtype), b.to(total.dtype))

    def write_losses(
        self,
        logits_nV: Tensor,
        targets_n: Tensor,
        losses_n: Tensor,
        *,
        gradient: bool,
        soft_cap: float | None = None,
    ) -> None:
        loss.write_losses(logits_nV, targets_n, losses_n, gradient=gradient, soft_cap=soft_cap)

    def soft_capped(self, logits: Tensor, soft_cap: float) -> Tensor:
        return soft_cap * torch.tanh(logits.float() / soft_cap)

    def counted(self, targets_N: Tensor) -> Tensor:
        """How many targets count."""
        return (targets_N != loss.IGNORED).sum()

    def with_own_gradients(
        self, function: Callable[..., Any], without: Callable[[], Tensor], first: Tensor, second: Tensor
    ) -> Tensor:
        """A loss whose forward pass makes its own gradients; the backward pass only scales them, so it runs once.

        Where no gradients are wanted, it is `without()`.
        """
        if torch.is_grad_enabled() and (first.requires_grad or second.requires_grad):
            return _OwnGradients.apply(function, first, second)  # type: ignore[no-untyped-call, no-any-return]
        return without()

    # evaluation

    def mean_of_rows(self, losses_BT: Tensor) -> Tensor:
        return losses_BT.mean(dim=1)

    def joined_in_double(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts).double()

    def mean_and_spread(self, x: Tensor) -> tuple[float, float, int]:
        """Mean and standard deviation, as numbers of the host, and of how many."""
        spread = float(x.std()) if len(x) > 1 else math.nan
        return float(x.mean()), spread, len(x)

    # written-out passes

    embedded = staticmethod(block_kernels.embedded)
    embedded_backward = staticmethod(block_kernels.embedded_backward)
    norm = staticmethod(block_kernels.norm)
    norm_backward = staticmethod(block_kernels.norm_backward)
    activated = staticmethod(block_kernels.gelu)
    activated_backward = staticmethod(block_kernels.gelu_backward)
    multiply = staticmethod(multiply)
    normed_rows = staticmethod(nanochat_kernels.normed_rows)
    normed_rows_backward = staticmethod(nanochat_kernels.normed_rows_backward)
    rms_normed = staticmethod(nanochat_kernels.rms_normed)
    rms_norm_backward = staticmethod(nanochat_kernels.rms_norm_backward)
    rotate = staticmethod(nanochat_kernels.rotate)
    rotate_backward = staticmethod(nanochat_kernels.rotate_backward)
    square_relu = staticmethod(nanochat_kernels.square_relu)
    square_relu_backward = staticmethod(nanochat_kernels.square_relu_backward)

    def separate_attention(self, qkv_NE: Tensor, *, batch: int, heads: int, trains: bool) -> SeparateAttention:
        return SeparateAttention(qkv_NE, batch=batch, heads=heads, trains=trains)


class DeviceOperations(TensorOperations):
    """What training steps ask of a device."""

    def __init__(self, device: torch.device, precision: Precision) -> None:
        self.device, self.precision = device, precision
        self.autocast = precision.autocast

    def zero(self) -> Tensor:
        """A number on the device, to add losses to."""
        return torch.zeros((), device=self.device)

    def share(self, of: int) -> Tensor:
        """1 / a number, on the device."""
        return torch.full((), 1 / of, device=self.device)

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def zero_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        zero_gradients(parameters)

    def clip_gradients(self, parameters: Iterable[Tensor], *, max_norm: float) -> Tensor:
        return clip_gradients(parameters, max_norm=max_norm)

    def figures(self, loss: Tensor, norm: Tensor) -> list[float]:
        """Loss and norm as numbers of the host: a step's one wait for the device."""
        found: list[float] = torch.stack((loss, norm.to(loss.dtype))).tolist()
        return found

    def release_memory(self) -> None:
        release_memory(self.device)

    def record_graph(self, run: MicroBatch, sequences: int, length: int) -> RecordedMicroBatch:
        x_BT, y_BT = torch.zeros(2, sequences, length, dtype=torch.long, device=self.device)
        return RecordedMicroBatch(run, x_BT, y_BT)


TORCH = TensorOperations()


# Tensors of which several ranks have some rows each (train/sharding.py): torch's DTensor, whose import takes a second.


def is_shared(x: Tensor) -> bool:
    return hasattr(x, "full_tensor")


def whole(x: Tensor, dtype: torch.dtype) -> Tensor:
    """A shared tensor gathered, in `dtype`: all ranks must ask for it. Others as they are."""
    return x.to(dtype).full_tensor() if is_shared(x) else x  # type: ignore[attr-defined]


def own_part(x: Tensor) -> Tensor:
    """Of a shared tensor, the rows that this rank has; others as they are."""
    return x.to_local() if is_shared(x) else x  # type: ignore[attr-defined]


def own_rows(x: Tensor, like: Any) -> Tensor:
    """Of a whole tensor, the rows that this rank has of a shared one."""
    if not is_shared(like):
        return x
    most = -(-len(like) // like.device_mesh.size())  # rows of a rank; the last ones may have fewer
    first = like.device_mesh.get_local_rank() * most
    return x[first : first + most]


def clip_gradients(parameters: Iterable[Tensor], *, max_norm: float) -> Tensor:
    """The norm of all gradients before clipping, still on the device; 0 as `max_norm` only measures it."""
    parameters = list(parameters)
    if max_norm > 0:
        norm = nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)
    else:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
    return whole(norm, norm.dtype)


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The type that linear layers return here: autocast's, or else x's own."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


class _TiedEmbedding(torch.autograd.Function):
    """The weight's gradient comes from the head alone, and that of the rows is added to it in place.

    With two separate gradients, autograd would make a second one of V x C, nearly all zeros, and add both.
    """

    @staticmethod
    def forward(ctx: Any, weight_VC: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(tokens_BT)
        return functional.embedding(tokens_BT, weight_VC), weight_VC.view_as(weight_VC)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_rows_BTC: Tensor, d_weight_VC: Tensor) -> tuple[Tensor, None]:
        (tokens_BT,) = ctx.saved_tensors
        if torch.are_deterministic_algorithms_enabled():  # index_add_ would wait then, which a graph cannot do
            rows_VC = torch.ops.aten.embedding_dense_backward(d_rows_BTC, tokens_BT, len(d_weight_VC), -1, False)
            return d_weight_VC.add_(rows_VC), None
        return d_weight_VC.index_add_(0, tokens_BT.flatten(), d_rows_BTC.flatten(0, 1)), None


class _NormedEmbedding(torch.autograd.Function):
    """Rows of a weight, normed; neither the rows nor their norms are kept."""

    @staticmethod
    def forward(ctx: Any, weight_VC: Tensor, tokens_BT: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(weight_VC, tokens_BT)
        return nanochat_kernels.normed_rows(tokens_BT, weight_VC, dtype).view(*tokens_BT.shape, -1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_BTC: Tensor) -> tuple[Tensor, None, None]:
        weight_VC, tokens_BT = ctx.saved_tensors
        d_weight_VC = torch.zeros_like(weight_VC)
        nanochat_kernels.normed_rows_backward(d_BTC.flatten(0, 1), tokens_BT, weight_VC, d_weight_VC)
        return d_weight_VC, None, None


class _RmsNorm(torch.autograd.Function):
    """A norm that keeps its result, which the product after it keeps anyway, and a number per row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        normed_NC, scale_N = nanochat_kernels.rms_normed(x.flatten(0, -2))
        normed = normed_NC.view_as(x)
        ctx.save_for_backward(normed, scale_N)
        return normed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_normed: Tensor) -> Tensor:
        normed, scale_N = ctx.saved_tensors
        d_x = d_normed.clone()  # the gradient it was given may also be somebody else's
        nanochat_kernels.rms_norm_backward(d_x.flatten(0, -2), normed.flatten(0, -2), scale_N, d_x_NC=None)
        return d_x


class _Rotated(torch.autograd.Function):
    """Queries and keys rotated and normed where the product has written them; their gradients likewise."""

    @staticmethod
    def forward(ctx: Any, qkv_BTE: Tensor, heads: int) -> Tensor:
        ctx.mark_dirty(qkv_BTE)
        scale_NG = nanochat_kernels.rotate(qkv_BTE.flatten(0, 1), batch=len(qkv_BTE), heads=heads)
        ctx.save_for_backward(qkv_BTE, scale_NG)
        ctx.heads = heads
        return qkv_BTE

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_BTE: Tensor) -> tuple[Tensor, None]:
        qkv_BTE, scale_NG = ctx.saved_tensors
        parts = d_BTE.flatten(0, 1).chunk(3, dim=1)[:2]  # just joined from three, so nobody else's
        nanochat_kernels.rotate_backward(parts, qkv_BTE.flatten(0, 1), scale_NG, batch=len(d_BTE), heads=ctx.heads)
        return d_BTE, None


class _ReluSquared(torch.autograd.Function):
    """ReLU² in place: its result is all that its gradient needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        nanochat_kernels.square_relu(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_x: Tensor) -> Tensor:
        (squared,) = ctx.saved_tensors
        nanochat_kernels.square_relu_backward(d_x, squared)  # made by the product after it, so nobody else's
        return d_x


class _OwnGradients(torch.autograd.Function):
    """A function of two tensors that returns a loss, its gradients, and the number they are still to be divided by."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], first: Tensor, second: Tensor) -> Tensor:
        value: Tensor
        value, d_first, d_second, count = function(
            first, second, of_hidden=first.requires_grad, of_weight=second.requires_grad
        )
        ctx.save_for_backward(d_first, d_second, count)
        ctx.dtypes = first.dtype, second.dtype
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        *gradients, count = ctx.saved_tensors
        factor = grad_output / count
        scaled = (
            None if each is None else each.mul_(factor).to(dtype)
            for each, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        d_first, d_second = scaled
        return None, d_first, d_second


class SeparateAttention:
    """Causal attention by torch's kernels, with their own backward pass and without copies."""

    def __init__(self, qkv_NE: Tensor, *, batch: int, heads: int, trains: bool) -> None:
        parts = qkv_NE.view(batch, -1, 3, heads, qkv_NE.shape[1] // (3 * heads)).unbind(2)
        self._qkv = [part_BTHD.transpose(1, 2).detach().requires_grad_(trains) for part_BTHD in parts]
        q_BHTD, k_BHTD, v_BHTD = self._qkv
        with torch.set_grad_enabled(trains):
            self._y_BHTD = functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)

    @property
    def y_NC(self) -> Tensor:
        return self._y_BHTD.detach().transpose(1, 2).flatten(2).flatten(0, 1)

    def backward(self, d_y_NC: Tensor) -> list[Tensor]:
        """The gradients of queries, keys and values, each (N, C)."""
        batch, heads, length, _ = self._y_BHTD.shape
        d_y_BHTD = d_y_NC.view(batch, length, heads, -1).transpose(1, 2)
        parts = torch.autograd.grad(self._y_BHTD, self._qkv, d_y_BHTD)
        del self._qkv, self._y_BHTD  # no longer needed
        return [part_BHTD.transpose(1, 2).flatten(2).flatten(0, 1) for part_BHTD in parts]
