"""Benchmark tasks: lm-eval's own answers question by question, kept as they are done, and no code of others is run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
pytest.importorskip("transformers", reason="needs transformers: pip install 'onecard[dev]'")
pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'onecard[eval]'")

from onecard.cli.main import run  # noqa: E402
from onecard.errors import ConfigError, MachineError, UsageError  # noqa: E402
from onecard.inputs import harness  # noqa: E402
from onecard.inputs.harness import load_tasks, score_task, task_names  # noqa: E402
from onecard.inputs.opened import open_model  # noqa: E402
from onecard.inputs.task_file import read_task_file  # noqa: E402
from onecard.runs.scores import SCORES, TaskScore, read_task_scores  # noqa: E402

TASKS = Path(__file__).parents[1] / "tasks"
HOUSEHOLD, LAST_WORD = str(TASKS / "household.yaml"), str(TASKS / "last_word.yaml")
TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=64", "--block_size=96", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=1", "--eval_interval=8", "--eval_iters=1", "--max_iters=16", "--lr_decay_iters=16"),
    "--learning_rate=3e-3",
]
WITHIN = 1e-3  # nats: the promise


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the questions' own text, exported too."""
    place = tmp_path_factory.mktemp("tasks")
    lines = [line for name in ("household", "last_word") for line in (TASKS / f"{name}.jsonl").read_text().splitlines()]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        patched.setenv("ONECARD_HOME", str(place / "home"))
        Path("corpus.txt").write_text("<|endoftext|>".join(lines))
        prepared = ["data", "prepare", "corpus.txt", "--workers", "1", "--val-share", "0.2", "--out", "bpe"]
        assert run([*prepared, "--tokenizer=bpe", "--vocab_size=400"]) == 0
        assert run(["train", *TINY, "--dataset=bpe", "--out_dir=runs/a", "--keep_checkpoints=2"]) == 0
        assert run(["export", "runs/a", "--to", "hf", "--out", "hf"]) == 0
    return place


