"""PyTorch's operations on paper: what each allocates, keeps for its backward pass, and allocates on the way back.

Operations have the names and the order of torch's own, under autocast where it is on. A result is new memory; a view is
the same memory in another shape. Letters: B sequences, T tokens, C channels, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from math import prod
from typing import TypeVar

from onecard.paper import kernels
from onecard.paper.autograd import AllRemade, Node, Recomputation, run_backward
from onecard.paper.device import DRIVER_BYTES, Device
from onecard.paper.kernels import FLOAT, LONG
from onecard.paper.tags import (
    ACTIVATIONS,
    GRADIENTS_IN_FLIGHT,
    LOGITS_AND_LOSS,
    TOKEN_IDS,
    WEIGHT_CASTS,
    WEIGHTS,
    WORKSPACE,
    Section,
)
from onecard.paper.tape import Tape
from onecard.paper.tensor import Layer, Parameter, Shape, Storage, Tensor
from onecard.paper.work import DROPOUT, EMBEDDINGS_WORK, HEAD, LOSS_WORK, MATMULS, MEMORY_BOUND, Ledger

T = TypeVar("T")


class Paper:
    """A card without numbers, and PyTorch's state on it: grad mode, autocast and its cache, libraries in use."""

    def __init__(self, device: Device, *, half: bool) -> None:
        self.tape = Tape()
        self.work = Ledger()
        self.device = device
        self.half = half
        self.compute_dtype = 2 if half else FLOAT  # of matrix products
        self.grad_enabled = True
        self.autocasts = False
        self.in_backward = False  # the backward pass has a thread of its own, with its own cuBLAS handle
        self.captures = False  # a CUDA graph is being recorded
        self._casts: dict[str, Tensor] = {}  # autocast's cache
        self._part: Recomputation | None = None  # that is running
        self._section: Section | None = None
        self._order = count()
        self._used: set[str] = set()  # libraries and kernels used before
        self._held: list[Storage] = []  # what stays as long as the process

    # memory

    def new(self, shape: Shape, dtype: int, tag: str) -> Tensor:
        """A new tensor."""
        return Tensor(Storage(self, self.tape.alloc(prod(shape) * dtype, tag), tag), shape, dtype)

    def gradient(self, shape: Shape, dtype: int, tag: str = GRADIENTS_IN_FLIGHT) -> Tensor:
        """A new tensor of a backward pass."""
        return self.new(shape, dtype, tag)

    def scratch(self, *sizes_bytes: int) -> None:
        """Memory that a kernel has only while it runs."""
        blocks = [self.tape.alloc(size, WORKSPACE) for size in sizes_bytes]
        self.tape.free(*reversed(blocks))

    def hold(self, size_bytes: int, tag: str = WORKSPACE) -> None:
        """Memory that stays as long as the process."""
        self._held.append(Storage(self, self.tape.alloc(size_bytes, tag), tag))

    def parameter(self, name: str, *shape: int) -> Parameter:
        """A weight, in float32."""
        return Parameter(Storage(self, self.tape.alloc(prod(shape) * FLOAT, WEIGHTS), WEIGHTS), shape, FLOAT, name)

    def starts(self) -> None:
        """A process starts: whatever creates the context gives the small pool its first segment."""
        self.tape.phase("init")
        self.tape.moment("loading the weights")
        self.scratch(FLOAT)

    def loads(self, what: str) -> None:
        """The first use of a kernel or library: the driver makes room for its code."""
        if self.first_use(what):
            self.tape.driver_takes(*DRIVER_BYTES[what])

    @property
    def uses(self) -> int:
        """How many libraries and kernels have been used."""
        return len(self._used)

    def first_use(self, what: str) -> bool:
        """Whether something is used for the first time; from now on it is not."""
        if what in self._used:
            return False
        self._used.add(what)
        return True

    def cublas(self, *, with_lt: bool = False) -> None:
        """A thread's first matrix product makes a handle and its workspace; cuBLASLt, used for a bias, has its own.

        The stream on which a graph is recorded has its own workspaces, which outlive the graph.
        """
        thread = "backward" if self.in_backward else "forward"
        if self.captures:
            thread = f"recorded {thread}"
        elif f"cublas {thread}" not in self._used:
            self.tape.driver_takes(*DRIVER_BYTES[f"cublas {thread}"])
        if self.first_use(f"cublas {thread}"):
            self.hold(self.device.cublas_workspace_bytes)
        if with_lt and self.first_use(f"cublaslt {thread}"):
            self.hold(self.device.cublaslt_workspace_bytes)

    # modes

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """`with torch.autocast`, if products run in half precision; its cache of casts ends with it."""
        self.autocasts = self.half
        try:
            yield
        finally:
            self.autocasts = False
            self._casts.clear()

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """`with torch.no_grad()`."""
        before, self.grad_enabled = self.grad_enabled, False
        try:
            yield
        finally:
            self.grad_enabled = before

    def moment(self, what: str) -> None:
        """What follows happens during `what`."""
        self.tape.moment(what)

    def section(self, section: Section) -> None:
        """The forward pass comes to a section of the model."""
        self._section = section
        self.tape.moment(section.forward)

    def backward(self, loss: Tensor) -> None:
        """`loss.backward()`."""
        ones = self.gradient(loss.shape, loss.dtype)
        self.in_backward = True
        with self.no_grad():
            run_backward(self, loss, ones.detach())
        self.in_backward = False
        self._section = None

    def enter_backward(self, section: Section | None) -> None:
        """The backward pass comes to an operation of a section."""
        if section is not None and section is not self._section:
            self.tape.moment(section.backward)
        self._section = section or self._section

    def recomputed(
        self, part: Callable[[Tensor], T], x: Tensor, *, random: bool = False, keep_products: bool = False
    ) -> T:
        """`torch.utils.checkpoint`: part(x), whose inner tensors are made again in the backward pass.

        Eager mode never comes to the product in which a part ends, so `keep_products` is nothing to do; nor is keeping
        the state of the random numbers, which is on the host.
        """
        if not self.grad_enabled:
            return part(x)
        self._part = Recomputation(lambda: part(x))
        try:
            return part(x)
        finally:
            self._part = None

    def run_again(self, part: Recomputation, again: Callable[[], object]) -> None:
        """Run a part for the second time, within the backward pass."""
        self._part, self.grad_enabled = part, True
        with self.autocast(), suppress(AllRemade):
            again()
        self._part, self.grad_enabled = None, False

    # the graph

    def record(self, inputs: Sequence[Tensor | None], *saved: Tensor) -> Node | None:
        """An operation begins: its node, with those of its inputs that it keeps; None where no graph is recorded."""
        if not self.grad_enabled or not any(tensor is not None and tensor.edge for tensor in inputs):
            return None
        node = Node(next(self._order), inputs, self._section)
        self.save(node, *saved)
        return node

    def save(self, node: Node | None, *tensors: Tensor) -> None:
        """Keep tensors for the backward pass, or only remember them if they are made again."""
        if node is not None:
            part = self._part
            node.saved += [part.keep(tensor.storage) if part else tensor.storage for tensor in tensors]

    def result(self, node: Node | None, out: Tensor, backward: Callable[..., Sequence[Tensor | None]]) -> Tensor:
        """An operation's result, with its place in the graph. `backward` gets lists: gradients, and what was kept."""
        if node is not None:
            out.node, node.backward = node, backward
        return out

    # operations

    def view(self, x: Tensor, shape: Shape) -> Tensor:
        """The same memory in another shape."""
        out = x.like(*shape)
        out.node, out.slot = x.node, x.slot
        return out

    def cast(self, x: Tensor, dtype: int) -> Tensor:
        """x in another type."""
        if x.dtype == dtype:
            return x
        before, is_logits = x.dtype, x.storage.tag == LOGITS_AND_LOSS
        tag = LOGITS_AND_LOSS if is_logits else WEIGHT_CASTS if x.storage.tag == WEIGHTS else ACTIVATIONS
        of_gradient = LOGITS_AND_LOSS if is_logits else GRADIENTS_IN_FLIGHT
        node = self.record([x])
        out = self.new(x.shape, dtype, tag)
        part = LOSS_WORK if is_logits else MEMORY_BOUND
        self.work.moves(part, x, out)

        def backward(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            gradient = self.gradient(gs[0].shape, before, of_gradient)
            self.work.moves(part, gs[0], gradient)
            return [gradient]

        return self.result(node, out, backward)

    def cast_once(self, parameter: Parameter) -> Tensor:
        """A parameter as autocast casts it: once, until the context ends."""
        if parameter.name not in self._casts:
            self._casts[parameter.name] = self.cast(parameter, self.compute_dtype)
        return self._casts[parameter.name]

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b; the shorter one is repeated."""
        node = self.record([a, b])
        shape = a.shape if a.numel >= b.numel else b.shape
        out = self.new(shape, max(a.dtype, b.dtype), ACTIVATIONS)
        self.work.moves(MEMORY_BOUND, a, b, out)
        return self.result(node, out, lambda gs, _: [gs[0], gs[0].detach()])

    def summed(self, x: Tensor, shape: Shape, tag: str = GRADIENTS_IN_FLIGHT) -> Tensor:
        """The sum over the leading dimensions, and the buffers of a reduction in two passes."""
        out = self.new(shape, x.dtype, tag)
        columns = prod(shape)
        if buffers := kernels.column_sum_buffers(self.device, x.numel // columns, columns):
            self.scratch(*buffers)
        self.work.moves(MEMORY_BOUND, x, out)
        return out

    def divided(self, x: Tensor, _by: object) -> Tensor:
        """x / a number."""
        node = self.record([x])
        out = self.new(x.shape, FLOAT, x.storage.tag)
        self.work.moves(LOSS_WORK, x, out, kernels=1 if node is None else 2)  # both ways
        return self.result(node, out, lambda gs, _: [self.gradient(gs[0].shape, FLOAT)])

    def linear(self, x: Tensor, layer: Layer) -> Tensor:
        """F.linear. Autocast casts from the last argument to the first."""
        weight: Tensor = layer.weight
        bias: Tensor | None = layer.bias
        given = x  # what is given stays until the product is made
        if self.autocasts:
            bias = layer.bias and self.cast_once(layer.bias)
            weight = self.cast_once(layer.weight)
            x = self.cast(given, self.compute_dtype)
        (outs, ins), shape, dtype = weight.shape, x.shape, x.dtype
        part, tokens = HEAD if layer.part == LOGITS_AND_LOSS else MATMULS, prod(shape[:-1])

        def multiply_backward() -> None:
            self.work.multiplies(part, (tokens, outs), ins, dtype)
            self.work.multiplies(part, (outs, tokens), ins, dtype)

        if bias is None:
            node = self.record([weight, x], weight, x)
            out = self.new((*shape[:-1], outs), dtype, layer.part)
            self.work.multiplies(part, (tokens, ins), outs, dtype)
            self.cublas()

            def backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
                d_weight = self.gradient((outs, ins), dtype)
                d_weight.transposed = True
                self.cublas()
                multiply_backward()
                return [d_weight, self.gradient(shape, dtype)]

            return self.result(node, out, backward)
        node = self.record([x, weight, bias], x, weight)
        out = self.new((*shape[:-1], outs), dtype, layer.part)
        self.work.multiplies(part, (tokens, ins), outs, dtype)
        self.cublas(with_lt=True)

        def backward_with_bias(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            d_x = self.gradient(shape, dtype)
            self.cublas()
            multiply_backward()
            return [d_x, self.gradient((outs, ins), dtype), gs[0]]  # the engine sums the bias's

        return self.result(node, out, backward_with_bias)

    def layer_norm(self, x: Tensor, layer: Layer) -> Tensor:
        """F.layer_norm, always in float32."""
        if self.autocasts:
            x = self.cast(x, FLOAT)
        shape, channels = x.shape, x.shape[-1]
        affine = [part for part in (layer.weight, layer.bias) if part is not None]
        node = self.record([x, *affine], x)
        out = self.new(shape, FLOAT, ACTIVATIONS)
        mean, rstd = (self.new(shape[:-1], FLOAT, ACTIVATIONS) for _ in range(2))
        self.save(node, mean, rstd)
        self.work.computes(MEMORY_BOUND, x, out)

        def backward(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            d_x = self.gradient(shape, FLOAT)
            of_out = gs[0]  # read, like x, for the gradient of x, and again for those of weight and bias
            self.work.computes(MEMORY_BOUND, of_out, d_x, d_x, of_out, d_x, kernels=2)
            del of_out
            of_affine = [self.gradient((channels,), FLOAT) for _ in affine]
            rows = kernels.norm_partial_rows(self.device, prod(shape[:-1]), channels)
            if rows:  # a first pass over parts of the tokens, whose sums replace the gradients
                partial = [self.new((rows, channels), FLOAT, WORKSPACE) for _ in affine]
                for index, part in enumerate(partial):
                    of_affine[index] = self.summed(part, (channels,))
            return [d_x, *of_affine]

        return self.result(node, out, backward)

    def gelu(self, x: Tensor) -> Tensor:
        """F.gelu."""
        node = self.record([x], x)
        shape, dtype = x.shape, x.dtype
        out = self.new(shape, dtype, ACTIVATIONS)
        self.work.computes(MEMORY_BOUND, x, out)

        def backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            d_x = self.gradient(shape, dtype)
            self.work.computes(MEMORY_BOUND, d_x, d_x, d_x)  # that of the output, x, and its own
            return [d_x]

        return self.result(node, out, backward)

    def dropout(self, x: Tensor, p: float, training: bool) -> Tensor:
        """F.dropout: CUDA makes the mask first."""
        if not p or not training:
            return x
        node = self.record([x])
        shape, dtype = x.shape, x.dtype
        mask = self.new(shape, 1, ACTIVATIONS)
        out = self.new(shape, dtype, ACTIVATIONS)
        self.save(node, mask)
        moved = out.numel * (1 + 2 * dtype)
        self.work.add(DROPOUT, values=out.numel)
        self.work.add(MEMORY_BOUND, moved_bytes=moved, kernels=1)

        def backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            d_x = self.gradient(shape, dtype)
            # The mask is cast, scaled and multiplied, each by a kernel.
            self.work.add(MEMORY_BOUND, moved_bytes=d_x.numel * (1 + 6 * dtype), kernels=3)
            return [d_x]

        return self.result(node, out, backward)

    def thirds(self, x: Tensor) -> list[Tensor]:
        """The three views of a tensor's last dimension; their gradients are joined in a new tensor."""
        *outer, channels = x.shape
        parts = [x.like(*outer, channels // 3) for _ in range(3)]
        node, shape, dtype = self.record([x]), x.shape, x.dtype
        if node is not None:

            def backward(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
                joined = self.gradient(shape, dtype)
                self.work.moves(MEMORY_BOUND, *gs, joined)
                return [joined]

            node.results, node.backward = 3, backward
            for slot, part in enumerate(parts):
                part.node, part.slot = node, slot
        return parts

    def positions(self, tokens: Tensor) -> Tensor:
        """torch.arange: the positions of a sequence's tokens."""
        self.work.add(MEMORY_BOUND, kernels=1)
        return self.new((tokens.shape[1],), LONG, TOKEN_IDS)

    def embedding(self, ids: Tensor, layer: Layer) -> Tensor:
        """F.embedding."""
        weight = layer.weight
        node = self.record([weight], ids)
        indices, rows = ids.numel, weight.shape[0]
        out = self.new((*ids.shape, weight.shape[1]), FLOAT, ACTIVATIONS)
        self.loads("embedding")
        self.work.moves(EMBEDDINGS_WORK, out, out)  # its rows are read, and written
        return self.result(node, out, lambda gs, _: [self.embedding_gradient(indices, rows, gs[0].shape[-1])])

    def embedding_gradient(self, indices: int, rows: int, channels: int) -> Tensor:
        """embedding_dense_backward: zeros of the weight's shape, and buffers for sorting if there are many indices."""
        moved = (rows + 3 * indices) * channels * FLOAT  # zeros; read, added to
        self.work.add(EMBEDDINGS_WORK, moved_bytes=moved, kernels=2)
        if indices <= kernels.EMBEDDING_SORT_FROM:
            return self.gradient((rows, channels), FLOAT)

        def scratch(elements: int) -> Tensor:
            return self.new((elements,), LONG, WORKSPACE)

        segments, partials = min(indices, rows), kernels.embedding_partial_rows(indices, rows)
        by_index = [scratch(indices) for _ in ("sorted", "original")]
        counting = scratch(indices)
        self.scratch(kernels.sort_scratch(indices))
        del counting
        out = self.gradient((rows, channels), FLOAT)
        offsets, how_many = scratch(indices), scratch(1)
        unique = scratch(indices)
        self.scratch(kernels.scan_scratch(indices, kernels.UNIQUE_TILE))
        del unique
        per_segment = [scratch(segments) for _ in ("partials", "their offsets")]
        self.scratch(kernels.scan_scratch(segments, kernels.SCAN_TILE))
        of_partials = [scratch(1), scratch(partials)]  # how many, where each begins
        if kernels.embedding_adds_atomically(self.device, indices, rows, channels):
            of_partials.append(scratch(partials))  # the segment of each partial sum
        else:
            of_partials.append(self.new((partials, channels), FLOAT, WORKSPACE))
        del of_partials, per_segment, how_many, offsets, by_index
        return out

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """F.cross_entropy under autocast: log_softmax in the logits' type, nll_loss in float32, which holds both."""
        shape, dtype = logits.shape, logits.dtype
        node = self.record([logits])
        log_softmax = self.new(shape, dtype, LOGITS_AND_LOSS)
        self.save(node, log_softmax)
        logits_read = 2 * logits.numel  # by either of the two kernels of softmax, for the sum and for the result
        self.work.add(LOSS_WORK, values=logits_read, moved_bytes=1.5 * dtype * logits_read, kernels=1)

        def softmax_backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            self.work.add(LOSS_WORK, values=logits_read, moved_bytes=2.5 * dtype * logits_read, kernels=1)
            return [self.gradient(shape, dtype, LOGITS_AND_LOSS)]

        self.result(node, log_softmax, softmax_backward)
        wide = self.cast(log_softmax, FLOAT)
        node = self.record([wide], wide, targets)
        loss, total_weight = (self.new((), FLOAT, LOGITS_AND_LOSS) for _ in range(2))
        self.save(node, total_weight)
        self.work.add(LOSS_WORK, kernels=1)

        def loss_backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            gradient = self.gradient(shape, FLOAT, LOGITS_AND_LOSS)
            self.work.add(LOSS_WORK, moved_bytes=gradient.numel * FLOAT, kernels=2)  # zeros, and one value a token
            return [gradient]

        return self.result(node, loss, loss_backward)
