"""Runs commands in forks of one process that has imported torch, each with one fault in it.

Importing torch takes longer than a tiny run. A job is one line of JSON: `arguments`, and `fault` (folder, call, n,
errno; see faults.c) or null. The answer is one line: the child's id; a second one: its exit code and the calls it made.
"""

import ctypes
import json
import os
import sys

import torch

from onecard.cli import main
from onecard.train import cpu
from tests.warm_process import TORCH, import_all

import_all(TORCH)  # once, here
torch.set_num_threads(1)
cpu.TEST_SECONDS = 0.0  # the speed test before a run takes longer than the run
faults = ctypes.CDLL(None) if os.environ.get("LD_PRELOAD") else None


def work(job: dict[str, object], calls: int) -> int:
    """The exit code of a command; the number of its system calls is written to `calls`."""
    output = os.open("child.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    fault = job["fault"]
    if faults and isinstance(fault, dict):
        faults.faults_arm(fault["folder"].encode(), fault["call"].encode(), fault["n"], fault["errno"])
    code = main.run([str(argument) for argument in job["arguments"]])  # type: ignore[attr-defined]
    if faults:
        seen = faults.faults_seen()
        faults.faults_arm(b"", b"", 0, 0)
        os.write(calls, str(seen).encode())
    return code


for line in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os._exit(work(json.loads(line), writing))
    os.close(writing)
    print(child, flush=True)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen = os.read(reading, 20).decode() or "0"
    os.close(reading)
    print(code, seen, flush=True)
