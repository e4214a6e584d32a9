"""The tokenizer of a run: the one kept in its folder, its data's, or GPT-2's by its vocabulary."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from onecard import units
from onecard.errors import ConfigError, OnecardError, unless_machine_failed
from onecard.inputs.config import open_data
from onecard.untrusted_json import BadJson, read_object

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.data.tokenizers import Tokenizer


VOCABULARY = "vocabulary.json"  # in a run folder: what meta.json says of the tokenizer in a data folder
_LONGEST_BYTES = 64 * units.MIB  # of that file


def keep_tokenizer_in(run: Path, dataset: Dataset) -> None:
    """Put the tokenizer of the data into a new run folder, which can then be moved without the data.

    Not beside a tokenizer.json that came with the weights: that one is the model's.
    """
    from onecard.data.tokenizer_files import JSON_FILE, keep_tokenizer
    from onecard.files import write_atomically

    if dataset.tokenizer and not (run / JSON_FILE).exists():
        said = keep_tokenizer(dataset.tokenizer, run)
        write_atomically(run / VOCABULARY, (json.dumps(said, ensure_ascii=False) + "\n").encode())


def _kept_in(run: Path) -> Tokenizer | None:
    """The tokenizer in a run folder; None if there is none, or none that makes sense."""
    from onecard.data.tokenizer_files import kept_tokenizer

    try:
        said = read_object(run / VOCABULARY, longest_bytes=_LONGEST_BYTES)
    except (FileNotFoundError, BadJson):
        return None
    return kept_tokenizer(run, said, environ=os.environ)


def tokenizer_of(run: Path, config: RunConfig, *, alone: bool = False) -> Tokenizer:
    """The tokenizer to sample a run with; ConfigError if it cannot be found out. `alone`: without reading its data."""
    from onecard.config.schema import GPT2_VOCABULARIES
    from onecard.data.tokenizer_files import JSON_FILE, find_tokenizer

    def named(name: str) -> Tokenizer:
        return find_tokenizer(name, ranks=None, environ=os.environ)

    if (run / JSON_FILE).is_file():
        return named(str(run / JSON_FILE))
    if kept := _kept_in(run):
        return kept
    try:
        tokenizer = None if alone else open_data(config).tokenizer
        problem = f"the {'run' if alone else 'data'} folder does not say how its tokens were made"
    except OnecardError as error:
        tokenizer, problem = None, unless_machine_failed(error, error.what)
    if tokenizer is None and config.vocab_size in GPT2_VOCABULARIES:  # as nanoGPT's sample.py assumes
        tokenizer = named("gpt2")
    if tokenizer is None:
        raise ConfigError(
            f"the tokenizer of {run} is not known",
            why=problem,
            fix=f"put the data's meta.pkl or meta.json beside its train.bin, or a tokenizer.json into {run}",
            name="no-tokenizer",
        )
    return tokenizer
