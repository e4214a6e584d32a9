"""Rules about the model's shape and the words of its config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shlex import quote

from onecard import units
from onecard.config.names import nearest
from onecard.config.schema import KEYS, NANOGPT_KEYS
from onecard.doctor.case import Case
from onecard.doctor.evidence import known, messages, only_told, printed, said, unless_shape_is_given, vocabulary
from onecard.doctor.repair import repaired
from onecard.findings import Finding
from onecard.plan.counts import count_params
from onecard.plan.intent import PARAMS_TOLERANCE, head_size_finding, intent_findings

WORTH_A_WARNING_BYTES = 64 * units.MIB  # below, a copy of the logits is a detail


def params_mismatch(case: Case) -> Iterator[Finding]:
    """A model of another size than its comment, run name or folder says.

    What it sees: a number of parameters stated in a comment, the run name or out_dir that differs by more than 15 %
    from the count of the config (V·C + T·C + L(12C² + 2C) + C, tied, no bias) and from what the log prints; or a log
    that prints another count than the config it is said to belong to.

    Why it matters: comments cost nothing at run time, so a copied "~125M" over n_embd = 384 goes unnoticed until the
    loss stays higher than expected. The run is not bad; it is another run than the one that was meant.

    What to do: train the shape that gives the stated size (heads of 64 first) in a new folder, with the micro-batch
    that fits the card; or mend the words. A checkpoint keeps its shape: nanoGPT resumes it and silently ignores a
    changed n_embd, onecard refuses.

    When it is wrong: when the number in the comment is of something else, such as another model in a comparison. A run
    that starts from trained weights has their shape: there only the words can be mended, and it is only told.
    """
    config = known(case, "n_layer", "n_head", "n_embd", "vocab_size")
    if config is None:
        return
    assert case.resolved
    for finding in intent_findings(case.resolved):
        if finding.rule == "params-mismatch":
            spent = replace(
                _with_repair(case, finding),
                severity="error",  # a plan warns before anything is spent; by now a run was spent on it
                seen=(*finding.seen, *said(case, "n_embd"), *printed(case, "printed_params")),
            )
            yield unless_shape_is_given(spent, config)
    yield from _another_model_than_the_configs(case)


def _with_repair(case: Case, finding: Finding) -> Finding:
    made = repaired(case, finding.patch) if finding.patch else None
    if made is None:
        return finding
    assert case.resolved
    config = case.resolved.config
    flags = " ".join(quote(f"--{key}={value}") for key, value in made.patch.items())
    exact = made.config.tokens_per_step == config.tokens_per_step
    update = f"{'still' if exact else 'now'} {made.config.tokens_per_step:,} tokens per update"
    expected = f"; predicted: {made.expectation()}" if made.expectation() else ""
    planned = "" if made.card else " (name the card with --gpu to have the micro-batch, memory and hours planned)"
    return replace(
        finding,
        fix=f"in a new run: {flags} ({update}){expected}{planned}. A checkpoint with n_embd={config.n_embd} cannot be "
        "continued in the new shape: nanoGPT would resume it and silently keep the old one, onecard refuses. "
        f"If {units.count(count_params(config).nanogpt)} was meant, mend the words",
        patch=made.patch,
    )


def _another_model_than_the_configs(case: Case) -> Iterator[Finding]:
    assert case.resolved
    params = count_params(case.resolved.config).nanogpt
    said_by_log = case.run.printed_params
    if said_by_log is None or messages(case, "resume") or case.resolved.config.init_from == "resume":
        return  # of a resumed run, resume-shape-ignored speaks
    if abs(said_by_log - params) > PARAMS_TOLERANCE * params:
        yield Finding(
            rule="params-mismatch",
            severity="error",
            sure="high",
            what=f"the log's model has {units.count(said_by_log)} parameters; the config makes {units.count(params)}",
            why="the log and the config are not of the same run",
            fix="name the config this log was made with (--config), or none: the log's own figures are used then",
            seen=(*printed(case, "printed_params"), *said(case, "n_layer", "n_embd", "vocab_size")),
        )


def stale_comment(case: Case) -> Iterator[Finding]:
    """A comment whose numbers the config no longer makes.

    What it sees: "16 * 32 = 512 sequences" beside batch_size or gradient_accumulation_steps, or "~3B tokens" beside
    max_iters, more than 5 % off what the config makes, or made of other factors.

    Why it matters: the next person, often oneself, plans with the comment.

    What to do: write the right number, or set the value that was meant.

    When it is wrong: when the comment speaks of another run on purpose.
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


