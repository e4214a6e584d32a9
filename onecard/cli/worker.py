"""A process of its own for each run of a benchmark: what it prints, as it prints it, and its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from onecard.errors import OnecardError
from onecard.inputs.before_run import torch_environment

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.plan.speed.work import TrainerName


class OutOfTime(OnecardError):
    """A process that was ended because its time was over."""

    name = "out-of-time"


def worker_lines(
    module: str, job: dict[str, Any], trainer: TrainerName, config: RunConfig, *, seconds: float | None = None
) -> Generator[dict[str, Any], None, None]:
    """The JSON objects that `python -m module JOB` prints, line by line; an error among them is raised.

    Close the generator, and the process is gone. It is ended after `seconds`, with OutOfTime.
    """
    as_published = config.replace({"expandable_segments": trainer == "onecard" and config.expandable_segments})
    environment = os.environ | torch_environment(as_published, os.environ)
    command = [sys.executable, "-m", module, json.dumps(job)]
    with (
        TemporaryFile("w+") as talk,  # not a pipe: nobody reads it while the process runs
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=talk, text=True) as running,
    ):
        assert running.stdout
        over = threading.Event()

        def end() -> None:
            over.set()
            running.kill()

        clock = threading.Timer(seconds or 0.0, end)
        clock.daemon = True  # Ctrl-C can come at any line: no thread may keep the command from ending
        try:
            if seconds is not None:
                clock.start()
            for text in running.stdout:
                if not text.startswith("{"):  # the code of a checkout may print, too
                    continue
                line: dict[str, Any] = json.loads(text)
                if "error" in line:
                    problem = OnecardError(**line["error"])
                    problem.exit_code = line["exit_code"]
                    raise problem
                yield line
            running.wait()
        except BaseException:
            running.kill()
            raise
        finally:
            clock.cancel()
        if over.is_set() and running.returncode:
            raise OutOfTime(
                f"{trainer} at batch {config.batch_size} did not end in time",
                why=f"it was given {seconds:.0f} s",
                fix="give it more time",
            )
        if running.returncode:
            talk.seek(0)
            raise _broken(trainer, config, talk.read(), running.returncode)


def _broken(trainer: TrainerName, config: RunConfig, said: str, code: int) -> OnecardError:
    """The error for a process that ended without an answer."""
    last = [line for line in said.splitlines() if line.strip()][-1:]
    return OnecardError(
        f"{trainer} at batch {config.batch_size} stopped with an error",
        why=last[0] if last else f"its process ended with code {code}",
        fix="run it alone to see the whole error: onecard train" if trainer == "onecard" else "try its own train.py",
        name="bench-failed",
    )
