"""The trackers that a run can send its records to, by name, and whether they are installed."""

from __future__ import annotations

from importlib.util import find_spec

from onecard.config.names import nearest
from onecard.config.schema import RunConfig
from onecard.errors import ConfigError, MachineError

LOGGERS = ("tensorboard", "wandb", "trackio")


def logger_names(config: RunConfig) -> list[str]:
    """The trackers a config asks for; nanoGPT's wandb_log asks for wandb. ConfigError for an unknown name."""
    names = config.loggers.replace(",", " ").lower().split()
    for name in names:
        if name not in LOGGERS:
            raise ConfigError(
                f"there is no logger {name}",
                why=f"the loggers are {', '.join(LOGGERS)}; records.jsonl is always written",
                fix=f"--loggers={nearest(name, LOGGERS) or 'tensorboard'}",
                name="unknown-logger",
            )
    return list(dict.fromkeys([*names, *(["wandb"] if config.wandb_log else [])]))


def check_loggers(config: RunConfig) -> None:
    """Refuse a tracker that is not installed before the run begins, when it is easy to fix.

    nanoGPT's wandb_log, which many configs carry along, only warns when the run starts.
    """
    asked = set(logger_names(config.replace({"wandb_log": False})))
    missing = sorted(name for name in asked if find_spec(name) is None)
    if missing:
        raise MachineError(
            f"loggers={config.loggers} needs {' and '.join(missing)}",
            why="it is not installed here",
            fix=f'pip install "onecard[log]"   (or only: pip install {" ".join(missing)})',
            name="missing-package",
        )
