"""The optimizer: nanoGPT's two groups, one kernel, the gradient's norm without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from onecard.config.schema import RunConfig
from onecard.models.optimizers import ADAMW, Optimizer

FUSED_DEVICES = ("cuda", "cpu", "mps")  # where torch has optimizers as one kernel


def parameter_groups(model: nn.Module, *, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups, as nanoGPT's: matrices and embeddings decay, biases and norms do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [parameter for parameter in parameters if parameter.dim() >= 2], "weight_decay": weight_decay},
        {"params": [parameter for parameter in parameters if parameter.dim() < 2], "weight_decay": 0.0},
    ]


class WithStateFirst(torch.optim.Optimizer):
    """An optimizer whose state can be made before its first step."""

    rule: ClassVar[Optimizer]  # what it keeps

    def make_state(self) -> None:
        """Make what the first step would make, so that a step needs no memory and cannot fail half-way."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    of_number = parameter.device if group["fused"] else torch.device("cpu")
                    self.state[parameter] = {
                        **{name: torch.zeros((), dtype=torch.float32, device=of_number) for name in self.rule.numbers},
                        **{name: torch.zeros_like(parameter) for name in self.rule.moments},
                    }


class AdamW(WithStateFirst, torch.optim.AdamW):
    rule = ADAMW


def make_optimizer(model: nn.Module, config: RunConfig) -> WithStateFirst:
    """The optimizer of a run over the model's parameters, where they are now: move the model first."""
    groups = parameter_groups(model, weight_decay=config.weight_decay)
    fused = next(model.parameters()).device.type in FUSED_DEVICES
    return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), fused=fused)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: Iterable[Tensor], *, max_norm: float) -> Tensor:
    """The norm of all gradients before clipping, still on the device; 0 as `max_norm` only measures it."""
    parameters = list(parameters)
    if max_norm > 0:
        return nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return nn.utils.get_total_norm(gradients, foreach=True)
