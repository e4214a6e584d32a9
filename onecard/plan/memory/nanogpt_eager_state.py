"""What nanoGPT's eager program holds on to: sizes by name, parameters, and the helpers every part of it uses.

Letters: B sequences, T tokens each, N = B*T, C = n_embd, H heads of D values, V = vocab_size; FLOAT is 4 bytes,
`half` 2 (4 in float32, where autocast is off and nothing is cast).
"""

from __future__ import annotations

from functools import cached_property

from onecard.config.schema import RunConfig
from onecard.plan.memory import kernels
from onecard.plan.memory.device import DRIVER_BYTES, Device
from onecard.plan.memory.kernels import FLOAT
from onecard.plan.memory.tags import WORKSPACE
from onecard.plan.memory.tape import Tape

SCALAR = 4  # bytes of a 0-dimensional float32


class State:
    """The program between two events: its sizes, and which blocks its variables and PyTorch's caches hold."""

    def __init__(self, config: RunConfig, device: Device) -> None:
        self.config = config
        self.device = device
        self.tape = Tape()
        self.alloc = self.tape.alloc
        self.free = self.tape.free
        self.B, self.T, self.C = config.batch_size, config.block_size, config.n_embd
        self.H, self.D, self.V = config.n_head, config.head_size, config.vocab_size
        self.N = self.B * self.T
        self.is_half = config.dtype != "float32"  # autocast is on
        self.half = 2 if self.is_half else FLOAT
        self.kernel = device.attention_kernel(config.dtype, self.D, self.T)
        # whether attention saves copies of its own instead of qkv, and its output is copied before the projection
        self.copies_heads = self.kernel == "math" or (self.kernel == "flash" and self.D % 8 != 0)
        # sizes that occur again and again
        self.stream = self.N * self.C * FLOAT  # the residual stream and all that is added to it
        self.narrow = self.N * self.C * self.half  # a token's C values in the compute type
        self.mask = self.N * self.C  # a dropout mask: one byte a value
        self.rows = self.N * FLOAT  # one float32 a token
        # variables of train.py, and what PyTorch keeps behind them
        self.ids: tuple[int, int] = (0, 0)  # X, Y
        self.logits: int | None = None
        self.loss: int | None = None
        self.gradients: dict[str, int] = {}
        self.weight_casts: list[int] = []  # autocast's cache, emptied when the context exits
        self.bias_casts: list[int] = []
        self.handles: set[str] = set()  # threads that have a cuBLAS workspace
        self.loaded: set[str] = set()  # what the driver has made room for
        self.scaler_exists = False

    @cached_property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the linear layers of a block, by their names in model.py."""
        C = self.C
        return {"c_attn": (C, 3 * C), "attn.c_proj": (C, C), "c_fc": (C, 4 * C), "mlp.c_proj": (4 * C, C)}

    @cached_property
    def parameters(self) -> dict[str, int]:
        """Elements of each parameter, by a short name; those with ".weight" of two dimensions are decayed."""
        C, bias = self.C, self.config.bias
        found = {"wte.weight": self.V * C, "wpe.weight": self.T * C}
        for layer in range(self.config.n_layer):
            for name in ("ln_1", "c_attn", "attn.c_proj", "ln_2", "c_fc", "mlp.c_proj"):
                inputs, outputs = self.linears.get(name, (1, C))
                found[f"{layer}.{name}.weight"] = inputs * outputs
                if bias:
                    found[f"{layer}.{name}.bias"] = outputs
        found["ln_f.weight"] = C
        if bias:
            found["ln_f.bias"] = C
        return found

    @cached_property
    def optimizer_order(self) -> list[str]:
        """Parameters as configure_optimizers groups them: matrices and embeddings, then vectors."""
        names = self.parameters
        vectors = {name: None for name in names if name.endswith("bias") or name.split(".")[-2].startswith("ln_")}
        return [name for name in names if name not in vectors] + list(vectors)

    def replaced(self, block: int, size: int, tag: str) -> int:
        """A new block made from an old one, which is then freed: a cast, or an operation's gradient."""
        new = self.alloc(size, tag)
        self.free(block)
        return new

    def loads(self, what: str) -> None:
        """The first use of a kernel or library: the driver makes room for its code."""
        if what not in self.loaded:
            self.loaded.add(what)
            self.tape.driver_takes(*DRIVER_BYTES[what])

    def cublas(self, thread: str, *, with_lt: bool = False) -> None:
        """The workspace of a thread's first matrix product; cuBLASLt (products with a bias) has 1 MiB of its own."""
        if thread not in self.handles:
            self.handles.add(thread)
            self.loads(f"cublas {thread}")
            self.alloc(self.device.cublas_workspace_bytes, WORKSPACE)
            if with_lt:
                self.alloc(self.device.cublaslt_workspace_bytes, WORKSPACE)

    def column_sum(self, rows: int, size: int, columns: int, tag: str, replaces: int | None = None) -> int:
        """sum(0) of a matrix: the result, and the buffers of a reduction in two passes."""
        out = self.alloc(size, tag)
        buffers = kernels.column_sum_buffers(self.device, rows, columns)
        if buffers:
            partial, semaphores = (self.alloc(buffer, WORKSPACE) for buffer in buffers)
            self.free(semaphores, partial)
        if replaces is not None:
            self.free(replaces)
        return out
