"""Rules about memory that ran out, or cannot be enough."""

from __future__ import annotations

from collections.abc import Iterator

from onecard import units
from onecard.config.command import EXPANDABLE
from onecard.config.schema import PLANNED_KEYS
from onecard.doctor.case import Case
from onecard.doctor.evidence import NANOGPT_LIKE, known, lines, messages, printed, said, shown
from onecard.doctor.needs import PARAMETERS, Need, needs
from onecard.doctor.oom import Cause, FailedAllocation, cause, out_of_memory, tensor_of
from onecard.doctor.repair import beside_others, memory_of, repaired, same_run_under_onecard
from onecard.findings import Finding, Severity
from onecard.models.optimizers import optimizer_of
from onecard.plan.counts import count_params
from onecard.runs.records import Step

STATE_BYTES_PER_PARAM = 16  # float32 weights, gradients and Adam's two moments
CAST_BYTES_PER_PARAM = 2  # autocast's copies
ROOM = 0.9  # of the card
SMALLEST_MODEL = 1e6  # parameters: no card is planned for less
TENSORS = Need(about="config", met=lambda case: not messages(case, "oom") or known(case, *PLANNED_KEYS) is not None)
ROOM_ON_CARD = Need(about="card", met=lambda case: case.cardless is not None or _room(case) is not None)


def _failures(case: Case, why: Cause) -> Iterator[FailedAllocation]:
    for message in messages(case, "oom"):
        failed = out_of_memory(message, case.card)
        if cause(failed) == why:
            yield failed


def _asked(failed: FailedAllocation) -> str:
    return f"{_size(failed.tried)} more" if failed.tried else "more memory"


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "an unknown amount"
    return units.gib(size_bytes) if size_bytes >= units.GIB else units.mib(size_bytes)


def _for_what(case: Case, failed: FailedAllocation) -> str:
    """What the allocation probably was for, in a clause."""
    guess = tensor_of(failed.tried, known(case, *PLANNED_KEYS)) if failed.tried else None
    return f"; it is the size of {guess.name}: {guess.arithmetic}" if guess else ""


def _severity(failed: FailedAllocation) -> Severity:
    """A run of ours that went on with smaller batches has not failed."""
    return "warn" if failed.went_on_with else "error"


def _lowered(failed: FailedAllocation) -> str:
    """Why it is only a warning, in a clause; "" for an error."""
    return "; only a warning, because the run went on" if failed.went_on_with else ""


def _outcome(failed: FailedAllocation) -> str:
    """What a run of ours did about it, in a clause; "" for other programs."""
    if failed.went_on_with is None:
        return ""
    step, before = failed.message.values["step"], failed.message.values["batch_size_before"]
    after = next(iter(failed.went_on_with.values()), None)
    return f", at step {step:,}; " + (
        f"batches of {before} became batches of {after}" if after else "not even one sequence at a time fitted"
    )


def _remedy(case: Case, failed: FailedAllocation) -> tuple[dict[str, object], str]:
    """The patch that makes the run smaller, and the words for it: what onecard went on with, else what is planned."""
    if failed.went_on_with is None:
        patch, how = _smaller_batch(case)
        ours = same_run_under_onecard(case)
        if ours is None:
            return patch, how
        changed = f" with {ours.flags}" if ours.patch else ""
        return patch, f"{how}; or train with onecard: the same run in {units.mib(ours.process_bytes or 0)}{changed}"
    if failed.went_on_with:
        flags = " ".join(f"--{key}={value}" for key, value in failed.went_on_with.items())
        return dict(failed.went_on_with), f"{flags}, which the run went on with: the same tokens, and no attempt lost"
    config = known(case, *PLANNED_KEYS)
    if config and config.grad_checkpoint != "full" and not failed.in_eval:
        return {"grad_checkpoint": "full"}, "--grad_checkpoint=full, a shorter block_size, or a smaller model"
    return {}, "a shorter block_size, or a smaller model: onecard plan --fit"


