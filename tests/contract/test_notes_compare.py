"""The questions of note 003 (two runs on one RTX 4070: which is better, and why did the MFU rise?), as commands. The
logs are made here, in the shape of those runs: no line of them comes from a real log."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from docs.made_runs import RUNS, MadeRun, made_lines
from onecard.api import compare_runs
from onecard.report.compare import print_comparison
from onecard.runs.folder import create_run
from onecard.runs.records import Eval, Step
from tests import made_records
from tests.contract.conftest import Command

CARD = ["--gpu", "RTX 4070"]
MOST_LINES, MOST_COLUMNS = 40, 100


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """The 40M run, finished, and the 124M run, which stopped at 11,000 of 12,000 updates."""
    for name, run in RUNS.items():
        (tmp_path / name).write_text("\n".join(made_lines(name, run)) + "\n")
    return tmp_path


def asked(onecard: Command, folder: Path, *arguments: str) -> str:
    shown = onecard("compare", "40M.log", "124M.log", *arguments, cwd=folder)
    assert shown.code == 0, shown.stderr
    return shown.stdout


def opening(text: str, lines: int = 8) -> str:
    return "\n".join(text.splitlines()[:lines])


def test_which_is_better_at_equal_tokens_and_at_equal_hours(onecard: Command, pair: Path) -> None:
    said = opening(asked(onecard, pair, *CARD), 2)
    assert "better B (124M.log): lower loss at equal tokens and at equal hours" in said
    assert "at 5.77B tokens B 3.3991, A 3.6533" in said
    assert "at 22.2 h B 3.4244, A 3.5731" in said


def test_the_unfinished_run_has_a_latest_loss_and_a_forecast_of_its_end(onecard: Command, pair: Path) -> None:
    text = asked(onecard, pair, *CARD)
    end = text.splitlines()[2]
    forecast = r"predicted end 3\.\d\d \(3\.\d\d to 3\.\d\d\); A ended at 3\.5731"
    assert re.fullmatch(rf"end    B 3\.3991 at update 11,000 of 12,000, {forecast}", end)
    assert re.search(r"validation loss +3\.5731 final +3\.3991 latest +B", text)
    assert "final validation loss" not in text


def test_which_is_faster(onecard: Command, pair: Path) -> None:
    speed = asked(onecard, pair, *CARD).splitlines()[3]
    assert speed == "speed  A is faster: A 131,072 tokens/s, B 58,254; MFU A 67 %, B 85 %"


def test_why_the_loss_fell_and_what_to_type_next(onecard: Command, pair: Path) -> None:
    why, following = asked(onecard, pair, *CARD).splitlines()[4:6]
    assert re.match(
        r"why    n_embd 384 → 768: alone, predicted loss -0\.3\d\d, tokens/s -\d\d %, MFU \d\d → \d\d %", why
    )
    assert following.startswith("next   let B finish: ")


def test_why_the_mfu_rose_and_what_the_logs_printed(onecard: Command, pair: Path) -> None:
    said = opening(asked(onecard, pair, *CARD))
    assert "wider matrices (n_embd) run the card closer to its peak; the smaller micro-batch lowered it" in said
    assert "the logs printed 12.6 % and 16.0 %, of an A100's 312 TFLOP/s: 67 % and 85 % of this card" in said


def test_why_the_mfu_rose_is_the_plans_prediction_of_each_change_alone(onecard: Command, pair: Path) -> None:
    found = onecard("compare", "40M.log", "124M.log", *CARD, "--json", cwd=pair).json
    alone = {next(iter(effect["patch"])): effect["mfu"] for effect in found["predicted_alone"]["1"]}
    assert alone["n_embd"]["after"] > 1.1 * alone["n_embd"]["before"], "width raised it"
    assert alone["batch_size"]["after"] < alone["batch_size"]["before"], "the smaller micro-batch lowered it"
    assert alone["max_iters"]["after"] == alone["max_iters"]["before"]


def test_what_dropout_does_to_the_loss_is_not_predicted_and_said_plainly(onecard: Command, pair: Path) -> None:
    text = asked(onecard, pair, *CARD, "--details")
    assert re.search(r"dropout 0\.1 → 0\.0 .* no prediction *\n", text)
    assert "no prediction of the loss: scaling laws do not cover dropout\n" in text
    assert "silent" not in text


def test_a_mfu_of_an_unknown_card_asks_for_the_card(onecard: Command, pair: Path) -> None:
    text = asked(onecard, pair)
    said = " ".join(opening(text).split())
    assert "of an A100's 312 TFLOP/s, whatever the card; --gpu NAME gives the true share" in said


# a run that has not finished does not lose by its last loss


def shortened(folder: Path, updates: int) -> None:
    """The 124M run, stopped after so many updates: its last loss is above the 40M run's final one."""
    run = RUNS["124M.log"]
    cut = MadeRun(
        settings=run.settings,
        updates=updates,
        update_seconds=run.update_seconds,
        floor=run.floor,
        above=run.above,
    )
    (folder / "124M.log").write_text("\n".join(made_lines("124M.log", cut)) + "\n")


