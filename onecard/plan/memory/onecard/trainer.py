"""train/trainer.py and train/evaluate.py: every allocation and free of a run, except the model's."""

from __future__ import annotations

from abc import abstractmethod

from onecard.config.schema import RunConfig
from onecard.plan.evaluation import eval_batch_size, eval_sequences
from onecard.plan.memory import kernels
from onecard.plan.memory.device import Device
from onecard.plan.memory.kernels import FLOAT
from onecard.plan.memory.nanogpt.eager.backward import Backward
from onecard.plan.memory.nanogpt.loop import EVAL_ITERS, EVAL_SPLITS, MICRO_STEPS, SCALAR, TRAIN_STEPS
from onecard.plan.memory.tags import (
    LOGITS_AND_LOSS,
    OPTIMIZER_STATE,
    OPTIMIZER_TEMPORARIES,
    WORKSPACE,
)
from onecard.plan.memory.tape import Tape

DOUBLE = 8  # bytes of a float64


class Trainer(Backward):
    """A run: its first evaluation, its updates, an evaluation after them."""

    def __init__(self, config: RunConfig, device: Device) -> None:
        super().__init__(config, device)
        whole, rest = divmod(eval_sequences(config), eval_batch_size(config))
        self.eval_batches = [eval_batch_size(config)] * min(whole, EVAL_ITERS) + [rest] * (rest > 0)
        self.eval_tokens = config.eval_length
        self.warm = False  # whether an update has been made
        self.replays = False  # whether micro-batches are a recorded graph
        self.thread = "forward"  # whose cuBLAS handle is in use

    def cublas(self, thread: str, *, with_lt: bool = False) -> None:
        """A product; the backward pass also uses its handle for the forward products that it repeats."""
        super().cublas("backward" if self.thread == "backward" else thread, with_lt=with_lt)

    def run(self, rounds: int = 1) -> Tape:
        """All of a run: phases "init", "eval0", then `rounds` times "train" and "eval"."""
        self.tape.phase("init")
        self.tape.moment("loading the weights")
        self.tape.temporary(SCALAR, WORKSPACE)  # whatever creates the context: the small pool gets its first segment
        self.weights()
        self.scalar(LOGITS_AND_LOSS)  # the update's loss so far
        self.loads("copy")
        self.tape.phase("eval0")
        self.evaluation()
        for _ in range(rounds):
            self.tape.phase("train")
            for _ in range(TRAIN_STEPS):
                self.one_update()
            self.tape.phase("eval")
            self.evaluation()
        return self.tape

    # evaluation

    def before_evaluation(self) -> None:
        """Give back what a recorded micro-batch holds, if there is one."""

    def evaluation(self) -> None:
        """evaluate: both splits, batch by batch; the mean loss of every sequence stays until its split is done."""
        self.before_evaluation()
        batch = self.B, self.T
        for _ in range(EVAL_SPLITS):
            held: list[int] = []  # x and y of the previous batch
            means: list[int] = []
            for sequences in self.eval_batches:
                self.set_batch(sequences, self.eval_tokens)
                ids = self.batch()
                self.free(*held)
                losses = self.losses_for_evaluation()
                means.append(self.alloc(sequences * FLOAT, LOGITS_AND_LOSS))
                self.free(losses)
                self.autocast_ends(training=False)
                held = [*ids]
            read = sum(self.eval_batches)
            joined = self.alloc(read * FLOAT, LOGITS_AND_LOSS)
            all_means = self.replaced(joined, read * DOUBLE, LOGITS_AND_LOSS)
            self.tape.temporary(DOUBLE, LOGITS_AND_LOSS)  # their spread
            self.tape.temporary(DOUBLE, LOGITS_AND_LOSS)  # their mean
            self.free(*means, *held, all_means)
        self.set_batch(*batch)

    def set_batch(self, sequences: int, tokens: int) -> None:
        """Set the shape of batches from here on: sequences, and tokens in each."""
        self.B, self.T, self.N = sequences, tokens, sequences * tokens
        self.stream = self.N * self.C * FLOAT
        self.narrow = self.N * self.C * self.item
        self.mask = self.N * self.C
        self.rows = self.N * FLOAT
        self.kernel = self.device.attention_kernel(self.config.dtype, self.D, self.T)

    # an update

    def one_update(self) -> None:
        """Trainer.update: micro-batches, then the optimizer's step."""
        self.before_update()
        held: list[int] = []
        for _ in range(min(self.config.gradient_accumulation_steps, MICRO_STEPS)):
            ids = self.batch()
            self.free(*held)
            if not self.replays:
                self.micro_batch(first=not self.gradients)
            held = [*ids]
        self.free(*held)
        self.optimizer_step()

    def before_update(self) -> None:
        """Record a micro-batch, if this trainer does so."""

    @abstractmethod
    def micro_batch(self, *, first: bool) -> None:
        """Forward and backward pass; `first` in its update: gradients do not exist yet."""

    @abstractmethod
    def losses_for_evaluation(self) -> int:
        """token_losses under no_grad: the losses of all tokens."""

    def optimizer_step(self) -> None:
        """Unscale, clip, make AdamW's state in the first update, step. Then put the step's figures in one tensor."""
        alloc, free, scalar = self.alloc, self.free, self.scalar
        self.tape.moment("optimizer step")
        found_inf = self.found_inf(unscales=True) if self.config.dtype == "float16" else []
        norm = self.gradient_norm()
        if not self.warm:
            self.warm = True
            for name in self.optimizer_order:
                size = self.parameters[name] * FLOAT
                scalar(OPTIMIZER_STATE)
                alloc(size, OPTIMIZER_STATE)
                alloc(size, OPTIMIZER_STATE)
        if found_inf:  # scaler.step sums the flags
            found_inf = [scalar(), *found_inf]
        free(*found_inf)
        if not self.replays:
            self.gradients_go()
        self.tape.temporary(2 * SCALAR, OPTIMIZER_TEMPORARIES)  # loss and norm
        free(norm)

    def gradients_go(self) -> None:
        """zero_grad(set_to_none=True)."""
        self.free(*[self.gradients[name] for name in self.optimizer_order])
        self.gradients = {}

    def gradient_norm(self) -> int:
        """clip_gradients: a norm of norms, which stays for the record, and a coefficient if it clips."""
        free, scalar = self.free, self.scalar
        partial = self.alloc(kernels.foreach_norm_scratch(list(self.parameters.values())), OPTIMIZER_TEMPORARIES)
        norms = [scalar() for _ in self.parameters]
        free(partial)
        stacked = self.alloc(len(norms) * SCALAR, OPTIMIZER_TEMPORARIES)
        total = scalar()
        free(stacked, *reversed(norms))
        if self.config.grad_clip:
            plus_epsilon, reciprocal, coefficient = scalar(), scalar(), scalar()
            free(reciprocal, plus_epsilon)
            clamped = scalar()
            free(coefficient, clamped)
        return total
