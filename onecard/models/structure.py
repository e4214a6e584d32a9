"""What a model is made of: layers and their shapes, by name. torch makes modules of it, paper weights, plans counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Union

from onecard.paper.tags import ACTIVATIONS, LOGITS_AND_LOSS

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Linear:
    """y = x W' + b."""

    inputs: int
    outputs: int
    bias: bool = False
    part: str = ACTIVATIONS  # what its output is for
    tied_to: str = ""  # the layer whose weight it shares

    @property
    def shapes(self) -> dict[str, Shape]:
        weight = {} if self.tied_to else {"weight": (self.outputs, self.inputs)}
        return {**weight, **({"bias": (self.outputs,)} if self.bias else {})}


@dataclass(frozen=True)
class Embedding:
    """A row for each token or position."""

    rows: int
    channels: int

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"weight": (self.rows, self.channels)}


@dataclass(frozen=True)
class LayerNorm:
    """A scale for each channel, and a shift if it has biases."""

    channels: int
    bias: bool = False

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"weight": (self.channels,), **({"bias": (self.channels,)} if self.bias else {})}


Layer = Linear | Embedding | LayerNorm
Structure = Mapping[str, Union[Linear, Embedding, LayerNorm, "Structure", list["Structure"]]]


def head(channels: int, vocab_size: int, *, tied_to: str = "") -> Linear:
    """The layer that makes logits."""
    return Linear(channels, vocab_size, part=LOGITS_AND_LOSS, tied_to=tied_to)


def layers_of(structure: Structure, within: str = "") -> Iterator[tuple[str, Linear | Embedding | LayerNorm]]:
    """Every layer with its full name, in order."""
    for name, part in structure.items():
        full = f"{within}{name}"
        if isinstance(part, Linear | Embedding | LayerNorm):
            yield full, part
        elif isinstance(part, list):
            for index, each in enumerate(part):
                yield from layers_of(each, f"{full}.{index}.")
        else:
            yield from layers_of(part, f"{full}.")


def outside_blocks(structure: Structure, within: str = "") -> Iterator[tuple[str, Layer]]:
    """Every layer that is not in a block, with its full name, in order."""
    for name, part in structure.items():
        if isinstance(part, Linear | Embedding | LayerNorm):
            yield f"{within}{name}", part
        elif not isinstance(part, list):
            yield from outside_blocks(part, f"{within}{name}.")


def tied_layers(structure: Structure) -> dict[str, str]:
    """The layers that have another layer's weight, and whose."""
    layers = outside_blocks(structure)
    return {name: layer.tied_to for name, layer in layers if isinstance(layer, Linear) and layer.tied_to}


def parameters_of(structure: Structure) -> dict[str, Shape]:
    """The shape of every parameter in the model's order; a shared weight counts once."""
    return {f"{name}.{kind}": shape for name, layer in layers_of(structure) for kind, shape in layer.shapes.items()}


def shape_counts(structure: Structure) -> Counter[Shape]:
    """How many parameters of each shape there are. Blocks that repeat are counted once and multiplied."""
    found: Counter[Shape] = Counter()
    for part in structure.values():
        if isinstance(part, Linear | Embedding | LayerNorm):
            found.update(part.shapes.values())
            continue
        blocks = part if isinstance(part, list) else [part]
        for block, times in Counter(map(id, blocks)).items():
            one = shape_counts(next(each for each in blocks if id(each) == block))
            found.update({shape: times * count for shape, count in one.items()})
    return found