def odd_head_size(case: Case) -> Iterator[Finding]:
    """Heads of a size that attention kernels are not made for.

    What it sees: n_embd / n_head is no multiple of 8 (a warning), or neither 64 nor 128 (information).

    Why it matters: flash attention pads heads to a multiple of 8 and is tuned for 64 and 128; other sizes take more
    memory and time for the same arithmetic.

    What to do: choose n_head so that heads are 64 wide. It is another model: only for the next run.

    When it is wrong: small models may be better with more, smaller heads; the cost is then known and accepted. Weights
    that a run starts from have their heads: there it is only told.
    """
    config = known(case, "n_embd", "n_head")
    if config is None:
        return
    finding = head_size_finding(config, seen=said(case, "n_embd", "n_head"))
    if finding:
        yield unless_shape_is_given(replace(finding, fix=f"for a next run: {finding.fix}"), config)


def unpadded_vocab(case: Case) -> Iterator[Finding]:
    """A vocabulary that is no multiple of 64.

    What it sees: vocab_size % 64 is not 0 (information); not even a multiple of 8 in a run compiled in half
    precision, where Inductor makes one more copy of the logits' gradient, 2 bytes a token and word (a warning).

    Why it matters: the output layer is the largest product of a small model, and tensor cores want even sizes.

    What to do: round the vocabulary up; 50,304 for GPT-2's 50,257. The added tokens are never used.

    When it is wrong: a copy below 64 MiB, as a few dozen letters make, is worth no change, and of pretrained weights
    the vocabulary is given: both are only told.
    """
    size = vocabulary(case)
    config = known(case, "batch_size", "block_size", "compile")
    if size is None or config is None or size % 64 == 0:
        return
    copied = bool(size % 8 and config.compile and config.dtype != "float32")
    copy_bytes = 2 * config.batch_size * config.block_size * size
    padded = -(-size // 64) * 64
    finding = Finding(
        rule="unpadded-vocab",
        severity="warn" if copied else "info",
        sure="high",
        what=f"vocab_size is {size:,}, no multiple of {8 if size % 8 else 64}",
        why=f"compiled, it costs one more copy of the logits' gradient: {units.mib(copy_bytes)}"
        if copied
        else "matrix products like multiples of 64",
        fix=f"round it up to {padded:,} for the next run: the added tokens are never used",
        seen=said(case, "vocab_size", "batch_size", "block_size"),
    )
    if copied and copy_bytes < WORTH_A_WARNING_BYTES:
        finding = only_told(finding, f"it is less than {units.mib(WORTH_A_WARNING_BYTES)}")
    elif copied and config.starts_pretrained:
        finding = only_told(finding, f"the vocabulary is that of the weights it starts from ({config.init_from})")
    yield finding


def logits_returned(case: Case) -> Iterator[Finding]:
    """Logits that a compiled nanoGPT returns in training, and pays for.

    What it sees: a compiled nanoGPT run. Its forward returns the logits beside the loss, and autograd makes a gradient
    of zeros of their shape: 2 bytes a token and word (4 in float32), for nothing.

    Why it matters: at 16 x 1,024 tokens and 50,304 words it is 1.5 GiB of a 12 GB card.

    What to do: return only the loss in training (one line of model.py), or train with onecard, whose logits never
    exist whole.

    When it is wrong: in a changed model.py that returns the loss alone. Silent below 1 MiB.
    """
    if case.run.format != "nanogpt":
        return
    config, size = known(case, "batch_size", "block_size", "compile"), vocabulary(case)
    if config is None or size is None or not config.compile:
        return
    each = 4 if config.dtype == "float32" else 2
    size_bytes = each * config.batch_size * config.block_size * size
    if size_bytes < units.MIB:
        return
    yield Finding(
        rule="logits-returned",
        severity="info",
        sure="high",
        what=f"the compiled model returns its logits in training: {units.mib(size_bytes)} for a gradient of zeros",
        why=f"{each} bytes x {config.batch_size} x {config.block_size:,} tokens x {size:,} words, which nothing reads",
        fix="model.py, at the end of forward: `return (None if self.training else logits), loss`; onecard needs none",
        seen=said(case, "compile", "batch_size", "block_size"),
    )


def unknown_key(case: Case) -> Iterator[Finding]:
    """A setting that the trainer does not have.

    What it sees: a name in the config that nanoGPT does not know: a key of onecard's (eval_batch_size), a slip of the
    pen (n_layers), or a note to oneself.

    Why it matters: in a file nanoGPT ignores it silently, so the run is not the one that was meant; on the command
    line nanoGPT refuses it.

    What to do: remove it, write the key that was meant, or use onecard, which honours its own keys.

    When it is wrong: in a changed train.py that reads the name. Names that resemble no key are only a warning.
    """
    if case.run.format == "onecard" or case.resolved is None:
        return
    stated = [key for key in case.run.config if key not in NANOGPT_KEYS and key != "vocab_size"]
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
            else "nanoGPT ignores names it does not know in a config file, without a word",
            fix=f"train with onecard, which honours {key}, or remove it"
            if ours
            else f"did you mean {meant}?"
            if meant
            else "remove it, unless your train.py reads it",
            seen=(str(line),) if line else (f"{case.resolved.source}:{number}: {key} = …",) if number else (key,),
        )
