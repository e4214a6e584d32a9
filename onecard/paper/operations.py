"""The operations of onecard's own trainer on paper: what train/operations.py does with torch, and its kernels.

Letters: B sequences, T tokens of a sequence, N = B·T, C channels, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from onecard.paper import attention as of_attention
from onecard.paper.autograd import run_backward
from onecard.paper.device import Device
from onecard.paper.kernels import FLOAT, LONG
from onecard.paper.library import TENSORS_PER_KERNEL, clip_grad_norm
from onecard.paper.paper import Paper
from onecard.paper.remembered import Remembered
from onecard.paper.scratch import WORKSPACE_BYTES, norm_programs
from onecard.paper.tags import (
    ACTIVATIONS,
    ATTENTION,
    GRADIENTS,
    GRADIENTS_IN_FLIGHT,
    LOGITS_AND_LOSS,
    OPTIMIZER_TEMPORARIES,
    TOKEN_IDS,
    WORKSPACE,
)
from onecard.paper.tape import DEFAULT_POOL, EMPTY_CACHE
from onecard.paper.tensor import Layer, Parameter, Shape, Storage, Tensor
from onecard.paper.work import EMBEDDINGS_WORK, HEAD, LOSS_WORK, MATMULS, MEMORY_BOUND, UPDATE

MicroBatch = Callable[[Tensor, Tensor], None]

ATOMIC_ADDITION = 2  # times as long as a read and a write: set, not measured
DOUBLE = 8  # bytes of a float64
STREAM = "capture-stream"  # the pool of the stream on which graphs are recorded


class PaperOperations(Paper):
    """Paper with the operations that models, passes and training steps are written with."""

    float32 = FLOAT

    def __init__(self, device: Device, *, half: bool, deterministic: bool) -> None:
        super().__init__(device, half=half)
        self.deterministic = deterministic
        self.recordings = 0
        self._multiplied = [(-1, -1)] * 2  # blocks of the last two products' second operands and results

    def repeated(self, items: range, *, enough: int) -> Iterator[int]:
        """Items that are treated alike: of many, the first and the last, `enough` in all; those between repeat them."""
        skipped = len(items) - enough
        if skipped <= 0:
            yield from items
            return
        yield from items[: enough - 2]
        before = self.work.so_far()
        yield items[enough - 2]
        self.work.repeat(self.work.since(before), skipped)
        yield items[-1]

    def remembered(self, function: Callable[..., Any], parameters: Sequence[Parameter] = ()) -> Remembered:
        """The function; its events are copied when it runs again on inputs of the same shapes."""
        return Remembered(self, function, parameters)

    # tensors

    def empty(self, shape: Shape, *, dtype: int, like: Tensor, part: str) -> Tensor:
        """A new tensor. `part` is what it is for."""
        return self.new(shape, dtype, part)

    def zeros(self, shape: Shape, *, dtype: int, like: Tensor, part: str) -> Tensor:
        """A new tensor of zeros."""
        out = self.new(shape, dtype, part)
        self.work.moves(LOSS_WORK, out)
        return out

    def wide_type(self, x: Tensor) -> int:
        """The type of sums: at least float32."""
        return max(x.dtype, FLOAT)

    def in_compute_type(self, x: Tensor) -> Tensor:
        """x in the type of products."""
        return self.cast(x, self.compute_dtype)

    def zeros_to_add(self, x: Tensor) -> Tensor:
        """Zeros like x, in the type of products; they get a gradient if x does."""
        zeros = self.new(x.shape, self.compute_dtype, ACTIVATIONS)
        return Parameter(zeros.storage, zeros.shape, zeros.dtype, "") if self.grad_enabled else zeros

    def copy_all(self, copies: Sequence[Tensor], originals: Sequence[Tensor]) -> None:
        """Tensors copied into others, in place."""
        self.work.moves(UPDATE, *copies, *originals, kernels=len(copies) / TENSORS_PER_KERNEL)

    # Muon's updates

    def move_towards(self, tensors: Sequence[Tensor], ends: Sequence[Tensor], share: float) -> None:
        """A share of the way to other tensors, in place."""

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
        """out = factor · a @ b + share · added, all matrices at once."""
        self.cublas()

    def normalise(self, x_nRC: Tensor, gram_nSS: Tensor, norms_n: Tensor, *, safety: float) -> None:
        """x and its Gram matrix divided by norms, in place."""

    def add_updates(self, weights: Sequence[Tensor], updates: Sequence[Tensor], *, kept: float, by: float) -> None:
        """weight = kept · weight + by · update, in place."""

    # the model

    heads, joined, attention = of_attention.heads, of_attention.joined, of_attention.attention  # as methods
    torch_gelu = Paper.gelu

    def tied_embedding(self, weight_VC: Parameter, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the weight that the head shares, and that weight for the head to use. Its gradient comes from there,
        and that of the rows is added to it in place."""
        node = self.record([weight_VC], tokens_BT)
        rows_BTC = self.new((*tokens_BT.shape, weight_VC.shape[1]), FLOAT, ACTIVATIONS)
        self.loads("embedding")
        head_VC = weight_VC.like(*weight_VC.shape)
        self.work.moves(EMBEDDINGS_WORK, rows_BTC, rows_BTC)  # read and written
        if node is not None:
            values = rows_BTC.numel

            def backward(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
                self.work.add(EMBEDDINGS_WORK, moved_bytes=3 * values * FLOAT, kernels=1)
                return [gs[1]]

            node.results, node.backward = 2, backward
            rows_BTC.node = head_VC.node = node
            head_VC.slot = 1
        return rows_BTC, head_VC

    def normed_embedding(self, tokens_BT: Tensor, layer: Layer) -> Tensor:
        """Rows of a weight, normed by the kernel that reads them."""
        weight_VC = layer.weight
        node = self.record([weight_VC], weight_VC, tokens_BT)
        out = self.new((*tokens_BT.shape, weight_VC.shape[1]), self.compute_dtype, ACTIVATIONS)
        shape, values, dtype = weight_VC.shape, out.numel, out.dtype
        self._reads_rows(values, dtype)

        def backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            gradient = self.gradient(shape, FLOAT)
            self.work.moves(EMBEDDINGS_WORK, gradient)  # zeros
            self._adds_to_rows(values, dtype)
            return [gradient]

        return self.result(node, out, backward)

    def _reads_rows(self, values: int, dtype: int) -> None:
        self.work.add(EMBEDDINGS_WORK, moved_bytes=values * (FLOAT + dtype), kernels=1)

    def _adds_to_rows(self, values: int, dtype: int) -> None:
        """The work of a kernel that reads rows and their gradients, and adds to the rows' gradients in any order."""
        moved = dtype + FLOAT + ATOMIC_ADDITION * 2 * FLOAT
        self.work.add(EMBEDDINGS_WORK, moved_bytes=values * moved, kernels=1)

    def rms_norm(self, x: Tensor) -> Tensor:
        """A norm without weights, which keeps its result and a number per row."""
        node = self.record([x])
        shape, dtype = x.shape, x.dtype
        out, scale = self.new(shape, dtype, ACTIVATIONS), self.new((x.numel // shape[-1],), FLOAT, ACTIVATIONS)
        self.save(node, out, scale)
        self.work.computes(MEMORY_BOUND, x, out)

        def backward(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            d_x = self.gradient(shape, dtype)
            self.work.computes(MEMORY_BOUND, gs[0], d_x, d_x)  # that of the output, the result, and its own
            return [d_x]

        return self.result(node, out, backward)

    def rotated(self, qkv_BTE: Tensor, heads: int, first: int = 0) -> Tensor:
        """Queries and keys rotated and normed in place; a number per head is new."""
        node = self.record([qkv_BTE])
        scale = self.rotate(qkv_BTE.like(qkv_BTE.numel // qkv_BTE.shape[-1], qkv_BTE.shape[-1]), batch=1, heads=heads)
        self.save(node, qkv_BTE, scale)

        def backward(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            self._rotates(gs[0], 3)
            return [gs[0]]

        return self.result(node, qkv_BTE.detach(), backward)

    def relu_squared(self, x: Tensor) -> Tensor:
        """ReLU² in place, forward and backward."""
        node = self.record([x])
        self.save(node, x)
        self.square_relu(x)

        def backward(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            self.square_relu_backward(gs[0], gs[0])
            return [gs[0]]

        return self.result(node, x.detach(), backward)

    # the loss

    def logits(self, hidden_nC: Tensor, weight_VC: Tensor) -> Tensor:
        """hidden @ weight.t()."""
        out = self.new((len(hidden_nC), len(weight_VC)), hidden_nC.dtype, LOGITS_AND_LOSS)
        self.work.multiplies(HEAD, hidden_nC.shape, len(weight_VC), out.dtype)
        self.cublas()
        return out

    def product_into(self, out: Tensor, a: Tensor, b: Tensor) -> None:
        """out = a @ b."""
        self.work.multiplies(HEAD, a.shape, b.shape[1], out.dtype)

    def add_product(self, total: Tensor, a: Tensor, b: Tensor) -> None:
        """total += a @ b."""
        self.work.multiplies(HEAD, a.shape, b.shape[1], b.dtype, result=2 * total.dtype)

    def write_losses(
        self,
        logits_nV: Tensor,
        targets_n: Tensor,
        losses_n: Tensor,
        *,
        gradient: bool,
        soft_cap: float | None = None,
    ) -> None:
        """The losses of logits, which become their own gradient: one kernel, in place."""
        times = 2 if gradient else 1
        self.work.computes(LOSS_WORK, *[logits_nV] * times)
        if soft_cap:  # an exponential more for each
            self.work.add(LOSS_WORK, values=times * logits_nV.numel)

    def soft_capped(self, logits: Tensor, soft_cap: float) -> Tensor:
        """soft_cap · tanh(logits / soft_cap) in float32."""
        out = self.new(logits.shape, FLOAT, LOGITS_AND_LOSS)
        self.work.computes(LOSS_WORK, logits, out)
        return out

    def counted(self, targets_N: Tensor) -> Tensor:
        """How many targets count: (targets != -1).sum()."""
        is_counted = self.new(targets_N.shape, 1, LOGITS_AND_LOSS)
        count = self.new((), LONG, LOGITS_AND_LOSS)
        self.scratch(targets_N.numel * LONG)  # as int64, for the sum
        del is_counted
        self.work.add(LOSS_WORK, kernels=3)
        return count

    def with_own_gradients(
        self, function: Callable[..., Any], without: Callable[[], Tensor], first: Tensor, second: Tensor
    ) -> Tensor:
        """torch.autograd.Function whose forward pass makes its own gradients, and whose backward pass scales them."""
        if not self.grad_enabled:
            return without()
        node = self.record([first, second])
        with self.no_grad():
            loss, d_first, d_second, count = function(first, second, of_hidden=True, of_weight=True)
        gradients: list[Tensor] = [d_first, d_second]
        self.save(node, *gradients, count)
        del d_first, d_second, count

        def backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            self.gradient((), FLOAT)  # the factor
            self.work.moves(LOSS_WORK, *gradients, *gradients, kernels=2)
            return gradients

        return self.result(node, loss, backward)

    # written-out passes

    def embedded(self, tokens_BT: Tensor, of_tokens_VC: Tensor, of_positions_TC: Tensor, dtype: int) -> Tensor:
        """The sum of both embeddings x_NC."""
        out = self.new((tokens_BT.numel, of_tokens_VC.shape[1]), dtype, ACTIVATIONS)
        self.work.add(EMBEDDINGS_WORK, moved_bytes=out.numel * (FLOAT + dtype), kernels=1)
        return out

    def embedded_backward(self, d_NC: Tensor, tokens_BT: Tensor, d_of_tokens: Tensor, d_of_positions: Tensor) -> None:
        """Add to the gradients of both embeddings: one kernel each, which adds in any order."""
        if not self.deterministic:
            values = 2 * d_NC.numel  # for either embedding: read, and added to what is there
            moved = d_NC.dtype + ATOMIC_ADDITION * 2 * FLOAT
            self.work.add(EMBEDDINGS_WORK, moved_bytes=values * moved, kernels=2)
            return
        (N, C), (V, _) = d_NC.shape, d_of_tokens.shape
        wide_NC = self.gradient((N, C), FLOAT)
        self.summed(wide_NC, (tokens_BT.shape[1], C))
        self.embedding_gradient(N, V, C)

    def norm(self, x_NC: Tensor, weight_C: Tensor) -> Tensor:
        """LayerNorm of the rows, in x's type."""
        out = self.new(x_NC.shape, x_NC.dtype, ACTIVATIONS)
        self.work.computes(MEMORY_BOUND, x_NC, out)
        return out

    def norm_backward(
        self,
        d_normed_NC: Tensor,
        x_NC: Tensor,
        weight_C: Tensor,
        d_weight_C: Tensor,
        *,
        d_x_NC: Tensor | None,
        factor: Tensor | None = None,
        again: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The gradient of x, in the memory of one that is there; partial sums of the weight's."""
        normed_NC = self.new(x_NC.shape, x_NC.dtype, ACTIVATIONS) if again else None
        others = [part for part in (d_x_NC, normed_NC) if part is not None]
        # d_normed and x are read, a gradient of x is written; the second kernel sums the weight's gradients.
        self.work.computes(MEMORY_BOUND, d_normed_NC, x_NC, x_NC, *others, kernels=2)
        del others
        rows, channels = x_NC.shape
        self.scratch(norm_programs(rows, channels, self.device.multiprocessors) * channels * FLOAT)
        return d_normed_NC if d_x_NC is None else d_x_NC, normed_NC

    def activated(self, x: Tensor) -> Tensor:
        """GELU."""
        out = self.new(x.shape, x.dtype, ACTIVATIONS)
        self.work.computes(MEMORY_BOUND, x, out)
        return out

    def activated_backward(self, d_value: Tensor, x: Tensor, *, again: bool = False) -> Tensor | None:
        """`d_value` becomes the gradient of x; with `again` GELU is also computed again and returned."""
        value = self.new(x.shape, x.dtype, ACTIVATIONS) if again else None
        self.work.computes(MEMORY_BOUND, d_value, x, d_value, *([] if value is None else [value]))
        return value

    def rms_normed(self, x_NC: Tensor) -> tuple[Tensor, Tensor]:
        """A norm without weights, and the factor of each row."""
        return self.norm(x_NC, x_NC), self.new((len(x_NC),), FLOAT, ACTIVATIONS)

    def rms_norm_backward(
        self,
        d_normed_NC: Tensor,
        normed_NC: Tensor,
        scale_N: Tensor,
        *,
        d_x_NC: Tensor | None,
        factor: Tensor | None = None,
    ) -> Tensor:
        """The gradient of x, in the memory of one that is there."""
        others = [] if d_x_NC is None else [d_x_NC]
        self.work.computes(MEMORY_BOUND, d_normed_NC, normed_NC, normed_NC, *others)  # the second is as large as d_x
        del others
        return d_normed_NC if d_x_NC is None else d_x_NC

    def rotate(self, qkv_NE: Tensor, *, batch: int, heads: int, first: int = 0) -> Tensor:
        """Queries and keys rotated and normed in place; the factor of each head."""
        self._rotates(qkv_NE, 2)
        return self.new((len(qkv_NE), 2 * heads), FLOAT, ATTENTION)

    def _rotates(self, qkv: Tensor, times: int) -> None:
        """The work of a kernel that reads or writes the queries and keys of a tensor so many times."""
        values = times * qkv.numel * 2 // 3
        self.work.add(MEMORY_BOUND, values=values, moved_bytes=values * qkv.dtype, kernels=1)

    def rotate_backward(
        self, d_qk: Sequence[Tensor], qkv_NE: Tensor, scale_NG: Tensor, *, batch: int, heads: int
    ) -> None:
        """Their gradients, in place."""
        self._rotates(qkv_NE, 3)  # queries and keys are read, their gradients read and written

    def square_relu(self, x: Tensor) -> None:
        """ReLU², in place."""
        self.work.computes(MEMORY_BOUND, x, x)

    def square_relu_backward(self, d_value: Tensor, value: Tensor) -> None:
        """Its gradient, in place."""
        self.work.computes(MEMORY_BOUND, d_value, value, d_value)

    def normed_rows(self, tokens_BT: Tensor, weight_VC: Tensor, dtype: int) -> Tensor:
        """The tokens' rows of a weight, normed."""
        out = self.new((tokens_BT.numel, weight_VC.shape[1]), dtype, ACTIVATIONS)
        self._reads_rows(out.numel, dtype)
        return out

    def normed_rows_backward(self, d_NC: Tensor, tokens_BT: Tensor, weight_VC: Tensor, d_weight_VC: Tensor) -> None:
        """Add to the gradient of the weight: one kernel, which adds in any order."""
        self._adds_to_rows(d_NC.numel, d_NC.dtype)

    def multiply(
        self,
        a_MK: Tensor,
        b_KN: Tensor,
        out_MN: Tensor,
        *,
        added_MN: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> None:
        """out = factor · a @ b + added. The first product of a process makes the workspace."""
        self._multiplies(a_MK, b_KN, out_MN, is_scaled=factor is not None)
        if self.first_use("products"):
            self.hold(WORKSPACE_BYTES)
        if factor is not None and self.first_use("scaled products"):  # the numbers used to time them
            self.hold(FLOAT)
            self.hold(FLOAT)

    def _multiplies(self, a: Tensor, b: Tensor, out: Tensor, *, is_scaled: bool) -> None:
        """The work of a product. Bytes are counted as the rates were fitted, which is nanoGPT's way.

        The head's gradient, which is scaled, is read and written in float32; others are written once in the type of
        their operands. The parts for queries, keys and values count as one product: what it reads or writes is moved
        once.
        """
        if LOGITS_AND_LOSS in (a.storage.tag, out.storage.tag):
            self.work.multiplies(HEAD, a.shape, b.shape[1], a.dtype, result=2 * out.dtype if is_scaled else 0)
            self._multiplied = [(-1, -1)] * 2
            return
        self.work.multiplies(MATMULS, a.shape, b.shape[1], a.dtype)
        now, earlier = (b.storage.block, out.storage.block), zip(*self._multiplied, strict=True)
        self._multiplied = [self._multiplied[1], now]
        for tensor, block, before in zip((b, out), now, earlier, strict=True):
            if block in before and self.tape.sizes[block] == tensor.numel * tensor.dtype:  # not only some rows of it
                self.work.add(MATMULS, moved_bytes=-tensor.numel * a.dtype)

    def separate_attention(self, qkv_NE: Tensor, *, batch: int, heads: int, trains: bool) -> SeparateAttention:
        """Attention with its own backward pass."""
        return SeparateAttention(self, qkv_NE, batch=batch, heads=heads, trains=trains)

    # training steps

    def zero(self) -> Tensor:
        """A number on the card, to add losses to."""
        return self.new((), FLOAT, LOGITS_AND_LOSS)

    def set_to_zero(self, x: Tensor) -> None:
        """x = 0, in place."""

    def share(self, _of: int) -> Tensor:
        """1 / a number, on the card."""
        return self.new((), FLOAT, GRADIENTS_IN_FLIGHT)

    def clip_gradients(self, parameters: Sequence[Parameter], *, max_norm: float) -> Tensor:
        """The norm of all gradients before clipping."""
        return clip_grad_norm(self, parameters, max_norm)

    def figures(self, loss: Tensor, norm: Tensor) -> Any:
        """Loss and norm in one tensor, so that the host waits once."""
        self.tape.temporary(2 * FLOAT, OPTIMIZER_TEMPORARIES)

    def batch(self, sequences: int, length: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets on the card."""
        x_BT, y_BT = (self.new((sequences, length), LONG, TOKEN_IDS) for _ in "xy")
        return x_BT, y_BT

    def zero_gradients(self, parameters: Sequence[Parameter]) -> None:
        """Gradients of zero, in the memory they have or in new memory."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = self.new(parameter.shape, FLOAT, GRADIENTS)
        self.work.moves(UPDATE, *parameters, kernels=len(parameters) / TENSORS_PER_KERNEL)

    def release_memory(self) -> None:
        """torch.cuda.empty_cache()."""
        self.tape.order(EMPTY_CACHE)

    def record_graph(self, run: MicroBatch, sequences: int, length: int) -> RecordedOnPaper:
        """A micro-batch, recorded as a CUDA graph on a batch of zeros."""
        zeros = self.new((2, sequences, length), LONG, TOKEN_IDS)
        recorded = RecordedOnPaper(self, run, sequences, length)
        del zeros
        return recorded

    # evaluation

    def mean_of_rows(self, losses_BT: Tensor) -> Tensor:
        """The mean of each row."""
        return self.new(losses_BT.shape[:1], FLOAT, LOGITS_AND_LOSS)

    def joined_in_double(self, parts: Sequence[Tensor]) -> Tensor:
        """Tensors one after the other, in float64."""
        total = sum(prod(part.shape) for part in parts)
        joined = self.new((total,), FLOAT, LOGITS_AND_LOSS)
        wide = self.new((total,), DOUBLE, LOGITS_AND_LOSS)
        del joined
        return wide

    def mean_and_spread(self, x: Tensor) -> Any:
        """Mean and standard deviation, as numbers of the host."""
        self.tape.temporary(DOUBLE, LOGITS_AND_LOSS)
        self.tape.temporary(DOUBLE, LOGITS_AND_LOSS)


class SeparateAttention:
    """Attention by torch's kernels, with its own backward pass: the written-out passes hold its graph themselves."""

    def __init__(self, paper: Paper, qkv_NE: Tensor, *, batch: int, heads: int, trains: bool) -> None:
        self.paper = paper
        (N, E), dtype = qkv_NE.shape, qkv_NE.dtype
        self._shape = batch, N // batch, heads, E // (3 * heads)
        self._qkv = [Parameter(qkv_NE.storage, self._shape, dtype, "") for _ in range(3)]
        before, paper.grad_enabled = paper.grad_enabled, trains
        q, k, v = self._qkv
        self._y = of_attention.attention(paper, q, k, v, 0.0)
        del q, k, v
        paper.grad_enabled = before

    @property
    def y_NC(self) -> Tensor:
        """The result; a copy if its heads are padded."""
        y = self._y.like(*self._shape)
        y.cut = self._y.cut
        return of_attention.joined(self.paper, y).flatten(0, 1)

    def backward(self, d_y_NC: Tensor) -> list[Tensor]:
        """The gradients of queries, keys and values, each (N, C)."""
        run_backward(self.paper, self._y, d_y_NC.like(*self._shape))
        parts = [part.grad for part in self._qkv]
        del self._qkv, self._y
        return [of_attention.joined(self.paper, part).flatten(0, 1) for part in parts if part is not None]


class RecordedOnPaper:
    """A recorded micro-batch. Its memory has a pool of its own, which is held for as long as the graph lives."""

    def __init__(
        self, paper: PaperOperations, run: Callable[[Tensor, Tensor], None], sequences: int, length: int
    ) -> None:
        self.paper, tape = paper, paper.tape
        self._batch = paper.batch(sequences, length)
        tape.order(f"pool {STREAM}")
        self._random = [paper.new((), LONG, WORKSPACE) for _ in ("seed", "offset")]
        paper.recordings += 1
        self._pool = f"graph-{paper.recordings}"  # each recording has its own
        tape.order(f"pool {self._pool}")
        for pool in (self._pool, DEFAULT_POOL):  # while a graph is recorded, nothing goes back to the driver
            tape.order(f"hold {pool}")
        paper.captures = True
        run(*self._batch)
        paper.captures = False
        tape.order(f"pool {DEFAULT_POOL}")
        tape.order(f"let go {DEFAULT_POOL}")

    def __call__(self, x_BT: Tensor, y_BT: Tensor) -> None:
        """Run as recorded: no memory is taken."""

    def __del__(self) -> None:
        if not self.paper.tape.finished:
            self.paper.tape.order(f"let go {self._pool}")
