"""How many tokens the data of a config has: from its folder where that is here, else by its known name."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import OnecardError
from onecard.plan.data import NO_SIZES, DataSizes

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig


def sizes_of_data(config: RunConfig, search: Sequence[Path]) -> DataSizes:
    """Tokens in each split of the config's dataset, and where that was read; nothing is built, fetched or read whole.

    `search` are the folders in which the dataset's own may be.
    """
    from onecard.config.known_data import known_data
    from onecard.data.folders import find_folder

    folder = find_folder(config.dataset, search=search)
    if folder and find_spec("numpy"):
        from onecard.data.dataset import split_sizes, val_in_train_of  # imports NumPy: only for data that is here

        same = None
        try:
            train, val = split_sizes(folder)
            same = val_in_train_of(folder) if train and val else None
        except (OnecardError, OSError, ValueError):  # data that cannot be used has no size
            train = val = 0
        if train or val:
            return DataSizes(train_tokens=train or None, val_tokens=val or None, source=str(folder), val_in_train=same)
    known = known_data(config.dataset)
    if known is None or known.train_tokens is None:
        return NO_SIZES
    return DataSizes(
        train_tokens=known.train_tokens, val_tokens=known.val_tokens, source=f"nanoGPT's {known.name}", here=False
    )
