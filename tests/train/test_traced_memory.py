"""The eager tape against PyTorch itself: a GPT run on fake tensors allocates and frees the same, event by event.

The models are our own restatement of GPT-2 as nanoGPT writes it, and the one that onecard trains. They run on fake CPU
tensors: no data, no GPU. What the CPU does otherwise than CUDA is replaced (`cuda_*` below), and what a fake run cannot
show is left out of both sides:

- scratch that kernels allocate for themselves (tag "workspace"): recorded traces cover it (tests/golden);
- the sum of two gradients: the engine adds into a gradient it alone holds (InputBuffer::accumulate), but never into a
  fake tensor. The trace counts such a sum as the first summand's block living on. In float32 the tied weight's first
  summand is a transposed view, which the engine does not add into either: there the sum is a new block in both.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.models.gpt2 import GPT2  # noqa: E402
from onecard.models.nanochat import Nanochat  # noqa: E402
from onecard.models.nanogpt import eager_tape  # noqa: E402
from onecard.paper.device import Device  # noqa: E402
from onecard.paper.tags import OPTIMIZER_STATE, WORKSPACE  # noqa: E402
from onecard.paper.tape import Tape  # noqa: E402
from onecard.plan.memory.onecard.tape import onecard_tape  # noqa: E402
from onecard.train import nanochat_kernels  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.operations import TensorOperations  # noqa: E402
from onecard.train.recorded_micro_batch import zero_gradients  # noqa: E402

RTX_4070 = Device(capability=(8, 9), multiprocessors=46)  # flash attention: the one with a fake CPU kernel
aten = torch.ops.aten

Event = tuple[str, int, int]  # "alloc" or "free", block number, bytes


class Trace(TorchDispatchMode):
    """Every storage as a block: allocated when an operation first returns it, freed when Python lets go of it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.blocks: dict[int, int] = {}  # storage -> block
        self.sizes: list[int] = []
        self.replaced: set[int] = set()  # storages whose block lives on in a sum
        self.in_backward = False
        self.tied_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        tensors = [t for t in (out if isinstance(out, tuple | list) else (out,)) if isinstance(t, torch.Tensor)]
        if name == "aten::native_dropout":
            tensors.reverse()  # CUDA makes the mask first (Dropout.cu, dropout_cuda)
        if name == "aten::_scaled_dot_product_efficient_attention":
            tensors = tensors[:2]  # seed and offset are CPU tensors with CUDA
        if name == "aten::_scaled_dot_product_flash_attention" and args[3] > 0:
            tensors[2:4] = tensors[
                3:1:-1
            ]  # with dropout CUDA makes the generator's state anew (flash_api.cpp, mha_fwd)
        # the engine adds gradients without grad mode; what is remade in a backward pass is added with it
        is_sum_of_gradients = self.in_backward and name == "aten::add" and not torch.is_grad_enabled()
        if is_sum_of_gradients and self.adds_in_place(*args[:2]):
            old, new = (t.untyped_storage()._cdata for t in (args[0], out))
            self.replaced.add(old)
            self.watch(out, self.blocks[old])
            assert new != old
        for tensor in tensors:
            self.track(tensor)
        return out

    def adds_in_place(self, first: Any, second: Any) -> bool:
        both = all(isinstance(t, torch.Tensor) and t.untyped_storage()._cdata in self.blocks for t in (first, second))
        return both and not (first.numel() == self.tied_elements and not torch.is_autocast_enabled("cpu") and FULL[0])

    def track(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self.blocks or not storage.nbytes():
            return
        block = len(self.sizes)
        self.sizes.append(storage.nbytes())
        self.events.append(("alloc", block, storage.nbytes()))
        self.watch(tensor, block)

    def watch(self, tensor: Any, block: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self.blocks[key] = block

        def freed() -> None:
            del self.blocks[key]
            if key in self.replaced:
                self.replaced.remove(key)
            else:
                self.events.append(("free", block, self.sizes[block]))

        weakref.finalize(storage, freed).atexit = False


FULL = [False]  # whether the run is in float32


def cuda_attention(q: Any, k: Any, v: Any, dropout_p: float) -> Any:
    """The kernels CUDA chooses on sm_89: flash in half precision, memory-efficient in float32."""
    with torch.autocast("cpu", enabled=False):
        if FULL[0]:
            return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout_p, True)[0]
        head_size = q.shape[-1]
        if head_size % 8:  # sdp_utils pads heads to a multiple of 8, and cuts the result
            q, k, v = (functional.pad(part, (0, -head_size % 8)) for part in (q, k, v))
            return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, True)[0][..., :head_size]
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, True)[0]


