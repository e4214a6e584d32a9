"""Rules about tokens per update."""

from __future__ import annotations

from collections.abc import Iterator

from onecard import units
from onecard.config.command import flags_of
from onecard.config.known_data import known_data
from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import (
    NANOGPT_LIKE,
    from_scratch,
    known,
    of_words,
    printed,
    said,
    unless_fine_tuning,
    vocabulary,
)
from onecard.doctor.needs import PARAMETERS, TOKENS_PER_UPDATE, needs, needs_settings
from onecard.doctor.rules.shape import params_mismatch
from onecard.findings import Finding
from onecard.plan import recipe

TARGET_TOKENS = recipe.USUAL_TOKENS_PER_STEP
SMALL_TOKENS = 131_072
LARGE_TOKENS = 2 * 2**20
LARGE_BATCH_PARAMS = 350e6
MOST_OF_DATA, USUAL_OF_DATA = 0.25, 0.016  # of the training data in one update; nanoGPT's own: 16,384 of 1,003,854
FEWEST_UPDATES = 100  # fewer are a test


@needs_settings("batch_size", "block_size", "gradient_accumulation_steps")
def batch_arithmetic(case: Case, config: RunConfig) -> Iterator[Finding]:
    """Tokens per update that the settings do not make.

    What it sees: batch_size x block_size x gradient_accumulation_steps (x cards) against the tokens per iteration that
    the log prints.

    Why it matters: the batch is not the one that was meant, and every figure per token is off by the ratio.

    What to do: find which factor the run really had; the printed number is what ran.

    When it is wrong: when the config named here is not the one the log was made with.
    """
    stated = case.run.printed_tokens_per_step
    if stated is None:
        return
    world = case.run.world_size or 1
    if stated in (config.tokens_per_step, config.tokens_per_step * world):
        return  # nanoGPT divides the accumulation among the cards, other trainers multiply
    product = f"{config.batch_size} x {config.gradient_accumulation_steps} x {config.block_size:,}"
    product += f" x {world} cards" if world > 1 else ""
    yield Finding(
        rule="batch-arithmetic",
        severity="error",
        sure="high",
        what=f"the log says {stated:,} tokens per update; {product} is {config.tokens_per_step * world:,}",
        why=f"the run's batch is {stated / config.tokens_per_step / world:.3g} times the config's",
        fix="name the config the log was made with, or look for a flag or a number of cards that changed a factor",
        seen=(
            *printed(case, "printed_tokens_per_step"),
            *said(case, "batch_size", "gradient_accumulation_steps", "block_size"),
        ),
    )


