"""Who takes part in a comparison of recipes: our config and the baseline, each with the settings to try."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from onecard import units
from onecard.config.names import nearest
from onecard.config.recipes import following, recipe_values
from onecard.config.schema import KEYS, RunConfig
from onecard.config.shown import shown, typed
from onecard.errors import ConfigError, UsageError
from onecard.inputs.config import STDIN, Flags, config_named, with_vocabulary
from onecard.inputs.text import THERE
from onecard.models.evaluation import eval_tokens
from onecard.plan.speed.work import TrainerName

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved

FEWEST_UPDATES = 10  # of a run: the first ones compile and settle, and are not timed


def _says_a_recipe(name: str) -> bool:
    """Whether a key is one of ours that says how a run learns: nanoGPT's recipe has its default."""
    key = KEYS[name]
    return not key.nanogpt and "loss" in key.affects and "measure" not in key.affects and "limit" not in key.kind


RECIPE_KEYS = tuple(name for name in KEYS if _says_a_recipe(name))


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A config that takes part, before its run has a length."""

    name: str
    ours: bool
    trainer: TrainerName
    config: RunConfig
    settings: Mapping[str, str]  # what was tried, as typed

    def of_length(self, tokens: float) -> RunConfig:
        """The config of a complete run that reads about so many tokens: its schedule is longer or shorter with it."""
        config = self.config
        updates = max(1, round(tokens / config.tokens_per_step))
        share = updates / max(1, config.max_iters)
        of_recipe = recipe_values(config.recipe, config.model_dump())
        of_schedule = ("warmup_iters", "lr_decay_iters", "muon_momentum_warmup")
        scaled = [key for key in of_schedule if getattr(config, key) != of_recipe.get(key)]
        changes = {key: round(share * getattr(config, key)) for key in scaled}
        shorter = config.replace({**changes, "max_iters": updates})
        return shorter.replace(following(config.model_dump(), shorter.model_dump()))


@dataclass(frozen=True, kw_only=True)
class Job:
    """One complete run: a contender, a length and a seed, and the windows that all runs are evaluated on."""

    contender: Contender
    share: float  # of the other side's tokens
    config: RunConfig
    windows: int
    window_tokens: int

    @property
    def trainer(self) -> TrainerName:
        return self.contender.trainer

    @property
    def words(self) -> str:
        return f"{self.contender.name}, {units.count(self.config.total_tokens)} tokens, seed {self.config.seed}"

    def as_json(self, checkout: Path | None) -> dict[str, object]:
        """What the process of the run is given."""
        return {
            "name": self.contender.name,
            "ours": self.contender.ours,
            "trainer": self.trainer,
            "share": self.share,
            "config": self.config.model_dump(),
            "windows": self.windows,
            "window_tokens": self.window_tokens,
            "nanogpt": str(checkout),
        }


def contenders(
    path: str | None,
    flags: Flags,
    *,
    against: TrainerName,
    ours: Sequence[str] = (),
    theirs: Sequence[str] = (),
    vocab_size: int | None,
    otherwise: str = THERE,
) -> tuple[Contender, ...]:
    """The baseline's variants, then ours: one for each combination of the values that KEY=A,B,C of a side name.

    The baseline is the same config with nanoGPT's recipe, under our trainer, or under nanoGPT's.
    """
    if path == STDIN:
        raise UsageError(
            "a comparison of recipes cannot read its config from standard input",
            why="the config is read once for each side",
            fix="write it to a file, and name that file",
            name="config-from-stdin",
        )
    baseline = "nanogpt" if against == "nanogpt" else "adamw"
    usual = [(key, typed(key, KEYS[key].default)) for key in RECIPE_KEYS]
    their_flags = [*(flag for flag in flags if flag[0] not in RECIPE_KEYS), *usual]
    our_values = _values(ours, option="--set", nanogpt_only=False)
    their_values = _values(theirs, option="--against-set", nanogpt_only=against == "nanogpt")

    def made(is_ours: bool, name: str, base: Flags, settings: Mapping[str, str]) -> Contender:
        resolved = config_named(path, [*base, *settings.items()], otherwise=otherwise)
        return Contender(
            name=", ".join([name, *(f"{key}={value}" for key, value in settings.items())]),
            ours=is_ours,
            trainer="onecard" if is_ours else against,
            config=with_vocabulary(resolved, vocab_size),
            settings=settings,
        )

    name = _our_name(config_named(path, flags, otherwise=otherwise))
    found = (
        *(made(False, baseline, their_flags, settings) for settings in _combinations(their_values)),
        *(made(True, name, flags, settings) for settings in _combinations(our_values)),
    )
    _check(found, against)
    return found


def _our_name(resolved: Resolved) -> str:
    """`fast`, `muon`: what was asked for of a recipe, in words; else `ours`."""
    words = {
        key: value
        for key, value in resolved.set_by_user.items()
        if key in RECIPE_KEYS and isinstance(value, str) and value != KEYS[key].default
    }
    return words.get("recipe") or " ".join(words.values()) or "ours"


def _values(said: Sequence[str], *, option: str, nanogpt_only: bool) -> dict[str, list[str]]:
    """`learning_rate=0.001,0.002` by key."""
    found: dict[str, list[str]] = {}
    for text in said:
        key, equals, values = text.partition("=")
        each = [value.strip() for value in values.split(",")]
        if not equals or not all(each):
            raise UsageError(
                f"{option} {text} names no values",
                why="it takes a key and the values to try",
                fix=f"{option} learning_rate=0.001,0.002,0.004",
                name="bad-set",
            )
        _check_key(key, values, option=option, nanogpt_only=nanogpt_only)
        if key in found or len(set(each)) < len(each):
            raise UsageError(
                f"{option} names {key} or one of its values twice",
                why="each value is a run, and the same run twice shows nothing",
                fix=f"{option} {key}={','.join(dict.fromkeys([*found.get(key, []), *each]))}",
                name="bad-set",
            )
        found[key] = each
    return found


# What both sides must share, and what says it for both.
_SHARED = {"seed": "--seeds 2", "max_iters": "--tokens 10M"}


def _check_key(key: str, values: str, *, option: str, nanogpt_only: bool) -> None:
    known = [name for name, one in KEYS.items() if one.nanogpt or not nanogpt_only]
    if key not in known:
        near = nearest(key, known)
        raise ConfigError(
            f"{option} {key}={values}: {key} is not a config key" + (" of nanoGPT" if key in KEYS else ""),
            why="nanoGPT is run as published" if key in KEYS else "a typo must never pass silently",
            fix=f"did you mean {option} {near}={values} ?" if near else "onecard plan --explain lists all keys",
            name="unknown-key",
        )
    effects = KEYS[key].affects
    if key in _SHARED or "measure" in effects or "limit" in KEYS[key].kind:
        raise UsageError(
            f"{option} {key}: both sides must have the same {key}",
            why="else they would not be measured on the same data, windows, seeds or tokens",
            fix=_SHARED.get(key, f"--{key}={values.split(',')[0]}, for both"),
            name="must-not-vary",
        )
    if not effects.intersection({"loss", "speed"}):
        raise UsageError(
            f"{option} {key} would compare equal runs",
            why=f"{key} is: {KEYS[key].meaning}; it changes neither loss nor speed",
            fix=f"{option} learning_rate=0.001,0.002,0.004, or another key that does",
            name="does-not-vary",
        )


def _combinations(values: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


def _check(found: Sequence[Contender], against: TrainerName) -> None:
    theirs, ours = ([one for one in found if one.ours is is_ours] for is_ours in (False, True))
    if pretrained := next((one for one in found if one.config.init_from != "scratch"), None):
        raise ConfigError(
            f"init_from={pretrained.config.init_from}: recipes are compared from scratch",
            why="a model that is trained already says little about the recipe",
            fix="--init_from=scratch",
            name="not-from-scratch",
        )
    if against == "onecard" and all(one.config in [other.config for other in theirs] for one in ours):
        raise UsageError(
            "both sides are the same run",
            why="the config has nanoGPT's recipe, and nothing says what our side does otherwise",
            fix="--set learning_rate=0.001,0.002,0.004 changes our side only",
            name="nothing-to-compare",
        )


def jobs_of(
    found: Sequence[Contender],
    *,
    tokens: float | None,
    lengths: Sequence[float],
    seeds: int,
    seconds: float | None = None,
) -> list[Job]:
    """All runs in their order: of each seed the other side's, then ours by length, so that every seed is an answer.

    `tokens` are those of the other side; None for those of its config. `seconds`: those it was asked for.
    """
    theirs = found[0].config
    tokens = theirs.total_tokens if tokens is None else tokens
    window_tokens = min(one.config.eval_length for one in found)
    windows = max(1, eval_tokens(theirs) // window_tokens)
    jobs = [
        Job(
            contender=one,
            share=share,
            config=one.of_length(share * tokens).replace({"seed": theirs.seed + number}),
            windows=windows,
            window_tokens=window_tokens,
        )
        for number in range(seeds)
        for one in found
        for share in (lengths if one.ours else (1.0,))
    ]
    shortest = min(jobs, key=lambda job: job.config.max_iters)
    if shortest.config.max_iters < FEWEST_UPDATES:
        needed = FEWEST_UPDATES * shortest.config.tokens_per_step / shortest.share
        enough = f"--seconds {math.ceil(seconds * needed / tokens)}" if seconds else f"--tokens {math.ceil(needed)}"
        longer = ", or a longer shortest run: --lengths 0.5,1" if shortest.share < 0.5 else ""
        raise UsageError(
            f"{shortest.contender.name} would have {units.things(shortest.config.max_iters, 'update')}",
            why=f"a run has at least {FEWEST_UPDATES}, and this one reads {shortest.share:g} of {tokens:,.0f} tokens",
            fix=f"{enough}{longer}",
            name="too-short",
        )
    return jobs


def cautions(found: Sequence[Contender], *best: str | None) -> list[str]:
    """What to know about the settings of the best of each side: where a better one may lie."""
    said = []
    for one in (one for one in found if one.name in best):
        for key in one.settings:
            value, values = (
                getattr(one.config, key),
                {getattr(other.config, key) for other in found if other.ours is one.ours},
            )
            if len(values) > 1 and type(value) in (int, float) and value in (min(values), max(values)):
                end = "lowest" if value == min(values) else "highest"
                said.append(f"{one.name}: the {end} {key} tried, so a better one may lie beyond")
        if not one.ours and "learning_rate" not in one.settings:
            rate = shown("learning_rate", one.config.learning_rate)
            said.append(f"{one.name} was not tuned: its learning_rate={rate} is the only one tried (--against-set)")
    return said