@pytest.fixture
def here(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run without scores."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf-cache")  # not this user's
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *typed: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["eval", *typed, "--json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("name", [HOUSEHOLD, LAST_WORD], ids=["household", "last word"])
@pytest.mark.parametrize("model", ["runs/a", "hf"])
def test_each_answer_has_the_likelihood_that_lm_evals_own_model_gives_it(here: Path, model: str, name: str) -> None:
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    from onecard.inputs.harness_model import Model

    found = {}
    for side in ("ours", "theirs"):
        (asked,) = load_tasks([name], command="", download=False)
        lm = (
            Model(open_model(model, device="cpu"))
            if side == "ours"
            else HFLM(pretrained="hf", device="cpu", dtype="float32", batch_size=8)
        )
        tasks = {"tasks": dict(asked.parts), "groups": {}, "group_map": {}}
        found[side] = evaluate(lm=lm, task_dict=tasks, bootstrap_iters=0)
    (task,) = found["ours"]["samples"]
    ours, theirs = (found[side]["samples"][task] for side in ("ours", "theirs"))
    assert len(ours) == len(theirs) == len(Path(name).with_suffix(".jsonl").read_text().splitlines())
    for one, other in zip(ours, theirs, strict=True):
        assert one["arguments"] == other["arguments"]
        logs, greedy = zip(*[answers[0] for answers in one["resps"]], strict=True)
        their_logs, their_greedy = zip(*[answers[0] for answers in other["resps"]], strict=True)
        assert logs == pytest.approx(their_logs, abs=WITHIN)
        assert greedy == their_greedy
    for metric, value in found["theirs"]["results"][task].items():
        same = pytest.approx(value, rel=WITHIN) if isinstance(value, float) else value
        assert found["ours"]["results"][task][metric] == same, metric


def test_scores_have_errors_chance_and_the_value_of_lm_eval(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = said(capsys, "runs/a", "--tasks", f"{HOUSEHOLD},{LAST_WORD}")
    rows = {(row["task"], row["metric"]): row for row in answer["results"]}
    assert set(rows) == {(t, m) for t, m in [("household", "acc"), ("household", "acc_norm")]} | {
        ("last_word", "acc"),
        ("last_word", "perplexity"),
    }
    questions = [json.loads(line) for line in (TASKS / "household.jsonl").read_text().splitlines()]
    guessing = sum(1 / len(each["answers"]) for each in questions) / len(questions)
    row = rows["household", "acc_norm"]
    assert row["chance"] == pytest.approx(guessing)
    assert row["main"]
    assert row["questions"] == len(questions)
    share = row["value"]
    assert row["error"] == pytest.approx((share * (1 - share) / (len(questions) - 1)) ** 0.5)
    assert rows["last_word", "acc"]["chance"] == 0
    (kept, _) = read_task_scores(here / "runs" / "a")
    assert sum(kept.answers) / kept.questions == pytest.approx(share)
    assert kept.step == 16


def test_a_task_that_was_scored_is_not_asked_again(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = said(capsys, "runs/a", "--tasks", HOUSEHOLD)
    asked = count_asked(monkeypatch)
    again = said(capsys, "runs/a", "--tasks", f"{HOUSEHOLD},{LAST_WORD}")
    assert asked == ["last_word"]
    assert again["results"][:2] == first["results"]
    said(capsys, "runs/a", "--tasks", HOUSEHOLD, "--limit", "5")
    assert asked == ["last_word", "household"], "other questions"


def count_asked(monkeypatch: pytest.MonkeyPatch, *, stop_before: str | None = None) -> list[str]:
    asked: list[str] = []
    real: Callable[..., TaskScore] = score_task

    def counted(opened: Any, task: Any, **options: Any) -> TaskScore:
        if task.name == stop_before:
            raise KeyboardInterrupt
        asked.append(task.name)
        return real(opened, task, **options)

    monkeypatch.setattr(harness, "score_task", counted)
    return asked


def test_ctrl_c_keeps_the_tasks_that_are_done(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as interrupted:
        count_asked(interrupted, stop_before="last_word")
        assert run(["eval", "runs/a", "--tasks", f"{HOUSEHOLD},{LAST_WORD}"]) == 130
    shown = capsys.readouterr()
    assert "household" in shown.out
    assert "1 of 2 tasks are kept, and the same command goes on with the rest" in shown.err
    asked = count_asked(monkeypatch)
    said(capsys, "runs/a", "--tasks", f"{HOUSEHOLD},{LAST_WORD}")
    assert asked == ["last_word"]


def test_every_checkpoint_is_scored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = said(capsys, "runs/a", "--tasks", HOUSEHOLD, "--every", "checkpoint")
    assert [row["step"] for row in answer["results"] if row["main"]] == [8, 16]
    assert [score.step for score in read_task_scores(here / "runs" / "a")] == [8, 16]
    assert run(["eval", "hf", "--tasks", HOUSEHOLD, "--every", "checkpoint"]) == 2


def test_the_text_says_what_the_score_means(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["eval", "hf", "--tasks", HOUSEHOLD]) == 0
    shown = capsys.readouterr()
    assert "guessing" in shown.out
    assert "a difference counts from 2 standard errors on" in shown.out
    assert not (here / "hf" / SCORES).exists()


# names, files and data


def test_core_stands_for_tasks_of_lm_eval() -> None:
    assert task_names(None) == task_names("core")
    assert task_names("core,piqa, my_task") == [*task_names("core"), "my_task"]
    manager = harness._manager(everything=False)
    assert set(task_names("core")) <= set(manager.all_tasks)


def test_an_unknown_task_names_the_nearest(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = harness._manager(everything=False)  # all of lm-eval's would take seconds
    monkeypatch.setattr(harness, "_manager", lambda *, everything: few)
    with pytest.raises(UsageError, match="lm-eval has no task winogrand") as problem:
        load_tasks(["winogrand"], command="onecard eval x", download=False)
    assert problem.value.fix == "--tasks winogrande"


def in_the_cache(cache: Path, owner: str, name: str, rows: list[dict[str, Any]]) -> None:
    """Questions as Hugging Face's library leaves them after it fetched a data set."""
    import datasets

    source = cache.parent / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"train": str(source), "validation": str(source)}
    made = datasets.load_dataset("json", data_files=files, cache_dir=str(cache.parent / "made"))
    arrow = Path(made["train"].cache_files[0]["filename"])
    place = cache / f"{owner}___{name}" / "default" / "0.0.0" / "0123456789abcdef"
    place.mkdir(parents=True)
    for split in files:
        shutil.copy(arrow.with_name(f"json-{split}.arrow"), place / f"{name}-{split}.arrow")
    info = json.loads(arrow.with_name("dataset_info.json").read_text()) | {"dataset_name": name}
    (place / "dataset_info.json").write_text(json.dumps(info))


def test_questions_in_hugging_faces_cache_are_asked_without_network(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"goal": "Open a jar.", "sol1": "Turn the lid.", "sol2": "Turn the table.", "label": 0},
        {"goal": "Cool the tea.", "sol1": "Light a fire.", "sol2": "Wait a while.", "label": 1},
    ]
    in_the_cache(here / "hf-cache", "baber", "piqa", rows)
    monkeypatch.setattr("socket.getaddrinfo", no_network)
    answer = said(capsys, "hf", "--tasks", "piqa")
    (main,) = [row for row in answer["results"] if row["main"]]
    assert (main["task"], main["metric"], main["questions"], main["chance"]) == ("piqa", "acc", 2, 0.5)
    assert [other["model"] for other in main["published"]] == ["GPT-2 124M", "Pythia-160M"]


def no_network(*_: object, **__: object) -> None:
    raise AssertionError("the network was asked")


def test_data_that_is_not_here_is_three_lines_and_nothing_is_fetched(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", no_network)
    with pytest.raises(MachineError) as problem:
        load_tasks(["piqa"], command="onecard eval runs/a --tasks piqa", download=False)
    assert problem.value.what == "the questions of piqa are not on this machine"
    assert problem.value.fix.startswith("onecard eval runs/a --tasks piqa --download")
    assert run(["eval", "runs/a"]) == 3, "the core tasks"


FILE = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": "q.jsonl"},
    "output_type": "multiple_choice",
    "doc_to_text": "{{q}}",
    "doc_to_target": 0,
    "doc_to_choice": ["yes", "no"],
}


@pytest.mark.parametrize(
    "change",
    [
        "process_docs: !function evil.run",
        "doc_to_text: !function evil.run",
        "doc_to_text: !!python/object/apply:os.system ['touch ran']",
        "include: other.yaml",
        "class: !function evil.Task",
        "custom_dataset: !function evil.run",
        "dataset_path: someone/else",
        "unsafe_code: true",
        "doc_to_text: \"{{ ''.__class__.__mro__ }}\"",
        "doc_to_text: \"{{ cycler.__init__.__globals__.os.system('touch ran') }}\"",
        'doc_to_text: "{% for x in q %}{{x}}{% endfor %}"',
        "doc_to_text: \"{{ q|attr('__class__') }}\"",
        "doc_to_text: \"{{ q['__class__'] ~ q }}\"",
        'doc_to_choice: "{{ [q, q * 1000000000] }}"',
        "description: \"{{ ''.__class__ }}\"",
        "metric_list: [{metric: !function evil.run}]",
        "metric_list: [{metric: someone/else, hf_evaluate: true}]",
        "dataset_kwargs: {data_files: ../secret.jsonl}",
        "dataset_kwargs: {data_files: /etc/passwd}",
        "output_type: generate_until",
        "num_fewshot: 5",
        "task: ''",
        ": : :",
        "[1, 2]",
        "task: 2001-99-99",
        "task: " + "9" * 9000,
        "doc_to_text: '{{ " + "9" * 9000 + " }}'",
        "task: !!int ''",
        "output_type: [multiple_choice]",
        "metric_list: [{metric: [acc]}]",
        'dataset_kwargs: {data_files: "a\\0b"}',
        "metadata: &a {version: *a}",
        "metadata: {version: [" + ", ".join(f"&b{n} [{f'*b{n - 1}, ' * 9 if n else 'x'}]" for n in range(30)) + "]}",
    ],
    ids=lambda change: change[:60],
)
def test_a_task_file_may_run_nothing_and_read_nothing_else(tmp_path: Path, change: str) -> None:
    (tmp_path / "evil.py").write_text("open('ran', 'w')\nrun = Task = None\n")
    (tmp_path / "q.jsonl").write_text('{"q": "Is it?"}\n')
    key = change.partition(":")[0]
    kept = "".join(f"{name}: {json.dumps(value)}\n" for name, value in FILE.items() if name != key)
    good = tmp_path / "good.yaml"
    good.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in FILE.items()))
    assert read_task_file(good).questions == [{"q": "Is it?"}]
    bad = tmp_path / "bad.yaml"
    bad.write_text(f"{kept}{change}\n")
    with pytest.raises(ConfigError) as problem:
        load_tasks([str(bad)], command="", download=False)
    assert problem.value.name in ("task-runs-code", "bad-task-file")
    assert not Path("ran").exists()
    assert not (tmp_path / "ran").exists()


def test_a_field_that_the_questions_lack_is_three_lines(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "Is it?"}\n')
    task = tmp_path / "t.yaml"
    task.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in FILE.items()))
    with pytest.raises(ConfigError, match="cannot be asked"):
        load_tasks([str(task)], command="", download=False)


