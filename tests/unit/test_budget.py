"""--hours and --tokens: what to train, with the source of every value, in a file nanoGPT reads."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config.resolve import resolve
from onecard.config.schema import NANOGPT_KEYS, RunConfig
from onecard.errors import UsageError
from onecard.plan.budget import Budget, Proposal, budget_of, config_text, propose
from onecard.plan.cards import find_card
from onecard.plan.counts import count_params
from onecard.plan.make import Plan, make_plan
from onecard.plan.memory.predict import predict_nanogpt
from onecard.plan.place import Place
from onecard.units import GIB, duration

RTX_4070 = find_card("RTX 4070")
AVAILABLE = RTX_4070.allocatable_bytes - round(2.1 * GIB)
BASE = RunConfig().replace({"dataset": "fineweb", "dtype": "bfloat16"})


def proposals(hours: float | None = None, tokens: int | None = None) -> list[Proposal]:
    return propose(BASE, RTX_4070, AVAILABLE, Budget(seconds=hours * 3600 if hours else None, tokens=tokens))


@pytest.fixture(scope="module")
def weekend() -> list[Proposal]:
    return proposals(48)


def test_a_weekend_is_used_and_not_overdrawn(weekend: list[Proposal]) -> None:
    for proposal in weekend:
        assert 0.85 * 48 * 3600 < proposal.seconds.likely <= 48 * 3600


@settings(max_examples=12, deadline=None)
@given(st.floats(0.1, 100))
def test_no_budget_is_overdrawn(hours: float) -> None:
    for proposal in proposals(hours):
        assert proposal.seconds.likely <= hours * 3600


def test_the_proposed_run_fits_beside_the_desktop(weekend: list[Proposal]) -> None:
    for proposal in weekend:
        assert proposal.process_bytes <= AVAILABLE
        assert predict_nanogpt(proposal.config, RTX_4070, available_bytes=AVAILABLE).is_safe(AVAILABLE)


def test_the_second_is_smaller_and_trained_longer(weekend: list[Proposal]) -> None:
    best, second = weekend
    assert count_params(second.config).total < 0.6 * count_params(best.config).total
    assert second.config.total_tokens > best.config.total_tokens
    assert best.loss
    assert second.loss
    assert best.loss.final.likely <= second.loss.final.likely


def test_every_value_has_a_source(weekend: list[Proposal]) -> None:
    shape = "n_layer n_head n_embd batch_size gradient_accumulation_steps"
    for key in f"{shape} learning_rate min_lr warmup_iters max_iters lr_decay_iters".split():
        assert weekend[0].settings[key].source, key


def test_the_file_is_a_nanogpt_config(weekend: list[Proposal]) -> None:
    text = config_text(weekend[0])
    values: dict[str, object] = {}
    exec(text, values)  # as nanoGPT does
    assert set(values) - {"__builtins__"} <= NANOGPT_KEYS
    resolved = resolve(text, filename="weekend.py")
    assert resolved.warnings == ()
    assert resolved.config.replace({"out_dir": "x"}) == weekend[0].config.replace({"out_dir": "x"})


@pytest.mark.parametrize(("short", "long"), [(1, 4), (4, 24), (24, 100)])
def test_more_hours_never_predict_a_worse_loss(short: float, long: float) -> None:
    less, more = proposals(short)[0], proposals(long)[0]
    assert less.loss
    assert more.loss
    assert more.loss.final.likely <= less.loss.final.likely


def test_tokens_bound_the_run() -> None:
    best = proposals(tokens=1_000_000_000)[0]
    assert best.config.total_tokens <= 1_000_000_000
    assert best.config.total_tokens > 950_000_000


def test_a_minute_is_too_little() -> None:
    assert proposals(hours=1 / 60 / 60) == []


def test_a_written_file_is_the_proposed_model_whatever_its_vocabulary_and_biases() -> None:
    base = BASE.replace({"vocab_size": 32000, "bias": True})
    proposal = propose(base, RTX_4070, AVAILABLE, Budget(seconds=3600 * 10))[0]
    again = resolve(config_text(proposal), filename="c.py").config
    assert count_params(again) == count_params(proposal.config)


def test_a_budget_is_what_was_typed() -> None:
    assert budget_of(hours=None, tokens=None) is None
    assert budget_of(hours=2, tokens=None) == Budget(seconds=7200)
    assert budget_of(hours=None, tokens=7) == Budget(tokens=7)


@pytest.mark.parametrize("hours", [0, -1, math.inf, -math.inf, math.nan, 1e9])
def test_hours_that_are_no_budget_are_refused(hours: float) -> None:
    with pytest.raises(UsageError) as refused:
        budget_of(hours=hours, tokens=None)
    assert refused.value.fix == "--hours 48"


@pytest.mark.parametrize("tokens", [0, -5, 10**18])
def test_tokens_that_are_no_budget_are_refused(tokens: int) -> None:
    with pytest.raises(UsageError) as refused:
        budget_of(hours=None, tokens=tokens)
    assert refused.value.fix == "--tokens 10B"


@pytest.mark.parametrize("budget", [Budget(seconds=100_000 * 3600), Budget(tokens=10**15), Budget(tokens=1)])
def test_the_largest_and_the_least_budget_are_answered(budget: Budget) -> None:
    for proposal in propose(BASE, RTX_4070, AVAILABLE, budget):
        assert proposal.config.max_iters >= 100


def planned(*flags: tuple[str, str], hours: float = 10) -> Plan:
    place = Place(card=RTX_4070)
    return make_plan(resolve(None, flags=list(flags)), place, budget=Budget(seconds=hours * 3600))


def test_what_was_typed_stays_and_is_said_to_be_asked_for() -> None:
    plan = planned(("vocab_size", "32000"), ("dropout", "0.1"), ("out_dir", "mine"), ("dtype", "float16"))
    assert plan.proposals
    best = plan.proposals[0]
    assert (best.config.vocab_size, best.config.dropout, best.config.dtype) == (32000, 0.1, "float16")
    assert {best.settings[key].source for key in ("vocab_size", "dropout", "dtype")} == {"as asked"}
    assert "out_dir = 'mine'" in config_text(best)


def test_the_packaged_toys_context_and_data_are_nobodys_wish() -> None:
    plan = planned(("vocab_size", "32000"))
    assert plan.proposals
    assert (plan.proposals[0].config.block_size, plan.proposals[0].config.dataset) == (1024, "fineweb")
    assert plan.proposals[0].settings["block_size"].source != "as asked"


def test_keys_that_the_budget_decides_are_told_so() -> None:
    said = " ".join(planned(("n_layer", "6"), ("compile", "False"), ("dtype", "float32")).resolved.warnings)
    for key in ("n_layer", "compile", "dtype"):
        assert f"the budget decides {key}" in said


def test_the_shortest_run_has_a_warm_up_and_evaluations_in_proportion() -> None:
    plan = planned(hours=0.05)
    assert plan.proposals
    for proposal in plan.proposals:
        config = proposal.config
        assert config.warmup_iters <= config.max_iters / 5
        assert proposal.settings["eval_interval"].source == (
            f"about {round(config.max_iters / config.eval_interval)} evaluations"
        )


def test_the_hours_are_a_range_in_the_written_file(weekend: list[Proposal]) -> None:
    best = weekend[0]
    assert best.seconds.low < best.seconds.likely < best.seconds.high
    low, high = duration(best.seconds.low), duration(best.seconds.high)
    assert f"about {duration(best.seconds.likely)} ({low} to {high})." in config_text(best)


def test_each_proposal_says_why_it_has_its_shape(weekend: list[Proposal]) -> None:
    best, second = (proposal.settings["n_layer"].source for proposal in weekend)
    assert best == "lowest predicted loss for the budget"
    assert second == "lowest predicted loss of models at most 55 % as large"


@pytest.mark.parametrize(
    ("config", "reason"), [("vocab_size = 65", "not of letters"), ("init_from = 'gpt2-medium'", "from scratch")]
)
def test_where_no_loss_is_foretold_no_run_is_chosen_and_the_reason_is_said(config: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_plan(resolve(config, filename="c.py"), Place(card=RTX_4070), budget=Budget(seconds=5 * 3600))
    assert refused.value.name == "no-loss-law"
    assert reason in refused.value.why


def test_what_the_file_says_is_written_but_for_what_is_of_that_run() -> None:
    text = "weight_decay = 0.2\nloss_chunk = 512\nwandb_run_name = 'mine-900M'\neval_only = True\n"
    place, budget = Place(card=RTX_4070), Budget(seconds=5 * 3600)
    for trainer, kept in (("nanogpt", {"weight_decay"}), ("onecard", {"weight_decay", "loss_chunk"})):
        plan = make_plan(resolve(text, filename="c.py"), place, trainer=trainer, budget=budget)  # type: ignore[arg-type]
        assert plan.proposals
        written = resolve(config_text(plan.proposals[0]), filename="w.py").asked
        assert written.keys() & {"weight_decay", "loss_chunk", "wandb_run_name", "eval_only"} == kept
