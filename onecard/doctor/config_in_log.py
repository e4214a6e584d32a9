"""What a log states about its config and its card, and how that goes together with a config file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onecard.config.reader import comments_in
from onecard.config.resolve import NEEDED_KEYS, Resolved, resolve
from onecard.config.schema import KEYS, RunConfig
from onecard.errors import ConfigError
from onecard.plan.cards import Card, matching_cards, of_one_speed
from onecard.runs.logged import LoggedRun


def config_in_log(run: LoggedRun) -> Resolved | None:
    """The config that the log of a nanoGPT-shaped run states; None if it does not, or it does not hold together."""
    if run.format not in ("nanogpt", "onecard") or not run.config or run.unresolved & NEEDED_KEYS:
        return None
    if run.config.keys() <= {"vocab_size"}:
        return None  # a vocabulary alone is no config: the rest would be guessed
    values = {key: value for key, value in run.config.items() if key in KEYS}
    origins = dict.fromkeys(KEYS, "default") | {key: stated_in(run, key) for key in values}
    if "init_from" in values:  # the shape of OpenAI's weights, if it names them
        started = resolve(f"init_from = {values['init_from']!r}")
        shape = {key: origin for key, origin in started.origins.items() if origin.startswith("init_from=")}
        values |= {key: getattr(started.config, key) for key in shape}
        origins |= shape
    try:
        checked = RunConfig.model_validate(values)
    except ValueError:
        return None
    file = _config_file(run)
    return Resolved(
        checked,
        origins,
        warnings=file.warnings if file else (),
        source=run.source,
        comments=_comments(run, file),
        lines={key: line.number for key, line in run.config_lines.items()},
        unused=file.unused if file else (),
    )


def _config_file(run: LoggedRun) -> Resolved | None:
    """The config file that the log repeats, for what is said about the file as a whole."""
    try:
        return resolve("\n".join(line.text for line in run.config_source), filename=run.source)
    except ConfigError:
        return None


def card_in_log(run: LoggedRun) -> Card | None:
    """The card the log names, if the peaks of all it may mean agree."""
    return of_one_speed(matching_cards(run.card_name)) if run.card_name else None


def config_under_log(config: Resolved, run: LoggedRun) -> Resolved:
    """The given config with what the log states otherwise; flags on the command line stay above both."""
    said = {
        key: value
        for key, value in run.config.items()
        if key in KEYS and getattr(config.config, key) != value and not config.origins[key].startswith("--")
    }
    if not said or run.format not in ("nanogpt", "onecard"):
        return config
    try:
        checked = config.config.replace(said)
    except ValueError:
        return config
    said = {key: value for key, value in said.items() if getattr(checked, key) != getattr(config.config, key)}
    if not said:
        return config
    in_file = {key: getattr(config.config, key) for key in said if config.origins[key] != "default"}
    warnings = [
        f"{key}: the log says {said[key]!r} ({stated_in(run, key)}), the file {value!r} ({config.origins[key]}); "
        "what ran is what the log says"
        for key, value in in_file.items()
    ]
    return replace(
        config,
        config=checked,
        origins={**config.origins, **{key: stated_in(run, key) for key in said}},
        warnings=(*config.warnings, *warnings),
        overridden={**config.overridden, **in_file},
    )


def stated_in(run: LoggedRun, key: str) -> str:
    """The origin of a value that a run states: `train.log:12`, or `in runs/default`. A bare name would not do: a folder
    may be called what marks other origins, such as "default"."""
    line = run.config_lines.get(key)
    return f"{run.source}:{line.number}" if line else f"in {run.source}"


def _comments(run: LoggedRun, file: Resolved | None) -> Mapping[int, str]:
    """Comments of the config file that the log repeats, by line of the log; of a damaged one, line by line."""
    if file:
        return {run.config_source[number - 1].number: comment for number, comment in file.comments.items()}
    return {line.number: comment for line in run.config_source for comment in comments_in(line.text).values()}
