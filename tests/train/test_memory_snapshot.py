"""The parts of a measured peak: found in the allocator's history, set beside the planned ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from onecard.config.resolve import resolve  # noqa: E402
from onecard.plan.memory.predict import predict_onecard  # noqa: E402
from onecard.report.memory_snapshot import snapshot_json  # noqa: E402
from onecard.train.memory_snapshot import REST, MemorySnapshot, holds_logits, live_at_peak  # noqa: E402


def event(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "frames": []}


def test_what_is_alive_when_most_is() -> None:
    history = [
        event("segment_alloc", 0, 2**20),
        event("alloc", 1, 100),
        event("alloc", 2, 50),
        event("free_requested", 2, 50),
        event("free_completed", 2, 50),
        event("alloc", 3, 70),  # the peak: 1 and 3
        event("free_completed", 1, 100),
        event("alloc", 1, 60),
    ]
    assert [(entry["addr"], entry["size"]) for entry in live_at_peak(history)] == [(1, 100), (3, 70)]
    assert live_at_peak([]) == []


def test_logits_are_told_from_the_other_tensors_of_the_loss() -> None:
    loss = "/somewhere/onecard/train/loss.py"
    frames = [{"filename": loss, "name": "logits"}, {"filename": loss, "name": "forward"}]
    assert holds_logits({"frames": frames})
    assert not holds_logits({"frames": frames[1:]}), "the weight's gradient"
    assert not holds_logits({"frames": [{"filename": "/somewhere/model.py", "name": "logits"}]})
    fused = "/somewhere/onecard/train/fused.py"
    assert holds_logits({"frames": [{"filename": fused, "name": "times"}, {"filename": fused, "name": "_logits"}]})
    assert holds_logits({"frames": [{"filename": fused, "name": "_new_losses"}]})
    assert not holds_logits({"frames": [{"filename": fused, "name": "times"}]}), "of a block"
    assert not holds_logits({})


def test_planned_parts_without_a_measured_name_join_the_rest() -> None:
    config = resolve("n_layer = 2", filename="t.py").config.replace({"dtype": "bfloat16", "compile": False})
    planned = predict_onecard(config, None)
    measured = {"weights": 5, "gradients": 4, "optimizer state": 3, "logits and loss": 2, REST: 1}
    found: Any = snapshot_json(measured, reserved_bytes=20, planned=planned)
    assert [part["name"] for part in found["parts"]] == list(measured)
    assert sum(part["planned_bytes"] for part in found["parts"]) == planned.phases["train"].allocated_bytes
    assert found["measured_allocated_bytes"] == 15
    unplanned: Any = snapshot_json(measured, reserved_bytes=20, planned=None)
    assert unplanned["planned_allocated_bytes"] is None


def test_without_a_card_nothing_is_recorded(tmp_path: Path) -> None:
    assert MemorySnapshot(tmp_path / "memory.json", torch.device("cpu")).measured is None
    assert list(tmp_path.iterdir()) == []
