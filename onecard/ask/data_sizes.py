"""How many tokens the data has that a config names, where its folder is there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.config.paths import expanded
from onecard.errors import OnecardError
from onecard.plan.data import DataSizes

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig


def sizes_of_data(config: RunConfig, beside: Path | None) -> DataSizes | None:
    """Tokens in each split of the config's dataset, and the folder they are in; None where it is not there or broken.

    The folder is looked for as `train` does, then from the folder `beside` (that of the config file or the log) and
    the one above it, as in a nanoGPT checkout. Only file sizes and descriptions are read. Nothing is built or fetched.
    """
    if find_spec("numpy") is None:  # which opens token files
        return None
    from onecard.data.dataset import split_sizes

    for folder in _places(config.dataset, beside):
        try:
            train, val = split_sizes(folder)
        except (OnecardError, OSError, ValueError):
            continue
        if train or val:
            return DataSizes(train_tokens=train or None, val_tokens=val or None, source=str(folder))
    return None


def _places(dataset: str, beside: Path | None) -> Iterator[Path]:
    """Folders where the data of that name may be, the likeliest first."""
    from onecard.data.dataset import SEARCH
    from onecard.data.stdlib import NAME as EMBEDDED
    from onecard.data.stdlib import cache_home

    if dataset == EMBEDDED:
        built = (cache_home(os.environ) / "data").glob(f"{EMBEDDED}-*")
        yield from sorted(built, reverse=True)[:1]
        return
    name = expanded(dataset)
    yield from (place / name for place in SEARCH)
    if beside is not None:
        yield from (Path(os.path.normpath(place / "data" / name)) for place in (beside, beside / ".."))
