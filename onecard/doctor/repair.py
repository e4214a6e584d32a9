"""A patch for a run that was made: completed and planned as the plan does it, for the run's own trainer and card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onecard.config.schema import PLANNED_KEYS, RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import known, messages
from onecard.doctor.oom import cause, out_of_memory
from onecard.plan.cards import Card
from onecard.plan.memory.predict import Memory, predict_memory
from onecard.plan.precision import with_dtype
from onecard.plan.repair import Repair, make_whole
from onecard.plan.speed import TrainerName


def repaired(case: Case, patch: Mapping[str, object]) -> Repair | None:
    """The patch completed and planned on the case's card; None where the config is not known well enough to plan, or
    does not hold together with the patch."""
    config = known(case, *PLANNED_KEYS)
    if config is None or not patch:
        return None
    return make_whole(
        config,
        patch,
        place=case.place,
        trainer=trainer_of(case),
        train_tokens=case.data.train_tokens,
        folder=folder_of(case, config),
        next_folder=case.next_folder,
        ran=bool(case.steps) and not messages(case, "oom"),
    )


def beside_others(case: Case) -> Case:
    """The case with what other programs held when the run ran out of memory because of them: a cure fits beside it."""
    failed = [out_of_memory(message, case.card) for message in messages(case, "oom")]
    held = [each.other for each in failed if cause(each) == "oom-other-process"]
    return replace(case, other_bytes=max(held)) if held and case.other_bytes is None else case


def same_run_under_onecard(case: Case) -> Repair | None:
    """A run of nanoGPT as onecard trains it: as it is where that fits, else in micro-batches that do.

    None for other runs, and where the config is not known well enough to plan or nothing fits.
    """
    config = known(case, *PLANNED_KEYS)
    if config is None or trainer_of(case) == "onecard":
        return None
    made = make_whole(config, {}, place=case.place, trainer="onecard")
    if made and made.process_bytes is None:
        return replace(made, process_bytes=predict_memory(config, None, "onecard").process_bytes)
    return made if made and made.fits else None


def trainer_of(case: Case) -> TrainerName:
    """Whose run it is: what a patch is planned for."""
    return "onecard" if case.run.format == "onecard" else "nanogpt"


def memory_of(case: Case, config: RunConfig, card: Card | None, *, available_bytes: int | None = None) -> Memory:
    """The memory a config needs under the trainer of the case."""
    return predict_memory(with_dtype(config, card), card, trainer_of(case), available_bytes=available_bytes)


def next_folder(case: Case, config: RunConfig) -> str:
    """Where the next run goes: beside this one, in a folder that is free as far as anybody could look."""
    return case.next_folder or f"{folder_of(case, config)}-2"


def folder_of(case: Case, config: RunConfig) -> str:
    """The folder the run was written to: where it was read, else what its config says."""
    return case.run.folder or config.out_dir.rstrip("/")
