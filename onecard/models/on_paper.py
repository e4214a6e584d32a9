"""A model on paper: its weights, under the names they have in torch, and its optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onecard.models.optimizers import Optimizer
from onecard.models.structure import Embedding, LayerNorm, Linear, Structure
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


def optimizer_on_paper(paper: Paper, parameters: list[Parameter], optimizer: Optimizer) -> FusedOptimizer:
    """The optimizer of a run; as in nanoGPT, its first group has matrices and embeddings, its second vectors."""
    grouped = sorted(parameters, key=lambda parameter: len(parameter.shape) < 2)
    return FusedOptimizer(
        paper,
        grouped,
        numbers=len(optimizer.numbers),
        moments=len(optimizer.moments),
        moved_bytes=optimizer.moved_bytes,
    )
