"""Muon on a card: its products in bfloat16, its memory, and that a step takes none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA card", allow_module_level=True)

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.optim import Muon, make_optimizer  # noqa: E402

CONFIG = RunConfig(n_layer=4, n_head=4, n_embd=256, block_size=64, vocab_size=1000, optimizer="muon", weight_decay=0.0)


def made(config: RunConfig) -> tuple[GPT, Muon]:
    torch.manual_seed(1)
    model = GPT(config).cuda()
    for number, parameter in enumerate(model.parameters()):
        generator = torch.Generator("cuda").manual_seed(number)
        parameter.grad = 1e-4 * torch.randn(parameter.shape, generator=generator, device="cuda")
    optimizer = make_optimizer(model, config)
    assert isinstance(optimizer, Muon)
    return model, optimizer


def test_a_step_takes_no_memory_beyond_its_workspace() -> None:
    _, optimizer = made(CONFIG)
    optimizer.make_state()
    for _ in range(2):
        optimizer.make_workspace()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        assert torch.cuda.max_memory_allocated() == before
        optimizer.free_workspace()
        assert torch.cuda.memory_allocated() < before


def test_updates_in_bfloat16_are_near_those_in_float32() -> None:
    changes = []
    for dtype in ("auto", "float32"):
        model, optimizer = made(CONFIG.replace({"dtype": dtype}))
        weight = model.transformer.h[2].mlp.c_fc.weight
        first = weight.detach().clone()
        optimizer.make_state()
        optimizer.make_workspace()
        optimizer.step()
        changes.append((weight.detach() - first).double())
    narrow, wide = changes
    assert (narrow - wide).norm() < 0.05 * wide.norm()
    values = torch.linalg.svdvals(narrow) / (0.02 * 2)
    assert values.min() > 0.5
    assert values.max() < 1.3
