"""train/graph.py: a trainer whose micro-batch is recorded as a CUDA graph from the second update on."""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.memory.device import Device
from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.onecard.graph import records_graph
from onecard.plan.memory.onecard.trainer import Trainer
from onecard.plan.memory.tags import GRADIENTS, TOKEN_IDS, WORKSPACE
from onecard.plan.memory.tape import DEFAULT_POOL, EMPTY_CACHE

STREAM = "capture-stream"  # the pool of the stream on which graphs are recorded


class RecordingTrainer(Trainer):
    """The first update runs normally. The next one is recorded, and so is the first after an evaluation."""

    def __init__(self, config: RunConfig, device: Device) -> None:
        super().__init__(config, device)
        self.capturing = False
        self.recordings = 0
        self.of_graph: list[int] = []  # blocks that live as long as the recorded micro-batch

    def before_update(self) -> None:
        """The first update compiles. The second records, and so does the first after an evaluation."""
        if self.warm and records_graph(self.config) and not self.replays:
            self.record()

    def record(self) -> None:
        """Trainer._record: gradients first, then a micro-batch whose memory comes from the graph's own pool."""
        tape, alloc = self.tape, self.alloc
        tape.order(EMPTY_CACHE)
        tape.moment("recording a micro-batch")
        self.gradients = {name: alloc(elements * FLOAT, GRADIENTS) for name, elements in self.parameters.items()}
        zeros = alloc(2 * self.N * LONG, TOKEN_IDS)
        self.of_graph = [*self.batch()]
        tape.order(f"pool {STREAM}")
        self.of_graph += [alloc(LONG, WORKSPACE), alloc(LONG, WORKSPACE)]  # the generator's seed and offset
        self.recordings += 1
        tape.order(f"pool {self.graph_pool}")
        for pool in (self.graph_pool, DEFAULT_POOL):  # while a graph is recorded, nothing goes back to the driver
            tape.order(f"hold {pool}")
        self.capturing = True
        self.micro_batch(first=False)
        self.capturing = False
        tape.order(f"pool {DEFAULT_POOL}")
        tape.order(f"let go {DEFAULT_POOL}")
        self.free(zeros)
        self.replays = True

    @property
    def graph_pool(self) -> str:
        """The pool of the last recording; each recording has its own."""
        return f"graph-{self.recordings}"

    def before_evaluation(self) -> None:
        """Trainer.free_activations."""
        if not self.replays:
            return
        self.replays = False
        self.free(*self.of_graph)
        self.gradients_go()
        self.tape.order(f"let go {self.graph_pool}")
        self.tape.order(EMPTY_CACHE)
