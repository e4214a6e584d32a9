"""--hours and --tokens: what to train, with the source of every value, in a file nanoGPT reads."""

import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config.resolve import resolve
from onecard.config.schema import NANOGPT_KEYS, RunConfig
from onecard.errors import UsageError
from onecard.inputs.make_plan import make_plan
from onecard.inputs.questions import budget_of
from onecard.models.evaluation import standard_error
from onecard.plan.budget import EVALUATION_SHARE, Budget, least_budget, propose
from onecard.plan.cards import find_card
from onecard.plan.counts import count_params
from onecard.plan.loss import COMPUTE_OPTIMAL
from onecard.plan.memory.predict import predict_nanogpt
from onecard.plan.place import Place
from onecard.plan.plan import Plan
from onecard.plan.proposal import Proposal, config_text
from onecard.plan.speed import TrainerName
from onecard.units import GIB
from tests.share import share

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


@pytest.mark.parametrize(
    ("card", "trainer", "first", "last"),
    [
        ("H200", "nanogpt", 0.15, 0.25),
        ("RTX 4070", "nanogpt", 0.05, 0.1),
        ("RTX 4070", "onecard", 0.55, 0.7),
        ("RTX 4090", "onecard", 0.055, 0.075),
        ("RTX 4070", "nanogpt", 1, 100),
    ],
)
def test_a_little_more_time_never_predicts_a_worse_loss(
    card: str, trainer: TrainerName, first: float, last: float
) -> None:
    place = find_card(card)
    count = share(25)
    hours = [first * (last / first) ** (step / (count - 1)) for step in range(count)]
    found = [
        propose(BASE, place, place.allocatable_bytes, Budget(seconds=h * 3600), trainer=trainer)[0].loss for h in hours
    ]
    losses = [loss.final.likely for loss in found if loss]
    assert len(losses) == len(hours)
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("card", ["RTX 4070", "H200"])
@pytest.mark.parametrize("trainer", get_args(TrainerName))
def test_evaluation_takes_a_small_share_and_says_how_sure_it_is(card: str, trainer: TrainerName) -> None:
    place = find_card(card)
    for hours in (0.2, 0.61, 1, 5, 48):
        budget = Budget(seconds=hours * 3600)
        for proposal in propose(BASE, place, place.allocatable_bytes, budget, trainer=trainer):
            config = proposal.config
            training = config.max_iters * proposal.speed.step_seconds.likely / proposal.seconds.likely
            assert 1 - training <= EVALUATION_SHARE
            assert f" {100 * (1 - training):.1f} % of the time" in proposal.settings["eval_interval"].source
            read = config.eval_iters * config.batch_size * config.block_size
            source = proposal.settings["eval_iters"].source
            assert source.endswith(f"a standard error of about {standard_error(read):.1g}")
            assert hours < 1 or 524_288 <= read <= 3 * 524_288


def test_four_times_the_tokens_halve_the_standard_error() -> None:
    assert standard_error(4 * 10**6) == pytest.approx(standard_error(10**6) / 2)
    # two RTX 4070 runs: 200 evaluation batches of 8 and of 16 sequences of 1,024 tokens lie 0.007 to 0.013 off
    assert all(0.007 < standard_error(200 * batch * 1024) < 0.013 for batch in (8, 16))


@pytest.mark.parametrize("hours", [0.1, 1, 10])
def test_the_faster_trainer_is_not_told_a_worse_loss(hours: float) -> None:
    budget = Budget(seconds=hours * 3600)
    theirs, ours = (
        propose(BASE, RTX_4070, AVAILABLE, budget, trainer=trainer)[0].loss for trainer in ("nanogpt", "onecard")
    )
    assert theirs
    assert ours
    assert ours.final.likely < theirs.final.likely