def test_a_run_ahead_at_equal_tokens_does_not_lose_by_its_latest_loss(onecard: Command, pair: Path) -> None:
    shortened(pair, 4000)
    found = onecard("compare", "40M.log", "124M.log", *CARD, "--json", cwd=pair).json
    small, large = found["runs"]
    assert large["latest_val_loss"] > small["final_val_loss"], "it would lose by its last loss"
    assert (small["finished"], large["finished"]) == (True, False)
    assert found["winners"]["at_equal_tokens"] == 1
    assert found["winners"]["final_val_loss"] is None
    assert found["standings"]["final_val_loss"] == {"best": [0], "beaten": [], "undecided": [1]}
    assert large["forecast"]["low"] < large["forecast"]["likely"] < large["forecast"]["high"]
    assert large["forecast"]["likely"] < small["final_val_loss"]
    assert small["forecast"] is None
    text = asked(onecard, pair, *CARD)
    assert text.startswith("better B at equal tokens; no difference within noise at equal hours\n")
    assert re.search(r"validation loss +3\.5731 final +3\.\d{4} latest +A so far; B may still go on", text)


def test_a_run_behind_at_equal_tokens_loses_even_if_it_has_not_finished(onecard: Command, pair: Path) -> None:
    shortened(pair, 4000)
    found = onecard("compare", "124M.log", "124M.log", "40M.log", *CARD, "--json", cwd=pair).json
    assert found["winners"]["final_val_loss"] is None
    worse = RUNS["40M.log"]
    behind = MadeRun(settings=worse.settings, updates=9000, update_seconds=4.0, floor=worse.floor, above=worse.above)
    (pair / "40M.log").write_text("\n".join(made_lines("40M.log", behind)) + "\n")
    (pair / "124M.log").write_text("\n".join(made_lines("124M.log", RUNS["124M.log"])) + "\n")
    found = onecard("compare", "40M.log", "124M.log", *CARD, "--json", cwd=pair).json
    assert [run["finished"] for run in found["runs"]] == [False, False]
    assert found["standings"]["final_val_loss"] == {"best": [1], "beaten": [0]}
    assert found["winners"]["final_val_loss"] == 1


# how much is printed


def printed(*sources: str, details: bool = False) -> list[str]:
    """What a terminal of 100 columns shows, long lines broken as a terminal breaks them."""
    out = io.StringIO()
    comparison = compare_runs(*sources, gpu="RTX 4070")
    print_comparison(comparison, Console(file=out, width=MOST_COLUMNS, no_color=True), details=details)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return [line[at : at + MOST_COLUMNS] for line in lines for at in range(0, max(1, len(line)), MOST_COLUMNS)]


def words(lines: list[str]) -> int:
    return sum(len(line.split()) for line in lines)


def test_the_pair_of_note_003_is_compared_in_forty_lines(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pair)
    sources = list(RUNS)
    lines = printed(*sources)
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert words(lines) <= 330
    assert len(lines) + 10 < len(printed(*sources, details=True))


def own_run(folder: Path, *, end: float, **config: object) -> str:
    settings = {
        "n_layer": 4,
        "n_head": 4,
        "n_embd": 256,
        "block_size": 512,
        "batch_size": 8,
        "max_iters": 1000,
        "warmup_iters": 100,
    }
    settings |= {"gradient_accumulation_steps": 40, "vocab_size": 50304, "dataset": "fineweb", **config}
    with create_run(folder, config=settings) as run:
        for number in range(0, 1001, 10):
            tokens, loss = number * 163_840, end + 7.6 / (1 + number / 60)
            if number % 50 == 0:
                run.append(evaluation(number, tokens, loss))
            run.append(update(number, tokens, loss))
        run.append(made_records.end(1000, "finished"))
    return str(folder)


def evaluation(step: int, tokens: int, loss: float) -> Eval:
    return Eval(
        step=step,
        tokens=tokens,
        train_loss=loss,
        val_loss=loss,
        train_loss_error=0.01,
        val_loss_error=0.01,
        block_size=512,
        tokens_read=8192,
        seconds=1.0,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        bits_per_byte=loss / 3.2,
    )


def update(step: int, tokens: int, loss: float) -> Step:
    return Step(
        step=step,
        tokens=tokens,
        loss=loss,
        lr=None,
        grad_norm=None,
        seconds=2.0,
        elapsed_seconds=2.0 * step,
        tokens_per_second=None,
        mfu=None,
        allocated_bytes=None,
        reserved_bytes=2**30,
        data_wait_seconds=None,
    )


def test_two_runs_of_ours_are_compared_in_forty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = own_run(Path("runs/a"), end=3.3)
    second = own_run(Path("runs/b"), end=3.2, learning_rate=1e-3, dropout=0.1)
    lines = printed(first, second)
    assert len(lines) <= MOST_LINES, "\n".join(lines)
    assert words(lines) <= 280
    first_lines = " ".join(lines[:8])
    assert "better B" in first_lines
    assert "perhaps dropout or learning_rate (no prediction: scaling laws do not cover them)" in first_lines
    assert "next   onecard train runs/a --dropout=0.1 --out_dir=runs/a-2" in first_lines


def test_json_and_the_page_keep_everything(onecard: Command, pair: Path) -> None:
    found = onecard("compare", "40M.log", "124M.log", *CARD, "--json", "--details", cwd=pair).json
    assert found["config_diff"]["n_embd"] == [384, 768]
    assert {"cautions", "crossings", "predicted_alone", "standings"} <= found.keys()
    page = onecard("compare", "40M.log", "124M.log", *CARD, "--plot", "losses.html", cwd=pair)
    assert page.code == 0
    html = (pair / "losses.html").read_text()
    assert "B (124M.log): lower loss at equal tokens" in html
    assert "B passes A" in html
