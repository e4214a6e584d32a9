"""The parts of a measured peak: found in the allocator's history, set beside the planned ones."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from onecard.config.resolve import resolve  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.plan.memory.predict import predict_onecard  # noqa: E402
from onecard.report.memory_snapshot import snapshot_json  # noqa: E402
from onecard.train.memory_snapshot import REST, MemorySnapshot, holds_logits, live_at_peak  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.recorded_micro_batch import zero_gradients  # noqa: E402


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


class Asked(TorchDispatchMode):
    """The shape of every new tensor of the loss, with whether its frames say that it holds logits or losses."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[tuple[int, ...], bool]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::mm", "aten::new_empty", "aten::new_zeros"):
            frames = [{"filename": frame.filename, "name": frame.name} for frame in traceback.extract_stack()]
            self.found.add((tuple(out.shape), holds_logits({"frames": frames})))
        return out


@pytest.mark.parametrize("written_out", [False, True])
def test_logits_are_told_from_the_other_tensors_by_who_asks_for_them(written_out: bool) -> None:
    config = RunConfig(n_layer=1, n_head=2, n_embd=16, block_size=8, vocab_size=33)
    model = GPT(config)
    tokens_BT, targets_BT = torch.randint(33, (2, 3, 8))
    zero_gradients(model.parameters())
    with Asked() as asked:
        if written_out:
            model.passes(torch.float32).add_gradients(tokens_BT, targets_BT, scale=torch.ones(()))
        else:
            model.loss(tokens_BT, targets_BT).backward()  # type: ignore[no-untyped-call]
    logits, losses, hidden, wide = (24, 33), (24,), (24, 16), (24, 64)
    assert {(logits, True), (losses, True), (hidden, False), (wide, False)} <= asked.found
    assert not {(logits, False), (losses, False), (hidden, True), (wide, True)} & asked.found
    assert not holds_logits({"frames": [{"filename": "/somewhere/operations.py", "name": "logits"}]})
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