@pytest.mark.parametrize("answer", [0.5, {}, [0.5], None, "zzz", 2**63])
def test_a_question_whose_answer_is_none_of_those_it_offers_is_three_lines(
    here: Path, capsys: pytest.CaptureFixture[str], answer: object
) -> None:
    Path("q.jsonl").write_text("".join(json.dumps({"q": "a", "n": n}) + "\n" for n in (0, answer)))
    said = FILE | {"doc_to_target": "n", "test_split": "train"}
    Path("t.yaml").write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in said.items()))
    assert run(["eval", "runs/a", "--tasks", "t.yaml", "--device=cpu"]) == 2
    assert "cannot be asked" in capsys.readouterr().err


# where scores are shown


def test_scores_are_in_compare_in_the_model_card_and_on_the_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from onecard.doctor.compare import compare_runs
    from onecard.runs.folder import load_run
    from onecard.ui import answers

    shutil.copytree("runs/a", "runs/b")
    for name in ("a", "b"):
        said(capsys, f"runs/{name}", "--tasks", f"{HOUSEHOLD},{LAST_WORD}")
    capsys.readouterr()
    assert run(["compare", "runs/a", "runs/b", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    (household, _) = compared["same_tasks"]
    assert household["task"] == "household"
    assert household["value"][0] == household["value"][1]
    assert (household["best"], compared["winners"]["task:household"]) == ([0, 1], None)
    assert run(["compare", "runs/a", "runs/b"]) == 0
    assert "household, acc_norm" in capsys.readouterr().out
    comparison = compare_runs([load_run(Path("runs/a")), load_run(Path("runs/b"))])
    shown = answers._recorded(comparison.cases[0])["scores"]
    assert [row["task"] for row in shown if row["main"]] == ["household", "last_word"]
    assert run(["export", "runs/a", "--to", "hf", "--out", "card"]) == 0
    card = Path("card/README.md").read_text()
    assert "| household, acc\\_norm (24 questions) |" in card or "| household, acc_norm (24 questions) |" in card
    assert "## Scores" in card


ROWS: dict[str, dict[str, Any]] = {
    "Rowan/hellaswag": {
        "activity_label": "Baking",
        "ctx_a": "A man opens the oven.",
        "ctx_b": "he",
        "endings": ["takes the bread out.", "paints it.", "sings [title] loudly.", "leaves."],
        "label": "0",
    },
    "baber/piqa": {"goal": "Open a jar.", "sol1": "Turn the lid.", "sol2": "Turn the table.", "label": 0},
    "allenai/ai2_arc": {
        "question": "What do plants need?",
        "choices": {"text": ["light", "music", "paint"], "label": ["A", "B", "C"]},
        "answerKey": "A",
    },
    "EleutherAI/lambada_openai": {"text": "She counted the candles on the cake of the cake"},
    "allenai/sciq": {
        "support": "Ice is frozen water.",
        "question": "What is ice?",
        "distractor1": "sand",
        "distractor2": "glass",
        "distractor3": "salt",
        "correct_answer": "water",
    },
    "nyu-mll/blimp": {"sentence_good": "The dog barks.", "sentence_bad": "The dog bark."},
}


def test_every_core_task_is_asked_as_lm_eval_words_it(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def made(path: str, **_: object) -> dict[str, Any]:
        table = datasets.table.InMemoryTable.from_pylist([ROWS[path]] * 3)
        return dict.fromkeys(("train", "validation", "test"), datasets.Dataset(table, fingerprint="a" * 16))

    monkeypatch.setattr("datasets.load_dataset", made)
    answer = said(capsys, "runs/a", "--tasks", "core", "--limit", "2")
    main = {row["task"]: row for row in answer["results"] if row["main"]}
    assert list(main) == task_names("core")
    assert {name: row["chance"] for name, row in main.items()} == pytest.approx(
        {"hellaswag": 0.25, "piqa": 0.5, "arc_easy": 1 / 3, "lambada_openai": 0, "sciq": 0.25, "blimp": 0.5}
    )
    assert main["blimp"]["questions"] == 67 * 2, "each of its parts"
    assert all(row["error"] is not None for row in main.values())
