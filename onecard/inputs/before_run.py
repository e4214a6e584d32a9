"""Before a model runs: the config of a run folder, torch's environment, and whether the run can work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from onecard.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.findings import Finding

_DEVICE = re.compile(r"auto|(cuda|cpu|mps)(:\d+)?")


def torch_environment(config: RunConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables torch reads when it starts: allocator settings, where compiled code is kept; the user's own stay."""
    from onecard.config.command import ALLOCATOR_SETTINGS
    from onecard.data.home import can_write_user_home, writable_home

    home = writable_home(environment)
    settings = {
        "TORCHINDUCTOR_CACHE_DIR": str(home / "compiled"),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that cuda:1 is nvidia-smi's card 1, as in the plan
    }
    if not can_write_user_home():
        settings["TRITON_CACHE_DIR"] = str(home / "triton")
    if config.expandable_segments and not any(name in environment for name in ALLOCATOR_SETTINGS):
        settings |= dict.fromkeys(ALLOCATOR_SETTINGS, "expandable_segments:True")
    if config.deterministic:
        settings["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS may sum in any order
    return {name: value for name, value in settings.items() if name not in environment}


def torch_missing(why: str) -> MachineError | None:
    """The error for a machine without torch, which is not imported; None where it is installed."""
    if find_spec("torch") is not None:
        return None
    return MachineError("torch is not installed", why=why, fix='pip install "onecard[train]"', name="no-torch")


def config_of(run: Path, said: Mapping[str, object]) -> RunConfig:
    """The config of a run folder, from what its config.json says; keys of other versions are ignored."""
    from onecard.config.resolve import checked
    from onecard.config.schema import KEYS
    from onecard.runs.folder import CONFIG, RECORDS, without_former_keys

    try:
        known = {key: value for key, value in without_former_keys(said).items() if key in KEYS}
        return checked(known, dict.fromkeys(KEYS, CONFIG))
    except ConfigError as problem:
        raise ConfigError(
            f"{run / CONFIG} is damaged: {problem.what}",
            why="it should hold the settings of the run, and they are not valid",
            fix=f"rm {quote(str(run / CONFIG))}   (then the last start record of {run / RECORDS} gives the settings)",
            name="damaged-run",
        ) from problem


def check_keys(config: RunConfig) -> None:
    """Refuse what cannot work whatever the data and the card are, before torch is imported or data is opened."""
    from onecard.config.loggers import check_loggers

    if not _DEVICE.fullmatch(config.device):
        raise ConfigError(
            f"device={config.device} is not a device", why="torch knows cuda, cuda:0, cpu and mps", fix="--device=auto"
        )
    check_loggers(config)


def check_data(config: RunConfig, dataset: Dataset) -> tuple[Finding, ...]:
    """Findings about the data of a run; ConfigError for data that it cannot use."""
    from onecard.data.checks import check_dataset
    from onecard.models.evaluation import eval_tokens

    return check_dataset(
        dataset,
        block_size=config.block_size,
        vocab_size=config.vocab_size,
        eval_block_size=config.eval_block_size,
        eval_tokens=eval_tokens(config),
    )
