"""nanoGPT's model under nanoGPT's loop, with torch.compile: every allocation and free, in PyTorch's order.

Read beside nanoGPT's train.py (the loop) and Inductor's generated code (the graphs, in nanogpt_compiled_graphs).
What compilation changes: the backward returns all gradients at its end, so that old and new ones coexist while
accumulating; because the graph returns logits, autograd hands the backward a zero gradient of their size.
"""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.memory import kernels
from onecard.plan.memory import nanogpt_compiled_graphs as graphs
from onecard.plan.memory.device import DRIVER_BYTES, MIB, Device
from onecard.plan.memory.inductor import Program, compiled
from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.nanogpt_compiled_backward import backward
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

EVAL_ITERS = 3  # per split; nothing new happens after the second
EVAL_SPLITS = 2
TRAIN_STEPS = 3  # the optimizer's state exists from the second on; the third is the steady state
MICRO_STEPS = 3  # the first makes the gradients, the second adds to them, the third is like the second
SCALAR = 4  # bytes of a 0-dimensional float32
# The outcome of a timing, not of a formula: read off 14 runs with odd vocabularies on an H200; other cards may differ.
PADDED_DIMENSION = 640  # from here on padding pays for a copy: at 512 it did not, at 768 it did
PADDED_VOCABULARY = 1024  # below, the copies are too small to matter: 65 was padded in one recorded run, not in another
# L2 cache by compute capability: recorded on an H200; for the others the maker's figure for one card (A100, RTX 3090,
# RTX 4070, RTX 5070), not checked on it. Only the scratch of tuning depends on it.
L2_CACHE_BYTES = {(8, 0): 40 * MIB, (8, 6): 6 * MIB, (8, 9): 36 * MIB, (9, 0): 60 * MIB, (12, 0): 48 * MIB}


def compiled_tape(config: RunConfig, device: Device, *, cold: bool = True) -> Tape:
    """All of a run's allocations and frees: phases "init", "eval0", "train", "eval", as nanoGPT goes through them.

    `cold`: the first run of this model on this machine, when Triton times its kernels and Inductor the padding of the
    head. Later runs find both in the cache on disk; they reserve a few tens of MiB less.
    """
    run = _Run(config, device, cold)
    run.tape.phase("init")
    run.tape.moment("loading the weights")
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


def parameters(config: RunConfig) -> dict[str, int]:
    """Elements of each parameter, in the model's order; wte is also the head's weight."""
    C = config.n_embd
    found = {"wte": config.vocab_size * C, "wpe": config.block_size * C}

    def add(name: str, weight: int, bias: int) -> None:
        found[f"{name}.weight"] = weight
        if config.bias:
            found[f"{name}.bias"] = bias

    for layer in range(config.n_layer):
        add(f"{layer}.ln_1", C, C)
        add(f"{layer}.attn", 3 * C * C, 3 * C)
        add(f"{layer}.proj", C * C, C)
        add(f"{layer}.ln_2", C, C)
        add(f"{layer}.fc", 4 * C * C, 4 * C)
        add(f"{layer}.out", 4 * C * C, C)
    add(f"{config.n_layer}.ln_1", C, C)
    return found


def head_padding(config: RunConfig) -> graphs.Padding:
    """Which products of the head are padded for a vocabulary that is not a multiple of 8 (4 in float32).

    Inductor times each product with and without padding (fx_passes/pad_mm.py, _should_pad), so this is a choice of the
    card. Padding wins when the faster product pays for the copy of the operand that must be padded, that is when the
    dimension the copy does not have is long enough: the tokens for a copy of the weight, the width for a copy of the
    logits' gradient. The gradient in its own layout, and under autocast the weight too, are padded where they are
    made, which is not timed. For tiny vocabularies either may win, by bytes that do not matter; none is assumed.
    """
    is_float = config.dtype == "float32"
    if config.vocab_size % (4 if is_float else 8) == 0 or config.vocab_size < PADDED_VOCABULARY:
        return graphs.Padding()
    many = config.batch_size * config.block_size >= PADDED_DIMENSION
    return graphs.Padding(forward=many, weight=config.n_embd >= PADDED_DIMENSION, input=many or not is_float)


