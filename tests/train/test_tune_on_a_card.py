"""onecard tune on a real card, in twenty seconds: `pytest -m gpu tests/train/test_tune_on_a_card.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from onecard.units import GIB, MIB  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, found none"),
]
KEYS = (
    "--n_layer=4 --n_head=4 --n_embd=256 --block_size=256 --batch_size=16 --gradient_accumulation_steps=4 "
    "--vocab_size=50304 --memory_limit=12GiB"
).split()


def test_a_card_is_measured_tuned_and_planned_for_from_what_was_measured(tmp_path: Path) -> None:
    environment = os.environ | {"ONECARD_HOME": str(tmp_path / "home")}

    def onecard(*words: str) -> dict[str, object]:
        command = [sys.executable, "-m", "onecard", *words, *KEYS, "--json"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    found = onecard("tune", "--minutes", "0.2", "--share", "card.csv")
    machine, candidates = found["machine"], found["candidates"]
    assert isinstance(machine, dict)
    assert isinstance(candidates, list)
    assert 100 * MIB < machine["context_bytes"] < 2 * GIB
    assert machine["allocatable_bytes"] > 4 * GIB
    assert machine["bandwidth_bytes_per_second"] > 1e11
    assert 1e-6 < machine["launch_seconds"] < 1e-4
    assert all(each["flops_per_second"] > 1e12 for each in machine["products"])
    assert machine["load"]["last_flops_per_second"] > 1e12
    measured = [each for each in candidates if each["tokens_per_second"]]
    assert measured
    assert all(each["process_bytes"] <= 12 * GIB for each in measured)
    assert (tmp_path / "card.csv").is_file()
    plan = onecard("plan")
    gpu, trainers = plan["gpu"], plan["trainers"]
    assert isinstance(gpu, dict)
    assert isinstance(trainers, dict)
    assert gpu["calibration"]["runs"] == len(measured)
    speed = trainers["onecard"]["speed"]
    assert "measured on this machine" in speed["basis"]
    as_given = next((each["tokens_per_second"] for each in measured if not each["patch"]), None)
    assert as_given is not None
    assert abs(speed["tokens_per_second"]["likely"] / as_given - 1) < 0.1