def test_tokens_alone_get_the_compute_optimal_model_and_a_smaller_one() -> None:
    first, second = proposals(tokens=2_500_000_000)
    assert (first.name, second.name) == ("compute-optimal", "smaller, past optimal")
    per_parameter = [each.config.total_tokens / count_params(each.config).total for each in (first, second)]
    assert COMPUTE_OPTIMAL / 1.5 < per_parameter[0] < 1.5 * COMPUTE_OPTIMAL < per_parameter[1]
    assert first.config.total_tokens == second.config.total_tokens
    assert second.seconds.likely < first.seconds.likely
    assert "98.23M parameters are compute-optimal" in first.settings["n_layer"].source
    assert first.note.startswith("a larger model reaches a lower loss with the same tokens, and takes longer: 202.53M")
    assert " h" in first.note
    assert second.note == ""


@pytest.mark.parametrize(
    ("card", "tokens", "name"),
    [
        ("RTX 4070", 4_000_000, "smallest"),
        ("RTX 4070", 10**12, "largest that fits"),
        ("H200", 10**12, "largest there is"),
    ],
)
def test_where_no_model_is_near_the_optimal_size_it_is_not_called_so(card: str, tokens: int, name: str) -> None:
    place = find_card(card)
    first = propose(BASE, place, place.allocatable_bytes, Budget(tokens=tokens))[0]
    assert first.name == name
    assert first.settings["n_layer"].source.startswith(f"the {name}")


def test_a_smaller_model_that_reads_no_more_tokens_is_not_trained_longer() -> None:
    best, second = proposals(hours=1000, tokens=1_000_000_000)
    assert best.config.total_tokens == second.config.total_tokens
    assert second.name == "smaller, in less time"


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


def test_keys_of_onecards_that_were_typed_are_kept_whoever_trains() -> None:
    typed = {"max_hours": "3", "seed": "5", "loggers": "tensorboard", "eval_batch_size": "2"}
    plan = planned(*typed.items(), hours=1000)
    assert plan.proposals
    best = plan.proposals[0]
    values: dict[str, object] = {}
    exec(config_text(best), values)  # as nanoGPT does
    assert {key: str(values[key]).removesuffix(".0") for key in typed} == typed
    assert all(best.settings[key].source.startswith("as asked") for key in typed)
    (cut,) = plan.resolved.warnings
    assert cut.startswith("max_hours=3 stops onecard's run at about step ")
    assert f" of {best.config.max_iters:,}: " in cut


def test_recomputation_that_was_typed_is_not_mistaken_for_the_budgets() -> None:
    plan = planned(("grad_checkpoint", "full"), ("init_from", "resume"), ("compile", "True"))
    assert plan.proposals
    assert "grad_checkpoint" not in plan.proposals[0].settings
    said = " ".join(plan.resolved.warnings)
    assert "the budget decides grad_checkpoint" in said
    assert "the budget decides init_from" in said
    assert "compile" not in said


def test_float32_is_kept_where_onecard_trains() -> None:
    place, budget = Place(card=RTX_4070), Budget(seconds=3600)
    asked = resolve(None, flags=[("dtype", "float32")])
    ours, theirs = (make_plan(asked, place, trainer=trainer, budget=budget) for trainer in ("onecard", "nanogpt"))
    assert ours.proposals
    assert theirs.proposals
    assert (ours.proposals[0].config.dtype, ours.resolved.warnings) == ("float32", ())
    assert theirs.proposals[0].config.dtype == "bfloat16"
    assert any("the budget decides dtype" in warning for warning in theirs.resolved.warnings)


def test_checkpoints_that_were_asked_for_are_paid_for() -> None:
    plan = make_plan(
        resolve(None, flags=[("checkpoint_interval", "5")]),
        Place(card=RTX_4070),
        trainer="onecard",
        budget=Budget(seconds=3600),
    )
    assert plan.proposals
    assert all(proposal.seconds.likely <= 3600 for proposal in plan.proposals)


def test_a_fit_beside_a_budget_is_ignored_and_said_to_be() -> None:
    plan = make_plan(resolve(None), Place(card=RTX_4070), fit=True, budget=Budget(tokens=10**9))
    assert plan.fit is None
    assert plan.resolved.warnings == ("--fit is ignored beside --tokens: proposed runs fit already",)