class _Run:
    """The state of the program between two events: which blocks its variables, its graph and its caches hold."""

    def __init__(self, config: RunConfig, device: Device, cold: bool = True) -> None:
        self.config = config
        self.device = device
        self.cold = cold
        self.l2_cache_bytes = L2_CACHE_BYTES.get(device.capability, 36 * MIB)
        self.tape = Tape()
        self.alloc, self.free = self.tape.alloc, self.tape.free
        self.parameters = parameters(config)
        # configure_optimizers: matrices decay and come first, then biases and norms
        matrices = [name for name in self.parameters if not name.endswith("bias") and ".ln_" not in name]
        self.optimizer_order = matrices + [name for name in self.parameters if name not in set(matrices)]
        self.shape = graphs.shape_of(config, device, head_padding(config))
        self.programs: dict[str, tuple[graphs.Traced, Program]] = {}
        self.thread = "forward"  # whose cuBLAS handle is in use
        self.handles: set[str] = set()  # what has been used before
        self.ids: tuple[int, int] = (0, 0)  # X, Y
        self.logits: int | None = None
        self.loss: int | None = None
        self.gradients: dict[str, int] = {}
        self.has_scaler = False

    def scalar(self, tag: str = OPTIMIZER_TEMPORARIES) -> int:
        return self.alloc(SCALAR, tag)

    def call(self, name: str, inputs: dict[str, int]) -> dict[str, int]:
        """Run a compiled graph; returns the blocks of what it is known to return, by name."""
        first = name not in self.programs
        if first:
            self.compile(name)
        traced, program = self.programs[name]
        self.thread = "backward" if name == "backward" else "forward"
        blocks = program.run(
            self.tape, {traced.named[key]: block for key, block in inputs.items()}, self.first_use if first else None
        )
        return {key: blocks[program.slots[buffer]] for key, buffer in traced.named.items()}

    def first_use(self, kernel: str, overwritten: list[int]) -> None:
        """What a kernel's first launch allocates: library workspaces that stay, Triton's tuning that passes."""
        if kernel in ("mm", "addmm"):
            self.product()
        if kernel == "addmm" and "lt" not in self.handles:  # a bias goes through cuBLASLt
            self.handles.add("lt")
            self.alloc(self.device.cublaslt_workspace_bytes, WORKSPACE)
        if self.shape.attention == "cudnn" and kernel.startswith("attention"):
            self.loads(kernel.replace("attention", "cudnn"))
        if kernel == "pointwise" and self.cold:
            # two configurations are timed: a buffer as large as the L2 cache flushes it before each run, and a clone
            # stands in for what the kernel writes over (runtime/benchmarking.py, runtime/triton_heuristics.py)
            for size in overwritten:
                self.tape.temporary(size, WORKSPACE)
            flush = self.alloc(self.l2_cache_bytes, WORKSPACE)
            for size in overwritten:
                self.tape.temporary(size, WORKSPACE)
            self.free(flush)

    def product(self) -> None:
        """A thread's first matrix product makes a cuBLAS handle with its workspace."""
        if self.thread not in self.handles:
            self.handles.add(self.thread)
            self.loads(f"cublas {self.thread}")
            self.alloc(self.device.cublas_workspace_bytes, WORKSPACE)

    def loads(self, what: str) -> None:
        """The first use of a library: the driver makes room for its code."""
        if what not in self.handles:
            self.handles.add(what)
            self.tape.driver_takes(*DRIVER_BYTES.get(what, ()))

    def compile(self, name: str) -> None:
        """Trace, partition, schedule and plan a graph; torch.compile does it when the graph is first called."""
        if name == "evaluation":
            traced = graphs.inference(self.shape)
        elif name == "forward":
            traced = graphs.forward(self.shape)
        else:
            traced = backward(self.shape, self.programs["forward"][0])
        self.programs[name] = (traced, compiled(traced.graph))
        if self.cold and self.shape.V_padded != self.shape.V:
            self.time_padding(name)

    def time_padding(self, name: str) -> None:
        """Inductor times the head's products before it pads them: the forward's once, both gradients' with training."""
        s, alloc, free = self.shape, self.alloc, self.free
        logits, padded_logits = s.N * s.V * s.item, s.N * s.V_padded * s.item
        weight, padded_weight = s.V * s.C * s.item, s.V_padded * s.C * s.item
        x = s.N * s.C * s.item

        self.tape.moment("compilation")

        def timed(operands: list[int], plain: list[int], copies: list[int], padded: list[int]) -> None:
            """Random operands and those copies that are not timed; then what each of the two ways allocates."""
            held = [alloc(size, WORKSPACE) for size in operands + copies]
            for way in (plain, padded):
                for flushed in (False, True):
                    flush = [alloc(self.l2_cache_bytes, WORKSPACE)] if flushed else []
                    made = [alloc(size, WORKSPACE) for size in way]
                    self.product()
                    free(*made, *flush)
            free(*held)

        if name == "evaluation":
            timed([x, weight], [logits], [], [padded_weight, padded_logits])
        elif name == "forward":
            if s.half:  # gradient and weight are made padded
                timed([logits, weight], [x], [padded_logits, padded_weight], [x])
            else:
                timed([logits, weight], [x], [padded_logits], [padded_weight, x])
            timed([logits, x], [weight], [], [padded_logits, padded_weight])

    # train.py

    def weights(self) -> None:
        """model.to(device): each parameter in float32."""
        for elements in self.parameters.values():
            self.alloc(elements * FLOAT, WEIGHTS)

    def batch(self) -> tuple[int, int]:
        """X, Y on the card."""
        size = LONG * self.shape.N
        return self.alloc(size, TOKEN_IDS), self.alloc(size, TOKEN_IDS)

    def next_batch(self) -> None:
        """X, Y = get_batch(...): the old ones live on in the graph until its backward frees them."""
        self.ids = self.batch()

    def evaluation(self) -> None:
        """estimate_loss: its own X, Y, logits and loss, beside those of the training loop."""
        held: list[int] = []  # X, Y, logits, loss of the iteration before
        for _ in range(EVAL_SPLITS * EVAL_ITERS):
            ids = self.batch()
            self.free(*held[:2])
            found = self.call("evaluation", {})
            self.free(*held[2:])
            held = [*ids, found["logits"], found["loss"]]
        self.free(*held)

    def micro_step(self, first: bool) -> None:
        """Forward, next batch, backward; `first` of its update: gradients do not exist yet."""
        alloc, free = self.alloc, self.free
        kept = self.call("forward", {})
        if self.logits is not None and self.loss is not None:
            free(self.logits, self.loss)
        self.logits = kept.pop("logits")
        loss = kept.pop("loss")
        self.loss = self.scalar(LOGITS_AND_LOSS)  # loss / gradient_accumulation_steps
        free(loss)
        kept["tokens"], kept["targets"] = self.ids
        self.next_batch()
        scalars = []
        if self.config.dtype == "float16":
            if not self.has_scaler:  # GradScaler makes its scale and growth tracker when first asked
                self.scalar(OPTIMIZER_STATE)
                self.scalar(OPTIMIZER_STATE)
                self.has_scaler = True
            scalars.append(self.scalar(LOGITS_AND_LOSS))  # the scaled loss
        scalars.append(self.scalar(GRADIENTS_IN_FLIGHT))  # the gradient to start from, and its way to the graph
        if self.config.dtype == "float16":
            unscaled = self.scalar(GRADIENTS_IN_FLIGHT)
            tangent = self.scalar(GRADIENTS_IN_FLIGHT)
            free(unscaled)
        else:
            tangent = self.scalar(GRADIENTS_IN_FLIGHT)
        # autograd knows of no use of the logits but passes a gradient for each output: zeros, held to the end
        rows = self.shape.N * self.shape.V * self.shape.item
        self.tape.moment("backward pass of the loss")
        zeros = alloc(rows, LOGITS_AND_LOSS)
        found = self.call("backward", kept | {"logits": self.logits})
        free(zeros, tangent)
        new = {name: found[name] for name in self.parameters}
        if first:
            self.gradients = new
        else:
            free(*new.values())  # added into the old ones
        free(*reversed(scalars))

    def update(self, first: bool) -> None:
        """Unscale, clip, step, zero_grad; `first`: AdamW makes its state."""
        self.tape.moment("optimizer step")
        alloc, free, scalar = self.alloc, self.free, self.scalar
        flags = []
        if self.config.dtype == "float16":
            double = alloc(LONG, OPTIMIZER_TEMPORARIES)  # 1 / scale, in float64
            inverse = alloc(LONG, OPTIMIZER_TEMPORARIES)
            free(double)
            inverse_float = scalar()
            free(inverse)
            flag = scalar()
            flags = [scalar()]  # copies for the device, made even when there is only one
            copy = scalar()
            free(copy, inverse_float, flag)
        if self.config.grad_clip:
            self.clip()
        flags = [scalar(), *flags] if flags else []
        if first:
            for name in self.optimizer_order:
                size = self.parameters[name] * FLOAT
                scalar(OPTIMIZER_STATE)
                alloc(size, OPTIMIZER_STATE)
                alloc(size, OPTIMIZER_STATE)
        free(*flags)
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
