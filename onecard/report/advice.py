"""Loss, fixes, the fit and proposals, as a person reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.config.command import PROGRAMS
from onecard.config.schema import RunConfig
from onecard.plan.advice import Fix
from onecard.plan.budget import FEWEST_STEPS
from onecard.plan.candidate import Candidate
from onecard.plan.counts import count_params
from onecard.plan.data import MANY_EPOCHS
from onecard.plan.fit import Fit
from onecard.plan.loss import LossForecast, guessing
from onecard.plan.plan import Plan
from onecard.plan.proposal import Proposal, config_text
from onecard.plan.ranges import Range
from onecard.report.command import changed_command
from onecard.report.console import print_wrapped, wrapped
from onecard.report.summary import TRAINER_NAMES, loss_change, speed_change, vocabulary_condition
from onecard.report.tables import print_table


def loss_lines(loss: LossForecast) -> list[str]:
    """Where it ends, the way there, what more tokens or parameters would buy, and the sources."""
    low, likely, high = (f"{each:,.0f}" for each in astuple(loss.perplexity))
    end = f"predicted {loss.final} nats at the end, perplexity {likely} ({low} to {high})"
    way = ", ".join(f"{at} at step {step:,}" for step, at in _some_steps(loss))
    more = (
        f"twice the tokens would take off about {loss.double_tokens.likely:.2f}, twice the parameters "
        f"{loss.double_params.likely:.2f} (each ±50 %)"
    )
    basis = f"by {'; '.join(loss.sources)}"
    return [line for line in (end, way, more if loss.double_tokens.likely else "", basis, loss.caution) if line]


def _some_steps(loss: LossForecast) -> list[tuple[int, Range]]:
    """The first, the middle and the last of the steps on the way whose loss is known."""
    way = [*loss.milestones.items()][:-1]  # the last is the end
    return [way[0], way[len(way) // 2], way[-1]] if len(way) > 3 else way


SHOWN_FIXES = 8  # without details


def print_fixes(plan: Plan, console: Console, *, details: bool) -> None:
    """What to change, one line each: cures of the same run first, the cheapest first. With details how, to paste."""
    console.print()
    fixes = plan.fixes if details else most_useful(plan.fixes)
    width = min(max(len(fix.what) for fix in fixes), max(20, console.width - len(_figures("", "", "", ""))))
    title = "what to change" + (" under onecard" if plan.nanogpt and plan.in_need == "onecard" else "")
    width = max(width, len(title))
    console.print(Text(f"{title:<{width}}{_figures('saves MiB', 'speed', 'loss', 'fits')}", style="bold"))
    for fix in fixes:
        fits = {True: "yes" if fix.safe else "barely", False: "no", None: "?"}[fix.fits]
        what, *more = wrapped(fix.what, width)
        figures = _figures(f"{fix.saves_bytes / units.MIB:,.0f}", speed_change(fix), loss_change(fix), fits)
        console.print(Text("\n".join([f"{what:<{width}}{figures}".rstrip(), *more])), soft_wrap=True)
        if details:
            _print_how(fix, plan, console)


def most_useful(fixes: Sequence[Fix]) -> list[Fix]:
    """The first few that help, and the evaluation settings that people try first, which save nothing."""
    savers = [fix for fix in fixes if fix.saves_bytes and (fix.same_run or fix.fits is not False)]
    return [*savers[: SHOWN_FIXES - 1], *(fix for fix in fixes if fix.name == "eval-iters")]


def _print_how(fix: Fix, plan: Plan, console: Console) -> None:
    """The command, or the edit, in one piece to paste; and what it does to the loss."""
    is_run = fix.patch or fix.environment or fix.trainer != plan.in_need
    command = changed_command(fix, plan.source, plan.typed) if is_run else ""
    for line in filter(None, (command, *fix.code.split("; "))):
        console.print(Text(f"  {line}"), soft_wrap=True)
    for words in filter(None, ("" if command or fix.code else fix.why, fix.loss_note)):
        console.print(Padding(Text(words), (0, 0, 0, 2), expand=False))


def _figures(saves: str, speed: str, loss: str, fits: str) -> str:
    """The columns at the right of a fix."""
    return f"  {saves:>9}  {speed:>5}  {loss:>14}  {fits:<6}"


def print_fit(fit: Fit, plan: Plan, console: Console) -> None:
    """What was tried to make it fit, the chosen one first; or the least change that would fit."""
    console.print()
    if fit.best is None:
        if smaller := fit.smallest:
            change = (
                f"{_least_change(fit.asked, smaller.config)}: {_shape(smaller)}, {units.mib(smaller.process_bytes)}"
            )
            console.print(change, soft_wrap=True)
        return
    kept = "the same tokens per update" if fit.tokens_kept else f"{fit.best.config.tokens_per_step:,} tokens per update"
    console.print(Text.assemble(("fit", "bold"), f"  {_shape(fit.best)}, {kept}"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    ours = fit.best.trainer == "onecard"
    for heading in ("micro-batch", "accumulation", "recomputed" if ours else "segments", "MiB", "tokens/s", "fits"):
        table.add_column(heading, justify="right")
    for candidate in fit.candidates[:8]:
        rate = candidate.speed.tokens_per_second.likely if candidate.speed else None
        table.add_row(
            str(candidate.config.batch_size),
            str(candidate.config.gradient_accumulation_steps),
            candidate.config.grad_checkpoint if ours else "expandable" if candidate.expandable_segments else "default",
            f"{candidate.process_bytes / units.MIB:,.0f}",
            f"{rate:,.0f}" if rate else "?",
            _fits(candidate) + (", chosen" if candidate is fit.best else ""),
        )
    print_table(table, console)
    if fit.note:
        console.print(fit.note, soft_wrap=True)
    for warning in fit.warnings:
        console.print(Text.assemble(("warning", "yellow"), f": {warning}"))
    if plan.nanogpt and ours:
        console.print(Text("for nanoGPT: the same with --trainer nanogpt", style="dim"))


def _least_change(asked: RunConfig, smaller: RunConfig) -> str:
    """Which change would make it fit."""
    if smaller.init_from != asked.init_from:
        return f"it fits from the weights of {smaller.init_from}"
    if smaller.block_size != asked.block_size:
        return f"it fits with a context of {smaller.block_size:,}"
    if smaller.n_layer != asked.n_layer:
        return "the largest model that fits"
    return f"the largest model of {units.things(asked.n_layer, 'layer')} that fits"


def _fits(candidate: Candidate) -> str:
    return "yes" if candidate.safe else "barely" if candidate.fits else "no"


def _shape(candidate: Candidate) -> str:
    config = candidate.config
    layers, heads = units.things(config.n_layer, "layer"), units.things(config.n_head, "head")
    return (
        f"{units.count(count_params(config).nanogpt)} "
        f"({layers}, {heads} of {config.head_size}, width {config.n_embd}), "
        f"{config.batch_size} x {config.gradient_accumulation_steps} sequences"
    )


def print_proposals(plan: Plan, console: Console) -> None:
    """What to train with the budget: the run to make and what to type, the others beside it, its config file."""
    proposals = plan.proposals
    too_few = _too_few_words(plan)
    if not proposals:
        refused = f"no run of at least {FEWEST_STEPS} updates fits this budget and card"
        console.print(Text(too_few or refused, style="bold red"))
        return
    if too_few:
        console.print(Text(too_few, style="bold"))
    first = proposals[0]
    for line in _first_proposal(first, plan):
        if "onecard train" in line:  # a command stays in one piece to paste
            console.print(Text(line), soft_wrap=True)
        else:
            print_wrapped(line, console)
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("for this budget")
    for heading in ("params", "shape", "tokens", "hours", "MiB", "predicted loss"):
        table.add_column(heading, justify="right")
    for proposal in proposals:
        config = proposal.config
        table.add_row(
            proposal.name,
            units.count(count_params(config).nanogpt),
            f"{config.n_layer}x{config.n_embd}",
            units.count(config.total_tokens),
            _hours(proposal.seconds),
            f"{proposal.process_bytes / units.MIB:,.0f}",
            _loss(proposal) or "?",
        )
    print_table(table, console)
    for proposal in proposals:
        other = proposal.config.recipe if proposal.config.recipe != first.config.recipe else ""
        file = f"; for its config file: the same command with --recipe={other}" if other else ""
        if proposal.note:
            console.print(Text(proposal.note + file))
    if first.trainer == "nanogpt" and (condition := vocabulary_condition(first.config.vocab_size)):
        console.print(Text.assemble(("nanoGPT", "bold"), f": {condition}"))
    console.print()
    console.print(config_text(first), markup=False, end="", soft_wrap=True)


def _too_few_words(plan: Plan) -> str:
    """That the data are too few for the hours, and what they are enough for; empty where they are not."""
    proposed, data = plan.proposed, plan.data
    if not proposed or proposed.budget.seconds is None or not proposed.too_few(data):
        return ""
    enough = (
        f"{MANY_EPOCHS} epochs of that take {units.duration(proposed.proposals[0].seconds.likely)}"
        if proposed.proposals
        else f"{MANY_EPOCHS} epochs of that are less than {FEWEST_STEPS} updates"
    )
    size = units.count(data.train_tokens or 0)
    return (
        f"the data are too few for {proposed.budget.seconds / 3600:g} h: {data.source} has {size} tokens, and {enough}"
    )


def _lower_otherwise(first: Proposal, plan: Plan) -> str:
    """`; 3.00 with --recipe=fast`, where a run under another recipe is proposed, and its loss is lower."""
    for proposal in plan.proposals or ():
        recipe, reached = proposal.config.recipe, proposal.loss
        if recipe != first.config.recipe and reached and first.loss and reached.final.likely < first.loss.final.likely:
            return f"; {reached.final.likely:.2f} with --recipe={recipe}"
    return ""


def _first_proposal(proposal: Proposal, plan: Plan) -> Iterator[str]:
    """The answer to "what should I train?" in four lines."""
    config = proposal.config
    loss = f"; predicted loss {reached}" if (reached := _loss(proposal)) else "; no loss predicted: too few tokens"
    yield (
        f"train {units.count(count_params(config).nanogpt)} parameters ({config.n_layer} layers, width "
        f"{config.n_embd}) on {units.count(config.total_tokens)} tokens{loss}{_lower_otherwise(proposal, plan)}"
    )
    low, likely, high = (units.duration(each) for each in astuple(proposal.seconds))
    name = plan.place.card.name if plan.place else "this card"
    unsaid = plan.place is not None and plan.place.other_bytes is None
    beside = " beside a desktop" if unsaid and plan.proposed and plan.proposed.room_bytes == plan.room_bytes else ""
    yield (
        f"about {likely} ({low} to {high}: the range of the predicted speed) with {TRAINER_NAMES[proposal.trainer]} "
        f"on {name}, {units.mib(proposal.process_bytes)}{beside}"
    )
    if epochs := plan.data.epochs(config.total_tokens):
        size = units.count(plan.data.train_tokens or 0)
        yield f"{plan.data.source} has {size} tokens: they are read {epochs:.1f} times"
    else:
        yield f"assumed: {config.dataset} has at least that many tokens (its size is not known here)"
    yield f"to start: save the file below (--write FILE.py), then {PROGRAMS[proposal.trainer]} FILE.py"


def _loss(proposal: Proposal) -> str:
    """The predicted loss; empty where the law, which is of longer runs, says no more than guessing would."""
    if proposal.loss is None or proposal.loss.final.likely >= guessing(proposal.config):
        return ""
    return str(proposal.loss.final)


def _hours(seconds: Range) -> str:
    """`11.6 (8.3 to 19.4)`"""
    decimals = 1 if seconds.low >= 3600 else 2
    low, likely, high = (f"{each / 3600:,.{decimals}f}" for each in astuple(seconds))
    return f"{likely} ({low} to {high})"
