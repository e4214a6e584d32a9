"""What Python programs may call: the commands' answers as values. Like the commands, these take paths and names.

What goes wrong is an `onecard.OnecardError` with `what`, `why` and `fix`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from onecard.errors import UsageError
from onecard.runs.folder import Run, load_run

if TYPE_CHECKING:
    from onecard.cli.cases import Stated
    from onecard.config.resolve import Resolved
    from onecard.doctor.compare import Comparison
    from onecard.doctor.diagnose import Diagnosis
    from onecard.plan.make import Plan
    from onecard.runs.logged import LoggedRun

__all__ = ["compare_runs", "diagnose", "load_run", "make_plan"]

Source = str | Path | Run
Config = str | Path | Mapping[str, object] | None


def make_plan(
    config: Config = None,
    *,
    gpu: str | None = None,
    vram_bytes: int | None = None,
    other_bytes: int | None = None,
    trainer: Literal["both", "onecard", "nanogpt"] = "both",
    fit: bool = False,
    params: int | None = None,
    hours: float | None = None,
    tokens: int | None = None,
    sensitivity: bool = False,
    **keys: object,
) -> Plan:
    """The plan of a run before it starts: what `onecard plan` shows.

    `config` is the path of a nanoGPT file, a mapping of keys, or None for the packaged default; `keys` change it. `gpu`
    is a card's name, "none", or None for this machine's. Nothing is run, and neither torch nor a GPU is needed.

    >>> plan = make_plan({"n_layer": 12, "n_embd": 768}, gpu="RTX 4070", batch_size=8, gradient_accumulation_steps=64)
    >>> plan.fits, plan.params.nanogpt
    (True, 123587328)
    """
    from onecard.cli.plan import place_named
    from onecard.plan import make
    from onecard.plan.budget import budget_of

    return make.make_plan(
        _resolved(config, keys),
        place_named(gpu, vram_bytes, other_bytes),
        trainer=trainer,
        fit=fit,
        params=params,
        budget=budget_of(hours=hours, tokens=tokens),
        sensitivity=sensitivity,
    )


def diagnose(
    *sources: Source,
    config: Config = None,
    gpu: str | None = None,
    other_bytes: int = 0,
    train_tokens: int | None = None,
    val_tokens: int | None = None,
    final: bool = False,
) -> list[Diagnosis]:
    """One diagnosis for each run found: what `onecard doctor` shows.

    A source is a run folder, a log of nanoGPT, nanochat, llm.c, modded-nanogpt or Hugging Face Trainer, or a `Run`; a
    log may hold several runs. `config` is the config a log was made with; without it, that is the file NAME.config.py
    beside NAME.log, if there is one. `gpu` is the card it ran on, `other_bytes` what other programs hold of it, the
    tokens are those of the data, and `final` says that a log is complete.

    >>> for diagnosis in diagnose("train.log", config="train_fineweb.py", gpu="RTX 4070"):  # doctest: +SKIP
    ...     for finding in diagnosis.findings:
    ...         print(finding.rule, finding.severity, finding.patch)
    """
    from onecard.cli.cases import cases_of, doctors_card
    from onecard.doctor.case import DataSizes
    from onecard.doctor.diagnose import diagnose_cases

    stated, card = _stated(config), doctors_card(gpu)
    data = DataSizes(train_tokens=train_tokens, val_tokens=val_tokens)
    found = (_runs(source, stated) for source in sources)
    cases = [case for each in found for case in cases_of(*each, card=card, data=data, other_bytes=other_bytes)]
    return diagnose_cases(cases, final=final)


def compare_runs(*sources: Source, configs: Sequence[Config] | None = None, gpu: str | None = None) -> Comparison:
    """Runs side by side, each named by its position: what `onecard compare` shows. Sources are as for `diagnose`.

    `configs` has one config for each source, None where the source says it itself, as run folders do, or a file
    NAME.config.py beside NAME.log.

    >>> found = compare_runs("runs/40m", "runs/124m", gpu="RTX 4070")  # doctest: +SKIP
    >>> found.winners["final_val_loss"], found.config_diff["n_embd"]  # doctest: +SKIP
    (1, (384, 768))
    """
    from onecard.cli.cases import cases_of, doctors_card
    from onecard.doctor import compare
    from onecard.doctor.case import DataSizes

    named = configs or [None] * len(sources)
    if len(named) != len(sources):
        raise UsageError(
            f"{len(named)} configs for {len(sources)} sources",
            why="configs has one for each source, in their order",
            fix="compare_runs(a, b, configs=[a_config, None])",
            name="configs-do-not-match",
        )
    card = doctors_card(gpu)
    found = (_runs(source, _stated(config)) for source, config in zip(sources, named, strict=True))
    cases = [case for each in found for case in cases_of(*each, card=card, data=DataSizes())]
    if len(cases) < 2:
        raise UsageError(
            f"a comparison needs two runs, and {'one was' if cases else 'none were'} given",
            why="nothing is there to compare it with",
            fix='compare_runs("runs/a", "runs/b")',
            name="one-run",
        )
    return compare.compare_runs(cases)


def _runs(source: Source, stated: Stated | None) -> tuple[Iterable[LoggedRun], Stated]:
    """The runs of a source and their config: the one given, else the one found beside a log, as the commands do."""
    from onecard.cli.cases import found_config, runs_at
    from onecard.runs.logged import logged_run

    if isinstance(source, Run):
        return [logged_run(source)], stated or (None, {})
    return runs_at(str(source)), stated or found_config(str(source), [])[0]


def _stated(config: Config) -> Stated | None:
    """The config that was given, read as the commands read it; None for none."""
    from onecard.cli.cases import stated_config

    if isinstance(config, Mapping):
        return _resolved(config, {}), {}
    return None if config is None else stated_config(str(config), [])


def _resolved(config: Config, keys: Mapping[str, object]) -> Resolved:
    """The config under changed keys, checked as files and flags are."""
    from onecard.cli.plan import read_config
    from onecard.config.resolve import assignments, resolve

    flags = [(key, str(value)) for key, value in keys.items()]
    if isinstance(config, Mapping):
        return resolve(assignments(config), filename="config", flags=flags)
    return read_config(None if config is None else str(config), flags)
