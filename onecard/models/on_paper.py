"""A model on paper: its weights, under the names they have in torch, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from onecard.models.muon import OrthogonalUpdates
from onecard.models.optimizers import MUON, Optimizer, Rule
from onecard.models.structure import Embedding, Kind, LayerNorm, Linear, Structure
from onecard.paper.kernels import FLOAT
from onecard.paper.library import FusedOptimizer
from onecard.paper.paper import Paper
from onecard.paper.tags import ACTIVATIONS
from onecard.paper.tensor import Layer, Parameter, Tensor


class Named:
    """Layers by their names, as attributes: `p.attn.c_proj.weight`."""

    parameters: list[Parameter]  # of the whole model, in order
    run: Callable[..., Any]  # what calling it does

    def __init__(self, paper: Paper, name: str) -> None:
        self._paper, self.name = paper, name

    def __call__(self, *inputs: Tensor) -> Any:
        return self.run(*inputs)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    @property
    def training(self) -> bool:
        """Whether the model is in training mode, as `nn.Module.training` says."""
        return self._paper.grad_enabled


def weights_on_paper(structure: Structure, paper: Paper) -> Named:
    """Every parameter in float32 on the card, in the model's order."""
    made: dict[str, Layer] = {}
    root = _named(structure, paper, made, "")
    root.parameters = list(
        {id(each): each for layer in made.values() for each in (layer.weight, layer.bias) if each is not None}.values()
    )
    return root


def _named(structure: Structure, paper: Paper, made: dict[str, Layer], within: str) -> Named:
    named = Named(paper, within)
    for name, part in structure.items():
        full = f"{within}{name}"
        if isinstance(part, Linear | Embedding | LayerNorm):
            made[full] = _layer(part, paper, made, full)
            setattr(named, name, made[full])
        elif isinstance(part, list):
            setattr(named, name, [_named(each, paper, made, f"{full}.{i}.") for i, each in enumerate(part)])
        else:
            setattr(named, name, _named(part, paper, made, f"{full}."))
    return named


def _layer(part: Linear | Embedding | LayerNorm, paper: Paper, made: dict[str, Layer], name: str) -> Layer:
    found = {kind: paper.parameter(f"{name}.{kind}", *shape) for kind, shape in part.shapes.items()}
    tied = part.tied_to if isinstance(part, Linear) else ""
    weight = made[tied].weight if tied else found["weight"]
    return Layer(weight, found.get("bias"), part.part if isinstance(part, Linear) else ACTIVATIONS)


class MuonOnPaper(FusedOptimizer):
    """AdamW in one kernel, and Muon's updates of some matrices. The host decides whether a step is skipped."""

    reads_flags = False

    def __init__(
        self,
        paper: Paper,
        parameters: list[Parameter],
        state_elements: list[int],
        moved_bytes: int,
        updates: OrthogonalUpdates,
        gathered_bytes: int,
    ) -> None:
        super().__init__(paper, parameters, state_elements, moved_bytes)
        self._updates, self._gathered_bytes = updates, gathered_bytes

    def make_workspace(self) -> None:
        self._updates.make_workspace()

    def free_workspace(self) -> None:
        self._updates.free_workspace()

    def step(self) -> None:
        super().step()
        if self._gathered_bytes:
            self.paper.scratch(self._gathered_bytes)  # of a batch at a time, the largest
        self._updates.step(self._updates.weights, rate=0.0, momentum=0.0, decay=0.0)


def optimizer_on_paper(
    paper: Paper,
    parameters: list[Parameter],
    optimizer: Optimizer,
    kinds: Mapping[str, Kind],
    *,
    whole: Mapping[str, Parameter] | None = None,
    of: int = 1,
) -> FusedOptimizer:
    """The optimizer of a run. Its state is made group by group.

    Where `parameters` are one of `of` ranks' shares, `whole` are the weights by name: Muon gathers its matrices.
    """
    ordered: list[tuple[Parameter, Rule]] = [
        (parameter, group.rule)
        for group in optimizer.groups
        for parameter in parameters
        if kinds[parameter.name].role in group.roles
    ]
    state_elements = [
        elements
        for parameter, rule in ordered
        for elements in [1] * len(rule.numbers) + [parameter.numel] * len(rule.moments)
    ]
    matrices = [
        (whole[parameter.name] if whole else parameter, kinds[parameter.name].parts)
        for parameter, rule in ordered
        if rule == MUON
    ]
    moved_bytes = optimizer.moved_bytes // of
    if not matrices:
        return FusedOptimizer(paper, parameters, state_elements, moved_bytes)
    dtype = 2 if paper.half and paper.device.has_bfloat16 else FLOAT
    updates = OrthogonalUpdates(paper, matrices, dtype)
    gathers = max(batch.elements for batch in updates.batches) * dtype if whole else 0
    return MuonOnPaper(paper, parameters, state_elements, moved_bytes, updates, gathers)
