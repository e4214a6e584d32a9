"""Squeeze a recorded allocator trace to what the golden tests read.

    python bench/squeezed_trace.py traces/004.json.gz tests/golden/onecard_trace_compiled_half.json.gz

`bench/onecard_rows.py --traces` writes every event with the Python frames it came from. This keeps the events, with
addresses counted from the lowest and a mark on what compiling allocates for itself. It drops the frames.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path
from typing import Any

ACTIONS = {
    "alloc": "alloc",
    "free_completed": "free",
    "segment_alloc": "segment",
    "segment_map": "segment",
    "segment_free": "given back",
    "segment_unmap": "given back",
}
# Files of torch's compiler: what they allocate is gone when a graph runs.
COMPILER = (
    "benchmarking.py",
    "triton_heuristics.py",
    "fuse_attention.py",
    "fake_tensor.py",
    "compile_fx.py",
    "pad_mm.py",
)
CONFIG = (
    "n_layer n_head n_embd block_size batch_size gradient_accumulation_steps vocab_size dtype dropout bias compile "
    "grad_checkpoint loss_chunk expandable_segments"
).split()


def squeezed(trace: dict[str, Any]) -> list[list[Any]]:
    """The events of a trace, without frames."""
    lowest = min(event[1] for event in trace["events"] if event[0] in ACTIONS)
    compiling: set[int] = set()  # addresses in use
    found: list[list[Any]] = []
    for event in trace["events"]:
        if event[0] == "phase":
            found.append(event)
        elif event[0] in ACTIONS:
            action, address, size, frame = event
            if action == "alloc" and any(name in trace["frames"][frame] for name in COMPILER):
                compiling.add(address)
            mark = ["compiling"] if address in compiling and not action.startswith("segment") else []
            if action == "free_completed":
                compiling.discard(address)
            found.append([ACTIONS[action], address - lowest, size, *mark])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("golden", type=Path)
    parser.add_argument("--card", default="NVIDIA H200, torch 2.11.0+cu130")
    args = parser.parse_args()
    with gzip.open(args.recorded, "rt") as file:
        trace = json.load(file)
    source = (
        f"{args.card}, {time.strftime('%Y-%m-%d')}, python bench/onecard_rows.py --traces; no frames, only a "
        "mark on what compiling allocates; addresses counted from the lowest"
    )
    kept = {"source": source, "config": {key: trace["row"][key] for key in CONFIG}, "events": squeezed(trace)}
    args.golden.write_bytes(gzip.compress(json.dumps(kept, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main()
