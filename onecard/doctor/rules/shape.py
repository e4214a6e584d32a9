"""Rules about the model's shape, and about comments and names that contradict it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onecard import units
from onecard.config.names import nearest
from onecard.config.schema import KEYS, NANOGPT_KEYS, PLANNED_KEYS, SHAPE_KEYS, RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import known, messages, only_told, printed, said, unless_shape_is_given, vocabulary
from onecard.doctor.needs import CONFIG, needs, needs_settings
from onecard.doctor.oom import out_of_memory
from onecard.doctor.repair import repaired
from onecard.findings import Finding
from onecard.plan.counts import count_params
from onecard.plan.intent import PARAMS_TOLERANCE, head_size_finding, intent_findings
from onecard.plan.memory.predict import predict_nanogpt
from onecard.plan.precision import with_dtype
from onecard.plan.remedies import free_remedies
from onecard.plan.run_to_fix import RunToFix

WORTH_A_WARNING_BYTES = 64 * units.MIB  # a smaller copy of the logits is only a note
LOSS_ONLY = "return-only-the-loss"  # the plan's fix of that name


@needs_settings("n_layer", "n_head", "n_embd", "vocab_size")
def params_mismatch(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A model of another size than its comment, run name or folder says.

    What it sees: a number of parameters stated in a comment, the run name or out_dir that differs by more than 15 %
    from the count of the config (V·C + T·C + L(12C² + 2C) + C, tied, no bias) and from what the log prints; or a log
    that prints another count than its config makes.

    Why it matters: comments cost nothing at run time, so a copied "~125M" over n_embd = 384 goes unnoticed until the
    loss stays higher than expected. The run is not broken, but it is not the run that was meant.

    What to do: train the shape that gives the stated size (heads of 64 first) in a new folder, with the micro-batch
    that fits the card; or fix the comment. A checkpoint keeps its shape: nanoGPT resumes it and silently ignores a
    changed n_embd, onecard refuses.

    When it is wrong: when the number in the comment is about something else, such as another model in a comparison. A
    run that starts from trained weights has their shape: there only the comment can be fixed, and it is only a note.
    """
    assert case.resolved
    for finding in intent_findings(case.resolved):
        if finding.rule == "params-mismatch":
            spent = replace(
                _with_repair(case, finding),
                severity="error",  # a plan warns before any hours are spent; here they were spent
                seen=(*finding.seen, *said(case, "n_embd"), *printed(case, "printed_params")),
            )
            yield unless_shape_is_given(_after_too_little_memory(case, spent, config), config)
    yield from _another_model_than_the_configs(case)


def _after_too_little_memory(case: Case, finding: Finding, config: RunConfig) -> Finding:
    """The finding; only a note where the run died of too little memory and the model that it proposes is larger."""
    died = any(not out_of_memory(message, case.card).went_on_with for message in messages(case, "oom"))
    meant = config.replace(finding.patch) if finding.patch else config
    if not died or count_params(meant).total <= count_params(config).total:
        return finding
    return replace(
        only_told(finding, "memory ran out: the model must first fit as it is"), fix="fix the comment or the name"
    )


def _with_repair(case: Case, finding: Finding) -> Finding:
    made = repaired(case, finding.patch) if finding.patch else None
    if made is None:
        return finding
    assert case.resolved
    config = case.resolved.config
    exact = made.config.tokens_per_step == config.tokens_per_step
    update = f"{'still' if exact else 'now'} {made.config.tokens_per_step:,} tokens per update"
    expected = f"; predicted: {made.expectation()}" if made.expectation() else ""
    planned = "" if made.card else " (name the card with --gpu to have the micro-batch, memory and hours planned)"
    return replace(
        finding,
        fix=f"in a new run: a checkpoint with n_embd={config.n_embd} cannot be continued in the new shape "
        f"(nanoGPT ignores the change, onecard refuses): {made.flags} "
        f"({update}){expected}{planned}. If {units.count(count_params(config).nanogpt)} was meant, fix the comment or "
        "the name",
        patch=made.patch,
    )


def _another_model_than_the_configs(case: Case) -> Iterator[Finding]:
    assert case.resolved
    params = count_params(case.resolved.config).nanogpt
    said_by_log = case.run.printed_params
    if said_by_log is None or messages(case, "resume") or case.resolved.config.init_from == "resume":
        return  # resume-shape-ignored looks at resumed runs
    if abs(said_by_log - params) > PARAMS_TOLERANCE * params:
        yield Finding(
            rule="params-mismatch",
            severity="error",
            sure="high",
            what=f"the log's model has {units.count(said_by_log)} parameters; the config makes {units.count(params)}",
            why="the log and the config are not of the same run",
            fix="name the config this log was made with: --config FILE",
            seen=(*printed(case, "printed_params"), *said(case, "n_layer", "n_embd", "vocab_size")),
        )


