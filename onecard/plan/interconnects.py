"""What links cards: the published rates, and the share of them that sums of gradients were seen to reach."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onecard.plan.ranges import Range


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """A link between two cards, or between two machines."""

    name: str  # as it is typed
    title: str  # as people say it
    bytes_per_second: float  # published, one direction
    source: str
    reached: Range  # share of the published rate
    reached_source: str
    step_seconds: float  # a message without contents, from one card to the next
    between_machines: bool = False


def _pcie_bytes_per_second(transfers_per_second: float, lanes: int) -> float:
    """One bit a transfer and lane; of 130 bits, 128 are data."""
    return transfers_per_second * lanes * 128 / 130 / 8


# The shares that people measured with nccl-tests, which are few; between them, "likely" is a rule of thumb.
_PCIE = Range(low=0.44, likely=0.55, high=0.82)
_PCIE_SOURCE = (
    "0.44 and 0.56 with 8 and 4 RTX 5090 on PCIe 5 x16 (NVIDIA/nccl issue 1639); 0.82 with 4 RTX 4090 on PCIe 4 x16 "
    "and a driver changed to let cards reach each other (tinygrad/open-gpu-kernel-modules issue 36)"
)
_NVLINK = Range(low=0.67, likely=0.8, high=0.82)
_NVLINK_SOURCE = (
    "0.82 with 2 to 8 H100 (NVIDIA/nccl issue 1455), 0.67 with 8 A100 (NVIDIA/nccl-tests issue 149); sums inside the "
    "switch of an H100's machine are faster"
)
_BRIDGE = Range(low=0.39, likely=0.6, high=0.82)
_BRIDGE_SOURCE = f"0.39 with 2 H100 PCIe on bridges (NVIDIA/nccl-tests issue 194); {_NVLINK_SOURCE}"
_ETHERNET = Range(low=0.4, likely=0.6, high=0.9)
_ETHERNET_SOURCE = "0.6 at 32 Gb/s over TCP (NVIDIA/nccl issue 209); the rest a rule of thumb"
_RDMA = Range(low=0.6, likely=0.75, high=0.9)
_RDMA_SOURCE = "0.75 with 8 x 100 Gb/s (NVIDIA/nccl issue 495); the rest a rule of thumb"
_IN_A_BOX_SECONDS = 5e-6  # 6 microseconds for two steps between two cards at best, 42 for 14 among eight: nccl-tests
_TCP_SECONDS, _RDMA_SECONDS = 50e-6, 10e-6  # rules of thumb: 46 microseconds over TCP (NVIDIA/nccl-tests issue 82)


def _pcie(generation: int, lanes: int, gigatransfers: int) -> Interconnect:
    return Interconnect(
        name=f"pcie-{generation}-x{lanes}",
        title=f"PCIe {generation} x{lanes}",
        bytes_per_second=_pcie_bytes_per_second(gigatransfers * 1e9, lanes),
        source=f"PCI Express Base Specification {generation}.0: {gigatransfers} GT/s a lane, 128b/130b",
        reached=_PCIE,
        reached_source=_PCIE_SOURCE,
        step_seconds=_IN_A_BOX_SECONDS,
    )


def _nvlink(name: str, title: str, both_ways: float, source: str, *, bridge: bool = False) -> Interconnect:
    """`both_ways`: gigabytes a second of a card, both directions added up, as NVIDIA gives it."""
    return Interconnect(
        name=name,
        title=title,
        bytes_per_second=both_ways / 2 * 1e9,
        source=f"{source}: {both_ways:g} GB/s a card, both directions",
        reached=_BRIDGE if bridge else _NVLINK,
        reached_source=_BRIDGE_SOURCE if bridge else _NVLINK_SOURCE,
        step_seconds=_IN_A_BOX_SECONDS,
    )


def _ethernet(gigabits: int, standard: str) -> Interconnect:
    return Interconnect(
        name=f"ethernet-{gigabits}",
        title=f"{gigabits} Gb/s Ethernet",
        bytes_per_second=gigabits * 1e9 / 8,
        source=f"{standard}: {gigabits} Gb/s of data",
        reached=_ETHERNET,
        reached_source=_ETHERNET_SOURCE,
        step_seconds=_TCP_SECONDS,
        between_machines=True,
    )


def _infiniband(gigabits: int, generation: str) -> Interconnect:
    return Interconnect(
        name=f"infiniband-{gigabits}",
        title=f"{gigabits} Gb/s InfiniBand",
        bytes_per_second=gigabits * 1e9 / 8,
        source=f"InfiniBand Trade Association, roadmap: {generation}, {gigabits} Gb/s of data",
        reached=_RDMA,
        reached_source=_RDMA_SOURCE,
        step_seconds=_RDMA_SECONDS,
        between_machines=True,
    )


INTERCONNECTS = (
    _pcie(4, 8, 16),
    _pcie(4, 16, 16),
    _pcie(5, 16, 32),
    _nvlink("nvlink-2", "NVLink 2", 300, "NVIDIA V100 datasheet"),
    _nvlink("nvlink-3", "NVLink 3", 600, "NVIDIA A100 datasheet"),
    _nvlink("nvlink-3-bridge", "NVLink 3 bridge", 112.5, "NVIDIA GA102 whitepaper, RTX 3090", bridge=True),
    _nvlink("nvlink-4", "NVLink 4", 900, "NVIDIA H100 datasheet"),
    _nvlink("nvlink-5", "NVLink 5", 1800, "NVIDIA Blackwell datasheet"),
    _ethernet(10, "IEEE 802.3ae"),
    _ethernet(25, "IEEE 802.3by"),
    _ethernet(100, "IEEE 802.3ba"),
    _ethernet(400, "IEEE 802.3bs"),
    _infiniband(100, "EDR"),
    _infiniband(400, "NDR"),
)
WITHIN, BETWEEN = "pcie-4-x16", "ethernet-10"  # where nobody said: what most boards and offices have

_FAMILIES = {"pcie": "pcie", "nvlink": "nvlink", "ethernet": "ethernet", "gbe": "ethernet", "infiniband": "infiniband"}


def find_interconnect(name: str) -> Interconnect | None:
    """The link that a person means: `PCIe 4.0 x16`, `pcie-4-x16`, `100 Gb/s Ethernet`, `100GbE`, `nvlink-4`."""
    wanted = _sense(name)
    return next((each for each in INTERCONNECTS if _sense(each.name) == wanted), None) if wanted else None


def _sense(name: str) -> tuple[str, tuple[int, ...], bool] | None:
    """What a name says: a family, its numbers, and whether it is a bridge."""
    plain = re.sub(r"\.0\b", "", name.lower())
    family = next((family for word, family in _FAMILIES.items() if word in plain.replace(" ", "")), None)
    if family is None:
        return None
    return family, tuple(int(number) for number in re.findall(r"\d+", plain)), "bridge" in plain
