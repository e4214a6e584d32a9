"""Which device a run computes on, and how much of the card's memory it may take."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from onecard import units
from onecard.config.schema import RunConfig
from onecard.errors import ConfigError, MachineError, first_line
from onecard.machine import read_gpu
from onecard.models.ranks import ranks_of_torchrun
from onecard.plan.cards import Card, matching_cards


def choose_device(config: RunConfig) -> torch.device:
    """The device of `config.device`; auto is the first CUDA card, else the CPU. A card becomes the current one."""
    device = _device(config)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Triton, cuBLASLt and recorded graphs work on the current card
    return device


def _device(config: RunConfig) -> torch.device:
    if config.device == "auto":
        return _own_card() if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise ConfigError(
            f"device={config.device} is not a device",
            why="torch knows cuda, cuda:0, cpu and mps",
            fix="--device=auto",
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        reason = why_no_gpu()
        raise MachineError(
            f"device={config.device}, but torch sees no GPU",
            why=reason.why,
            fix=f"{reason.fix}; or use the CPU: --device=cpu",
            name="no-gpu",
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise MachineError(
            f"device={config.device}, but torch {torch.__version__} finds no Apple GPU",
            why="this is not a Mac with an Apple GPU, or torch was built without support for it",
            fix="--device=auto",
            name="no-gpu",
        )
    ranks = ranks_of_torchrun(os.environ)
    if ranks and ranks.world_size > 1 and str(device) not in ("cpu", "cuda"):
        raise ConfigError(
            f"device={config.device} is one device, and {ranks.world_size} processes need one each",
            why="each takes one card of its machine, in order; CUDA_VISIBLE_DEVICES chooses among them",
            fix="--device=auto",
            name="one-device-for-all",
        )
    return _own_card() if str(device) == "cuda" else device


def _own_card() -> torch.device:
    """The current card; of several processes that torchrun started on a machine, each has its own."""
    ranks = ranks_of_torchrun(os.environ)
    if ranks is None:
        return torch.device("cuda", torch.cuda.current_device())
    cards = torch.cuda.device_count()
    if ranks.local_size > cards:
        raise MachineError(
            f"{ranks.local_size} processes on this machine, and torch sees {units.things(cards, 'card')}",
            why="every process needs a card of its own",
            fix=f"torchrun --nproc_per_node={cards}",
            name="too-few-cards",
        )
    return torch.device("cuda", ranks.local_rank)


class NoGpu(NamedTuple):
    """Why torch sees no GPU, and what to do about it."""

    why: str
    fix: str


def why_no_gpu() -> NoGpu:
    """The reason torch gives for seeing no GPU; call it only where torch.cuda.is_available() is false."""
    if torch.version.cuda is None and torch.version.hip is None:
        card = read_gpu()
        seen = f", although the driver shows a {card.name}" if card else ""
        return NoGpu(
            f"torch {torch.__version__} is a build for the CPU only{seen}",
            "install a torch with CUDA (https://pytorch.org/get-started/locally has the command)",
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return NoGpu(f"CUDA_VISIBLE_DEVICES={hidden!r} hides every card", "unset CUDA_VISIBLE_DEVICES")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as problem:  # torch raises several kinds
        said = first_line(problem, 240)
    else:
        said = "no CUDA device answers"
    why = f"torch {torch.__version__} says: {said}"
    return NoGpu(why, "install or update the NVIDIA driver (nvidia-smi checks it)")


def device_here(config: RunConfig) -> tuple[torch.device, str | None]:
    """The device of `config.device`, or else the one this machine has, with a note: sampling works on any."""
    try:
        return choose_device(config), None
    except MachineError:
        device = choose_device(config.replace({"device": "auto"}))
        return device, f"device={config.device} is not available: using {device.type}"


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
