"""What a model is made of: layers and their shapes, by name. torch makes modules of it, paper weights, plans counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, Union

from onecard.paper.tags import ACTIVATIONS, LOGITS_AND_LOSS

Shape = tuple[int, ...]
Role = Literal["block matrix", "head", "embedding", "vector"]


@dataclass(frozen=True)
class Kind:
    """What a parameter is: optimizers choose their rule by it."""

    shape: Shape
    role: Role
    parts: int = 1  # equal parts of its rows that are matrices of their own

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Linear:
    """y = x W' + b."""

    inputs: int
    outputs: int
    bias: bool = False
    part: str = ACTIVATIONS  # what its output is for
    tied_to: str = ""  # the layer whose weight it shares
    parts: int = 1  # layers of equal size in one: queries, keys and values

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
Structure = Mapping[str, Union[Layer, "Structure", list["Structure"]]]


def head(channels: int, vocab_size: int, *, tied_to: str = "") -> Linear:
    """The layer that makes logits."""
    return Linear(channels, vocab_size, part=LOGITS_AND_LOSS, tied_to=tied_to)


def layers_of(structure: Structure, within: str = "") -> Iterator[tuple[str, Layer]]:
    """Every layer with its full name, in order."""
    for name, layer, _ in _placed(structure, within, in_block=False):
        yield name, layer


def kinds_of(structure: Structure) -> dict[str, Kind]:
    """What every parameter is, by name in the model's order; a shared weight counts once."""
    return {
        f"{name}.{of}": _kind(layer, shape, in_block)
        for name, layer, in_block in _placed(structure, "", in_block=False)
        for of, shape in layer.shapes.items()
    }


def _placed(structure: Structure, within: str, *, in_block: bool) -> Iterator[tuple[str, Layer, bool]]:
    """Every layer with its full name, and whether it is in a block: blocks are what is in lists."""
    for name, part in structure.items():
        full = f"{within}{name}"
        if isinstance(part, Layer):
            yield full, part, in_block
        elif isinstance(part, list):
            for index, each in enumerate(part):
                yield from _placed(each, f"{full}.{index}.", in_block=True)
        else:
            yield from _placed(part, f"{full}.", in_block=in_block)


def outside_blocks(structure: Structure, within: str = "") -> Iterator[tuple[str, Layer]]:
    """Every layer that is not in a block, with its full name, in order."""
    for name, part in structure.items():
        if isinstance(part, Layer):
            yield f"{within}{name}", part
        elif not isinstance(part, list):
            yield from outside_blocks(part, f"{within}{name}.")


def tied_layers(structure: Structure) -> dict[str, str]:
    """The layers that have another layer's weight, and whose."""
    layers = outside_blocks(structure)
    return {name: layer.tied_to for name, layer in layers if isinstance(layer, Linear) and layer.tied_to}


def parameters_of(structure: Structure) -> dict[str, Shape]:
    """The shape of every parameter in the model's order."""
    return {name: kind.shape for name, kind in kinds_of(structure).items()}


def _kind(layer: Layer, shape: Shape, in_block: bool) -> Kind:
    if len(shape) < 2:
        return Kind(shape, "vector")
    if isinstance(layer, Linear):
        return Kind(shape, "block matrix", layer.parts) if in_block else Kind(shape, "head")
    return Kind(shape, "embedding")


def kind_counts(structure: Structure, *, in_block: bool = False) -> Counter[Kind]:
    """How many parameters of each kind there are. Blocks that repeat are counted once and multiplied."""
    found: Counter[Kind] = Counter()
    for part in structure.values():
        if isinstance(part, Layer):
            found.update(_kind(part, shape, in_block) for shape in part.shapes.values())
            continue
        blocks = part if isinstance(part, list) else [part]
        for block, times in Counter(map(id, blocks)).items():
            inside = in_block or isinstance(part, list)
            one = kind_counts(next(each for each in blocks if id(each) == block), in_block=inside)
            found.update({kind: times * count for kind, count in one.items()})
    return found
