"""docs/how-to/data-past-one-machine/tokens.py: as datatrove wants it, and run where datatrove is installed."""

import ast
import os
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.contract.conftest import ROOT, Command

PAGE = ROOT / "docs" / "how-to" / "data-past-one-machine.md"
PIPELINE = PAGE.with_suffix("") / "tokens.py"
# What it may use of datatrove 0.10.1, by that version's signatures.
DATATROVE = {
    "LocalPipelineExecutor": {"tasks", "workers", "logging_dir"},
    "SlurmPipelineExecutor": {
        *("tasks", "time", "partition", "workers", "cpus_per_task", "mem_per_cpu_gb", "job_name", "logging_dir")
    },
    "ParquetReader": {"text_key", "glob_pattern"},
    "DocumentTokenizer": {"tokenizer_name_or_path", "eos_token", "shuffle_documents", "seed"},
}


def unknown_to_datatrove(text: str) -> list[str]:
    """What a pipeline file passes that datatrove does not take."""
    calls = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    used = {call.func.id: {word.arg for word in call.keywords} for call in calls if call.func.id in DATATROVE}
    missing = [f"{name} is not used" for name in DATATROVE.keys() - used]
    return missing + [f"{name} takes no {word}" for name in used for word in used[name] - DATATROVE[name]]


def test_the_pipeline_file_passes_what_datatrove_takes() -> None:
    assert not unknown_to_datatrove(PIPELINE.read_text())
    assert f"({PIPELINE.parent.name}/{PIPELINE.name})" in PAGE.read_text()


def test_the_check_sees_what_datatrove_does_not_take() -> None:
    wrong = PIPELINE.read_text().replace("shuffle_documents=", "shuffle=")
    assert unknown_to_datatrove(wrong) == ["DocumentTokenizer takes no shuffle"]


@pytest.mark.skipif(find_spec("datatrove") is None, reason="needs datatrove")
def test_datatroves_local_executor_makes_the_tokens_of_data_prepare(onecard: Command, tmp_path: Path) -> None:
    np = pytest.importorskip("numpy", reason="needs numpy")
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    (tmp_path / "source").mkdir()
    for number in range(2):
        texts = [f"page {number} {row} " + "word " * (row % 50) for row in range(200)]
        parquet.write_table(arrow.table({"text": texts}), tmp_path / "source" / f"{number}.parquet")
    done = onecard("data", "prepare", "source", "--out", "ours", "--tokenizer=bpe", "--vocab_size=300", cwd=tmp_path)
    assert done.code == 0, done.stderr
    options = ["source", "theirs", "--tasks", "2", "--workers", "1", "--tokenizer", "ours/tokenizer.json"]
    subprocess.run(
        [sys.executable, str(PIPELINE), *options],
        cwd=tmp_path,
        check=True,
        timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    shutil.copy(tmp_path / "ours" / "tokenizer.json", tmp_path / "theirs")
    from onecard.data.dataset import open_dataset

    found = []
    for name in ("ours", "theirs"):
        data = open_dataset(str(tmp_path / name), environ={})
        assert data.tokenizer is not None
        ids = np.concatenate([tokens.read(0, len(tokens)) for tokens in (data.train, data.val)])
        ends = np.flatnonzero(ids == data.tokenizer.end_of_text) + 1
        found.append(Counter(tuple(each.tolist()) for each in np.split(ids, ends[:-1])))
    assert found[0] == found[1]
    assert sum(found[0].values()) == 400
