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
from onecard.plan.memory.device import H200  # noqa: E402
from onecard.plan.memory.nanogpt.compiled.shape import Shape  # noqa: E402
from onecard.plan.memory.onecard.compiled.forward import forward  # noqa: E402
from onecard.plan.memory.onecard.compiled.keeps import kept_of_stream  # noqa: E402
from onecard.train.model import Block  # noqa: E402

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


def compiled_keeps(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each tensor of the stream that the partitioner lets a block keep for its backward pass."""
    partition = partitioners.min_cut_rematerialization_partition
    found: list[int] = []

    def stop_after(*arguments: Any, **keywords: Any) -> Any:
        graph, _ = partition(*arguments, **keywords)
        (output,) = [node for node in graph.graph.nodes if node.op == "output"]
        kept = [node for node in output.args[0][2:] if node is not None and is_of_stream(node)]
        found.extend(node.meta["val"].nbytes for node in kept)
        raise Partitioned

    for module in (partitioners, compile_fx):
        if hasattr(module, "min_cut_rematerialization_partition"):
            monkeypatch.setattr(module, "min_cut_rematerialization_partition", stop_after)
    torch._dynamo.reset()
    block = Block(config)
    block.compile(dynamic=False)
    is_half = config.dtype != "float32"
    shape = (BATCH, TOKENS, config.n_embd)
    x_BTC = torch.zeros(shape, requires_grad=True)
    added_BTC = torch.zeros(shape, dtype=torch.bfloat16 if is_half else torch.float32, requires_grad=True)
    half = torch.autocast("cpu", dtype=torch.bfloat16) if is_half else contextlib.nullcontext()
    with half, pytest.raises(Exception, match="Partitioned"):
        block(x_BTC, added_BTC)
    return found


def config_of(mode: str, dtype: str, width: int) -> RunConfig:
    keys = {"n_layer": 1, "batch_size": BATCH, "block_size": TOKENS, "n_head": 1, "n_embd": width, "vocab_size": 64}
    return RunConfig().replace(keys | {"dtype": dtype, "grad_checkpoint": mode})


CASES = [
    ("none", "bfloat16", 688),
    ("none", "bfloat16", 704),  # from 692 on the inputs are lighter than their norm
    ("none", "float32", 1024),
    ("selective", "bfloat16", 64),
    ("selective", "float32", 64),
    ("full", "bfloat16", 64),
    ("full", "float32", 64),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "dtype", "width"), CASES)
def test_a_block_keeps_what_the_partitioner_keeps(
    mode: Any, dtype: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(mode, dtype, width)
    shape = Shape(config, H200)
    traced = forward(shape, mode)
    named = [name for name in traced.named if name not in ("added", *OF_ATTENTION) and not name.endswith(".cast")]
    ours = [traced.graph.sizes[traced.named[name]] for name in named if name != "x" or mode != "full"]
    if kept_of_stream(shape, mode) == "inputs":
        ours += [BATCH * TOKENS * width * size for size in (4, shape.item)]
    assert sorted(ours) == sorted(compiled_keeps(config, monkeypatch))


def test_the_width_at_which_the_choice_changes_is_692() -> None:
    kept = [kept_of_stream(Shape(config_of("none", "bfloat16", width), H200), "none") for width in (691, 692)]
    assert kept == ["norm", "inputs"]