@needs_settings("batch_size", "block_size", "gradient_accumulation_steps")
def accumulation_for_target(case: Case, config: RunConfig) -> Iterator[Finding]:
    """The gradient accumulation that makes an update of half a million tokens.

    What it sees: batch_size, block_size and the number of cards; where another finding changes the micro-batch, the
    new one. Each card makes round(524,288 / (batch_size x block_size x cards)) micro-batches, exactly or nearly.
    nanoGPT's gradient_accumulation_steps counts those of all cards together, other programs' those of one.

    Why it matters: half a million tokens is what GPT-3 (table 2.1) used for small models and most published runs
    compare at. It is a convention: smaller batches train as well with a beta2 to match (arXiv 2507.07101).

    What to do: set gradient_accumulation_steps when you change batch_size; the number of updates for the same tokens
    stays the same.

    When it is wrong: when another batch is meant. Character and byte models, which are small, are not checked, nor runs
    too short for such updates (few-large-updates).
    """
    if (vocabulary(case) and not of_words(case)) or any(few_large_updates(case)):
        return
    batch_size, because = config.batch_size, ""
    for finding in params_mismatch(case):
        changed = finding.patch.get("batch_size")
        if isinstance(changed, int) and changed != batch_size:
            batch_size, because = changed, f" with the batch_size={changed} that fits the larger shape"
    accumulation = _accumulation(case, batch_size * config.block_size)
    cards = _cards_that_multiply(case)
    reached = accumulation * batch_size * config.block_size * cards
    exactly = f"exactly {reached:,}" if reached == TARGET_TOKENS else f"about that: {reached:,}"
    now = config.tokens_per_step * cards
    patch: dict[str, object] = {}
    if batch_size != config.batch_size:
        patch = {"batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    elif accumulation != config.gradient_accumulation_steps:
        patch = {"gradient_accumulation_steps": accumulation}
    yield Finding(
        rule="accumulation-for-target",
        severity="info",
        sure="high",
        what=f"an update is {now:,} tokens ({config.batch_size} x {config.gradient_accumulation_steps} x "
        f"{config.block_size:,}{f' x {cards} cards' if cards > 1 else ''})"
        + (", the usual half million" if now == TARGET_TOKENS else ""),
        why=f"GPT-3's small models used {TARGET_TOKENS:,}; it is a convention, not a law (arXiv 2507.07101)",
        fix=f"--gradient_accumulation_steps={accumulation}{because} makes it {exactly}"
        if patch
        else f"nothing to do: gradient_accumulation_steps={config.gradient_accumulation_steps} makes it {exactly}",
        seen=said(case, "batch_size", "gradient_accumulation_steps", "block_size"),
        patch=patch,
    )


def _cards_that_multiply(case: Case) -> int:
    """Cards that each make gradient_accumulation_steps micro-batches: 1 under nanoGPT, which divides them among all."""
    return 1 if case.run.format in NANOGPT_LIKE else case.run.world_size or 1


def _accumulation(case: Case, micro_batch_tokens: int) -> int:
    """The gradient_accumulation_steps of about half a million tokens an update, the same on every card."""
    cards = case.run.world_size or 1
    on_each = max(1, round(TARGET_TOKENS / (micro_batch_tokens * cards)))
    return on_each * cards // _cards_that_multiply(case)


@needs_settings("beta2")
def small_batch_betas(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A small batch with a second moment that forgets too fast.

    What it sees: fewer than 131,072 tokens per update and beta2 of 0.95 or less.

    Why it matters: AdamW's second moment averages over about 1 / (1 - beta2) updates. With small batches that is few
    tokens, and the step size becomes noisy (arXiv 2507.07101).

    What to do: keep the half-life in tokens: beta2 ^ (tokens per update / 524,288), so 0.95 becomes 0.9968 at 32,768;
    or raise gradient_accumulation_steps.

    When it is wrong: where the measured loss says otherwise, and in a test of a few updates. For fine-tuning, short and
    at a low rate, it is only a note.
    """
    step_tokens = case.facts.tokens_per_step
    if step_tokens is None or step_tokens >= SMALL_TOKENS or config.beta2 > 0.95:
        return
    if config.optimizer != "adamw":
        return
    usual = config.beta2 or recipe.USUAL_BETA2  # no power of 0 averages over anything
    beta2 = recipe.beta2(step_tokens, usual).value
    capped = f", at most {recipe.HIGHEST_BETA2:g}" if beta2 == recipe.HIGHEST_BETA2 else ""
    finding = Finding(
        rule="small-batch-betas",
        severity="warn",
        sure="medium",
        what=f"beta2={config.beta2:g} with {step_tokens:,} tokens per update",
        why=f"the second moment averages over {step_tokens / (1 - config.beta2):,.0f} tokens; "
        f"at {TARGET_TOKENS:,} per update it would be {TARGET_TOKENS / (1 - config.beta2):,.0f}",
        fix=f"--beta2={beta2:g} ({usual:g} ^ ({step_tokens:,} / {TARGET_TOKENS:,}){capped}), or a larger "
        "gradient_accumulation_steps",
        seen=(*said(case, "beta2"), *printed(case, "printed_tokens_per_step")),
        patch={"beta2": beta2},
    )
    yield unless_fine_tuning(finding, config)


@needs_settings(
    "batch_size", "block_size", "gradient_accumulation_steps", "max_iters", "lr_decay_iters", "warmup_iters", "beta2"
)
def few_large_updates(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A short run that adds up many micro-batches for each of its few updates.

    What it sees: AdamW, a run from scratch of 100 to 1,500 updates on words, and a gradient_accumulation_steps that
    could be half or less and still make updates of 32,768 tokens or more. Or accumulation that makes every update read
    more than a quarter of all training data, where their size is known.

    Why it matters: a short run is short of updates. AdamW learns as well from small batches, down to single sequences,
    if beta2 averages over as many tokens as before (arXiv 2507.07101). Accumulation then only makes updates fewer. It
    saves no memory and hardly any time.

    What to do: fewer micro-batches an update, for about 3,000 updates on the same tokens, with the beta2 of the same
    half-life in tokens.

    When it is wrong: with Muon, whose edge grows with the batch; in a test of a few updates; in a run that is compared
    with another at the same batch.
    """
    updates, accumulation = config.max_iters, config.gradient_accumulation_steps
    known_size = known_data(config.dataset)
    size = case.data.train_tokens or (known_size.train_tokens if known_size else None)
    if size and accumulation > 1 and config.tokens_per_step > MOST_OF_DATA * size and from_scratch(case):
        fewer = max(1, round(USUAL_OF_DATA * size / (config.batch_size * config.block_size)))
        tokens, times = fewer * config.batch_size * config.block_size, f"{accumulation / fewer:.3g}"
        yield Finding(
            rule="few-large-updates",
            severity="info",
            sure="high",
            what=f"every update reads {config.tokens_per_step:,} tokens, {config.tokens_per_step / size:.0%} of all "
            f"training data ({accumulation} micro-batches)",
            why=f"of so small a text an update of {tokens:,} tokens teaches as much, in 1/{times} of the time",
            fix=f"--gradient_accumulation_steps={fewer}: as many updates, each {times} times as fast",
            seen=said(case, "dataset", "batch_size", "gradient_accumulation_steps", "block_size"),
            patch={"gradient_accumulation_steps": fewer},
        )
        return
    if config.optimizer != "adamw" or not FEWEST_UPDATES <= updates <= recipe.ENOUGH_STEPS // 2:
        return
    if not from_scratch(case) or not of_words(case) or (case.run.world_size or 1) > 1:
        return
    micro_batch = config.batch_size * config.block_size
    wanted = max(recipe.SMALLEST_TOKENS_PER_STEP, config.total_tokens // recipe.ENOUGH_STEPS)
    advised = -(-wanted // micro_batch)
    if advised > accumulation / 2:
        return
    more = accumulation / advised
    beta2 = recipe.beta2(round(TARGET_TOKENS / more), config.beta2 or recipe.USUAL_BETA2).value
    patch: dict[str, object] = {
        "gradient_accumulation_steps": advised,
        "beta2": beta2,
        **{key: round(getattr(config, key) * more) for key in ("max_iters", "lr_decay_iters")},
        "warmup_iters": recipe.warmup(round(updates * more)).value,
    }
    yield Finding(
        rule="few-large-updates",
        severity="info",
        sure="medium",
        what=f"{updates:,} updates of {config.tokens_per_step:,} tokens, each of {accumulation} micro-batches",
        why=f"AdamW learns as well from smaller updates, and {round(updates * more):,} of {advised * micro_batch:,} "
        "tokens read the same text (arXiv 2507.07101)",
        fix=f"{flags_of(patch)}: the same tokens in {more:.3g} times as many updates",
        seen=said(case, "batch_size", "gradient_accumulation_steps", "block_size", "max_iters", "beta2"),
        patch=patch,
    )


@needs(TOKENS_PER_UPDATE, PARAMETERS)
def batch_too_large(case: Case) -> Iterator[Finding]:
    """A batch beyond what a model of this size can use.

    What it sees: more than 2,097,152 tokens per update with fewer than 350M parameters.

    Why it matters: beyond the critical batch a larger one does not make a step better; there are only fewer steps for
    the same tokens (arXiv 2410.21676, 2505.23971).

    What to do: lower gradient_accumulation_steps; tokens per second stay the same. The same max_iters then read fewer
    tokens: raise it for as many.

    When it is wrong: late in a long run, where the critical batch has grown.
    """
    step_tokens, params = case.facts.tokens_per_step, case.facts.params
    if step_tokens is None or params is None or step_tokens <= LARGE_TOKENS or params >= LARGE_BATCH_PARAMS:
        return
    config = known(case, "batch_size", "block_size", "gradient_accumulation_steps")
    accumulation = _accumulation(case, config.batch_size * config.block_size) if config else None
    yield Finding(
        rule="batch-too-large",
        severity="warn",
        sure="medium",
        what=f"{step_tokens:,} tokens per update for {units.count(params)} parameters",
        why="beyond about 2M tokens a model of this size gains little from a larger batch (arXiv 2410.21676)",
        fix=(f"--gradient_accumulation_steps={accumulation}" if accumulation else f"about {TARGET_TOKENS:,} per update")
        + f"; raise max_iters {step_tokens / TARGET_TOKENS:.1f} times to read as many tokens",
        seen=(*printed(case, "printed_tokens_per_step"), *printed(case, "printed_params"))
        or (f"{step_tokens:,} tokens per update",),
        patch={"gradient_accumulation_steps": accumulation} if accumulation else {},
    )