def cuda_attention_of_functional(q: Any, k: Any, v: Any, *, is_causal: bool, dropout_p: float = 0.0) -> Any:
    assert is_causal
    return cuda_attention(q, k, v, dropout_p)


def cuda_dropout_of_functional(x: Any, p: float, training: bool, inplace: bool = False) -> Any:
    assert training
    assert not inplace
    return cuda_dropout(x, p)


def cuda_write_losses(*_arguments: Any, gradient: bool, soft_cap: float | None) -> None:
    """The kernel works in place."""
    assert gradient


def cuda_add_product_(*_arguments: Any) -> None:
    """So does the product that adds."""


def with_cuda_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """nanochat's kernels: what each makes; the others work in place."""

    def in_place(*_arguments: Any, **_keys: Any) -> None:
        """Nothing is made."""

    def normed_rows(tokens_BT: Any, weight_VC: Any, dtype: Any) -> Any:
        return weight_VC.new_empty(tokens_BT.numel(), weight_VC.shape[1], dtype=dtype)

    def rms_normed(x_NC: Any) -> Any:
        return torch.empty_like(x_NC), x_NC.new_empty(len(x_NC), dtype=torch.float32)

    def rms_norm_backward(d_normed_NC: Any, *_arguments: Any, d_x_NC: Any, **_keys: Any) -> Any:
        return d_normed_NC if d_x_NC is None else d_x_NC

    def rotate(qkv_NE: Any, *, batch: int, heads: int) -> Any:
        return qkv_NE.new_empty(len(qkv_NE), 2 * heads, dtype=torch.float32)

    made = {
        "normed_rows": normed_rows,
        "rms_normed": rms_normed,
        "rms_norm_backward": rms_norm_backward,
        "rotate": rotate,
        **dict.fromkeys(("normed_rows_backward", "rotate_backward", "square_relu", "square_relu_backward"), in_place),
    }
    for name, kernel in made.items():
        monkeypatch.setattr(nanochat_kernels, name, kernel)
        monkeypatch.setattr(TensorOperations, name, staticmethod(kernel))
    for model in (GPT2, Nanochat):
        monkeypatch.setattr(model, "set_first_weights", lambda *_: None)


def cuda_cross_entropy(logits: Any, targets: Any) -> Any:
    """log_softmax in the logits' type, nll_loss in float32: CUDA's autocast lists, which the CPU's differ from."""
    with torch.autocast("cpu", enabled=False):
        return functional.nll_loss(torch.log_softmax(logits, 1).float(), targets, ignore_index=-1)


def cuda_dropout(x: Any, p: float) -> Any:
    return aten.native_dropout(x, p, True)[0] if p else x


class Norm(nn.Module):
    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x: Any) -> Any:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias)


class Attention(nn.Module):
    def __init__(self, c: RunConfig) -> None:
        super().__init__()
        self.config = c
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, x_BTC: Any) -> Any:
        c, (B, T, C) = self.config, x_BTC.shape
        q, k, v = self.c_attn(x_BTC).split(C, dim=2)
        k, q, v = (part.view(B, T, c.n_head, c.head_size).transpose(1, 2) for part in (k, q, v))
        y_BTC = cuda_attention(q, k, v, c.dropout).transpose(1, 2).contiguous().view(B, T, C)
        return cuda_dropout(self.c_proj(y_BTC), c.dropout)


class Mlp(nn.Module):
    def __init__(self, c: RunConfig) -> None:
        super().__init__()
        self.p = c.dropout
        self.c_fc = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, x: Any) -> Any:
        return cuda_dropout(self.c_proj(functional.gelu(self.c_fc(x))), self.p)


class Layer(nn.Module):
    def __init__(self, c: RunConfig) -> None:
        super().__init__()
        self.ln_1, self.attn = Norm(c.n_embd, c.bias), Attention(c)
        self.ln_2, self.mlp = Norm(c.n_embd, c.bias), Mlp(c)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, c: RunConfig) -> None:
        super().__init__()
        self.p = c.dropout
        self.wte, self.wpe = nn.Embedding(c.vocab_size, c.n_embd), nn.Embedding(c.block_size, c.n_embd)
        self.h = nn.ModuleList([Layer(c) for _ in range(c.n_layer)])
        self.ln_f = Norm(c.n_embd, c.bias)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, ids: Any, targets: Any, returns_logits: bool) -> tuple[Any, Any]:
        pos = torch.arange(0, ids.shape[1])
        tok_emb = self.wte(ids)
        pos_emb = self.wpe(pos)
        x = cuda_dropout(tok_emb + pos_emb, self.p)
        for layer in self.h:
            x = layer(x)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        loss = cuda_cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))
        return logits if returns_logits else None, loss


