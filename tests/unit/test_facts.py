"""Derived truth, on runs made by construction, with numbers worked out here."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.diagnose import diagnose_cases
from onecard.doctor.facts import make_case
from onecard.doctor.noise import evaluation_noise, sampling_error
from onecard.plan.cards import find_card
from onecard.runs.foreign import read_logs
from onecard.runs.logged import LoggedRun
from onecard.runs.records import Start
from tests import made_logs as made
from tests.made_records import start

CONFIG = "\n".join([*made.nanogpt_config(**made.SMALL), "gradient_accumulation_steps = 40", "eval_interval = 250"])


def case(lines: Sequence[str], *, config: str | None = None, card: str | None = None, **flags: str) -> Case:
    (run,) = read_logs(made.as_bytes(lines), source="made.log")
    resolved = resolve(config, filename="made.py", flags=flags.items()) if config else None
    return make_case(run, config=resolved, card=find_card(card) if card else None, data=DataSizes())


def test_speed_leaves_out_evaluations_and_the_first_step() -> None:
    facts = case(made.nanogpt(seconds=0.25, eval_seconds=3.0), config=CONFIG).facts
    assert facts.seconds_per_step == pytest.approx(0.25)
    assert facts.tokens_per_step == 8 * 512 * 40
    assert facts.tokens_per_second == pytest.approx(8 * 512 * 40 / 0.25)
    assert facts.seconds_per_micro_batch == pytest.approx(0.25 / 40)
    assert facts.evaluation_seconds == pytest.approx(3.0)
    assert facts.evaluation_share == pytest.approx(5 * 3.0 / (5 * 3.0 + 250.0))
    assert facts.seconds == pytest.approx(250.0)
    assert facts.tokens == 1000 * 163_840
    assert facts.last_step == 1000


def test_speed_holds_where_half_of_the_logged_steps_evaluate() -> None:
    facts = case(made.nanogpt(eval_interval=20, steps=500, eval_seconds=9.0)).facts
    assert facts.seconds_per_step == pytest.approx(0.25)
    assert facts.evaluation_seconds == pytest.approx(9.0)


def test_the_step_that_compiles_is_left_out_even_of_two() -> None:
    assert case(made.nanogpt(first=10, steps=20)).facts.seconds_per_step == pytest.approx(0.25)


def test_an_unknown_interval_is_taken_from_the_evaluations_themselves() -> None:
    # every logged step is a multiple of ten, and those of fifty were evaluated
    facts = case(made.nanogpt(eval_interval=50, steps=500, eval_seconds=9.0)).facts
    assert facts.seconds_per_step == pytest.approx(0.25)
    assert facts.evaluation_seconds == pytest.approx(9.0)
    assert facts.tokens_per_second is None  # nobody said how many tokens a step has


def test_evaluated_steps_whose_lines_were_lost_are_still_left_out() -> None:
    lines = [line for line in made.nanogpt(eval_interval=20, steps=500) if line.startswith("iter")]
    config = CONFIG.replace("eval_interval = 250", "eval_interval = 20")
    assert case(lines, config=config).facts.seconds_per_step == pytest.approx(0.25)


def test_mfu_needs_a_card_and_counts_as_the_contract_says() -> None:
    unknown = case(made.nanogpt(), config=CONFIG).facts
    assert unknown.mfu is None
    facts = case(made.nanogpt(), config=CONFIG, card="RTX 4080").facts
    params = 50304 * 256 + 4 * (12 * 256 * 256 + 2 * 256) + 256
    flops = 6 * params + 12 * 4 * 256 * 512
    peak = find_card("RTX 4080").peak_flops
    assert peak is not None
    assert facts.params == params
    assert facts.mfu == pytest.approx(flops * (163_840 / 0.25) / peak)
    assert facts.printed_mfu == pytest.approx(0.215)


def test_the_mfu_of_nanochat_counts_no_table_that_is_only_looked_up() -> None:
    facts = case(made.nanogpt(), config=f"{CONFIG}\nmodel = 'nanochat'\n", card="RTX 4080").facts
    table, blocks = 50304 * 256, 4 * 12 * 256 * 256
    peak = find_card("RTX 4080").peak_flops
    assert peak is not None
    assert facts.params == 2 * table + blocks
    assert facts.mfu == pytest.approx((6 * (table + blocks) + 12 * 4 * 256 * 512) * (163_840 / 0.25) / peak)


def test_the_card_may_come_from_the_log() -> None:
    assert case(["using NVIDIA GeForce RTX 4070", *made.nanogpt()], config=CONFIG).card == find_card("RTX 4070")
    assert case(["using NVIDIA GeForce RTX 9999", *made.nanogpt()], config=CONFIG).card is None


def test_without_a_config_the_log_says_what_it_says() -> None:
    found = case([*made.nanogpt_header("batch_size = 20", tokens=409_600), *made.nanogpt()])
    assert found.resolved is not None
    assert found.resolved.config.batch_size == 20
    assert found.resolved.origins["batch_size"] == "made.log:10"
    assert found.resolved.origins["n_layer"] == "made.log:3"
    assert found.resolved.origins["dropout"] == "default"
    assert found.resolved.comments[2] == "a small model for this test"
    assert found.facts.tokens_per_step == 409_600
    assert found.facts.params_total == 16_154_624 + 2_304


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("damage", ["", "n_embd = (  # a line that a narrow terminal cut"])
def test_a_number_sign_inside_quotes_is_no_comment(quote: str, damage: str) -> None:
    header = made.nanogpt_header()
    name = f"wandb_run_name = {quote}notes #2 350M model{quote}  # 3rd try, a bigger model"
    at = next(number for number, line in enumerate(header) if line.startswith("n_layer"))
    lines = [*header[:at], name, *([damage] if damage else []), *header[at:]]
    found = case([*lines, *made.nanogpt()]).resolved
    assert found is not None
    assert found.comments[at + 1] == "3rd try, a bigger model"


def test_unknown_keys_of_a_config_in_the_log_are_named() -> None:
    found = case([*made.nanogpt_header(eval_batch_size=4), *made.nanogpt()])
    assert found.resolved is not None
    assert found.resolved.unused == ("eval_batch_size",)


def test_openais_weights_bring_their_shape() -> None:
    found = case([*made.nanogpt_header("init_from = gpt2-medium"), *made.nanogpt()])
    assert found.resolved is not None
    assert (found.resolved.config.n_layer, found.resolved.config.n_embd) == (24, 1024)
    assert found.resolved.origins["n_layer"] == "init_from=gpt2-medium"


def test_a_log_without_a_config_has_none() -> None:
    found = case(made.nanogpt())
    assert found.resolved is None
    assert found.facts.tokens is None
    assert found.facts.params is None
    assert found.facts.seconds_per_step == pytest.approx(0.25)


def test_what_the_log_states_wins_over_the_file_and_both_stay_visible() -> None:
    found = case([*made.nanogpt_header("batch_size = 20"), *made.nanogpt()], config=CONFIG)
    assert found.resolved is not None
    assert found.resolved.config.batch_size == 20
    assert found.resolved.overridden == {"batch_size": 8}
    assert found.resolved.origins["batch_size"] == "made.log:10"
    assert found.resolved.origins["n_layer"].startswith("made.py:")
    assert any("batch_size" in warning and "8" in warning and "20" in warning for warning in found.resolved.warnings)


def test_a_flag_wins_over_the_log() -> None:
    found = case([*made.nanogpt_header("batch_size = 20"), *made.nanogpt()], config=CONFIG, batch_size="30")
    assert found.resolved is not None
    assert found.resolved.config.batch_size == 30


def test_a_config_that_does_not_hold_together_is_no_config() -> None:
    assert case([*made.nanogpt_header("n_head = 7"), *made.nanogpt()]).resolved is None


def test_another_model_than_the_config_describes_is_counted_as_printed() -> None:
    facts = case([*made.nanogpt_header(params="99.00M"), *made.nanogpt()], config=CONFIG).facts
    assert facts.params == 99_000_000


def test_what_is_to_go_follows_from_the_updates_left() -> None:
    facts = case(made.nanogpt(steps=600), config=CONFIG).facts
    assert facts.steps_to_go == 400
    assert facts.seconds_to_go == pytest.approx(100.0)


def test_a_run_that_made_no_update_has_all_to_go_unless_it_was_to_make_none() -> None:
    evaluated = ["step 0: train loss 10.9000, val loss 10.9100"]
    assert case(evaluated, config=CONFIG).facts.steps_to_go == 1000
    assert case(evaluated, config=CONFIG, eval_only="True").facts.steps_to_go is None
    assert case(evaluated).facts.steps_to_go is None


def test_tokens_are_filled_in() -> None:
    found = case(made.nanogpt(), config=CONFIG)
    assert found.evals[1].tokens == 250 * 163_840
    assert found.steps[1].tokens == 10 * 163_840


def test_best_and_last_evaluation_are_named_and_nan_is_never_the_best() -> None:
    vals = enumerate(("4.1000", "3.9000", "4.0000", "nan"))
    facts = case([f"step {n}: train loss 3.0000, val loss {val}" for n, val in vals]).facts
    assert facts.best_val is not None
    assert facts.best_val.val_loss == 3.9
    assert facts.last_val is not None
    assert math.isnan(facts.last_val.val_loss or 0)


def test_nanochat_is_measured_by_its_own_flops_and_bits_per_byte() -> None:
    facts = case(made.nanochat(), card="RTX 4070").facts
    peak = find_card("RTX 4070").peak_flops
    assert peak is not None
    assert facts.tokens_per_second == pytest.approx(32_768 / 0.3165)
    assert facts.mfu == pytest.approx(2.736795e8 * 32_768 / 0.3165 / peak)
    assert facts.seconds_per_micro_batch == pytest.approx(0.3165 / 8)
    assert facts.last_val is not None
    assert facts.last_val.bits_per_byte == pytest.approx(made.smooth_loss(400) / 3.2, abs=1e-6)


def test_modded_nanogpts_own_clock_is_believed() -> None:
    facts = case(made.modded()).facts
    assert facts.seconds_per_step == pytest.approx(0.14025)
    assert facts.seconds == pytest.approx(0.14025 * 500, abs=1e-3)


def test_hugging_faces_own_average_is_believed_less_what_evaluations_took() -> None:
    facts = case(made.trainer_stdout()).facts
    assert facts.seconds == pytest.approx(500 - 2 * 12.5)
    assert facts.seconds_per_step == pytest.approx((500 - 2 * 12.5) / 1000)


def test_the_share_of_evaluation_is_of_the_time_the_run_took() -> None:
    facts = case(made.trainer_lines()).facts
    assert facts.last_step == pytest.approx(10_000, rel=0.001)
    assert facts.evaluation_share == pytest.approx(20 * 6 / 3600)
    assert facts.seconds == pytest.approx(3600 - 20 * 6)
    assert facts.seconds_per_step == pytest.approx((3600 - 20 * 6) / 10_000, rel=0.001)


def test_where_nothing_tells_the_steps_nothing_follows_from_them() -> None:
    found = case(made.trainer_lines(end=False), config=CONFIG)
    facts = found.facts
    assert (facts.last_step, facts.tokens, facts.seconds, facts.seconds_per_step) == (None, None, None, None)
    assert (facts.evaluation_share, facts.steps_to_go) == (None, None)
    assert facts.evaluation_seconds == 6.0  # which is printed
    assert all(record.tokens is None for record in (*found.steps, *found.evals))


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.08])
def test_the_noise_of_an_evaluation_is_found_in_its_scatter(noise: float) -> None:
    lines = made.nanogpt(steps=20_000, eval_interval=250, log_interval=1000, noise=noise, seed=5)
    found = case(lines).facts.evaluation_noise
    assert found == pytest.approx(noise, rel=0.35)


def test_a_smooth_curve_has_next_to_no_noise_and_few_points_tell_nothing() -> None:
    smooth = case(made.nanogpt(steps=20_000, eval_interval=500, log_interval=1000)).facts.evaluation_noise
    assert smooth is not None
    assert smooth < 0.003
    assert case(made.nanogpt(steps=1000)).facts.evaluation_noise is None


def test_a_recorded_standard_error_stands_in_where_too_few_evaluations_scatter() -> None:
    evals = [replace(e, val_loss_error=0.0125) for e in case(made.nanogpt()).evals]
    assert evaluation_noise(evals) == sampling_error(evals) == 0.0125


def test_the_same_windows_again_scatter_less_than_other_windows_would() -> None:
    smooth = case(made.nanogpt(steps=20_000, eval_interval=500, log_interval=1000)).evals
    evals = [replace(e, val_loss_error=0.05) for e in smooth]
    noise = evaluation_noise(evals)
    assert noise is not None
    assert noise < 0.003
    assert sampling_error(evals) == 0.05


def recorded(*starts: Start, said: DataSizes | None = None) -> DataSizes:
    run = LoggedRun(source="r", format="onecard", records=starts)
    return make_case(run, config=None, card=None, data=said or DataSizes()).data


def test_the_size_of_the_data_is_what_a_run_of_ours_recorded_unless_it_is_said() -> None:
    begun = replace(start(0, resumed_from=None), train_tokens=9_000_000, val_tokens=500_000)
    older = start(0, resumed_from=None)
    assert recorded(begun) == DataSizes(train_tokens=9_000_000, val_tokens=500_000)
    assert recorded(begun, said=DataSizes(train_tokens=1000)) == DataSizes(train_tokens=1000, val_tokens=500_000)
    assert recorded(older) == DataSizes()
    assert recorded(older, replace(start(5), train_tokens=7)) == DataSizes(train_tokens=7), (
        "it went on in a later version"
    )
    assert recorded(begun, replace(start(5), train_tokens=7)).train_tokens == 7, "the last word counts"
    assert recorded(begun, start(5)).train_tokens == 9_000_000


TWO_CARDS = [
    "Overriding config with config/made.py:",
    *made.nanogpt_config(**made.SMALL, gradient_accumulation_steps=40),
    "tokens per iteration will be: 163,840",
    "number of parameters: 16.03M",
]


def as_fast_as(share: float, *, cards: int = 1, header: Sequence[str] = TWO_CARDS, mfu: float = 21.5) -> list[str]:
    """A log of the small model at a share of an RTX 4090's peak, on so many of them."""
    peak = find_card("RTX 4090").peak_flops
    assert peak
    params = 50304 * 256 + 4 * (12 * 256 * 256 + 2 * 256) + 256
    seconds = 163_840 * (6 * params + 12 * 4 * 256 * 512) / (share * peak * cards)
    lines = made.nanogpt(seconds=seconds, header=header)
    return [line.replace("mfu 21.50%", f"mfu {mfu:.2f}%") for line in lines]


