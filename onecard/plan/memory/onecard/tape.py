"""onecard's trainer, eager, compiled or written out: every allocation and free of a run."""

from __future__ import annotations

from functools import lru_cache

from onecard.config.schema import RunConfig
from onecard.models.divided_on_paper import DividedRun
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.models.run_on_paper import PaperRun
from onecard.models.ways import compiles_blocks, records_graph, shards
from onecard.paper.device import Device
from onecard.paper.tape import Tape
from onecard.plan.memory.onecard.compiled.blocks import CompiledRun


@lru_cache(maxsize=4)
def onecard_tape(config: RunConfig, device: Device, *, ranks: Ranks = ONE_RANK, rounds: int | None = None) -> Tape:
    """All of a rank's allocations and frees: phases "init", "eval0", then `rounds` times "train" and "eval".

    The default is as many rounds as bring something new. A graph is recorded again after each evaluation and text
    between updates, and then the cuBLAS workspaces of the first recording exist from the start.
    """
    run = DividedRun if shards(config) else CompiledRun if compiles_blocks(config) else PaperRun
    pauses = min(config.eval_interval, config.sample_interval or config.max_iters) < config.max_iters
    return run(config, device, ranks=ranks).tape(rounds or (2 if pauses and records_graph(config) else 1))