@contextlib.contextmanager
def no_initialisation() -> Iterator[None]:
    """Weights of fake tensors have no values to set."""
    saved = nn.Linear.reset_parameters, nn.Embedding.reset_parameters
    nn.Linear.reset_parameters = nn.Embedding.reset_parameters = lambda self: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Linear.reset_parameters, nn.Embedding.reset_parameters = saved  # type: ignore[method-assign]


def traced_steps(c: RunConfig, micro_steps: int, returns_logits: bool = True) -> list[Event]:
    """Events of nanoGPT's micro-steps under its loop, from the first forward pass on; weights are blocks too."""
    FULL[0] = c.dtype == "float32"
    half = contextlib.nullcontext() if FULL[0] else torch.autocast("cpu", dtype=getattr(torch, c.dtype))
    trace = Trace()
    trace.tied_elements = c.vocab_size * c.n_embd
    with FakeTensorMode(), no_initialisation():
        model = Gpt(c)
        with trace:
            for weight in model.parameters():
                trace.track(weight)
            scale = torch.empty(()) if c.dtype == "float16" else None

            def batch() -> tuple[Any, Any]:
                shape = c.batch_size, c.block_size
                return torch.empty(shape, dtype=torch.long), torch.empty(shape, dtype=torch.long)

            X, Y = batch()
            start = len(trace.events)
            for _ in range(micro_steps):
                with half:
                    logits, loss = model(X, Y, returns_logits)
                    loss = loss / c.gradient_accumulation_steps
                X, Y = batch()
                trace.in_backward = True
                (loss if scale is None else loss * scale).backward()
                trace.in_backward = False
            events = trace.events[start:]
    return events


def written_steps(c: RunConfig, returns_logits: bool = True) -> list[Event]:
    """The micro-steps of the first update on the tape, without workspaces."""
    return first_update(eager_tape(c, RTX_4070, returns_logits=returns_logits))