def test_a_share_that_no_card_reaches_is_an_error_of_what_was_given_and_not_a_figure() -> None:
    fine = case(as_fast_as(0.9), card="RTX 4090")
    assert fine.facts.mfu == pytest.approx(0.9, rel=0.01)
    assert fine.facts.too_fast is None
    two = case(as_fast_as(1.14), card="RTX 4090")
    assert two.facts.mfu is None
    assert two.facts.too_fast
    assert "one GeForce RTX 4090 has" in two.facts.too_fast
    (finding,) = [f for f in diagnose_cases([two])[0].findings if f.severity == "error"]
    assert finding.rule == "contradicting-inputs"
    assert "--gpus N" in finding.fix
    assert "--config" not in finding.fix, "the log itself states its config"


def test_the_config_of_another_run_is_left_out_and_named() -> None:
    bare = [line for line in as_fast_as(0.5) if line.startswith(("iter", "step"))]
    other = CONFIG.replace("n_embd = 256", "n_embd = 1024").replace("n_layer = 4", "n_layer = 24")
    mixed = case(bare, config=other, card="RTX 4090")
    assert mixed.rejected
    assert (mixed.resolved, mixed.facts.mfu, mixed.facts.tokens_per_second, mixed.facts.params) == (None,) * 4
    (finding,) = [f for f in diagnose_cases([mixed])[0].findings if f.severity == "error"]
    assert finding.rule == "contradicting-inputs"
    assert finding.fix.startswith("say what it really was: the config (--config; ")