@needs(CONFIG)
def stale_comment(case: Case) -> Iterator[Finding]:
    """A comment with numbers that the config no longer makes.

    What it sees: "16 * 32 = 512 sequences" beside batch_size or gradient_accumulation_steps, or "~3B tokens" beside
    max_iters, more than 5 % off what the config makes, or made of other factors.

    Why it matters: the next reader, often you, plans with the comment.

    What to do: write the right number, or set the value that was meant.

    When it is wrong: when the comment is about another run on purpose.
    """
    if case.resolved is None:
        return
    for finding in intent_findings(case.resolved):
        if finding.rule == "stale-comment":
            yield replace(finding, severity="info", sure="high")


def heads_do_not_divide(case: Case) -> Iterator[Finding]:
    """A width that does not divide into the heads.

    What it sees: n_embd % n_head is not 0, in the config or in what the log repeats of it.

    Why it matters: nanoGPT asserts and does not start; every trainer of this kind refuses.

    What to do: the nearest width that is a multiple of the number of heads.

    When it is wrong: never; the arithmetic is exact.
    """
    values = dict(case.run.config)
    n_embd, n_head = values.get("n_embd", 768), values.get("n_head", 12)
    if not {"n_embd", "n_head"} & values.keys() or not (isinstance(n_embd, int) and isinstance(n_head, int)):
        return
    if n_embd < 1 or n_head < 1 or n_embd % n_head == 0:
        return
    width = max(1, round(n_embd / n_head)) * n_head
    lines = (case.run.config_lines.get(key) for key in ("n_embd", "n_head"))
    yield Finding(
        rule="heads-do-not-divide",
        severity="fatal",
        sure="high",
        what=f"n_embd={n_embd} does not divide into n_head={n_head} heads",
        why=f"{n_embd} / {n_head} = {n_embd / n_head:.2f}, and every head needs the same whole width: nanoGPT asserts",
        fix=f"--n_embd={width}, the nearest multiple; heads of 64 are usual",
        seen=tuple(str(line) for line in lines if line) or (f"n_embd = {n_embd}", f"n_head = {n_head}"),
        patch={"n_embd": width},
    )


@needs_settings("n_embd", "n_head")
def odd_head_size(case: Case, config: RunConfig) -> Iterator[Finding]:
    """Heads of a size that attention kernels are not made for.

    What it sees: n_embd / n_head is not a multiple of 8 (a warning), or neither 64 nor 128 (a note).

    Why it matters: flash attention pads heads to a multiple of 8 and is tuned for 64 and 128; other sizes take more
    memory and time for the same arithmetic.

    What to do: choose n_head so that heads are 64 wide. It is another model: only for the next run.

    When it is wrong: small models may be better with more, smaller heads; then the cost is accepted. A run that starts
    from trained weights has their heads: there it is only a note.
    """
    finding = head_size_finding(config, seen=said(case, "n_embd", "n_head"))
    if finding:
        yield unless_shape_is_given(replace(finding, fix=f"for a next run: {finding.fix}"), config)