def traced_micro_batches(c: RunConfig, micro_batches: int, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Events of the first update's micro-batches as onecard's trainer makes them, with its own model and loss."""
    monkeypatch.setattr(functional, "scaled_dot_product_attention", cuda_attention_of_functional)
    monkeypatch.setattr(functional, "dropout", cuda_dropout_of_functional)
    monkeypatch.setattr(TensorOperations, "write_losses", cuda_write_losses)
    monkeypatch.setattr(TensorOperations, "add_product", cuda_add_product_)
    with_cuda_kernels(monkeypatch)
    FULL[0] = c.dtype == "float32"
    trace = Trace()
    with FakeTensorMode(), no_initialisation():
        model = GPT(c)
        with trace:
            for weight in model.parameters():
                trace.track(weight)
            scale = torch.empty(()) if c.dtype == "float16" else None
            start = len(trace.events)
            for _ in range(micro_batches):
                x_BT, y_BT = (torch.empty(c.batch_size, c.block_size, dtype=torch.long) for _ in "xy")

                def micro_batch(x_BT: Any, y_BT: Any) -> None:
                    half = contextlib.nullcontext() if FULL[0] else torch.autocast("cpu", dtype=getattr(torch, c.dtype))
                    with half:
                        loss = model.loss(x_BT, y_BT) / c.gradient_accumulation_steps
                    trace.in_backward = True
                    (loss if scale is None else loss * scale).backward()
                    trace.in_backward = False

                micro_batch(x_BT, y_BT)
            del x_BT, y_BT
            events = trace.events[start:]
    return events


def written_micro_batches(c: RunConfig) -> list[Event]:
    """The micro-batches of our own trainer's first update on the tape, without workspaces."""
    return first_update(onecard_tape(c.replace({"compile": False}), RTX_4070))


def first_update(tape: Tape) -> list[Event]:
    """All events up to the optimizer's step, but those of workspaces and of the gradient scaler's own numbers."""
    sizes, tags = tape.sizes, tape.tags
    start = next(index for index, phase in tape.phases if phase == "train")
    end = next(index for index, moment in tape.moments if moment == "optimizer step")
    return [
        ("alloc", event, sizes[event]) if event >= 0 else ("free", ~event, sizes[~event])
        for event in tape.events[start:end]
        if tags[event if event >= 0 else ~event] not in (WORKSPACE, OPTIMIZER_STATE)
    ]


def canonical(events: list[Event]) -> list[tuple[str, int, int]]:
    """Blocks renumbered in order of appearance; frees in a row sorted, since they commute."""
    numbers: dict[int, int] = {}
    for action, block, _ in events:
        if action == "alloc":
            numbers[block] = len(numbers)
    found: list[Event] = []
    frees: list[Event] = []
    for action, block, size in events:
        if action == "free":
            frees.append((action, numbers.get(block, -1), size))  # -1: alive before the first forward pass
        else:
            found += [*sorted(frees), (action, numbers[block], size)]
            frees = []
    return found + sorted(frees)


SMALL = {"n_layer": 2, "n_head": 3, "n_embd": 96, "block_size": 128, "batch_size": 4, "vocab_size": 1000}
CASES = {
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "float32": {"dtype": "float32"},
    "bfloat16-bias": {"dtype": "bfloat16", "bias": True},
    "float16-dropout-bias": {"dtype": "float16", "dropout": 0.1, "bias": True},
    "float32-dropout-bias": {"dtype": "float32", "dropout": 0.1, "bias": True},
    "one-layer-batch-1": {"dtype": "bfloat16", "n_layer": 1, "batch_size": 1},
    "odd-head-size": {"dtype": "bfloat16", "n_embd": 63},
    "odd-vocabulary": {"dtype": "float16", "vocab_size": 1013},
}


@pytest.mark.parametrize("returns_logits", [True, False], ids=["as-nanogpt", "loss-alone"])
@pytest.mark.parametrize("case", CASES)
def test_two_micro_steps_allocate_and_free_as_traced(case: str, returns_logits: bool) -> None:
    config = RunConfig().replace(SMALL | {"gradient_accumulation_steps": 2} | CASES[case])
    ours = canonical(written_steps(config, returns_logits))
    real = canonical(traced_steps(config, 2, returns_logits))
    for index, (mine, theirs) in enumerate(zip(ours, real, strict=False)):
        assert mine == theirs, f"event {index} of {len(real)}"
    assert len(ours) == len(real)


OWN_CASES = CASES | {
    "chunks": {"dtype": "bfloat16", "loss_chunk": 200},
    "chunks-float32": {"dtype": "float32", "loss_chunk": 128},
}
NANOCHAT = {
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "float32": {"dtype": "float32"},
    "one-layer-batch-1": {"dtype": "bfloat16", "n_layer": 1, "batch_size": 1},
    "odd-head-size": {"dtype": "bfloat16", "n_embd": 66},
    "chunks": {"dtype": "float16", "loss_chunk": 200, "vocab_size": 1013},
}
OWN_CASES |= {f"nanochat-{name}": {"model": "nanochat", **keys} for name, keys in NANOCHAT.items()}


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("case", OWN_CASES)
def test_two_micro_batches_of_our_own_trainer_allocate_and_free_as_traced(
    case: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"gradient_accumulation_steps": 2, "grad_checkpoint": mode}
    config = RunConfig().replace(SMALL | keys | OWN_CASES[case])
    ours = canonical(written_micro_batches(config))
    real = canonical(traced_micro_batches(config, 2, monkeypatch))
    for index, (mine, theirs) in enumerate(zip(ours, real, strict=False)):
        assert mine == theirs, f"event {index} of {len(real)}"
    assert len(ours) == len(real)


def traced_passes(c: RunConfig, micro_batches: int, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Events of the first update's micro-batches with written-out passes."""
    monkeypatch.setattr(functional, "scaled_dot_product_attention", cuda_attention_of_functional)
    monkeypatch.setattr(TensorOperations, "write_losses", cuda_write_losses)
    monkeypatch.setattr(TensorOperations, "multiply", lambda *_arguments, **_keys: None)
    with_cuda_kernels(monkeypatch)
    FULL[0] = False
    trace = Trace()
    with FakeTensorMode(), no_initialisation():
        model = GPT(c)
        passes = model.passes(getattr(torch, c.dtype))
        with trace:
            for weight in [*model.parameters(), *(each.narrow_OI for each in passes._narrow)]:
                trace.track(weight)
            scale = torch.empty(()) if c.dtype == "float16" else None
            start = len(trace.events)
            zero_gradients(model.parameters())
            for _ in range(micro_batches):
                x_BT, y_BT = (torch.empty(c.batch_size, c.block_size, dtype=torch.long) for _ in "xy")

                share = torch.full((), 0.5)
                share = share if scale is None else share * scale
                passes.add_gradients(x_BT, y_BT, scale=share) / micro_batches
                del share
            del x_BT, y_BT
            events = trace.events[start:]
    return events


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("case", [name for name, keys in NANOCHAT.items() if keys["dtype"] != "float32"])
def test_two_written_out_micro_batches_allocate_and_free_as_traced(
    case: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"model": "nanochat", "gradient_accumulation_steps": 2, "grad_checkpoint": mode}
    config = RunConfig().replace(SMALL | keys | NANOCHAT[case])
    ours = canonical(first_update(onecard_tape(config, RTX_4070)))
    real = canonical(traced_passes(config, 2, monkeypatch))
    for index, (mine, theirs) in enumerate(zip(ours, real, strict=False)):
        assert mine == theirs, f"event {index} of {len(real)}"
    assert len(ours) == len(real)