def oom_capacity(case: Case) -> Iterator[Finding]:
    """A run that needs more memory than the card has.

    What it sees: an out-of-memory message with capacity C, allocated A, tried T and what other programs hold: what is
    left, C - (A + T + others), is below 3 % of the card.

    Why it matters: no setting of the allocator helps; the run itself must need less.

    What to do: a smaller micro-batch at the same tokens per update; compile; return only the loss. The plan says which
    micro-batch fits.

    When it is wrong: a message that is cut short does not say what other programs hold; then it is less sure. A run of
    onecard's that went on with smaller batches only gets a warning.
    """
    for failed in _failures(case, "oom-capacity"):
        patch, how = _remedy(case, failed)
        if failed.capacity and case.resolved is None and case.run.format != "llm.c":
            most = ROOM * failed.capacity / (STATE_BYTES_PER_PARAM + CAST_BYTES_PER_PARAM)
            how += f"; above {units.count(most)} parameters no batch fits, with AdamW in float32"
        short = failed.short
        yield Finding(
            rule="oom-capacity",
            severity=_severity(failed),
            sure="high" if short is not None else "low",
            what=(
                f"out of memory: {_asked(failed)} was asked for with {_size(failed.allocated)} in use of "
                f"{_size(failed.capacity)}"
                if failed.capacity
                else "out of memory"
            )
            + _outcome(failed),
            why=(
                f"the run is short by {_size(max(0, short))}" if short is not None and short > 0 else "the card is full"
            )
            + (
                f", and other programs hold {_size(failed.other)}"
                if failed.other > 512 * units.MIB and failed.process is not None
                else ""
            )
            + _for_what(case, failed)
            + _lowered(failed),
            fix=how,
            seen=lines(failed.message),
            patch=patch,
        )


