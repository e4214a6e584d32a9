"""The server answers what the commands answer, follows runs while they grow, and ends as it should."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs starlette and uvicorn: pip install 'onecard[ui]'")

from onecard.runs.record_json import to_line
from onecard.runs.records import CardReading, Sample
from onecard.runs.scores import TextScore, append_score
from onecard.ui.columns import columns_of
from onecard.ui.curves import BUCKETS, curves
from tests.made_logs import FULL_CARD, nanogpt
from tests.made_records import step
from tests.ui.conftest import Site, make_run

LOG = "".join(f"iter {n}: loss {5 - n / 100:.4f}, time 100.00ms, mfu 10.00%\n" for n in range(0, 200, 10))


def command(*words: str, cwd: Path | None = None) -> dict[str, object]:
    """The JSON that a command prints."""
    typed = [sys.executable, "-m", "onecard", *words, "--json"]
    printed = subprocess.run(typed, capture_output=True, text=True, check=False, cwd=cwd, env=os.environ).stdout
    made: dict[str, object] = json.loads(printed)
    return made


def test_the_list_says_what_the_runs_do(site: Site) -> None:
    rows = {row["name"]: row for row in site.ask("/api/runs").json["runs"]}
    assert rows.keys() == {"done", "half"}
    assert (rows["done"]["state"], rows["done"]["progress"]) == ("finished", 1.0)
    assert (rows["half"]["state"], rows["half"]["step"], rows["half"]["progress"]) == ("training", 100, 0.5)
    assert rows["half"]["seconds_to_go"] == 50
    assert rows["half"]["val_loss_error"] == 0.01


def test_what_a_list_says_of_runs_that_stopped(tmp_path: Path) -> None:
    """The time that a resumed run would take, the last loss that is a number, and no guess at where it trained."""
    from onecard.ui.glance import glance

    died = make_run(tmp_path / "died")
    os.utime(died / "records.jsonl", (0, 0))
    row = glance(died, died / "records.jsonl")
    assert (row["state"], row["seconds_to_go"], row["device"]) == ("died", 50, "cpu")
    diverged = make_run(tmp_path / "diverged", ended="diverged")
    lines = (diverged / "records.jsonl").read_text().splitlines()
    evaluations = [line for line in lines if '"kind":"eval"' in line]
    last = json.loads(evaluations[-1]) | {"val_loss": "NaN"}
    (diverged / "records.jsonl").write_text("\n".join([*lines, json.dumps(last), lines[-1]]) + "\n")
    row = glance(diverged, diverged / "records.jsonl")
    assert (row["state"], row["val_loss"], row["seconds_to_go"]) == ("diverged", 3.1, None)
    only_config = make_run(tmp_path / "only config")
    (only_config / "records.jsonl").unlink()
    assert glance(only_config, only_config / "records.jsonl")["device"] is None


def test_a_page_gets_the_plan_of_the_command(site: Site) -> None:
    asked = site.ask("/api/plan?gpu=RTX+4070&other=2.1GiB&n_layer=4&n_head=4&n_embd=128").json
    assert asked == command(
        "plan", "--gpu", "RTX 4070", "--other", "2.1GiB", "--n_layer=4", "--n_head=4", "--n_embd=128"
    )


def test_a_page_gets_the_errors_of_the_command(site: Site) -> None:
    assert site.ask("/api/plan?gpu=RTX+4070&n_layers=4").json == command("plan", "--gpu", "RTX 4070", "--n_layers=4")


def test_a_page_gets_the_comparison_of_the_command(site: Site) -> None:
    done, half = site.id_of("done"), site.id_of("half")
    asked = site.ask(f"/api/compare?run={done}&run={half}").json
    assert asked == command("compare", str(site.folder / "done"), str(site.folder / "half"))


def test_a_run_page_gets_the_diagnosis_of_the_command(site: Site) -> None:
    name = site.id_of("half")
    found = site.ask(f"/api/runs/{name}").json
    diagnosis = site.ask(f"/api/runs/{name}/diagnosis").json
    assert [diagnosis["doctor"]] == command("doctor", str(site.folder / "half"))["runs"]
    assert [event["kind"] for event in found["events"]] == ["start"]
    assert [record["step"] for record in found["evals"]] == [25, 50, 75, 100]


def test_a_dropped_log_gets_the_diagnosis_of_the_command(site: Site, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    with (tmp_path / "log").open() as log:
        typed = [sys.executable, "-m", "onecard", "doctor", "-", "--json"]
        said = subprocess.run(typed, stdin=log, capture_output=True, text=True, check=False).stdout
    assert site.ask("/api/doctor", method="POST", body=LOG.encode()).json == json.loads(said)


def test_a_dropped_log_with_its_config_has_curves(site: Site) -> None:
    body = json.dumps({"log": LOG, "config": "batch_size = 4\nmax_iters = 200\n"}).encode()
    answer = site.ask("/api/doctor?more=1", method="POST", body=body, Content_Type="application/json").json
    (run,) = answer["ui"]["runs"]
    assert run["curves"]["loss"]["max"][0] == 5.0
    assert {row["key"]: row["value"] for row in run["config"]}["batch_size"] == 4


@pytest.mark.parametrize("died", [True, False])
def test_a_dropped_log_gets_the_command_of_the_text_and_it_fits(site: Site, tmp_path: Path, died: bool) -> None:
    config = "# Model (~125M parameters)\nn_embd = 384\nbatch_size = 16\ngradient_accumulation_steps = 32\n"
    (tmp_path / "wide.py").write_text(config)
    log = "\n".join([FULL_CARD] if died else nanogpt(steps=1000)) + "\n"
    typed = [sys.executable, "-m", "onecard", "doctor", "-", "--json", "--config", "wide.py"]
    said = subprocess.run(typed, input=log, capture_output=True, text=True, check=False, cwd=tmp_path).stdout
    body = json.dumps({"log": log, "config": config, "config_name": "wide.py"}).encode()
    answer = site.ask("/api/doctor?more=1", method="POST", body=body, Content_Type="application/json").json
    assert [run["commands"] for run in answer["runs"]] == [run["commands"] for run in json.loads(said)["runs"]]
    first = answer["runs"][0]["prescription"]
    assert first["command"].startswith("python train.py wide.py ")
    if died:
        assert first["rule"] == "oom-capacity"
        assert 16 > first["patch"]["batch_size"] >= 1
        assert first["process_bytes"] <= 8 * 2**30, "what the message says the card has"
        assert first["under_onecard"]["process_bytes"] <= 8 * 2**30
    else:
        assert (first["patch"]["n_embd"], first["patch"]["batch_size"]) == (768, 8)


def test_a_config_file_is_read_and_not_run(site: Site) -> None:
    answer = site.ask("/api/config", method="POST", body=b"n_layer = 3\nraise SystemExit\n")
    assert answer.json.get("config", {}).get("n_layer") == 3 or answer.status == 400


def test_the_cards_are_those_of_the_command(site: Site) -> None:
    assert site.ask("/api/cards").json == command("gpus")


def test_a_plan_that_is_copied_is_the_plan_that_is_shown(site: Site, tmp_path: Path) -> None:
    asked = site.ask("/api/plan?gpu=RTX+4070&n_layer=4&n_head=4&n_embd=128&more=1").json
    (tmp_path / "copied.py").write_text(asked["ui"]["config_text"])
    copied = command("plan", "copied.py", "--gpu", "RTX 4070", cwd=tmp_path)
    assert copied["config"] == asked["config"]
    assert asked["ui"]["command"].startswith("onecard train ")
    for trainer, drawn in asked["ui"]["timeline"].items():
        phases = asked["trainers"][trainer.lower()]["phases"].values()
        assert drawn["peak_bytes"] in [phase["allocated_bytes"] for phase in phases]
        assert drawn["total_bytes"][drawn["peak"]] == max(drawn["total_bytes"])


def test_a_zoom_shows_every_record_and_the_whole_shows_every_spike(site: Site) -> None:
    name = site.id_of("half")
    part = site.ask(f"/api/runs/{name}?from=50&to=60").json["curves"]
    assert part["step"] == list(range(50, 61))
    assert part["loss"]["mean"][7] == part["loss"]["max"][7] == 9.0
    many = [step(number, loss=50.0 if number == 54_321 else 3.0) for number in range(1, 100_001)]
    whole = curves(columns_of(many))
    assert whole["buckets"] == BUCKETS
    assert max(whole["loss"]["max"]) == 50.0
    assert whole["grad_norm"] is None
    assert len(json.dumps(whole)) < 200_000


def test_texts_of_the_model_are_told_with_what_would_steer_a_screen_spelled_out(
    open_site: Callable[..., Site], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "runs" / "told")
    with (run / "records.jsonl").open("ab") as records:
        for text in ("first", "a \x1b[2J\u202e<b>"):
            records.write(to_line(Sample(step=100, tokens=7, prompt="a", text=text)))
    site = open_site(tmp_path / "runs")
    (told,) = site.ask(f"/api/runs/{site.id_of('told')}").json["samples"]
    assert told == {"step": 100, "tokens": 7, "prompt": "a", "text": "a \\x1b[2J\\u202e<b>"}


def test_the_card_and_the_scores_are_told(open_site: Callable[..., Site], tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "told")
    with (run / "records.jsonl").open("ab") as records:
        for number, reasons in ((10, ()), (20, ("heat",)), (20, ("heat",)), (40, None)):
            reading = CardReading(
                step=number,
                elapsed_seconds=1.0,
                temperature_c=50.0 + number,
                power_limit_watts=200.0,
                pcie_width=8,
                throttle=reasons,
            )
            records.write(to_line(reading))
    site = open_site(tmp_path / "runs")
    path = f"/api/runs/{site.id_of('told')}"
    told = site.ask(path).json
    assert told["sensors"]["slowed"] == {"heat": 2 / 3}
    assert (told["sensors"]["power_limit_watts"], told["sensors"]["pcie_width"]) == (200.0, 8)
    curves = told["curves"]
    temperatures = dict(zip(curves["step"], curves["temperature_c"]["max"], strict=True))
    assert {step: value for step, value in temperatures.items() if value} == {10: 60.0, 20: 70.0, 40: 90.0}
    assert curves["power_watts"] is None
    assert told["scores"] == []
    score = TextScore(
        step=100, text="a.txt", text_sha256="0", context=64, documents=3, bytes=100, tokens=50, nats=150.0, error=0.25
    )
    append_score(run, score)  # nothing is added to the records: the scores alone tell
    first, second = site.ask(path).json["scores"]
    assert (first["step"], first["metric"], first["error"]) == (100, "bits_per_byte", 0.25)
    assert first["value"] == pytest.approx(score.bits_per_byte)
    assert second["value"] == 3.0


def test_an_infinite_loss_is_marked() -> None:
    found = curves(columns_of([step(1, loss=3.0), step(2, loss=float("nan"))]))
    assert (found["not_finite"], found["loss"]["max"]) == ([1], [3.0, None])


def test_an_appended_record_is_told_within_two_seconds(
    open_site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onecard.ui.watch.REST", 10**6)  # so that no later look of the doctor tells of it
    run = make_run(tmp_path / "runs" / "live")
    site = open_site(tmp_path / "runs")
    name = site.id_of("live")
    wait_for_the_doctor(site, name)
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as raw:
        raw.sendall(f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        stream = raw.makefile("rb")
        while stream.readline() != b"event: hello\n":
            pass
        time.sleep(1.2)  # so that its size is known
        with (run / "records.jsonl").open("ab") as records:
            records.write(to_line(step(101, loss=2.5)))
        began = time.monotonic()
        while stream.readline() != b"event: run\n":
            assert time.monotonic() - began < 2
        assert json.loads(stream.readline().removeprefix(b"data: ")) == {"id": name}
    assert site.ask(f"/api/runs/{name}").json["run"]["step"] == 101


def wait_for_the_doctor(site: Site, name: str) -> None:
    end = time.monotonic() + 30
    while site.ask("/api/runs").json["runs"][0]["findings"] is None:
        assert time.monotonic() < end, name
        time.sleep(0.1)


def test_a_new_run_is_listed_and_a_deleted_one_is_not(open_site: Callable[..., Site], tmp_path: Path) -> None:
    folder = tmp_path / "later"
    site = open_site(folder)
    assert site.ask("/api/runs").json["runs"] == []
    make_run(folder / "first")
    end = time.monotonic() + 10
    while not site.ask("/api/runs").json["runs"]:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_log_of_another_program_is_a_run(open_site: Callable[..., Site], tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(LOG)
    site = open_site(tmp_path, named=[log])
    name = site.id_of("train.log")
    wait_for_the_doctor(site, name)
    (row,) = site.ask("/api/runs").json["runs"]
    assert (row["format"], row["step"]) == ("nanogpt", 190)
    assert site.ask(f"/api/runs/{name}").json["curves"]["loss"]["max"][0] == 5.0


def opened(*words: str, cwd: Path) -> subprocess.Popen[str]:
    typed = [sys.executable, "-m", "onecard", "ui", "--no-browser", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(typed, stdout=pipe, stderr=pipe, text=True, cwd=cwd, start_new_session=True)


def test_the_command_prints_its_address_and_ctrl_c_ends_it_with_0(tmp_path: Path) -> None:
    process = opened("--port", "0", cwd=tmp_path)
    assert process.stdout
    line = process.stdout.readline()
    assert line.startswith("onecard ui: http://127.0.0.1:")
    port = line.rstrip().rstrip("/").rpartition(":")[2]
    with socket.create_connection(("127.0.0.1", int(port)), timeout=10):
        second = opened("--port", port, cwd=tmp_path)
        said, error = second.communicate(timeout=30)
    assert (second.returncode, said) == (3, "")
    assert [text.split()[0] for text in error.splitlines()] == ["error:", "why:", "fix:"]
    process.send_signal(signal.SIGINT)
    rest, error = process.communicate(timeout=30)
    assert (process.returncode, rest, error) == (0, "", "")


def test_ctrl_c_ends_it_at_once_though_pages_are_open(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "live")
    process = opened("--port", "0", cwd=tmp_path)
    assert process.stdout
    port = int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
    ask = f"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    with ExitStack() as pages:
        for _ in range(5):
            page = pages.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            page.sendall(ask)
            assert page.recv(4096)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest, error = process.communicate(timeout=30)
        assert (process.returncode, rest, error) == (0, "", "")
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_ctrl_c_while_the_workers_load_says_nothing(tmp_path: Path, seconds: float) -> None:
    """As a terminal sends it: to every process of the command."""
    process = opened("--port", "0", cwd=tmp_path)
    assert process.stdout
    process.stdout.readline()
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    rest, error = process.communicate(timeout=30)
    assert (process.returncode, rest, error) == (0, "", "")


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_what_to_type(tmp_path: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from onecard.__main__ import main; sys.exit(main())"
    typed = [sys.executable, "-c", code, "ui", "--no-browser", "--port", "0"]
    said = subprocess.run(typed, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=30)
    assert (said.returncode, said.stdout) == (3, "")
    error, _, fix = said.stderr.splitlines()
    assert error.startswith(f"error: {package} is not installed")
    assert fix.endswith('pip install "onecard[ui]"')


@pytest.mark.parametrize("words", [["--help"], ["plan", "--gpu", "RTX 4070"], ["ui", "--help"]])
def test_no_other_command_imports_a_web_server(tmp_path: Path, words: list[str]) -> None:
    code = (
        "import sys, atexit, onecard.ui; from onecard.__main__ import main; atexit.register("
        "lambda: sys.stderr.write(str({'starlette', 'uvicorn', 'anyio'} & set(sys.modules)))); sys.exit(main())"
    )
    typed = [sys.executable, "-c", code, *words]
    said = subprocess.run(typed, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert said.stderr.endswith("set()")


def test_the_server_never_imports_torch(tmp_path: Path) -> None:
    code = "import sys, onecard.ui.server, onecard.ui.answers as answers; answers.plan({'gpu': 'none'}, None)"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True, cwd=tmp_path)


def test_only_records_that_may_grow_stay_in_memory(tmp_path: Path) -> None:
    from onecard.ui import answers
    from onecard.ui.sources import sources_in

    (source,) = sources_in([make_run(tmp_path / "run")])
    answers.looks(source)
    assert source.id in answers._kept
    os.utime(source.records, (0, 0))
    assert answers.looks(source)[0]["doctor"]
    assert source.id not in answers._kept
