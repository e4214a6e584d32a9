"""The device of a run, and how much of a card it may take."""

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'onecard[train]'")

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.errors import ConfigError, MachineError  # noqa: E402
from onecard.train import device  # noqa: E402
from onecard.units import GIB, MIB  # noqa: E402

CPU = torch.device("cpu")
TINY = RunConfig()


def test_cuda_without_a_card_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MachineError) as refused:
        device.choose_device(TINY.replace({"device": "cuda"}))
    assert (refused.value.exit_code, refused.value.name) == (3, "no-gpu")
    assert device.choose_device(TINY) == CPU


def test_a_device_nobody_knows_is_the_configs_fault() -> None:
    with pytest.raises(ConfigError, match="toaster"):
        device.choose_device(TINY.replace({"device": "toaster"}))


def test_the_allocator_gets_the_limit_without_the_context() -> None:
    assert device.allocator_fraction(9 * GIB, context_bytes=1 * GIB, total_bytes=16 * GIB) == 0.5
    assert device.allocator_fraction(40 * GIB, context_bytes=1 * GIB, total_bytes=16 * GIB) == 1.0


def test_a_limit_below_the_context_is_refused_with_one_that_works() -> None:
    with pytest.raises(ConfigError) as refused:
        device.allocator_fraction(500 * MIB, context_bytes=620 * MIB, total_bytes=12 * GIB)
    assert refused.value.fix == "--memory_limit=1644MiB"
