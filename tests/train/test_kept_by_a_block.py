"""What a compiled block keeps for its backward pass: the description against torch's own partitioner, on the CPU.

The block is compiled up to the partition of forward and backward and no further. Attention is left out of both sides:
the CPU has another kernel.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch._functorch import partitioners  # noqa: E402
from torch._inductor import compile_fx  # noqa: E402

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.paper.device import H200  # noqa: E402
from onecard.plan.memory.nanogpt.compiled.shape import Shape  # noqa: E402
from onecard.plan.memory.onecard.compiled.forward import forward, last_norm  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.operations import TensorOperations  # noqa: E402

BATCH, TOKENS = 2, 64
OF_ATTENTION = ("0.q", "0.k", "0.v", "0.out", "0.lse", "0.seed", "0.offset")


class Partitioned(Exception):
    """The partition is made; nothing more need be compiled."""


def is_of_stream(node: Any) -> bool:
    """Whether a tensor has rows for all tokens, and is neither attention's nor a parameter."""
    of_attention = [(BATCH, 1, TOKENS)]  # one head: its log-sum-exp; q, k, v and output have four dimensions
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor) or value.dim() > 3 or tuple(value.shape) in of_attention:
        return False
    rows = value.shape[:-1].numel()
    is_qkv = node.target is torch.ops.aten.mm.default and value.shape[-1] % 3 == 0 and "c_attn" in str(node.meta)
    return rows == BATCH * TOKENS and not is_qkv


def compiled_keeps(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch, part: torch.nn.Module, results: int
) -> list[int]:
    """Bytes of each tensor of the stream that the partitioner lets a part of the model keep for its backward pass."""
    partition = partitioners.min_cut_rematerialization_partition
    found: list[int] = []

    def stop_after(*arguments: Any, **keywords: Any) -> Any:
        graph, _ = partition(*arguments, **keywords)
        (output,) = [node for node in graph.graph.nodes if node.op == "output"]
        kept = [node for node in output.args[0][results:] if node is not None and is_of_stream(node)]
        found.extend(node.meta["val"].nbytes for node in kept)
        raise Partitioned

    for module in (partitioners, compile_fx):
        if hasattr(module, "min_cut_rematerialization_partition"):
            monkeypatch.setattr(module, "min_cut_rematerialization_partition", stop_after)
    plain = TensorOperations.layer_norm  # below, in float32 as under autocast on a card
    monkeypatch.setattr(TensorOperations, "layer_norm", lambda ops, x, layer: plain(ops, x.float(), layer))
    torch._dynamo.reset()
    part.compile(dynamic=False)
    is_half = config.dtype != "float32"
    shape = (BATCH, TOKENS, config.n_embd)
    dtype = torch.bfloat16 if is_half else torch.float32
    x_BTC, added_BTC = (torch.zeros(shape, dtype=dtype, requires_grad=True) for _ in range(2))
    half = torch.autocast("cpu", dtype=torch.bfloat16) if is_half else contextlib.nullcontext()
    with half, pytest.raises(Exception, match="Partitioned"):
        part(x_BTC, added_BTC)
    return found


def config_of(mode: str, dtype: str, width: int) -> RunConfig:
    keys = {"n_layer": 1, "batch_size": BATCH, "block_size": TOKENS, "n_head": 1, "n_embd": width, "vocab_size": 64}
    return RunConfig().replace(keys | {"dtype": dtype, "grad_checkpoint": mode})


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 704])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_a_block_keeps_what_the_partitioner_keeps(
    mode: Any, dtype: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(mode, dtype, width)
    traced = forward(Shape(config, H200), mode)
    named = [name for name in traced.named if name not in ("added", *OF_ATTENTION) and not name.endswith(".cast")]
    ours = [traced.graph.sizes[traced.named[name]] for name in named if name != "x" or mode != "full"]
    assert sorted(ours) == sorted(compiled_keeps(config, monkeypatch, GPT(config).transformer.h[0], results=2))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_last_norm_keeps_what_the_partitioner_keeps(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("none", dtype, 64)
    traced = last_norm(Shape(config, H200), "none")
    ours = [traced.graph.sizes[buffer] for name, buffer in traced.named.items() if name != "hidden"]
    part = GPT(config).transformer.ln_f
    assert sorted(ours) == sorted(compiled_keeps(config, monkeypatch, part, results=1))
