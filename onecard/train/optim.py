"""The optimizers: torch's AdamW in one kernel, and Muon beside it for the matrices of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from onecard.config.schema import RunConfig
from onecard.models.architectures import structure_of
from onecard.models.muon import OrthogonalUpdates
from onecard.models.optimizers import ADAMW, MUON, Rule, optimizer_of
from onecard.models.structure import kinds_of
from onecard.plan.schedule import muon_momentum, scheduled
from onecard.train.operations import TORCH
from onecard.train.precision import NATIVE_BFLOAT16

FUSED_DEVICES = ("cuda", "cpu", "mps")  # where torch has optimizers as one kernel


def parameter_groups(model: nn.Module, config: RunConfig) -> Iterator[dict[str, Any]]:
    """The groups that have parameters, as torch wants them; each says its rule and its highest rate."""
    kinds = kinds_of(structure_of(config))
    for group in optimizer_of(config).groups:
        named = {name: each for name, each in model.named_parameters() if kinds[name].role in group.roles}
        if named:
            yield {
                "params": list(named.values()),
                "lr": group.learning_rate,
                "highest_rate": group.learning_rate,
                "weight_decay": config.weight_decay if group.decays else 0.0,
                "rule": group.rule,
                "parts": [kinds[name].parts for name in named],
            }


class AdamW(torch.optim.AdamW):
    """An optimizer whose memory can be obtained before its step: a step then needs none, and cannot fail half-way."""

    def rules(self) -> dict[nn.Parameter, Rule]:
        """The rule of every parameter."""
        return {parameter: group["rule"] for group in self.param_groups for parameter in group["params"]}

    def make_state(self) -> None:
        """Make what the first step would make."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter not in self.state:
                    of_number = parameter.device if group["fused"] else torch.device("cpu")
                    rule: Rule = group["rule"]
                    self.state[parameter] = {
                        **{name: torch.zeros((), dtype=torch.float32, device=of_number) for name in rule.numbers},
                        **{name: torch.zeros_like(parameter) for name in rule.moments},
                    }

    def make_workspace(self) -> None:
        """One kernel needs none."""

    def free_workspace(self) -> None:
        """There is none."""


class Muon(AdamW):
    """Muon for the groups with its rule, AdamW for the others. Products are in `dtype`."""

    def __init__(self, groups: list[dict[str, Any]], *, momentum: float, dtype: torch.dtype, **adamw: Any) -> None:
        super().__init__(groups, **adamw)
        self._step_supports_amp_scaling = False  # a GradScaler then skips a step as a whole, not AdamW's half of it
        self.momentum = momentum
        (matrices,) = (group for group in self.param_groups if group["rule"] == MUON)
        self._updates = OrthogonalUpdates(TORCH, list(zip(matrices["params"], matrices["parts"], strict=True)), dtype)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a loaded state; torch's AdamW looks for its own numbers in it."""
        groups = state["param_groups"]
        super().__setstate__({**state, "param_groups": _of_adamw(groups)})  # type: ignore[no-untyped-call]
        self.param_groups = groups

    def make_workspace(self) -> None:
        """Obtain what the products need."""
        with torch.no_grad():
            self._updates.make_workspace()

    def free_workspace(self) -> None:
        """Give it back."""
        self._updates.free_workspace()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of all groups; the workspace must have been made."""
        groups = self.param_groups
        self.param_groups = _of_adamw(groups)  # what torch's step may see
        try:
            super().step()
        finally:
            self.param_groups = groups
        (matrices,) = (group for group in groups if group["rule"] == MUON)
        moments = [self.state[parameter]["momentum_buffer"] for parameter in self._updates.weights]
        self._updates.step(moments, rate=matrices["lr"], momentum=self.momentum, decay=matrices["weight_decay"])


def _of_adamw(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [group for group in groups if group["rule"] == ADAMW]


def make_optimizer(model: nn.Module, config: RunConfig) -> AdamW:
    """The optimizer of a run over the model's parameters, where they are now: move the model first."""
    device = next(model.parameters()).device
    groups = list(parameter_groups(model, config))
    adamw: dict[str, Any] = {"betas": (config.beta1, config.beta2), "fused": device.type in FUSED_DEVICES}
    if config.optimizer == "muon":
        return Muon(groups, momentum=config.muon_momentum, dtype=_product_dtype(config, device), **adamw)
    return AdamW(groups, **adamw)


def _product_dtype(config: RunConfig, device: torch.device) -> torch.dtype:
    """bfloat16 where a card has it; float16 has too few exponents for squares of small gradients."""
    if device.type != "cuda" or config.dtype == "float32":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= NATIVE_BFLOAT16 else torch.float32


def set_rates(optimizer: torch.optim.Optimizer, config: RunConfig, step: int) -> None:
    """Give every group its learning rate, and Muon its momentum, for the update from `step` to `step + 1`."""
    for group in optimizer.param_groups:
        group["lr"] = scheduled(group["highest_rate"], config, step)
    if isinstance(optimizer, Muon):
        optimizer.momentum = muon_momentum(config, step)
