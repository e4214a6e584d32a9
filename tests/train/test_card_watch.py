"""The card's sensors while a run trains, with a made NVML: what is recorded, and that no driver can hold up a run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from onecard.config.resolve import resolve  # noqa: E402
from onecard.data.dataset import Dataset, open_dataset  # noqa: E402
from onecard.machine import CardSensors, sensor_readings  # noqa: E402
from onecard.models.ranks import Ranks  # noqa: E402
from onecard.runs.folder import create_run, load_run, resume_run  # noqa: E402
from onecard.runs.records import CardReading, End, Record  # noqa: E402
from onecard.train import loop  # noqa: E402
from onecard.train.card_watch import READ_SECONDS, CardWatch  # noqa: E402
from onecard.train.loop import train  # noqa: E402
from onecard.train.ranks import ALONE, Processes  # noqa: E402
from tests.fake_nvml import HARDWARE_HEAT, MIB, POWER_LIMIT, FakeCard, FakeProgram, fake_nvml  # noqa: E402

CARD = torch.device("cuda", 0)  # only its number is used: nothing here computes on it
UPDATE_SECONDS = 0.010  # a short update: most take ten times as long
Readings = Callable[[int], Generator[CardSensors]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset("python-stdlib", environ={"ONECARD_HOME": str(tmp_path_factory.mktemp("home"))})


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeCard:
    """A card with this process on it, a desktop and somebody else's program."""
    programs = [
        FakeProgram(0, "/usr/bin/python3", 6000 * MIB, busy=70),
        FakeProgram(7, "/usr/lib/xorg/Xorg", 900 * MIB, draws=True),
        FakeProgram(8, "/usr/bin/blender", 1500 * MIB, busy=25),
    ]
    card = FakeCard(used_bytes=8400 * MIB, programs=programs, slowed_by=POWER_LIMIT)
    install(monkeypatch, fake_nvml(card))
    return card


def install(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def watched(**more: Any) -> CardWatch:
    return CardWatch(CARD, read_seconds=0.0, settled_seconds=0.0, **more)


def wait_for(said: Callable[[], bool]) -> bool:
    until = time.monotonic() + 5
    while not said() and time.monotonic() < until:
        time.sleep(0.01)
    return said()


def ended(watch: CardWatch) -> bool:
    return wait_for(lambda: watch.thread is not None and not watch.thread.is_alive())


def trained(
    monkeypatch: pytest.MonkeyPatch,
    dataset: Dataset,
    path: Path,
    *,
    resume: bool = False,
    processes: Processes = ALONE,
) -> list[Record]:
    """The records of a run of 8 updates; before each the card was read, as if it had taken five seconds."""

    class Read(CardWatch):
        def __init__(self, device: torch.device, **more: Any) -> None:
            super().__init__(CARD, settled_seconds=0.0, **more)

        def updates(self) -> None:
            super().updates()
            self._newest = next(sensor_readings(), None)

    monkeypatch.setattr(loop, "CardWatch", Read)
    shape = {"n_layer": 1, "n_head": 1, "n_embd": 16, "block_size": 16, "batch_size": 2, "device": "cpu"}
    run = {"max_iters": 8, "eval_interval": 4, "eval_iters": 1, "gradient_accumulation_steps": 1}
    config = resolve(None).config.replace({**shape, **run})
    seen: list[Record] = []
    with resume_run(path) if resume else create_run(path, config=config.model_dump()) as folder:
        train(config, folder, dataset, resume=resume, on_record=seen.append, processes=processes)
    return seen


def test_a_reading_has_what_nvml_tells(nvml: FakeCard) -> None:
    with watched() as watch:
        watch.updates()
        assert wait_for(lambda: watch.has_reading)
        assert watch.take() == CardSensors(
            temperature_c=66,
            power_watts=187.0,
            power_limit_watts=200.0,
            default_power_limit_watts=200.0,
            sm_clock_mhz=2610,
            memory_clock_mhz=10501,
            throttle=("power limit",),
            busy=0.98,
            other_bytes=2400 * MIB,
            other_busy=0.25,
            pcie_generation=4,
            pcie_width=16,
            max_pcie_generation=4,
            max_pcie_width=16,
        )


def test_what_an_old_driver_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake_nvml(FakeCard(milliwatts=None, sm_mhz=None, pcie_width=None), old=True))
    found = next(sensor_readings())
    assert (found.power_watts, found.sm_clock_mhz, found.throttle, found.pcie_width) == (None, None, None, None)
    assert (found.other_bytes, found.other_busy) == (None, None), (
        "this process is not among those that the driver lists"
    )
    assert found.temperature_c == 66


def test_a_run_records_its_card_and_the_file_reads_back_the_same(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeCard, dataset: Dataset, tmp_path: Path
) -> None:
    seen = trained(monkeypatch, dataset, tmp_path / "run")
    cards = [record for record in seen if isinstance(record, CardReading)]
    assert [card.step for card in cards] == list(range(2, 9)), (
        "after the step it belongs to, not in the first, which compiles"
    )
    assert all((card.rank, card.throttle, card.other_bytes) == (0, ("power limit",), 2400 * MIB) for card in cards)
    assert all(card.elapsed_seconds for card in cards)
    assert load_run(tmp_path / "run").records == tuple(seen)


