"""How many tokens the data of a config has: from its folder where that is here, else by its known name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import OnecardError, unless_machine_failed
from onecard.plan.data import NO_SIZES, DataSizes

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.indexed_splits import Splits


def sizes_of_data(config: RunConfig, search: Sequence[Path]) -> DataSizes:
    """Tokens in each split of the config's dataset, and where that was read; nothing is built, fetched or read whole.

    `search` are the folders in which the dataset's own may be.
    """
    from onecard.config.known_data import known_data
    from onecard.data.folders import find_data

    try:
        path = find_data(config.dataset, search=search)
    except OnecardError as problem:  # a plan does not need the data: `train` will refuse it
        return unless_machine_failed(problem, DataSizes(source=config.dataset, problem=problem.what))
    if path:
        try:
            if (sizes := sizes_at(path)) != DataSizes(source=str(path)):
                return sizes
        except OnecardError as problem:  # a plan does not need the data: `train` will refuse it
            needs = problem.name == "missing-package"  # NumPy, for the indexes of datatrove and Megatron
            said = f"{problem.what}: {problem.fix}" if needs else problem.what
            return unless_machine_failed(problem, DataSizes(source=str(path), problem=said))
        except (OSError, ValueError) as problem:
            unread = DataSizes(source=str(path), problem=f"{path} cannot be read: {problem}")
            return unless_machine_failed(problem, unread)
    known = known_data(config.dataset)
    if known is None or known.train_tokens is None:
        return NO_SIZES
    return DataSizes(
        train_tokens=known.train_tokens, val_tokens=known.val_tokens, source=f"nanoGPT's {known.name}", here=False
    )


def sizes_at(path: Path) -> DataSizes:
    """Tokens in each split of the data at a path."""
    from onecard.data.dataset import splits_at

    splits = splits_at(path)
    train, val = (sum(file.count for file in files) for files in (splits.train, splits.val))
    return DataSizes(
        train_tokens=train or None,
        val_tokens=val or None,
        source=str(path),
        val_in_train=_val_in_train(splits) if train and val else None,
        held_out=splits.held_out,
    )


def _val_in_train(splits: Splits) -> str | None:
    """How validation is part of training, in words; None without NumPy, which compares the tokens."""
    from onecard.data.tokens import Tokens, val_in_train

    try:
        return val_in_train(Tokens(splits.train), Tokens(splits.val))
    except OnecardError as problem:
        if problem.name != "missing-package":
            raise
        return None
