"""How long `onecard ui` takes to list many long runs and to show one, what it holds, and what 200 open pages cost.

python -m bench.ui_pages            # 100 runs of 100,000 updates: 2.7 GB in a temporary folder for a minute or two
python -m bench.ui_pages 10 10000   # fewer and shorter ones
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

from onecard.config.schema import RunConfig
from onecard.runs.record_json import to_line
from onecard.runs.records import CardReading, Eval, Start, Step

PAGES = 200
PAGES_SECONDS = 10
PLANS = 24  # movements of a slider
READ_EVERY = 5  # updates between readings of the card
DAY = 86_400.0  # seconds
LAST_IN_LINE = 19  # the niceness of the doctor's process


def lines(updates: int) -> bytes:
    """The records of a run with an evaluation every thousand updates."""
    start = Start(
        step=0,
        config={},
        versions={},
        device="cuda",
        card="NVIDIA GeForce RTX 4070",
        predicted_process_bytes=10**10,
        resumed_from=None,
    )
    return to_line(start) + b"".join(
        to_line(update(number))
        + (to_line(reading(number)) if number % READ_EVERY == 0 else b"")
        + (to_line(evaluation(number)) if number % 1000 == 0 else b"")
        for number in range(1, updates + 1)
    )


def reading(number: int) -> CardReading:
    return CardReading(
        step=number,
        elapsed_seconds=number * 1.01,
        rank=0,
        temperature_c=71.0,
        power_watts=195.5 + number % 9,
        power_limit_watts=200.0,
        sm_clock_mhz=2505.0,
        memory_clock_mhz=10251.0,
        throttle=("power limit",) if number % 3 else (),
        busy=0.99,
        other_bytes=10**9,
        pcie_generation=4,
        pcie_width=16,
    )


def update(number: int) -> Step:
    return Step(
        step=number,
        tokens=number * 524_288,
        loss=3 + 5 * number**-0.3,
        lr=6e-4,
        grad_norm=0.4321,
        seconds=1.01,
        elapsed_seconds=number * 1.01,
        tokens_per_second=519_096.1,
        mfu=0.4123,
        allocated_bytes=9 * 10**9,
        reserved_bytes=10**10,
        data_wait_seconds=0.001,
    )


def evaluation(number: int) -> Eval:
    loss = 3.05 + 5 * number**-0.3
    return Eval(
        step=number,
        tokens=number * 524_288,
        train_loss=loss - 0.02,
        val_loss=loss,
        train_loss_error=0.004,
        val_loss_error=0.004,
        block_size=1024,
        tokens_read=10**6,
        seconds=20.0,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        bits_per_byte=None,
    )


class Site:
    """A server of its own, and requests to it."""

    def __init__(self, folder: Path) -> None:
        typed = [sys.executable, "-m", "onecard", "ui", str(folder), "--port", "0", "--no-browser"]
        self.process = subprocess.Popen(typed, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.port = int(self.process.stdout.readline().rstrip("/\n").rpartition(":")[2])

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", path)
        body = connection.getresponse().read()
        connection.close()
        return body

    def timed(self, what: str, path: str) -> bytes:
        """Prints how long an answer takes, how much of it the processor works, and its size."""
        worked, began = self.work(), time.perf_counter()
        body = self.get(path)
        took, worked = time.perf_counter() - began, self.work() - worked
        print(f"{what:38} {took:7.3f} s, {worked:5.2f} s of work {len(body) / 1000:9,.0f} KB")
        return body

    def settle(self) -> None:
        """Wait until all that the first answers need is loaded: a person takes as long to look at the list."""
        before = -1.0
        while (now := self.work()) > before + 0.02:
            before = now
            time.sleep(1)

    def work(self) -> float:
        """CPU seconds of the processes that answer: not of the doctor, which works where nobody else wants to."""
        ids = [str(self.process.pid), *children(self.process.pid)]
        return sum(cpu_seconds(pid) for pid in ids if fields_of(pid)[16:17] != [str(LAST_IN_LINE)])

    def spent(self) -> list[tuple[float, int]]:
        """CPU seconds and resident bytes of the server and of each worker; Linux only."""
        ids = [str(self.process.pid), *children(self.process.pid)]
        return [(cpu_seconds(pid), resident_bytes(pid)) for pid in ids]


def children(pid: int) -> list[str]:
    every = (file.parent.name for file in Path("/proc").glob("[0-9]*/stat"))
    return [each for each in every if fields_of(each)[1] == str(pid)]


def fields_of(pid: str) -> list[str]:
    """What Linux says of a process after its name: state, parent, …; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["", ""]


