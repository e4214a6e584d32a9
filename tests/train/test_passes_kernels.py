"""The written-out passes with all their kernels, in Triton's interpreter: see test_kernels_interpreted.py.

In plain torch, where everything else about them is tested: test_fused.py.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch.nn import functional  # noqa: E402

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.recorded_micro_batch import zero_gradients  # noqa: E402

TINY = RunConfig(n_layer=2, n_head=2, n_embd=20, block_size=7, vocab_size=37, loss_chunk=5)


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_a_whole_models_gradients_are_autograds(mode: str) -> None:
    torch.manual_seed(1)
    model = GPT(TINY.replace({"grad_checkpoint": mode}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    tokens_BT, targets_BT = torch.randint(TINY.vocab_size, (2, 2, TINY.block_size))
    targets_BT[1, 2:4] = -1
    logits_BTV = model.logits(model.hidden(tokens_BT))
    true_loss = functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), ignore_index=-1)
    names, parameters = zip(*model.named_parameters(), strict=True)
    expected = dict(zip(names, torch.autograd.grad(true_loss, parameters), strict=True))

    zero_gradients(model.parameters())
    loss = model.passes(torch.float32).add_gradients(tokens_BT, targets_BT, scale=torch.ones(()))
    torch.testing.assert_close(loss, true_loss.detach(), rtol=1e-5, atol=1e-5)
    for name, parameter in model.named_parameters():
        assert (parameter.grad - expected[name]).norm() <= 1e-4 * expected[name].norm(), name  # type: ignore[operator]
