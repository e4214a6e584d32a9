"""Laws of the log readers: no text makes them fail, and what surrounds a record does not change it."""

import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.doctor.case import DataSizes
from onecard.doctor.compare import compare_runs
from onecard.doctor.facts import make_case
from onecard.errors import OnecardError
from onecard.report.compare_json import comparison_json
from onecard.runs.foreign import read_logs
from onecard.runs.logged import LoggedRun
from onecard.runs.records import Eval, Step
from tests import made_logs as made
from tests.share import share

ROOT = Path(__file__).parents[2]
LOGS = [
    "\n".join(lines)
    for lines in (
        [*made.nanogpt_header("dropout = 0.1"), *made.nanogpt(steps=120, log_interval=20, eval_interval=40)],
        made.llmc_main(steps=12, every=4),
        made.llmc_stdout(steps=6),
        made.modded(steps=250),
        made.nanochat(steps=5),
        made.trainer_stdout(steps=300),
        [made.trainer_state(steps=300)],
        made.minimal(steps=2000),
        [line for text in made.OOM.values() for line in made.traceback(text, "estimate_loss", "forward")],
        ["Not enough SMs to use max_autotune_gemm mode", "BackendCompilerFailed", "KeyboardInterrupt"],
    )
]
PIECES = sorted({line for log in LOGS for line in log.split("\n")})
NOISE = [b"\r", b"\n", b"\0", b"\x1b[31m", b"\x1b[", b"\xff\xfe", b"nan", b"inf", b"-", b"9" * 40, b": ", b"{'loss':"]


def read(raw: bytes) -> tuple[LoggedRun, ...]:
    """The runs in some bytes; none where the reader says that nothing can be read."""
    try:
        return read_logs(raw.splitlines(keepends=True), source="x")
    except OnecardError as problem:
        assert problem.exit_code == 2
        return ()


def look(raw: bytes) -> None:
    """Read, derive everything that follows, and check what must hold of any run."""
    runs = read(raw)
    for run in runs:
        numbers = [record.step for record in run.records if isinstance(record, Step)]
        assert numbers == sorted(set(numbers)), "a run counts upwards"
        assert run.records or run.messages or run.config or run.printed
        case = make_case(run, config=None, card=None, data=DataSizes())
        facts = case.facts
        for value in (facts.seconds_per_step, facts.tokens_per_second, facts.evaluation_noise):
            assert value is None or (value >= 0 and math.isfinite(value))
    if len(runs) > 1:
        comparison_json(compare_runs(runs[:3]))


@given(st.binary(max_size=400))
def test_no_bytes_make_a_reader_fail(raw: bytes) -> None:
    look(raw)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=40), max_size=30).map("\n".join))
def test_no_mixture_of_formats_makes_a_reader_fail(text: str) -> None:
    look(text.encode())


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=60), max_size=8), st.data())
def test_other_text_between_the_lines_changes_no_record(words: list[str], data: st.DataObject) -> None:
    lines = made.nanogpt(steps=200)
    mixed = list(lines)
    for word in words:
        mixed.insert(data.draw(st.integers(0, len(mixed))), f"# {word}")
    wanted, found = read("\n".join(lines).encode()), read("\n".join(mixed).encode())

    def losses(runs: tuple[LoggedRun, ...]) -> list[tuple[int, float | None]]:
        records = [record for run in runs for record in run.records]
        return [(r.step, r.loss if isinstance(r, Step) else r.val_loss) for r in records if isinstance(r, Step | Eval)]

    assert losses(found) == losses(wanted)


def mutated(dice: random.Random) -> bytes:
    """A made log, hurt: cut, spliced with another, bytes changed, lines lost, doubled or shuffled."""
    raw = bytearray(dice.choice(LOGS).encode())
    start = dice.randrange(len(raw))
    raw = raw[start : start + dice.randrange(1, 900)]
    for _ in range(dice.randrange(1, 8)):
        place = dice.randrange(len(raw) + 1)
        match dice.randrange(6):
            case 0:
                raw[place:place] = dice.choice(NOISE)
            case 1:
                raw[place : place + dice.randrange(12)] = b""
            case 2:
                other = dice.choice(LOGS).encode()
                begin = dice.randrange(len(other))
                raw[place:place] = other[begin : begin + dice.randrange(200)]
            case 3:
                raw[place : place + 1] = bytes([dice.randrange(256)])
            case 4:
                if numbers := list(re.finditer(rb"\d+(?:\.\d+)?", raw)):
                    at = dice.choice(numbers).span()
                    raw[at[0] : at[1]] = dice.choice([b"nan", b"inf", b"-1", b"0", b"9" * 30, b"1e308", b"0.0"])
            case _:
                lines = bytes(raw).split(b"\n")
                dice.shuffle(lines)
                raw = bytearray(b"\n".join(lines))
    return bytes(raw)


@pytest.mark.timeout(900)
def test_a_hundred_thousand_damaged_logs_are_read_or_refused() -> None:
    dice = random.Random(11)
    for _ in range(share(100_000)):
        look(mutated(dice))


BIG = """
import resource, sys, time
steps = int(sys.argv[1])
from onecard.runs.foreign import read_logs
other = b"words of another program, which no reader knows what to do with, once more and again\\n"
def lines():
    for step in range(steps):
        yield b"iter %d: loss 3.5000, time 250.00ms, mfu 20.00%%\\n" % step
        yield other
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
(run,) = read_logs(lines(), source="big")
print(time.process_time(), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, len(run.records))
"""


@pytest.mark.slow
def test_a_hundred_megabytes_take_seconds_and_little_memory() -> None:
    command = [sys.executable, "-c", BIG, str(share(900_000))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    seconds, mib, kept = (float(word) for word in done.stdout.split())
    assert seconds < 60  # 4 to 8 on a quiet machine
    assert mib < 150
    assert kept > 20_000


def test_the_damage_is_real_and_much_of_it_still_reads() -> None:
    dice = random.Random(3)
    read_runs = sum(bool(read(mutated(dice))) for _ in range(300))
    assert 100 < read_runs < 300
