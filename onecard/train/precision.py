"""Which number types a run computes with."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from onecard.config.schema import RunConfig
from onecard.plan.precision import OLDEST_OF_TRITON

NATIVE_BFLOAT16 = (8, 0)  # compute capability of the first cards that multiply bfloat16 in hardware (Ampere)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def runs_triton() -> bool:
    """Whether Triton, and so torch.compile, has kernels for this machine's card."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= OLDEST_OF_TRITON


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The type matrices are multiplied in; weights, norms, softmax and losses stay float32."""

    device_type: str
    dtype: torch.dtype
    note: str | None = None  # said once, where the config's dtype has no effect

    def autocast(self) -> AbstractContextManager[object]:
        """A context for forward passes; what it casts is cast once in each."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    def grad_scaler(self) -> torch.amp.GradScaler:
        """A scaler that does something for float16 only; otherwise it passes everything through."""
        return torch.amp.GradScaler(self.device_type, enabled=self.dtype == torch.float16)


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
