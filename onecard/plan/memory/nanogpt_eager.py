"""nanoGPT's model under nanoGPT's loop, eager: every allocation and free of a run. Read beside nanoGPT's train.py.

The forward and the backward pass are in files of their own.
"""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.memory import kernels
from onecard.plan.memory.device import Device
from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.nanogpt_eager_backward import Backward
from onecard.plan.memory.nanogpt_eager_state import SCALAR
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
EVAL_ITERS = 3  # per split: nothing new happens after the third
TRAIN_STEPS = 3  # the optimizer's state exists from the second on; the third is the steady state
MICRO_STEPS = 3  # the first makes the gradients, the second adds to them, the third is like the second


def eager_tape(config: RunConfig, device: Device) -> Tape:
    """All of a run's allocations and frees: phases "init", "eval0", "train", "eval", as nanoGPT goes through them."""
    run = Run(config, device)
    run.tape.phase("init")
    run.tape.moment("loading the weights")
    run.tape.temporary(SCALAR, WORKSPACE)  # whatever makes the context: the small pool has its first segment
    run.weights()
    run.next_batch()
    run.loads("copy")
    run.tape.phase("eval0")
    run.evaluation()
    run.tape.phase("train")
    for step in range(TRAIN_STEPS):
        for micro_step in range(min(config.gradient_accumulation_steps, MICRO_STEPS)):
            run.micro_step(first=micro_step == 0)
        run.update(first=step == 0)
    run.tape.phase("eval")
    run.evaluation()
    return run.tape


class Run(Backward):
    """train.py: evaluation, micro-steps, updates."""

    def weights(self) -> None:
        """model.to(device): each parameter in float32."""
        for elements in self.parameters.values():
            self.alloc(elements * FLOAT, WEIGHTS)

    def next_batch(self) -> None:
        """X, Y = get_batch(...): the old ones may live on in a graph, so the caller frees them."""
        size = self.N * LONG
        self.ids = self.alloc(size, TOKEN_IDS), self.alloc(size, TOKEN_IDS)

    def evaluation(self) -> None:
        """estimate_loss: its own X, Y, logits and loss, beside those of the training loop."""
        alloc, free = self.alloc, self.free
        size = self.N * LONG
        held: list[int] = []  # X, Y, logits, loss of the iteration before
        for _ in range(EVAL_SPLITS * min(self.config.eval_iters, EVAL_ITERS)):
            ids = alloc(size, TOKEN_IDS), alloc(size, TOKEN_IDS)
            free(*held[:2])
            logits, loss = self.forward_for_evaluation()
            free(*held[2:])
            free(*self.weight_casts, *self.bias_casts)
            self.weight_casts, self.bias_casts = [], []
            held = [*ids, logits, loss]
        free(*held)

    def micro_step(self, first: bool) -> None:
        """Forward, next batch, backward; `first` of its update: gradients do not exist yet."""
        alloc, free = self.alloc, self.free
        embedding, layers, head = self.forward()
        if self.logits is not None and self.loss is not None:
            free(self.logits, self.loss)
        self.logits = head.lm_head.out
        self.loss = alloc(SCALAR, LOGITS_AND_LOSS)  # loss / gradient_accumulation_steps
        free(head.loss)
        free(*self.bias_casts)  # the context exits; the backward pass still holds the weights' casts
        self.weight_casts, self.bias_casts = [], []
        X, Y = self.ids
        self.next_batch()
        scaled = []
        if self.config.dtype == "float16":
            if not self.scaler_exists:  # GradScaler makes its scale and growth tracker when first asked
                alloc(SCALAR, OPTIMIZER_STATE)
                alloc(SCALAR, OPTIMIZER_STATE)
                self.scaler_exists = True
            scaled = [alloc(SCALAR, LOGITS_AND_LOSS)]
        root = alloc(SCALAR, GRADIENTS_IN_FLIGHT)
        gradient, tied = self.backward_loss(head, Y, first)
        self.tape.moment("backward pass of the blocks")
        for layer in reversed(range(self.config.n_layer)):
            self.backward_layer(layer, layers[layer], gradient, first)
        self.backward_embedding(embedding, gradient, tied, X, first)
        free(root, *scaled)

    def update(self, first: bool) -> None:
        """Unscale, clip, step, zero_grad; `first`: AdamW makes its state."""
        alloc, free, scalar = self.alloc, self.free, self.scalar
        self.tape.moment("optimizer step")
        found_inf = []
        if self.config.dtype == "float16":
            double = alloc(LONG, OPTIMIZER_TEMPORARIES)  # 1 / scale, in float64
            inverse = alloc(LONG, OPTIMIZER_TEMPORARIES)
            free(double)
            inverse_float = scalar()
            free(inverse)
            flag = scalar()
            found_inf = [scalar()]  # copies for the device, made even when there is only one
            self.tape.temporary(SCALAR, OPTIMIZER_TEMPORARIES)
            free(inverse_float, flag)
        if self.config.grad_clip:
            self.clip()
        step_found_inf = [scalar()] if found_inf else []
        if first:
            for name in self.optimizer_order:
                size = self.parameters[name] * FLOAT
                alloc(SCALAR, OPTIMIZER_STATE)
                alloc(size, OPTIMIZER_STATE)
                alloc(size, OPTIMIZER_STATE)
        free(*step_found_inf, *found_inf)
        free(*[self.gradients[name] for name in self.optimizer_order])
        self.gradients = {}

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

    def scalar(self) -> int:
        return self.alloc(SCALAR, OPTIMIZER_TEMPORARIES)