@needs_settings("batch_size", "block_size", "compile")
def unpadded_vocab(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A vocabulary that is not a multiple of 64.

    What it sees: vocab_size % 64 is not 0 (a note); not even a multiple of 8 in a run compiled in half precision, where
    Inductor makes one more copy of the logits' gradient, 2 bytes per token and vocabulary entry (a warning).

    Why it matters: the output layer is the largest matrix product of a small model, and tensor cores want even sizes.

    What to do: round the vocabulary up; 50,304 for GPT-2's 50,257. The added tokens are never used.

    When it is wrong: a copy below 64 MiB, as a few dozen characters make, is not worth a change, and trained weights
    fix the vocabulary: both are only notes.
    """
    size = vocabulary(case)
    if size is None or size % 64 == 0:
        return
    copied = bool(size % 8 and config.compile and config.dtype != "float32")
    copy_bytes = 2 * config.batch_size * config.block_size * size
    padded = -(-size // 64) * 64
    finding = Finding(
        rule="unpadded-vocab",
        severity="warn" if copied else "info",
        sure="high",
        what=f"vocab_size is {size:,}, not a multiple of {8 if size % 8 else 64}",
        why=f"compiled, it costs one more copy of the logits' gradient: {units.mib(copy_bytes)}"
        if copied
        else "matrix products are fastest at multiples of 64",
        fix=f"round it up to {padded:,} for the next run: the added tokens are never used",
        seen=said(case, "vocab_size", "batch_size", "block_size"),
    )
    if copied and copy_bytes < WORTH_A_WARNING_BYTES:
        finding = only_told(finding, f"that is less than {units.mib(WORTH_A_WARNING_BYTES)}")
    elif copied and config.starts_pretrained:
        finding = only_told(finding, f"the vocabulary is that of the weights it starts from ({config.init_from})")
    yield finding


@needs_settings("batch_size", "block_size", "compile", formats=("nanogpt",))
def logits_returned(case: Case, config: RunConfig) -> Iterator[Finding]:
    """Logits that a compiled nanoGPT returns in training, and pays for.

    What it sees: a compiled nanoGPT run. Its forward pass returns the logits beside the loss. Autograd then makes a
    gradient of zeros of their shape, and the training loop keeps the logits of the micro-batch before. The run is
    planned again without them: the difference is what they cost, the same figure as in `onecard plan`.

    Why it matters: at 16 x 1,024 tokens and a vocabulary of 50,304 it is 3 GiB of a 12 GB card.

    What to do: return only the loss in training (one line of model.py), or train with onecard, which never makes all
    logits at once.

    When it is wrong: in a changed model.py that returns the loss alone. Less than 1 MiB is not reported.
    """
    size = vocabulary(case)
    if case.run.format != "nanogpt" or size is None or not config.compile:
        return
    saved_bytes, how = _saved_by_returning_only_the_loss(case, config, vocabulary_size=size)
    if saved_bytes < units.MIB:
        return
    yield Finding(
        rule="logits-returned",
        severity="info",
        sure="high",
        what=f"returning only the loss in training saves {units.mib(saved_bytes)} (nanoGPT returns logits)",
        why=how,
        fix="model.py, at the end of forward: `return (None if self.training else logits), loss` (not for onecard)",
        seen=said(case, "compile", "batch_size", "block_size"),
    )


def _saved_by_returning_only_the_loss(case: Case, config: RunConfig, *, vocabulary_size: int) -> tuple[int, str]:
    """Bytes that the plan's fix of that name saves, and how they were found; where the run cannot be planned, the size
    of one copy of the logits."""
    planned = known(case, *PLANNED_KEYS)
    if planned is None:
        each = 4 if config.dtype == "float32" else 2
        copy_bytes = each * config.batch_size * config.block_size * vocabulary_size
        sizes = f"{each} bytes x {config.batch_size} x {config.block_size:,} tokens x {vocabulary_size:,}"
        return copy_bytes, f"at least: one copy of the logits is {sizes}; the shape is not known, so it is not planned"
    config, card = with_dtype(planned, case.card), case.card
    room, available = (
        (case.place.room_bytes_for(config), case.place.available_bytes_for(config)) if case.place else (None, None)
    )
    run = RunToFix(
        config=config,
        card=card,
        trainer="nanogpt",
        memory=predict_nanogpt(config, card, available_bytes=room),
        needed_bytes=predict_nanogpt(config, card, available_bytes=available).process_bytes,
        available_bytes=room,
    )
    (remedy,) = [remedy for remedy in free_remedies(run) if remedy.name == LOSS_ONLY]
    without = run.memory_with(remedy.patch, returns_logits=remedy.returns_logits)
    return run.needed_bytes - without.process_bytes, f"planned again without them: {remedy.why}"


@needs(CONFIG, formats=("nanogpt", "minimal", "messages"))
def unknown_key(case: Case) -> Iterator[Finding]:
    """A setting that the trainer does not have.

    What it sees: a name in the config that nanoGPT does not know: a key of onecard's (eval_batch_size), a typo
    (n_layers), or a name of your own.

    Why it matters: in a file nanoGPT ignores it silently, so the run is not the one that was meant; on the command
    line nanoGPT refuses it.

    What to do: remove it, write the key that was meant, or use onecard, which knows its own keys.

    When it is wrong: in a changed train.py that reads the name. Names that resemble no key are only a warning.
    """
    if case.run.format == "onecard" or case.resolved is None:
        return
    stated = [key for key in case.run.config if key not in {*NANOGPT_KEYS, *SHAPE_KEYS}]
    unused = [key for key in dict.fromkeys((*case.resolved.unused, *stated)) if not key.startswith("_")]
    if case.run.format not in ("nanogpt", "minimal", "messages"):
        return
    for key in unused:
        meant = nearest(key, NANOGPT_KEYS)
        ours = key in KEYS
        line = case.run.config_lines.get(key)
        number = case.resolved.lines.get(key)
        yield Finding(
            rule="unknown-key",
            severity="error" if ours or meant else "warn",
            sure="high" if ours or meant else "medium",
            what=f"nanoGPT has no key {key}: the line has no effect",
            why="it is onecard's; nanoGPT ignores it in a file and refuses it on the command line"
            if ours
            else "nanoGPT silently ignores names it does not know in a config file",
            fix=f"train with onecard, which has {key}, or remove it"
            if ours
            else f"did you mean {meant}?"
            if meant
            else "remove it, unless your train.py reads it",
            seen=(str(line),) if line else (f"{case.resolved.source}:{number}: {key} = …",) if number else (key,),
        )
