"""How many tokens the data of a config has: from its folder where that is here, else by its known name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import OnecardError, unless_machine_failed
from onecard.plan.data import NO_SIZES, DataSizes

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig


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
    if path and find_spec("numpy"):
        from onecard.data.dataset import splits_at  # imports NumPy: only for data that is here
        from onecard.data.tokens import Tokens, val_in_train

        try:
            splits = splits_at(path)
            train, val = (sum(file.count for file in files) for files in (splits.train, splits.val))
            if train or val:
                return DataSizes(
                    train_tokens=train or None,
                    val_tokens=val or None,
                    source=str(path),
                    val_in_train=val_in_train(Tokens(splits.train), Tokens(splits.val)) if train and val else None,
                    held_out=splits.held_out,
                )
        except OnecardError as problem:  # a plan does not need the data: `train` will refuse it
            return unless_machine_failed(problem, DataSizes(source=str(path), problem=problem.what))
        except (OSError, ValueError) as problem:
            unread = DataSizes(source=str(path), problem=f"{path} cannot be read: {problem}")
            return unless_machine_failed(problem, unread)
    known = known_data(config.dataset)
    if known is None or known.train_tokens is None:
        return NO_SIZES
    return DataSizes(
        train_tokens=known.train_tokens, val_tokens=known.val_tokens, source=f"nanoGPT's {known.name}", here=False
    )