def _smaller_batch(case: Case) -> tuple[dict[str, object], str]:
    """The patch to the micro-batch that the plan says fits, and the words for it."""
    config = known(case, *PLANNED_KEYS)
    stated = case.run.config.get("batch_size")
    if case.run.format == "llm.c" and isinstance(stated, int):
        return {}, f"-b {max(1, stated // 2)}: llm.c adds up more micro-batches, and the update (-d) stays the same"
    if config is None:
        return (
            {},
            "halve batch_size and double gradient_accumulation_steps; onecard plan CONFIG --gpu NAME says what fits",
        )
    if case.place:
        made = repaired(case, {"batch_size": config.batch_size})
        if made and made.patch.get("batch_size") != config.batch_size:
            return dict(made.patch), f"{made.flags}: the same tokens per update"
        if made and made.fits is False:
            return {}, "no micro-batch of this model fits: onecard plan --fit names a smaller model"
    if config.batch_size == 1:
        return {}, "a shorter block_size or a smaller model: onecard plan CONFIG --gpu NAME --fit"
    half = -(-config.batch_size // 2)
    accumulation = max(1, round(config.sequences_per_step / half))
    patch: dict[str, object] = {"batch_size": half, "gradient_accumulation_steps": accumulation}
    kept = half * accumulation == config.sequences_per_step
    return patch, f"--batch_size={half} --gradient_accumulation_steps={accumulation}" + (
        ": the same tokens per update" if kept else ": nearly the same tokens per update"
    )


def oom_fragmentation(case: Case) -> Iterator[Finding]:
    """Enough free memory, but in pieces that are too small.

    What it sees: an out-of-memory message in which what was asked for is no more than what is free and what the
    process has reserved without using it, and the card is not nearly full.

    Why it matters: the run fits; only the allocator's pieces do not.

    What to do: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in front of the command (onecard sets it itself).

    When it is wrong: if the next allocation of the same step would have been even larger. A run of onecard's that went
    on with smaller batches only gets a warning.
    """
    for failed in _failures(case, "oom-fragmentation"):
        config = known(case, "expandable_segments")
        patch: dict[str, object] = {}
        if failed.went_on_with is None:
            how = f"{EXPANDABLE} python train.py …"
        elif config and not config.expandable_segments:
            patch, how = {"expandable_segments": True}, "--expandable_segments=True"
        else:
            patch, how = _remedy(case, failed)
        yield Finding(
            rule="oom-fragmentation",
            severity=_severity(failed),
            sure="high",
            what=f"out of memory: {_asked(failed)} was asked for, "
            f"and {_size((failed.free or 0) + failed.cached)} is unused" + _outcome(failed),
            why=f"{_size(failed.cached)} are reserved in pieces that are too small, {_size(failed.free)} are free"
            + _lowered(failed),
            fix=how,
            seen=lines(failed.message),
            patch=patch,
        )


def oom_despite_free(case: Case) -> Iterator[Finding]:
    """Memory that ran out although enough of it is free.

    What it sees: an out-of-memory message in which more is free than was asked for, by more than 3 % of the card.

    Why it matters: the message does not say why. The card was full for a moment only: two processes of one run on the
    same card, or another program that has ended since. Or the process may not use the whole card: a limit of a
    container, or of a card that is split.

    What to do: start one process per card (LOCAL_RANK, CUDA_VISIBLE_DEVICES), and look at nvidia-smi while it starts.

    When it is wrong: it names no cause, so it is never sure. A run of onecard's that went on with smaller batches only
    gets a warning.
    """
    for failed in _failures(case, "oom-despite-free"):
        yield Finding(
            rule="oom-despite-free",
            severity=_severity(failed),
            sure="low",
            what=f"out of memory: {_asked(failed)} was asked for, although {_size(failed.free)} of "
            f"{_size(failed.capacity)} is free" + _outcome(failed),
            why="the message does not say why: the card was full for a moment only (two processes on it, or one that "
            "has ended since), or this process may not use all of it" + _lowered(failed),
            fix="one process per card (LOCAL_RANK, CUDA_VISIBLE_DEVICES); look at nvidia-smi while it starts",
            seen=lines(failed.message),
        )


def oom_other_process(case: Case) -> Iterator[Finding]:
    """Memory that another program holds.

    What it sees: an out-of-memory message in which more than 1 GiB is neither free nor this process's, and what was
    asked for would fit without that, and not beside it.

    Why it matters: the run fits the card, but not beside what else is on it: a desktop, a notebook that still holds
    its tensors, another run. Or it is the wrong card of several.

    What to do: nvidia-smi lists the programs; close them, or plan for what is left (onecard plan --other SIZE): a
    smaller micro-batch fits with them.

    When it is wrong: old versions of torch do not say what this process uses; its CUDA context is then estimated, and
    it is less sure. A run of onecard's that went on with smaller batches only gets a warning.
    """
    for failed in _failures(case, "oom-other-process"):
        patch, how = _remedy(beside_others(case), failed)
        yield Finding(
            rule="oom-other-process",
            severity=_severity(failed),
            sure="high" if failed.process is not None else "medium",  # its own context had to be estimated
            what=f"out of memory: {_asked(failed)} was asked for, while other programs hold {_size(failed.other)} of "
            f"{_size(failed.capacity)}" + _outcome(failed),
            why=f"this process uses {_size(failed.allocated)}; without the others it would have fitted"
            + _for_what(case, failed)
            + _lowered(failed),
            fix="nvidia-smi names the programs: close them, choose another card (CUDA_VISIBLE_DEVICES), or plan for "
            f"what is left: onecard plan CONFIG --other {units.mib(failed.other).replace(' ', '').replace(',', '')}; "
            f"to leave them open: {how}",
            seen=lines(failed.message),
            patch=patch,
        )


def oom_system_spill(case: Case) -> Iterator[Finding]:
    """More memory in use than the card has.

    What it sees: an out-of-memory message in which the allocated memory exceeds the capacity of the card. Or a run that
    goes on while it says that it uses more than the card has: in its updates, or as llm.c allocates.

    Why it matters: the driver (on Windows and WSL) spills into the computer's own memory. The run is many times slower.

    What to do: a smaller micro-batch; in NVIDIA's control panel, set "CUDA - Sysmem Fallback Policy" to prefer none, so
    that it fails at once instead of crawling.

    When it is wrong: never; a card cannot hold more than it has. A run of onecard's that went on with smaller batches
    only gets a warning.
    """
    for failed in _failures(case, "oom-system-spill"):
        patch, how = _remedy(case, failed)
        yield Finding(
            rule="oom-system-spill",
            severity=_severity(failed),
            sure="high",
            what=f"{_size(failed.allocated)} in use on a card of {_size(failed.capacity)}" + _outcome(failed),
            why="the driver has spilled into the computer's memory, which is many times slower" + _lowered(failed),
            fix=f"{how}; and turn the driver's system-memory fallback off",
            seen=lines(failed.message),
            patch=patch,
        )
        return
    held = [(size, shown(step)) for step in case.steps if (size := _held(step))]
    if case.steps and case.run.printed_allocated_bytes:
        held.append((case.run.printed_allocated_bytes, "".join(printed(case, "printed_allocated_bytes"))))
    size, seen = max(held, default=(0, ""))
    if case.card is None or size <= case.card.vram_bytes:
        return
    patch, how = _smaller_batch(case)
    yield Finding(
        rule="oom-system-spill",
        severity="error",
        sure="high",
        what=f"{_size(size)} in use on a card of {_size(case.card.vram_bytes)}: the run is many times slower",
        why="the driver (on Windows and WSL) spills into the computer's memory instead of failing",
        fix=f"{how}; and turn the driver's system-memory fallback off",
        seen=(seen,),
        patch=patch,
    )


def _held(step: Step) -> int:
    """Bytes that the run held in an update, as it says."""
    told = step.more.get("memory_bytes")
    return max(step.reserved_bytes or 0, step.allocated_bytes or 0, told if isinstance(told, int) else 0)


@needs(TENSORS)
def oom_tensor(case: Case) -> Iterator[Finding]:
    """The tensor that did not fit.

    What it sees: what was asked for has the size of the logits, batch x tokens x vocabulary x 2 or 4 bytes, or of
    attention scores, batch x heads x tokens² x 2 or 4 bytes.

    Why it matters: it names the part to shrink. Logits are often the largest tensor of a small model; attention scores
    exist only without flash attention.

    What to do: for logits, a loss in chunks (onecard's own) or a smaller micro-batch; for scores, flash attention
    (PyTorch 2 and a half-precision dtype).

    When it is wrong: two tensors may have the same size by chance.
    """
    config = known(case, *PLANNED_KEYS)
    if config is None:
        return  # a bare message gets one finding, and that names the likely tensor
    for message in messages(case, "oom"):
        failed = out_of_memory(message, case.card)
        guess = tensor_of(failed.tried, config) if failed.tried else None
        if guess is None:
            continue
        logits = guess.name == "logits"
        yield Finding(
            rule="oom-tensor",
            severity="info",
            sure="high",
            what=f"the {_size(failed.tried)} that did not fit are {guess.name}: {guess.arithmetic}",
            why="every token has a number for every entry of the vocabulary"
            if logits
            else "plain attention keeps a number for every pair of tokens",
            fix="a smaller micro-batch, or onecard train, which never makes all logits at once"
            if logits
            else "flash attention: PyTorch 2 or later and dtype "
            + (case.card.best_dtype() if case.card else "bfloat16 or float16"),
            seen=(*lines(message, 2), *said(case, "batch_size", "block_size", "vocab_size")),
        )


def oom_in_eval(case: Case) -> Iterator[Finding]:
    """Memory that ran out during evaluation.

    What it sees: a traceback that passes through evaluation, and the plan of the same config.

    Why it matters: evaluation keeps no graph (`@torch.no_grad`) and peaks below training in all 119 measured runs we
    know. nanoGPT evaluates before it trains: a config that cannot train dies there first. Fewer eval_iters save
    nothing.

    What to do: what lowers the run's peak, the micro-batch first; only if the plan says that training fits, a smaller
    evaluation batch (onecard's eval_batch_size; nanoGPT has none) or closing other programs.

    When it is wrong: with your own evaluation that uses longer sequences or larger batches. Without a config and a card
    there is no plan, and it is less sure. A run of onecard's that went on with smaller batches only gets a warning.
    """
    for message in messages(case, "oom"):
        failed = out_of_memory(message, case.card)
        if not failed.in_eval:
            continue
        config, card = known(case, *PLANNED_KEYS), case.card
        patch, how = _remedy(case, failed)
        what = "" if config and config.eval_only else ", but training needs more"
        why = "evaluation keeps no graph and needs less than training: nanoGPT only evaluates first"
        if failed.went_on_with is not None:
            why = "evaluation keeps no graph and needs less than training, unless its batches or sequences are longer"
        elif config and card:
            room = max(0, card.allocatable_bytes - max(failed.other, case.other_bytes or 0))
            plan = memory_of(case, config, card, available_bytes=room)
            if plan.fits:
                patch = {}
                why = (
                    f"the plan says {'it' if config.eval_only else 'training'} fits "
                    f"({units.mib(plan.process_bytes)} of {units.mib(room)}), so it is the "
                    "evaluation's own batch or another program"
                )
                how = "close other programs; under onecard, --eval_batch_size=" + str(max(1, config.batch_size // 2))
            else:
                first, there = units.mib(plan.phases["eval0"].allocated_bytes), f"{units.mib(room)} are there"
                if config.eval_only:
                    why = f"the evaluation needs {first} (planned), and {there}"
                else:
                    training = units.mib(plan.phases["train"].allocated_bytes)
                    why = (
                        f"training needs {training}, the first evaluation {first} (planned), and {there}: a config "
                        "that cannot train dies in nanoGPT's first evaluation"
                    )
        yield Finding(
            rule="oom-in-eval",
            severity=_severity(failed),
            sure="high" if config and card else "medium",
            what=f"memory ran out during an evaluation{what}" + _outcome(failed),
            why=why + _lowered(failed),
            fix=f"{how}; eval_iters saves no memory",
            seen=lines(message),
            patch=patch,
        )


@needs(PARAMETERS, ROOM_ON_CARD)
def states_do_not_fit(case: Case) -> Iterator[Finding]:
    """Weights and optimizer states that fill the card alone.

    What it sees: 16 bytes a parameter (weights, gradients and two moments in float32; less with Muon), and 2 for
    autocast's copies in half precision, above nine tenths of the card.

    Why it matters: no batch is small enough.

    What to do: a smaller model, or states in 8 bits.

    When it is wrong: with weights kept in half precision, offloading, or sharding over several cards.
    """
    params = case.facts.params_total or case.facts.params
    room = _room(case)
    config = known(case, "dtype", "n_embd")
    sharded = (case.run.world_size or 1) > 1 and case.run.format not in NANOGPT_LIKE  # nanoGPT's cards each hold all
    if params is None or room is None or sharded or (config and config.eval_only):
        return
    half = config is None or config.dtype != "float32"
    state, moments = float(STATE_BYTES_PER_PARAM), "Adam's two moments"
    if config and config.optimizer == "muon":
        state, moments = optimizer_of(config).held_bytes / count_params(config).total, "Muon's and AdamW's moments"
    each = state + (CAST_BYTES_PER_PARAM if half else 0)
    if each * params <= ROOM * room:
        return
    most = ROOM * room / each
    left = f"the card has {units.gib(room)}"
    fix = f"a model of at most {units.count(most * 0.8)} parameters on this card (onecard plan --fit --params N), or "
    fix += "8-bit optimizer states"
    if case.card and case.other_bytes:
        left += f" left beside the {units.gib(case.other_bytes)} of other programs"
    if case.card and most < SMALLEST_MODEL:
        left = f"nothing is left on the card: other programs hold {units.gib(case.other_bytes or 0)} of its "
        left += units.gib(case.card.allocatable_bytes)
        fix = "close other programs (nvidia-smi names them), or check the size given to --other"
    yield Finding(
        rule="states-do-not-fit",
        severity="fatal",
        sure="high",
        what=f"{units.count(params)} parameters need {units.gib(round(each * params))} before the first token; {left}",
        why=f"{each:.3g} bytes a parameter: float32 weights, gradients, {moments}"
        + (", and autocast's copies" if half else ""),
        fix=fix,
        seen=(f"{params:,} parameters", f"{room:,} bytes left on the card"),
    )


def _room(case: Case) -> int | None:
    """Bytes the run may take of its card: of the card that was named, else of the one in an out-of-memory message."""
    if case.available_bytes is not None:
        return case.available_bytes
    found = [out_of_memory(message, None).capacity for message in messages(case, "oom")]
    return next((capacity for capacity in found if capacity), None)