def cpu_seconds(pid: str) -> float:
    fields = fields_of(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: str) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drag(site: Site) -> None:
    """Ask for plans as a slider does: each of another model."""
    took = []
    worked = site.work()
    for layers in range(2, 2 + PLANS):
        began = time.perf_counter()
        site.get(f"/api/plan?gpu=RTX+4070&n_layer={layers}&n_head=12&n_embd=768&batch_size=8&max_iters=4750")
        took.append(time.perf_counter() - began)
    worked = (site.work() - worked) / PLANS
    print(f"a plan, each of another model: median {median(took):.3f} s, at most {max(took):.3f} s,", end=" ")
    print(f"{worked:.3f} s of work each")


def open_pages(site: Site, run: str, append: Callable[[int], None], last: int) -> None:
    """Let pages listen and fetch the run at every event, while an update a second is appended."""
    lags: list[float] = []
    written: dict[int, float] = {}
    end = time.monotonic() + PAGES_SECONDS

    def page() -> None:
        with suppress(OSError, http.client.HTTPException, ValueError):  # the server is gone: this was the end
            listen()

    def listen() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
        connection.request("GET", "/api/events")
        stream = connection.getresponse()
        while time.monotonic() < end:
            if stream.readline() == b"event: run\n":
                step = json.loads(site.get(f"/api/runs/{run}"))["run"]["step"]
                if step in written:
                    lags.append(time.monotonic() - written[step])

    for _ in range(PAGES):
        threading.Thread(target=page, daemon=True).start()
    time.sleep(1)
    before, began = sum(seconds for seconds, _ in site.spent()), time.monotonic()
    while time.monotonic() < end:
        time.sleep(1)
        last += 1
        written[last] = time.monotonic()
        append(last)
    spent = (sum(seconds for seconds, _ in site.spent()) - before) / (time.monotonic() - began)
    print(f"{PAGES} pages on one run: {len(lags):,} fetches, {spent:.2f} cores,", end=" ")
    print(f"shown after {median(lags):.2f} s, at most {max(lags):.2f} s")


def main(runs: int, updates: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder, body = Path(temporary) / "runs", lines(updates)
        config = RunConfig.model_validate({"max_iters": updates + 1000}).model_dump()
        for number in range(runs):
            run = folder / f"run-{number}"
            run.mkdir(parents=True)
            (run / "config.json").write_text(json.dumps(config))
            (run / "records.jsonl").write_bytes(body)
            os.utime(run / "records.jsonl", (time.time() - DAY,) * 2)  # all but one have ended
        print(f"{runs} runs of {updates:,} updates, {len(body) / 1e6:.0f} MB each")
        site = Site(folder)
        site.timed("the list, first", "/api/runs")
        rows = json.loads(site.timed("the list, again", "/api/runs"))["runs"]
        name, place = rows[0]["id"], folder / rows[0]["name"]
        site.settle()
        site.timed("a run, first", f"/api/runs/{name}")
        site.timed("a run, again", f"/api/runs/{name}")
        site.timed("a run, 1,000 updates of it", f"/api/runs/{name}?from={updates // 2}&to={updates // 2 + 1000}")
        drag(site)

        def append(number: int) -> None:
            with (place / "records.jsonl").open("ab") as records:
                records.write(to_line(update(number)))

        open_pages(site, name, append, updates)
        print("resident MB, the server and its workers:", [size // 10**6 for _, size in site.spent()])
        site.process.terminate()
        site.process.wait()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:3])) if len(sys.argv) == 3 else main(100, 100_000)
