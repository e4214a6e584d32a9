"""What Python programs may call: the commands' answers as values. Like the commands, they take paths and names.

Errors are an `onecard.OnecardError` with `what`, `why` and `fix`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, SupportsFloat, SupportsIndex

from onecard.errors import UsageError
from onecard.runs.folder import Run, load_run

if TYPE_CHECKING:
    from onecard.doctor.case import Case, DataSizes
    from onecard.doctor.compare import Comparison
    from onecard.doctor.diagnose import Diagnosis
    from onecard.inputs.config import Flags, Named
    from onecard.inputs.runs import Stated
    from onecard.plan.cards import Card
    from onecard.plan.plan import Plan

__all__ = ["compare_runs", "diagnose", "load_run", "make_plan"]

Source = str | Path | Run
Config = str | Path | Mapping[str, object] | None
Amount = SupportsIndex | SupportsFloat | str  # a whole number of any kind, or text with a unit as the commands take it

MOST = 2**63  # the largest amount, also as text


def make_plan(
    config: Config = None,
    *,
    gpu: str | None = None,
    vram_bytes: Amount | None = None,
    other_bytes: Amount | None = None,
    trainer: Literal["both", "onecard", "nanogpt"] = "both",
    fit: bool = False,
    params: Amount | None = None,
    hours: SupportsFloat | None = None,
    tokens: Amount | None = None,
    sensitivity: bool = False,
    gpus: int | None = None,
    nodes: int | None = None,
    interconnect: str | Sequence[str] = (),
    price: float | str | Sequence[str] = (),
    **keys: object,
) -> Plan:
    """The plan of a run before it starts: what `onecard plan` shows.

    `config` is the path of a nanoGPT file, a mapping of keys over nanoGPT's defaults, or None for the packaged default;
    `keys` change it. `gpu` is a card's name, "none", or None for this machine's; `vram_bytes` makes it a card of that
    size, and `other_bytes` is what other programs hold of it. `fit`, `params`, `hours`, `tokens`, `sensitivity`,
    `gpus`, `nodes`, `interconnect` and `price` ask what the options of that name ask. Nothing is run, and neither torch
    nor a GPU is needed.

    >>> plan = make_plan({"n_layer": 12, "n_embd": 768}, gpu="RTX 4070", batch_size=8, gradient_accumulation_steps=64)
    >>> plan.fits, plan.params.nanogpt
    (True, 123587328)
    """
    from onecard.inputs.make_plan import plan_named

    hours, tokens, params = _hours(hours), _amount("tokens", tokens), _amount("params", params)
    interconnects, prices = _each(interconnect), _each(price)
    _check(
        hours=hours,
        tokens=tokens,
        params=params,
        sensitivity=sensitivity or None,
        gpus=gpus,
        nodes=nodes,
        interconnect=interconnects or None,
        price=prices or None,
    )
    return plan_named(
        _named(config),
        _flags(keys),
        gpu=_text(gpu),
        vram=_amount("vram_bytes", vram_bytes),
        other=_amount("other_bytes", other_bytes),
        trainer=trainer,
        fit=fit,
        params=params,
        hours=hours,
        tokens=tokens,
        sensitivity=sensitivity,
        gpus=gpus,
        nodes=nodes,
        interconnects=interconnects,
        prices=prices,
    )


def _each(given: float | str | Sequence[str]) -> Sequence[str]:
    """One or several, as words."""
    return [str(given)] if isinstance(given, str | int | float) else given


def diagnose(
    *sources: Source,
    config: Config = None,
    gpu: str | None = None,
    other_bytes: Amount | None = None,
    train_tokens: Amount | None = None,
    val_tokens: Amount | None = None,
    final: bool = False,
) -> list[Diagnosis]:
    """One diagnosis for each run found: what `onecard doctor` shows.

    A source is a run folder, a log of nanoGPT, nanochat, llm.c, modded-nanogpt or Hugging Face Trainer, or a `Run`; a
    log may hold several runs. `config` is the config a log was made with; without it, one is looked for beside the log
    and in config/. `gpu` is the card it ran on, `other_bytes` what other programs hold of it, the
    tokens are those of the data, and `final` says that a log is complete.

    >>> for diagnosis in diagnose("train.log", config="train_fineweb.py", gpu="RTX 4070"):  # doctest: +SKIP
    ...     for finding in diagnosis.findings:
    ...         print(finding.rule, finding.severity, finding.patch)
    """
    from onecard.doctor.case import DataSizes
    from onecard.doctor.diagnose import diagnose_cases
    from onecard.inputs.runs import doctors_card

    stated, card = _stated(config), doctors_card(_text(gpu))
    other = _amount("other_bytes", other_bytes)
    data = DataSizes(
        train_tokens=_amount("train_tokens", train_tokens),
        val_tokens=_amount("val_tokens", val_tokens),
    )
    found = (_cases(source, stated, card=card, data=data, other_bytes=other) for source in sources)
    cases = [case for each in found for case in each]
    return diagnose_cases(cases, final=final)


def compare_runs(*sources: Source, configs: Sequence[Config] | None = None, gpu: str | None = None) -> Comparison:
    """Runs side by side, each named by its position: what `onecard compare` shows. Sources are as for `diagnose`.

    `configs` has one config for each source, None where the source has it, as run folders do, or where it is to be
    found near the log.

    >>> found = compare_runs("runs/40m", "runs/124m", gpu="RTX 4070")  # doctest: +SKIP
    >>> found.winners["final_val_loss"], found.config_diff["n_embd"]  # doctest: +SKIP
    (1, (384, 768))
    """
    from onecard.doctor import compare
    from onecard.doctor.case import DataSizes
    from onecard.inputs.runs import doctors_card

    named = configs or [None] * len(sources)
    if len(named) != len(sources):
        raise UsageError(
            f"{len(named)} configs for {len(sources)} sources",
            why="configs needs one entry for each source, in the same order",
            fix="compare_runs(a, b, configs=[a_config, None])",
            name="configs-do-not-match",
        )
    card = doctors_card(_text(gpu))
    cases = [
        case
        for source, config in zip(sources, named, strict=True)
        for case in _cases(source, _stated(config), card=card, data=DataSizes(), command="compare")
    ]
    if len(cases) < 2:
        raise UsageError(
            f"a comparison needs two runs, and {'one was' if cases else 'none were'} given",
            why="there is nothing to compare it with",
            fix='compare_runs("runs/a", "runs/b")',
            name="one-run",
        )
    return compare.compare_runs(cases)


def _cases(
    source: Source,
    stated: Stated | None,
    *,
    card: Card | None,
    data: DataSizes,
    other_bytes: int | None = None,
    command: str = "doctor",
) -> list[Case]:
    """The runs of a source with their config: the one given, else the one that is found, as the commands do."""
    from onecard.inputs.runs import cases_at, cases_of
    from onecard.runs.logged import logged_run

    if isinstance(source, Run):
        run = logged_run(source)
        return list(cases_of([run], stated or (None, {}), card=card, data=data, other_bytes=other_bytes))
    return cases_at(str(source), stated, card=card, data=data, other_bytes=other_bytes, command=command)[0]


def _stated(config: Config) -> Stated | None:
    """The config that was given, read as the commands read it; None if none was given."""
    from onecard.inputs.config import config_named
    from onecard.inputs.runs import stated_config

    if isinstance(config, Mapping):
        return config_named(config, []), {}
    return None if config is None else stated_config(str(config), [])


def _named(config: Config) -> Named:
    """A config as the commands name it, or a mapping as it is."""
    return config if isinstance(config, Mapping) else _text(config)


def _flags(keys: Mapping[str, object]) -> Flags:
    """Changed keys as flags, so that they are checked as those are."""
    from onecard.config.plain import plain

    return [(key, str(plain(value))) for key, value in keys.items()]


def _text(value: object) -> str | None:
    """A name or a path as text, such as 4070; None stays None."""
    return None if value is None else str(value)


def _check(**asked: object) -> None:
    """UsageError where two questions exclude each other."""
    from onecard.inputs.questions import check_questions

    check_questions(
        {name: name for name, value in asked.items() if value is not None},
        apart=lambda budget, beside: f"make_plan with {budget}, then with {beside} for a config that it proposes",
    )


def _amount(keyword: str, value: Amount | None) -> int | None:
    """A whole number, of a number of any kind or of text as the command reads it; UsageError for anything else."""
    from onecard.config.plain import plain
    from onecard.units import NotAnAmount, typed_bytes, typed_count

    of_bytes, number, meant = keyword.endswith("_bytes"), plain(value), None
    if isinstance(number, str):
        try:
            return (typed_bytes if of_bytes else typed_count)(number)
        except NotAnAmount as problem:
            meant = problem.meant
    if isinstance(number, float) and number.is_integer():
        number = int(number)  # 1e9
    if number is None or (type(number) is int and 0 <= number <= MOST):
        return number
    example = "2.1GiB" if of_bytes else "124M"
    raise UsageError(
        f"{keyword}={value!r} is not a {'size in bytes' if of_bytes else 'count'}",
        why=f"{keyword} takes a whole number from 0 to 2**63, or text such as {example}",
        fix=f'{keyword}="{meant or example}"',
        name="bad-size" if of_bytes else "bad-number",
    )


def _hours(value: SupportsFloat | None) -> float | None:
    """Hours as a float; UsageError for anything that is not a number."""
    from onecard.config.plain import plain

    hours = plain(value)
    if hours is None:
        return None
    if type(hours) in (int, float):
        with suppress(OverflowError):
            return float(hours)
    raise UsageError(
        f"hours={value!r} is not a number",
        why="hours takes a number, such as 48 or 0.5",
        fix="hours=48",
        name="bad-number",
    )
