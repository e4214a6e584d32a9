"""What a rule must know before it can look. It is declared once, beside the rule, and read by whoever counts the rules
that could not look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Literal, ParamSpec, TypeVar

from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import known
from onecard.findings import Finding
from onecard.runs.logged import LogFormat

About = Literal["config", "card", "data"]
OPTIONS: dict[About, str] = {"config": "--config FILE", "card": "--gpu NAME", "data": "--data DIR"}  # what to type


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something a rule must know, and how to see whether it is known."""

    about: About
    met: Callable[[Case], bool]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Everything one rule must know."""

    needed: tuple[Need, ...] = ()
    surer_with: tuple[Need, ...] = ()  # it looks without, and is then less sure
    formats: tuple[LogFormat, ...] | None = None  # logs the rule is about; None: all


CONFIG = Need(about="config", met=lambda case: case.resolved is not None)
PARAMETERS = Need(about="config", met=lambda case: (case.facts.params_total or case.facts.params) is not None)
TOKENS_PER_UPDATE = Need(about="config", met=lambda case: case.facts.tokens_per_step is not None)
TOKENS = Need(about="config", met=lambda case: case.facts.tokens is not None or not case.steps)
CARD = Need(about="card", met=lambda case: case.card is not None or case.cardless is not None)
TRAINING_DATA = Need(about="data", met=lambda case: case.data.train_tokens is not None)
VALIDATION_DATA = Need(about="data", met=lambda case: case.data.val_tokens is not None)

_NEEDS: dict[str, Needs] = {}  # by the name of the rule's function

P = ParamSpec("P")
R = TypeVar("R")


def needs(
    *needed: Need, surer_with: tuple[Need, ...] = (), formats: tuple[LogFormat, ...] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declares what a rule must know."""

    def declared(rule: Callable[P, R]) -> Callable[P, R]:
        _NEEDS[rule.__name__] = Needs(needed=needed, surer_with=surer_with, formats=formats)
        return rule

    return declared


def needs_settings(
    *keys: str,
    also: tuple[Need, ...] = (),
    surer_with: tuple[Need, ...] = (),
    formats: tuple[LogFormat, ...] | None = None,
) -> Callable[
    [Callable[Concatenate[Case, RunConfig, P], Iterator[Finding]]], Callable[Concatenate[Case, P], Iterator[Finding]]
]:
    """Declares that a rule must know these keys of the config, and gives it the config. Where one of them is not known
    the rule does not run."""
    settings = Need(about="config", met=lambda case: known(case, *keys) is not None)

    def declared(
        rule: Callable[Concatenate[Case, RunConfig, P], Iterator[Finding]],
    ) -> Callable[Concatenate[Case, P], Iterator[Finding]]:
        _NEEDS[rule.__name__] = Needs(needed=(settings, *also), surer_with=surer_with, formats=formats)

        @wraps(rule)
        def run(case: Case, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Finding]:
            config = known(case, *keys)
            if config is not None:
                yield from rule(case, config, *args, **kwargs)

        return run

    return declared


def missing(rule: Callable[..., object], case: Case) -> About | None:
    """What is not known here and the rule cannot look without; None where it can look, or is not about such logs."""
    declared = _NEEDS.get(rule.__name__, Needs())
    if declared.formats is not None and case.run.format not in declared.formats:
        return None
    return next((need.about for need in declared.needed if not need.met(case)), None)


def would_be_surer_with(rule: Callable[..., object], case: Case) -> About | None:
    """What is not known here and would let the rule look, or make it surer; None where nothing is missing."""
    declared = _NEEDS.get(rule.__name__, Needs())
    every = (*declared.needed, *declared.surer_with)
    return next((need.about for need in every if not need.met(case)), None)