def test_a_resume_takes_back_the_readings_of_updates_done_again(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeCard, dataset: Dataset, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    trained(monkeypatch, dataset, path)
    lines = (path / "records.jsonl").read_text().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if '"step":6' in line and '"kind":"step"' in line)
    (path / "records.jsonl").write_text("".join(lines[: cut + 2]))  # killed after step 6 and its reading; saved at 4
    for saved in (path / "checkpoints").glob("step-00000008"):
        saved.rename(tmp_path / "gone")
    trained(monkeypatch, dataset, path, resume=True)
    kept = [record.step for record in load_run(path).records if isinstance(record, CardReading)]
    assert kept == [2, 3, 4, 6, 7, 8], "5 was the first update of the resume; 6 is there once"


def test_on_the_cpu_and_without_nvml_nothing_is_recorded(
    monkeypatch: pytest.MonkeyPatch, dataset: Dataset, tmp_path: Path
) -> None:
    install(monkeypatch, fake_nvml(broken=True))
    assert not any(isinstance(record, CardReading) for record in trained(monkeypatch, dataset, tmp_path / "a"))
    install(monkeypatch, fake_nvml())
    with CardWatch(torch.device("cpu")) as watch:
        assert watch.thread is None


def test_no_reading_is_taken_while_the_run_does_something_else(nvml: FakeCard) -> None:
    with watched() as watch:
        time.sleep(0.4)
        assert not watch.has_reading
        watch.updates()
        assert wait_for(lambda: watch.has_reading)
        watch.pauses()
        time.sleep(0.3)
        watch.take()
        time.sleep(0.6)
        assert not watch.has_reading


def test_a_reading_during_which_an_evaluation_began_does_not_count() -> None:
    reads = []

    def readings(_index: int) -> Generator[CardSensors]:
        while True:
            reads.append(True)
            watch.pauses()
            yield CardSensors(sm_clock_mhz=300)

    watch = watched(readings=readings)
    with watch:
        watch.updates()
        assert wait_for(lambda: bool(reads))
        time.sleep(0.1)
        assert not watch.has_reading


@pytest.mark.parametrize("fault", [RuntimeError("Xid 79"), OSError("fell off the bus"), None])
def test_a_driver_that_fails_midway_ends_the_readings_and_nothing_else(fault: Exception | None) -> None:
    def readings(_index: int) -> Generator[CardSensors]:
        yield CardSensors(temperature_c=66)
        if fault:
            raise fault

    with watched(readings=readings) as watch:
        watch.updates()
        assert ended(watch)
        assert watch.take() == CardSensors(temperature_c=66)
        assert watch.take() is None


def test_a_card_that_is_lost_is_no_reading_of_unknowns(nvml: FakeCard, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["pynvml"]
    readings = sensor_readings()
    assert next(readings).temperature_c == 66

    def lost(*_: object) -> None:
        raise module.NVMLError

    for name in [name for name in vars(module) if name.startswith("nvmlDeviceGet")]:
        monkeypatch.setattr(module, name, lost)
    assert next(readings, None) is None


def test_nobody_waits_for_an_nvml_that_hangs() -> None:
    asked, answer = threading.Event(), threading.Event()

    def readings(_index: int) -> Generator[CardSensors]:
        asked.set()
        answer.wait(60)
        yield CardSensors()

    watch = watched(readings=readings)
    with watch:
        watch.updates()
        assert asked.wait(5)
        began = time.perf_counter()
        assert watch.take() is None
    assert time.perf_counter() - began < 0.5, "it left without waiting"
    answer.set()


def test_training_pays_less_than_a_thousandth_of_a_short_update(nvml: FakeCard) -> None:
    """The training thread sets and reads values; the reading itself is done beside it, every five seconds."""
    with watched() as watch:
        times, began = 10_000, time.perf_counter()
        for _ in range(times):
            watch.updates()
            watch.has_reading  # noqa: B018
        assert (time.perf_counter() - began) / times < UPDATE_SECONDS / 1000
    readings = sensor_readings()
    next(readings)
    spent = []
    for _ in range(20):
        began = time.perf_counter()
        next(readings)
        spent.append(time.perf_counter() - began)
    assert min(spent) < READ_SECONDS / 1000, "Python's share of a reading, which other threads wait for"


class TwoRanks(Processes):
    """The first of two ranks; the other's card is hot."""

    def __init__(self) -> None:
        super().__init__(Ranks(rank=0, world_size=1))

    def gathered(self, value: Any) -> list[Any]:
        return [value, {**value, "throttle": ["heat"], "temperature_c": 91}] if isinstance(value, dict) else [value]


def test_of_several_ranks_each_card_is_recorded_with_its_rank(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeCard, dataset: Dataset, tmp_path: Path
) -> None:
    nvml.slowed_by = POWER_LIMIT | HARDWARE_HEAT
    seen = trained(monkeypatch, dataset, tmp_path / "run", processes=TwoRanks())
    cards = [record for record in seen if isinstance(record, CardReading)]
    assert [(card.step, card.rank) for card in cards[:4]] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert cards[0].throttle == ("heat", "power limit")
    assert cards[1].throttle == ("heat",)
    assert isinstance(seen[-1], End)


def test_many_ranks_are_read_less_often() -> None:
    assert CardWatch(CARD, ranks=64).read_seconds == 8 * CardWatch(CARD, ranks=8).read_seconds == 8 * READ_SECONDS
