"""Bytes, seconds and tokens are whole base units in the JSON of doctor and compare; rates are not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import made_logs as made
from tests.contract.conftest import Command

UNITS = {"bytes", "seconds", "tokens"}


def amounts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Every number whose name, or that of the range it stands in, is of an amount of bytes, seconds or tokens."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from amounts(item, (*path, name))
    elif isinstance(value, list):
        for item in value:
            yield from amounts(item, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        names = path[-2:] if path[-1] in ("low", "likely", "high") else path[-1:]
        words = set(names[0].split("_"))
        if words & UNITS and not words & {"per", "at"}:  # a rate; the winner at equal tokens
            yield ".".join(path), value


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    config = made.nanogpt_config(**made.SMALL, gradient_accumulation_steps=40, eval_interval=250, vocab_size=50304)
    for name, end, seconds in (("a", 3.5, 0.2511), ("b", 3.2, 0.4273)):
        lines = made.nanogpt(end=end, seconds=seconds, eval_seconds=3.37, steps=700)
        (folder / f"{name}.log").write_text("\n".join(lines) + "\n")
        (folder / f"{name}.config.py").write_text("\n".join([*config, "max_iters = 1000", "lr_decay_iters = 600000"]))
    return folder


@pytest.mark.parametrize(
    ("command", "least"),
    [
        (["doctor", "a.log", "--gpu", "RTX 4090"], 10),
        (["compare", "a.log", "b.log", "--gpu", "RTX 4090"], 10),
    ],
)
def test_amounts_are_whole(onecard: Command, logs: Path, command: list[str], least: int) -> None:
    shown = onecard(*command, "--json", cwd=logs)
    found = list(amounts(shown.json))
    assert len(found) >= least, found
    assert [(name, value) for name, value in found if not isinstance(value, int)] == []


def test_a_fraction_would_be_noticed() -> None:
    made_json = {"runs": [{"seconds": 35.786, "seconds_per_step": 0.25, "seconds_to_go": {"likely": 1.5}, "loss": 3.2}]}
    assert dict(amounts(made_json)) == {"runs.seconds": 35.786, "runs.seconds_to_go.likely": 1.5}