@pytest.mark.parametrize(
    "budget", [Budget(seconds=0.4), Budget(tokens=5), Budget(seconds=0.4, tokens=5), Budget(seconds=1e6, tokens=5)]
)
def test_the_least_budget_is_enough_and_a_tenth_less_is_not(budget: Budget) -> None:
    assert propose(BASE, RTX_4070, AVAILABLE, budget) == []
    least = least_budget(BASE, RTX_4070, AVAILABLE, budget)
    assert least
    assert propose(BASE, RTX_4070, AVAILABLE, least)
    for name in ("seconds", "tokens"):
        amount, asked = getattr(least, name), getattr(budget, name)
        assert (amount is None) == (asked is None)
        if amount is not None and amount > asked:
            shorter = replace(least, **{name: type(amount)(0.9 * amount)})
            assert propose(BASE, RTX_4070, AVAILABLE, shorter) == []


def test_no_budget_is_enough_without_memory() -> None:
    assert least_budget(BASE, RTX_4070, 10**9, Budget(tokens=5)) is None


def test_the_packaged_toys_context_and_data_are_nobodys_wish() -> None:
    plan = planned(("vocab_size", "32000"))
    assert plan.proposals
    assert (plan.proposals[0].config.block_size, plan.proposals[0].config.dataset) == (1024, "fineweb")
    assert plan.proposals[0].settings["block_size"].source != "as asked"


def test_keys_that_the_budget_decides_are_reported() -> None:
    said = " ".join(planned(("n_layer", "6"), ("compile", "False"), ("dtype", "float32")).resolved.warnings)
    for key in ("n_layer", "compile", "dtype"):
        assert f"the budget decides {key}" in said


def test_the_shortest_run_has_a_warm_up_and_evaluations_in_proportion() -> None:
    plan = planned(hours=0.05)
    assert plan.proposals
    for proposal in plan.proposals:
        config = proposal.config
        assert config.warmup_iters <= config.max_iters / 5
        number = round(config.max_iters / config.eval_interval)
        assert proposal.settings["eval_interval"].source.startswith(f"about {number} evaluations; ")


def test_the_hours_are_a_range_in_the_written_file(weekend: list[Proposal]) -> None:
    best = weekend[0]
    assert best.seconds.low < best.seconds.likely < best.seconds.high
    hours = (seconds / 3600 for seconds in (best.seconds.likely, best.seconds.low, best.seconds.high))
    assert "about {:.1f} hours ({:.1f} to {:.1f}).".format(*hours) in config_text(best), "all in one unit"


def test_each_proposal_says_why_it_has_its_shape(weekend: list[Proposal]) -> None:
    best, second = (proposal.settings["n_layer"].source for proposal in weekend)
    assert best == "lowest predicted loss for the budget"
    assert second == "lowest predicted loss of models at most 55 % as large"


@pytest.mark.parametrize(
    ("config", "reason"),
    [("vocab_size = 65", "this data has characters"), ("init_from = 'gpt2-medium'", "from scratch")],
)
def test_without_a_predicted_loss_no_run_is_chosen_and_the_reason_is_given(config: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_plan(resolve(config, filename="c.py"), Place(card=RTX_4070), budget=Budget(seconds=5 * 3600))
    assert refused.value.name == "no-loss-law"
    assert reason in refused.value.why


def test_what_the_file_says_is_written_but_for_what_is_of_that_run() -> None:
    text = "weight_decay = 0.2\nloss_chunk = 512\nwandb_run_name = 'mine-900M'\neval_only = True\n"
    place, budget = Place(card=RTX_4070), Budget(seconds=5 * 3600)
    for trainer in get_args(TrainerName):
        plan = make_plan(resolve(text, filename="c.py"), place, trainer=trainer, budget=budget)
        assert plan.proposals
        written = resolve(config_text(plan.proposals[0]), filename="w.py").set_by_user
        kept = written.keys() & {"weight_decay", "loss_chunk", "wandb_run_name", "eval_only"}
        assert kept == {"weight_decay", "loss_chunk"}
