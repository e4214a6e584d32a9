"""Optimizers as values: which parameters follow which rule, and what that keeps, moves and computes.

Memory, speed, fit, saving and the doctor read them; torch's optimizer (train/optim.py) has the groups given here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.models.architectures import structure_of
from onecard.models.muon import Orthogonalisation, Shape, orthogonalisation
from onecard.models.structure import Kind, Role, kind_counts

FLOAT = 4  # bytes of a weight, a gradient or a moment


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An update rule: what it keeps for each parameter. Its state is float32."""

    title: str  # in sentences
    moments: tuple[str, ...]  # tensors of each parameter's shape, by their names in torch
    numbers: tuple[str, ...] = ()  # single numbers of each parameter

    @property
    def held_bytes(self) -> int:
        """Bytes per parameter at every update: weight, gradient and moments."""
        return FLOAT * (2 + len(self.moments))

    @property
    def saved_bytes(self) -> int:
        """Bytes per parameter in a checkpoint: weight and moments."""
        return FLOAT * (1 + len(self.moments))

    @property
    def moved_bytes(self) -> int:
        """Bytes per parameter that a step reads (weight, gradient, moments) and writes (all but the gradient)."""
        return FLOAT * (3 + 2 * len(self.moments))


ADAMW = Rule(title="AdamW", moments=("exp_avg", "exp_avg_sq"), numbers=("step",))
MUON = Rule(title="Muon", moments=("momentum_buffer",))
RULES = {"adamw": ADAMW, "muon": MUON}


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters with one rule and one highest learning rate."""

    rule: Rule
    roles: frozenset[Role]
    learning_rate: float
    decays: bool  # whether weight decay applies


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How a whole model learns."""

    title: str  # in sentences
    groups: tuple[Group, ...]  # every role is in one of them
    kinds: Counter[Kind]  # how many parameters of each kind the model has

    def group_of(self, kind: Kind) -> Group:
        """The group that a parameter belongs to."""
        return next(group for group in self.groups if kind.role in group.roles)

    @property
    def held_bytes(self) -> int:
        """Bytes of the model's weights, gradients and moments."""
        return self._sum(lambda rule: rule.held_bytes)

    @property
    def saved_bytes(self) -> int:
        """Bytes of its weights and moments in a checkpoint."""
        return self._sum(lambda rule: rule.saved_bytes)

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step reads and writes, besides those of orthogonalisation."""
        return self._sum(lambda rule: rule.moved_bytes)

    @property
    def orthogonalisation(self) -> Orthogonalisation:
        """What a step computes to orthogonalise Muon's updates."""
        return orthogonalisation(list(self._matrices()))

    def _sum(self, each_bytes: Callable[[Rule], int]) -> int:
        return sum(each_bytes(self.group_of(kind).rule) * kind.numel * count for kind, count in self.kinds.items())

    def _matrices(self) -> Iterator[tuple[Shape, int]]:
        for kind, count in self.kinds.items():
            if self.group_of(kind).rule == MUON:
                yield from [(kind.shape, kind.parts)] * count


_shape = attrgetter(*SHAPE_KEYS)


def kinds_in(config: RunConfig) -> Counter[Kind]:
    """How many parameters of each kind a config's model has; a plan asks a thousand times."""
    return _kinds(_shape(config))


@lru_cache(maxsize=4096)
def _kinds(values: tuple[Any, ...]) -> Counter[Kind]:
    return kind_counts(structure_of(RunConfig().model_copy(update=dict(zip(SHAPE_KEYS, values, strict=True)))))


def optimizer_of(config: RunConfig) -> Optimizer:
    """The optimizer of a run of our trainer."""
    groups = _muon_groups(config) if config.optimizer == "muon" else _adamw_groups(config)
    return Optimizer(title=RULES[config.optimizer].title, groups=groups, kinds=kinds_in(config))


def nanogpt_optimizer(config: RunConfig) -> Optimizer:
    """The optimizer of nanoGPT, which has no key for it."""
    return optimizer_of(config.model_copy(update={"optimizer": "adamw"}))


def _adamw_groups(config: RunConfig) -> tuple[Group, ...]:
    """As nanoGPT's two groups; a head with weights of its own has its own rate."""
    return (
        Group(
            rule=ADAMW,
            roles=frozenset({"block matrix", "embedding"}),
            learning_rate=config.learning_rate,
            decays=True,
        ),
        Group(rule=ADAMW, roles=frozenset({"head"}), learning_rate=_head_rate(config), decays=True),
        Group(rule=ADAMW, roles=frozenset({"vector"}), learning_rate=config.learning_rate, decays=False),
    )


def _muon_groups(config: RunConfig) -> tuple[Group, ...]:
    """Muon for the matrices of blocks, AdamW without weight decay for the rest."""
    others = frozenset[Role]({"embedding", "vector"})
    return (
        Group(rule=MUON, roles=frozenset({"block matrix"}), learning_rate=config.muon_learning_rate, decays=True),
        Group(rule=ADAMW, roles=others, learning_rate=config.learning_rate, decays=False),
        Group(rule=ADAMW, roles=frozenset({"head"}), learning_rate=_head_rate(config), decays=False),
    )


def _head_rate(config: RunConfig) -> float:
    return config.learning_rate if config.head_learning_rate is None else config.head_learning_rate
