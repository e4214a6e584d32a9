"""Which device a run computes on, and how much of the card's memory it may take."""

from __future__ import annotations

import os

import torch

from onecard import units
from onecard.config.schema import RunConfig
from onecard.errors import ConfigError, MachineError
from onecard.machine import read_gpu
from onecard.plan.cards import Card, matching_cards


def choose_device(config: RunConfig) -> torch.device:
    """The device of `config.device`; auto is the first CUDA card, else the CPU. A card becomes the current one."""
    device = _device(config)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Triton, cuBLASLt and recorded graphs work on the current card
    return device


def _device(config: RunConfig) -> torch.device:
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


def card_of(device: torch.device) -> Card | None:
    """The card table's row of a device; None off CUDA and for cards it does not know."""
    known = matching_cards(torch.cuda.get_device_name(device)) if device.type == "cuda" else ()
    return known[0] if len(known) == 1 else None


def cap_memory(device: torch.device, limit_bytes: int, *, context_bytes: int) -> None:
    """From now on the allocator runs out of memory, catchably, before the driver shows more than `limit_bytes`.

    The context is what the driver shows for this process beyond the allocator, or `context_bytes` where that is more
    (kernels are loaded as they are first used).
    """
    torch.zeros(1, device=device)
    status = read_gpu(device.index or 0)
    own = next((p.used_bytes for p in status.programs if p.pid == os.getpid()), None) if status else None
    shown = (own or 0) - torch.cuda.memory_reserved(device)
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    fraction = allocator_fraction(limit_bytes, context_bytes=max(context_bytes, shown), total_bytes=total_bytes)
    torch.cuda.set_per_process_memory_fraction(fraction, device)


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
            fix=f"--memory_limit={units.as_typed(context_bytes + units.GIB)}",
            name="memory-limit",
        )
    return min(1.0, allocator_bytes / total_bytes)
