"""Which device and number types a run computes with, and how much of the card's memory it may take."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from onecard import units
from onecard.config.schema import RunConfig
from onecard.errors import ConfigError, MachineError

NATIVE_BFLOAT16 = (8, 0)  # compute capability of the first cards that multiply bfloat16 in hardware (Ampere)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The type matrices are multiplied in; weights, norms, softmax and losses stay float32."""

    device_type: str
    dtype: torch.dtype
    note: str | None = None  # said once, where the config's wish has no effect

    def autocast(self) -> AbstractContextManager[object]:
        """A context for forward passes; what it casts is cast once in each."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def grad_scaler(self) -> torch.amp.GradScaler:
        """A scaler that does something for float16 only; otherwise it passes everything through."""
        return torch.amp.GradScaler(self.device_type, enabled=self.dtype == torch.float16)


def choose_device(config: RunConfig) -> torch.device:
    """The device of `config.device`; auto is the first CUDA card, else the CPU."""
    if config.device == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise ConfigError(
            f"device={config.device} is not a device",
            why="torch knows cuda, cuda:0, cpu and mps",
            fix="--device=auto",
        ) from None
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device.type, True):
        raise MachineError(
            f"device={config.device}, and torch {torch.__version__} finds no such device here",
            why="no driver, no card, or a torch built without support for it",
            fix="--device=auto, or check the driver with nvidia-smi",
            name="no-gpu",
        )
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


def device_here(config: RunConfig) -> tuple[torch.device, str | None]:
    """The device of `config.device`, or the one there is and a word about it: a text may be made on any."""
    try:
        return choose_device(config), None
    except MachineError:
        device = choose_device(config.replace({"device": "auto"}))
        return device, f"device={config.device} is not here: {device.type} is used"


def choose_precision(config: RunConfig, device: torch.device) -> Precision:
    """What to compute in: auto is bfloat16 where it is native, else float16 with a scaler; float32 off CUDA."""
    if device.type != "cuda":
        note = None
        if config.dtype not in ("auto", "float32"):
            note = f"dtype={config.dtype} has no effect on {device.type}: float32 is used, as nanoGPT does"
        return Precision(device_type=device.type, dtype=torch.float32, note=note)
    name = config.dtype if config.dtype != "auto" else _native_half(torch.cuda.get_device_capability(device))
    return Precision(device_type="cuda", dtype=DTYPES[name])


def _native_half(capability: tuple[int, int]) -> str:
    # torch.cuda.is_bf16_supported() also says yes to emulation, which is slower than float32.
    return "bfloat16" if capability >= NATIVE_BFLOAT16 else "float16"


def allow_tf32(device: torch.device) -> None:
    """Let float32 products on a card use TF32, as nanoGPT does; on the CPU float32 stays float32."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True


def allocator_fraction(limit_bytes: int, *, context_bytes: int, total_bytes: int) -> float:
    """The share of the card that PyTorch's allocator may take, so that the driver shows at most `limit_bytes`.

    `context_bytes` is what the process holds beside the allocator, measured after the first tensor: kernels and
    libraries loaded later add to it, so leave room for them.
    """
    allocator_bytes = limit_bytes - context_bytes
    if allocator_bytes <= 0:
        raise ConfigError(
            f"memory_limit={units.mib(limit_bytes)} leaves nothing to train in",
            why=f"the CUDA context alone takes {units.mib(context_bytes)}",
            fix=f"--memory_limit={units.mib(context_bytes + units.GIB).replace(' ', '').replace(',', '')}",
            name="memory-limit",
        )
    return min(1.0, allocator_bytes / total_bytes)


def limit_memory(device: torch.device, limit_bytes: int, *, context_bytes: int) -> None:
    """Make the allocator run out of memory, catchably, before the driver shows more than `limit_bytes`."""
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    fraction = allocator_fraction(limit_bytes, context_bytes=context_bytes, total_bytes=total_bytes)
    torch.cuda.set_per_process_memory_fraction(fraction, device)