def test_pairs_that_causal_attention_skips_are_no_proof() -> None:
    """12·L·C·T counts twice what is computed: with a long context a real run may show more than all of the peak."""
    config = CONFIG.replace("block_size = 512", "block_size = 131072").replace("batch_size = 8", "batch_size = 1")
    lines = [line for line in made.nanogpt(seconds=49.0) if line.startswith(("iter", "step"))]
    facts = case(lines, config=config, card="RTX 4090").facts
    assert facts.too_fast is None
    assert facts.mfu is not None
    assert facts.mfu > 1


@pytest.mark.parametrize(
    "line",
    [
        "ddp_world_size: 2",
        "world_size=2",
        "torchrun --standalone --nproc_per_node=2 train.py config/made.py",
        "Using 2 GPUs",
    ],
)
def test_several_cards_that_a_log_names_share_the_speed(line: str) -> None:
    facts = case([line, *as_fast_as(0.57, cards=2)], card="RTX 4090").facts
    assert facts.cards == 2
    assert facts.mfu == pytest.approx(0.57, rel=0.01)


def test_the_cards_that_nvidia_smi_shows_in_use_are_counted() -> None:
    def table(*used: int) -> list[str]:
        rows: list[str] = []
        for number, mib in enumerate(used):
            rows.append(
                f"|   {number}  NVIDIA GeForce RTX 4090        Off | 00000000:0{number}:00.0 Off |        Off |"
            )
            rows.append(f"| 30%   45C    P2   350W / 450W | {mib:5}MiB / 24564MiB |     97%      Default |")
        return rows

    assert case([*table(21_000, 21_004), *as_fast_as(0.57, cards=2)], card="RTX 4090").facts.cards == 2
    assert case([*table(21_000, 15), *as_fast_as(0.57)], card="RTX 4090").facts.cards == 1


def test_the_code_of_a_program_names_no_number_of_cards() -> None:
    lines = ["    ddp_world_size = 1", "ddp_world_size = int(os.environ['WORLD_SIZE'])", *as_fast_as(0.57)]
    assert case(lines, card="RTX 4090").run.world_size is None


def test_nanogpts_own_mfu_shows_how_many_cards_made_its_tokens() -> None:
    peak = find_card("RTX 4090").peak_flops
    assert peak
    for cards in (1, 2, 4):
        lines = as_fast_as(0.57, cards=cards, mfu=57 * peak / 312e12)
        assert case(lines, card="RTX 4090").facts.cards == cards


def test_several_processes_of_an_unknown_number_have_no_share() -> None:
    warning = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"
    made_case = case([warning, *as_fast_as(0.57)], card="RTX 4090")
    assert (made_case.facts.cards, made_case.facts.mfu) == (None, None)
    assert any("--gpus N" in each for each in diagnose_cases([made_case])[0].unknown)
