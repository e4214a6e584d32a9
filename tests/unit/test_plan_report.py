"""The plan as it is read: what is to be pasted is in one piece, figures have their range, verdicts their condition."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from onecard.config.command import EXPANDABLE, train_command
from onecard.config.resolve import resolve
from onecard.errors import UsageError
from onecard.inputs.make_plan import make_plan
from onecard.plan.budget import Budget
from onecard.plan.cards import find_card
from onecard.plan.nvidia_smi import DriverFigures
from onecard.plan.place import Place
from onecard.plan.plan import Plan
from onecard.plan.proposal import config_text
from onecard.report.advice import print_fixes, print_proposals
from onecard.report.command import changed_command
from onecard.report.memory import print_driver_figures
from onecard.report.plan import print_plan
from onecard.report.plan_json import plan_json
from onecard.report.summary import loss_change, speed_change
from onecard.units import GIB, MIB

RTX_4070 = find_card("RTX 4070")
BESIDE_A_DESKTOP = Place(card=RTX_4070, other_bytes=round(2.1 * GIB))


def paper(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def planned(text: str, place: Place | None = BESIDE_A_DESKTOP, **options: object) -> Plan:
    return make_plan(resolve(text, filename="c.py"), place, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_what_is_to_be_pasted_is_never_broken(width: int) -> None:
    plan = planned("batch_size = 16\ncompile = False\ndropout = 0.1\nvocab_size = 50257\n")
    console = paper(width)
    print_fixes(plan, console, details=True)
    lines = [line.strip() for line in written(console).splitlines()]
    assert any(fix.environment for fix in plan.fixes)
    for fix in plan.fixes:
        is_run = fix.patch or fix.environment or fix.trainer == "onecard"
        for piece in filter(None, [is_run and changed_command(fix, "c.py"), *fix.code.split("; ")]):
            assert piece in lines
    assert f"{EXPANDABLE} python train.py c.py" in lines


@pytest.mark.parametrize("name", ["TITAN Xp", "P100", "P4"])
def test_on_a_card_too_old_for_triton_the_plan_is_of_a_run_that_is_not_compiled(name: str) -> None:
    place = Place(card=find_card(name))
    plan, eager = (planned(f"batch_size = 4\ncompile = {on}\n", place) for on in (True, False))
    (finding,) = [finding for finding in plan.findings if finding.rule == "compile-failed"]
    assert finding.patch["compile"] is False
    assert place.card.name in finding.what
    assert not plan.config.compile
    assert plan.first.memory.process_bytes == eager.first.memory.process_bytes
    assert plan.first.speed == eager.first.speed
    assert not [finding for finding in eager.findings if finding.rule == "compile-failed"]
    for fix in planned("batch_size = 64\ncompile = False\n", place).fixes:
        assert not fix.patch.get("compile")


def test_a_card_that_triton_knows_is_planned_compiled() -> None:
    for name in ("V100 SXM2 16GB", "T4", "RTX 4070", "RX 7900 XTX"):
        plan = planned("batch_size = 4\n", Place(card=find_card(name)))
        assert plan.config.compile
        assert not [finding for finding in plan.findings if finding.rule == "compile-failed"]


def test_every_fix_has_its_figures_on_one_line() -> None:
    plan = planned("batch_size = 16\n")
    console = paper()
    print_fixes(plan, console, details=True)
    said = written(console)
    for fix in plan.fixes:
        assert f"{fix.saves_bytes / MIB:,.0f}" in said
        assert speed_change(fix) in said
        assert loss_change(fix) in said


def test_proposed_hours_are_a_range_on_screen_and_in_json() -> None:
    plan = make_plan(resolve(None), BESIDE_A_DESKTOP, budget=Budget(seconds=6 * 3600))
    assert plan.proposals
    best = plan.proposals[0]
    console = paper(120)
    print_proposals(plan, console)
    seconds = best.seconds
    assert f"{seconds.likely / 3600:.1f} ({seconds.low / 3600:.1f} to {seconds.high / 3600:.1f})" in written(console)
    said = plan_json(plan)["proposals"][0]
    assert said["seconds_range"] == {name: round(getattr(seconds, name)) for name in ("low", "likely", "high")}
    assert said["seconds"] == said["seconds_range"]["likely"]


@pytest.mark.parametrize(("text", "flags"), [("vocab_size = 8192\n", []), ("n_layer = 6\n", [("vocab_size", "8192")])])
def test_the_vocabulary_nanogpt_must_be_told_stands_beside_its_verdict(text: str, flags: list[tuple[str, str]]) -> None:
    plan = make_plan(resolve(text, filename="c.py", flags=flags), BESIDE_A_DESKTOP)
    console = paper()
    print_plan(plan, console)
    said = " ".join(written(console).split())
    assert "meta.pkl beside the data" in said
    assert "without it nanoGPT builds 50,304" in said
    assert "meta.pkl" in plan_json(plan)["trainers"]["nanogpt"]["condition"]
    assert plan_json(plan)["trainers"]["onecard"]["condition"] == ""


@pytest.mark.parametrize("text", ["n_layer = 6", "vocab_size = 50304", "init_from = 'gpt2'"])
def test_what_nanogpt_builds_of_itself_has_no_condition(text: str) -> None:
    plan = planned(text)
    assert plan.nanogpt
    assert plan.nanogpt.told_vocabulary is None
    assert plan_json(plan)["trainers"]["nanogpt"]["condition"] == ""


def test_a_proposal_for_nanogpt_says_what_its_vocabulary_needs() -> None:
    plan = planned("vocab_size = 32000", budget=Budget(seconds=6 * 3600), trainer="nanogpt")
    assert plan.proposals
    console = paper()
    print_proposals(plan, console)
    assert "with a vocabulary of 32,000" in " ".join(written(console).split())


def test_without_a_card_the_driver_and_the_plan_are_not_compared() -> None:
    driver = DriverFigures(process_bytes=4464 * MIB)
    plan = planned("n_embd = 384", None)
    console = paper(120)
    print_driver_figures(driver, plan.first.memory, console)
    assert "unexplained" not in written(console)
    assert "name the card with --gpu" in written(console)
    said = plan_json(plan, driver=driver)["seen"]
    assert (said["unexplained_bytes"], said["predicted_with_context"]) == (None, False)


def test_with_a_card_what_is_unexplained_is_the_difference() -> None:
    plan = planned("n_embd = 384")
    driver = DriverFigures(process_bytes=plan.first.memory.process_bytes + 20 * MIB)
    console = paper(120)
    print_driver_figures(driver, plan.first.memory, console)
    assert "+20" in written(console)
    assert plan_json(plan, driver=driver)["seen"]["unexplained_bytes"] == 20 * MIB


def test_where_no_process_is_told_the_whole_card_is_compared() -> None:
    plan = planned("n_embd = 384")
    driver = DriverFigures(used_bytes=plan.first.memory.process_bytes + 500 * MIB, total_bytes=12282 * MIB)
    console = paper(120)
    print_driver_figures(driver, plan.first.memory, console)
    assert "not shown per process" in written(console)
    assert "+500" in written(console)
    assert plan_json(plan, driver=driver)["seen"]["unexplained_bytes"] is None


def test_the_card_that_a_text_named_is_said_to_be_so() -> None:
    place = replace(BESIDE_A_DESKTOP, source="the nvidia-smi text")
    console = paper(120)
    print_plan(planned("n_embd = 384", place), console)
    assert "GeForce RTX 4070 (named by the nvidia-smi text)" in written(console)
    assert plan_json(planned("n_embd = 384", place))["gpu"]["named_by"] == "the nvidia-smi text"


def test_one_is_one_sequence_and_one_micro_batch() -> None:
    console = paper(120)
    print_plan(planned("batch_size = 1\ngradient_accumulation_steps = 1\nblock_size = 512"), console)
    assert "1 sequence x 1 micro-batch x 512 tokens" in written(console)


@pytest.mark.parametrize("params", [774_000_000, 1_500_000_000])
def test_the_largest_that_would_fit_is_of_the_depth_that_was_asked_for(params: int) -> None:
    plan = planned("n_layer = 12", Place(card=find_card("RTX 3060 12GB")), fit=True, params=params)
    assert plan.fit
    assert plan.fit.smallest
    console = paper(200)
    print_plan(plan, console)
    assert f"the largest model of {plan.config.n_layer} layers that fits: " in written(console)


def test_the_head_and_the_section_below_agree_on_what_evaluation_takes() -> None:
    plan = make_plan(resolve(None, flags=[("bias", "True")]), Place(card=RTX_4070))  # without, the later one is larger
    console = paper(200)
    print_plan(plan, console, details=True)
    head = next(line for line in written(console).splitlines() if line.startswith("allocated "))
    for trainer in plan.trainers.values():
        first, later = (trainer.memory.phases[name].allocated_bytes for name in ("eval0", "eval"))
        assert first > later, "or the test shows nothing"
        assert f"{first / MIB:,.0f} evaluating" in head


def test_the_loss_says_that_it_is_predicted_by_what_and_where_it_is_on_the_way() -> None:
    plan = planned("dataset = 'fineweb'\nmax_iters = 20000\n")
    console = paper(200)
    print_plan(plan, console, details=True)
    said = written(console)
    loss = plan.loss
    assert loss
    assert f"predicted {loss.final.likely:.2f} ({loss.final.low:.2f} to {loss.final.high:.2f}) nats" in said
    assert f"perplexity {loss.perplexity.likely:.0f} ({loss.perplexity.low:.0f} to {loss.perplexity.high:.0f})" in said
    assert f"{loss.milestones[5000].likely:.2f}" in said.split(" at step 5,000")[0][-25:]
    assert "at step 20,000" not in said, "that is the end"
    for source in loss.sources:
        assert source in said


def test_a_loss_of_a_short_run_has_no_steps_on_the_way() -> None:
    console = paper(200)
    print_plan(planned("max_iters = 100\n"), console, details=True)
    assert "predicted" in written(console)
    assert "at step" not in written(console)


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_a_run_that_would_not_use_the_card_says_so(device: str) -> None:
    (warning,) = planned(f"device = '{device}'\n").resolved.warnings
    assert warning.startswith(f"device={device} would not use the GeForce RTX 4070")
    assert not planned("device = 'cuda:0'\n").resolved.warnings
    assert not planned(f"device = '{device}'\n", None).resolved.warnings


def test_an_mfu_near_100_percent_says_what_it_counts_and_a_range_ends_at_the_peak() -> None:
    console = paper(200)
    print_plan(planned("n_layer = 48\nn_head = 25\nn_embd = 1600\nbatch_size = 16\n"), console, details=True)
    said = written(console)
    assert "counting causal attention only)" in said
    assert re.search(r"tokens/s \(-\d+% to \+\d+%\)", said), "the card's peak bounds it"
    console = paper(200)
    print_plan(planned("batch_size = 8\n"), console)
    assert "causal" not in written(console)
    assert "(±15%)" in written(console)


def test_fixes_of_onecards_run_alone_are_headed_so() -> None:
    plan = planned("batch_size = 2\neval_batch_size = 384\n", Place(card=RTX_4070.with_memory(round(5.5 * GIB))))
    console = paper(120)
    print_plan(plan, console)
    assert "what to change under onecard" in written(console)
    assert "type     onecard train c.py --eval_batch_size=2\n" in written(console)


def test_a_request_that_torch_refuses_at_its_limit_is_no_lack_of_memory() -> None:
    """30M with 66 sequences: 4,096 MiB are shown, and under a limit of 4,102 it ran out on an H200."""
    shape = (
        "n_layer = 6\nn_head = 6\nn_embd = 384\nblock_size = 512\nbatch_size = 66\ngradient_accumulation_steps = 2\n"
    )
    h200 = Place(card=find_card("H200"))
    refused = planned(f"{shape}dtype = 'bfloat16'\nmemory_limit = '4102MiB'\n", h200, trainer="onecard")
    console = paper(200)
    print_plan(refused, console)
    said = written(console)
    assert refused.exit_code == 1
    assert "does not fit: needs 4,096 of 4,102 MiB, but torch refuses a request at the limit" in said
    assert "too much" not in said
    console = paper(200)
    print_plan(refused, console, details=True)
    assert "runs out in training, loss" in written(console)


def test_a_command_names_a_size_as_it_is_typed() -> None:
    patch = {"batch_size": 8, "memory_limit": 12 * GIB}
    assert train_command("c.py", patch, trainer="onecard") == "onecard train c.py --batch_size=8 --memory_limit=12GiB"


NANOCHAT = "model = 'nanochat'\nbatch_size = 16\ngradient_accumulation_steps = 32\ndataset = 'fineweb'\n"


def nanochat(more: str = "", **asked: object) -> Plan:
    resolved = resolve(NANOCHAT + more, filename="c.py")
    return make_plan(resolved, Place(card=find_card("RTX 4070"), other_bytes=0), **asked)  # type: ignore[arg-type]


def test_nanogpt_has_no_plan_of_a_model_that_it_has_not() -> None:
    plan = nanochat()
    assert plan_json(plan)["trainers"]["nanogpt"] is None  # type: ignore[index]
    assert plan.exit_code == 0
    said = printed_details(plan)
    assert "nanochat, 12 layers" in said
    for wrong in ("nanoGPT", "GELU", "position embeddings"):
        assert wrong not in said
    small = Place(card=find_card("RTX 4070"), other_bytes=8 * GIB)
    assert make_plan(resolve(NANOCHAT, filename="c.py"), small).exit_code == 1, "onecard's verdict decides"
    with pytest.raises(UsageError) as refused:
        nanochat(trainer="nanogpt")
    assert refused.value.name == "not-nanogpts-model"


def test_what_saves_nanochat_no_memory_is_not_offered() -> None:
    plan = nanochat(fit=True, sensitivity=True)
    assert plan.fit
    assert {each.config.grad_checkpoint for each in plan.fit.candidates} <= {"none", "full"}
    assert plan.sensitivity
    assert [each.value for each in plan.sensitivity if each.key == "grad_checkpoint"] == ["full"]
    small = Place(card=find_card("RTX 4070"), other_bytes=8 * GIB)
    tight = make_plan(resolve(NANOCHAT, filename="c.py"), small, fit=True)
    assert tight.fit
    assert tight.fit.best
    assert tight.fit.best.config.grad_checkpoint in ("none", "full")
    assert "selective" not in {fix.name for fix in tight.fixes}
    assert "full" in {fix.name for fix in tight.fixes}


def test_proposals_keep_the_model() -> None:
    with pytest.raises(UsageError, match="no run can be proposed"):  # no public run tells its loss with AdamW
        nanochat(budget=Budget(seconds=24 * 3600))
    plan = nanochat("recipe = 'fast'", budget=Budget(seconds=24 * 3600))
    assert plan.proposals
    for proposal in plan.proposals:
        assert proposal.config.model == "nanochat"
        assert "nanoGPT has no nanochat" in config_text(proposal)


def printed_details(plan: Plan) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_plan(plan, console, details=True)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]
