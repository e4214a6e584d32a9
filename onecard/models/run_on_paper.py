"""A run of onecard's trainer on paper: what its training steps allocate and free."""

from __future__ import annotations

from functools import partial
from typing import Any

from onecard.config.schema import RunConfig
from onecard.models.architectures import architecture_of
from onecard.models.evaluation import TEXT_TOKENS, eval_batch_size, eval_sequences
from onecard.models.on_paper import Named, optimizer_on_paper, weights_on_paper
from onecard.models.optimizers import optimizer_of
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.models.structure import Kind, kinds_of
from onecard.models.training import EVAL_BATCHES, EVAL_SPLITS, UPDATES, Steps, split_loss
from onecard.models.ways import fuses, records_graph
from onecard.paper.device import Device
from onecard.paper.kernels import FLOAT
from onecard.paper.library import FusedOptimizer, GradScaler
from onecard.paper.operations import PaperOperations
from onecard.paper.tape import Tape
from onecard.paper.tensor import Parameter, Tensor, tape_of
from onecard.paper.work import Parts


class PaperRun:
    """A model and its training steps on paper, as one of `ranks` runs them."""

    def __init__(self, config: RunConfig, device: Device, *, ranks: Ranks = ONE_RANK) -> None:
        self.config = config
        self.ops = ops = self.operations(device)
        ops.starts()
        architecture = architecture_of(config)
        layers = architecture.structure(config)
        self.p = p = weights_on_paper(layers, ops)
        self.model = model = architecture.model(ops, config)
        self.connect(p, model)
        parameters = self.trained(p)
        self.steps = Steps(
            ops,
            config,
            loss=self.loss,
            token_losses=self.token_losses,
            parameters=parameters,
            optimizer=self.optimizer(parameters, kinds_of(layers)),
            scaler=GradScaler(ops, enabled=config.dtype == "float16"),
            passes=architecture.passes(ops, model, p, ops.compute_dtype) if fuses(config) else None,
            records=records_graph(config),
            ranks=ranks,
        )
        whole, rest = divmod(eval_sequences(config), eval_batch_size(config))
        mine = ranks.share(range(whole + (rest > 0)))  # the last batch has the rest
        full = len(ranks.share(range(whole)))
        self.eval_batches = [eval_batch_size(config)] * min(full, EVAL_BATCHES) + [rest] * (len(mine) - full)

    def operations(self, device: Device) -> PaperOperations:
        config = self.config
        return PaperOperations(device, half=config.dtype != "float32", deterministic=config.deterministic)

    def trained(self, p: Named) -> list[Parameter]:
        """What the optimizer steps on."""
        return p.parameters

    def optimizer(self, parameters: list[Parameter], kinds: dict[str, Kind]) -> FusedOptimizer:
        return optimizer_on_paper(self.ops, parameters, optimizer_of(self.config), kinds)

    def loss(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """The mean loss of a micro-batch."""
        return self.model.loss(self.p, x_BT, y_BT)  # type: ignore[no-any-return]

    def token_losses(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """The losses of tokens, without gradients."""
        return self.model.token_losses(self.p, x_BT, y_BT)  # type: ignore[no-any-return]

    def connect(self, p: Named, model: Any) -> None:
        """Say what calling a part of the model does."""
        for part, run in model.called(p):
            part.run = partial(run, part)

    def update(self) -> None:
        """One update."""
        batch = partial(self.ops.batch, self.config.batch_size, self.config.block_size)
        self.steps.gradients(batch, lambda _done, _total: None)
        self.steps.step(self.steps.ready_to_step())

    def evaluate(self) -> None:
        """An evaluation of both splits."""
        self.steps.ready_to_evaluate()
        for _ in range(EVAL_SPLITS):
            batches = [partial(self.ops.batch, sequences, self.config.eval_length) for sequences in self.eval_batches]
            split_loss(self.ops, self.steps.sequence_losses, batches)

    def write_text(self) -> None:
        """A text, where the run writes any: keys and values of its tokens. Its products need a cuBLAS handle, which
        written-out passes alone do not make."""
        if not self.config.sample_interval:
            return
        self.ops.cublas()
        tokens = min(self.config.block_size, TEXT_TOKENS + 1)
        self.ops.scratch(*[2 * FLOAT * tokens * self.config.n_embd] * self.config.n_layer)

    def work_of_update(self) -> Parts:
        """The work of an update of one micro-batch, whose gradients are added to others."""
        self.ops.zero_gradients(self.p.parameters)
        self.ops.work.taken()
        self.update()
        return self.ops.work.taken()

    def work_of_evaluation_batch(self) -> Parts:
        """The work of an evaluation batch."""
        self.ops.work.taken()
        self.steps.sequence_losses(*self.ops.batch(self.eval_batches[0], self.config.eval_length))
        return self.ops.work.taken()

    def tape(self, rounds: int) -> Tape:
        """All of a run: phases "init", "eval0", then `rounds` times "train" and "eval", unless it only evaluates."""
        tape = self.ops.tape
        self.ops.loads("copy")
        tape.phase("eval0")
        self.evaluate()
        self.write_text()
        for _ in range(0 if self.config.eval_only else rounds):
            tape.phase("train")
            for _ in range(UPDATES):
                self.update()
            tape.phase("eval")
            self.evaluate()
            self.write_text()
        return tape_of(self.ops)
