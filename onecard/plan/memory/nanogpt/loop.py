"""nanoGPT's train.py: every allocation and free of a run, except those of the model itself.

How the model runs (its forward pass with and without a graph, its backward pass) is described in eager/ and compiled/.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from onecard.config.schema import RunConfig
from onecard.plan.memory import kernels
from onecard.plan.memory.device import DRIVER_BYTES, Device
from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.nanogpt.sizes import Sizes
from onecard.plan.memory.tags import (
    GRADIENTS_IN_FLIGHT,
    LOGITS_AND_LOSS,
    OPTIMIZER_STATE,
    OPTIMIZER_TEMPORARIES,
    TOKEN_IDS,
    WEIGHTS,
    WORKSPACE,
)
from onecard.plan.memory.tape import Tape

EVAL_SPLITS = 2  # train and val
EVAL_ITERS = 3  # per split: after the third, nothing new happens
TRAIN_STEPS = 3  # the optimizer's state exists from the second on; the third is the steady state
MICRO_STEPS = 3  # the first makes the gradients, the second adds to them, the third is like the second
SCALAR = 4  # bytes of a 0-dimensional float32


class Loop(Sizes, ABC):
    """The program's state between two events: the blocks that its variables and PyTorch's libraries hold."""

    def __init__(self, config: RunConfig, device: Device, *, returns_logits: bool = True) -> None:
        super().__init__(config, device, returns_logits=returns_logits)
        self.tape = Tape()
        self.alloc, self.free = self.tape.alloc, self.tape.free
        self.ids: tuple[int, int] = (0, 0)  # X, Y
        self.logits: int | None = None
        self.loss: int | None = None
        self.gradients: dict[str, int] = {}
        self.scaler_exists = False
        self.used: set[str] = set()  # libraries and kernels used before

    # the model

    @abstractmethod
    def forward_for_evaluation(self) -> tuple[int, int]:
        """model(X, Y) under no_grad: logits and loss."""

    @abstractmethod
    def forward(self) -> tuple[int | None, int]:
        """model(X, Y) in training: logits (None unless returned) and loss; what the backward needs is kept."""

    @abstractmethod
    def backward(self, gradient: int, ids: tuple[int, int], first: bool) -> None:
        """From the gradient of the model's loss to `self.gradients`, which the `first` call in an update makes.

        Frees that gradient, the batch's `ids`, and what the forward pass kept.
        """

    def autocast_ends(self, *, training: bool) -> None:
        """`with ctx` ends: in eager mode its cache of casts is emptied."""
        return

    # train.py

    def run(self) -> Tape:
        """All of a run: phases "init", "eval0", "train", "eval", in nanoGPT's order."""
        self.tape.phase("init")
        self.tape.moment("loading the weights")
        self.tape.temporary(SCALAR, WORKSPACE)  # whatever creates the context: the small pool gets its first segment
        self.weights()
        self.next_batch()
        self.loads("copy")
        self.tape.phase("eval0")
        self.evaluation()
        self.tape.phase("train")
        for step in range(TRAIN_STEPS):
            for micro_step in range(min(self.config.gradient_accumulation_steps, MICRO_STEPS)):
                self.micro_step(first=micro_step == 0)
            self.update(first=step == 0)
        self.tape.phase("eval")
        self.evaluation()
        return self.tape

    def weights(self) -> None:
        """model.to(device): each parameter in float32."""
        for elements in self.parameters.values():
            self.alloc(elements * FLOAT, WEIGHTS)

    def batch(self) -> tuple[int, int]:
        """get_batch: X and Y on the card."""
        return self.alloc(self.N * LONG, TOKEN_IDS), self.alloc(self.N * LONG, TOKEN_IDS)

    def next_batch(self) -> None:
        """X, Y = get_batch(...): the graph still holds the old ones, and the backward pass frees them."""
        self.ids = self.batch()

    def evaluation(self) -> None:
        """estimate_loss: its own X, Y, logits and loss, beside those of the training loop."""
        held: list[int] = []  # X, Y, logits, loss of the previous iteration
        for _ in range(EVAL_SPLITS * min(self.config.eval_iters, EVAL_ITERS)):
            ids = self.batch()
            self.free(*held[:2])
            logits, loss = self.forward_for_evaluation()
            self.free(*held[2:])
            self.autocast_ends(training=False)
            held = [*ids, logits, loss]
        self.free(*held)

    def micro_step(self, first: bool) -> None:
        """Forward, next batch, backward; `first` in its update: gradients do not exist yet."""
        free, scalar = self.free, self.scalar
        logits, loss = self.forward()
        free(*[block for block in (self.logits, self.loss) if block is not None])
        self.logits, self.loss = logits, scalar(LOGITS_AND_LOSS)  # loss / gradient_accumulation_steps
        free(loss)
        self.autocast_ends(training=True)
        ids = self.ids
        self.next_batch()
        scaled = self.scaled_loss()
        self.tape.moment("backward pass of the loss")
        root = scalar(GRADIENTS_IN_FLIGHT)  # of ones
        unscaled = [scalar(GRADIENTS_IN_FLIGHT)] if scaled else []
        divided = scalar(GRADIENTS_IN_FLIGHT)
        free(*unscaled)
        self.backward(divided, ids, first)
        free(root, *scaled)

    def scaled_loss(self) -> list[int]:
        """scaler.scale(loss), if the scaler is on: float16."""
        if self.config.dtype != "float16":
            return []
        if not self.scaler_exists:  # GradScaler makes its scale and growth tracker when first used
            self.scalar(OPTIMIZER_STATE)
            self.scalar(OPTIMIZER_STATE)
            self.scaler_exists = True
        return [self.scalar(LOGITS_AND_LOSS)]

    def update(self, first: bool) -> None:
        """Unscale, clip, step, zero_grad; `first`: AdamW makes its state."""
        alloc, free, scalar = self.alloc, self.free, self.scalar
        self.tape.moment("optimizer step")
        found_inf = self.found_inf(unscales=self.config.grad_clip > 0) if self.config.dtype == "float16" else []
        if self.config.grad_clip:
            self.clip()
        if found_inf:  # scaler.step sums the flags, and passes the fused kernel the scale if nobody unscaled
            found_inf = [scalar(), *found_inf]
            found_inf = found_inf if self.config.grad_clip else [scalar(), *found_inf]
        if first:
            for name in self.optimizer_order:
                size = self.parameters[name] * FLOAT
                scalar(OPTIMIZER_STATE)
                alloc(size, OPTIMIZER_STATE)
                alloc(size, OPTIMIZER_STATE)
        free(*found_inf)
        free(*[self.gradients[name] for name in self.optimizer_order])
        self.gradients = {}

    def found_inf(self, *, unscales: bool) -> list[int]:
        """GradScaler.unscale_, or _check_inf_per_device if nobody unscales: the flag it leaves behind."""
        free, scalar = self.free, self.scalar
        if unscales:
            double = self.alloc(LONG, OPTIMIZER_TEMPORARIES)  # 1 / scale, in float64
            inverse = self.alloc(LONG, OPTIMIZER_TEMPORARIES)
            free(double)
            factor = scalar()
            free(inverse)
        else:
            factor = scalar()  # 1: gradients are checked, not changed
        flag = scalar()
        flag_copy, factor_copy = scalar(), scalar()  # for the device, made even if there is only one
        free(factor_copy, factor, flag)
        return [flag_copy]

    def clip(self) -> None:
        """torch.nn.utils.clip_grad_norm_: a norm of norms, and a coefficient."""
        free, scalar = self.free, self.scalar
        partial = self.alloc(kernels.foreach_norm_scratch(list(self.parameters.values())), OPTIMIZER_TEMPORARIES)
        norms = [scalar() for _ in self.parameters]
        free(partial)
        stacked = self.alloc(len(norms) * SCALAR, OPTIMIZER_TEMPORARIES)
        total = scalar()
        free(stacked, *reversed(norms))
        plus_epsilon, reciprocal, coefficient = scalar(), scalar(), scalar()
        free(reciprocal, plus_epsilon)
        clamped = scalar()
        free(coefficient, clamped, total)

    # PyTorch and the driver

    def scalar(self, tag: str = OPTIMIZER_TEMPORARIES) -> int:
        return self.alloc(SCALAR, tag)

    def loads(self, what: str) -> None:
        """The first use of a kernel or library: the driver makes room for its code."""
        if what not in self.used:
            self.used.add(what)
            self.tape.driver_takes(*DRIVER_BYTES[what])

    def cublas(self, thread: str, *, with_lt: bool = False) -> None:
        """A thread's first matrix product makes a handle and its workspace; cuBLASLt, used for a bias, has its own."""
        if f"cublas {thread}" not in self.used:
            self.loads(f"cublas {thread}")
            self.alloc(self.device.cublas_workspace_bytes, WORKSPACE)
        if with_lt and f"cublaslt {thread}" not in self.used:
            self.used.add(f"cublaslt {thread}")
            self.alloc(self.device.cublaslt_workspace_bytes, WORKSPACE)
