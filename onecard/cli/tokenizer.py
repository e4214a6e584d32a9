"""The tokenizer of a run: the one it brought along, its config's, its data's, or GPT-2's by its vocabulary."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import ConfigError, OnecardError

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.tokenizers import Tokenizer


def tokenizer_of(run: Path, config: RunConfig) -> Tokenizer:
    """The tokenizer to sample a run with; ConfigError where nobody can say how its tokens were made."""
    from onecard.config.schema import GPT2_VOCABULARIES
    from onecard.data.dataset import open_dataset
    from onecard.data.stdlib import cache_home
    from onecard.data.tokenizer_files import JSON_FILE, find_tokenizer

    home = cache_home(os.environ)

    def named(name: str) -> Tokenizer:
        return find_tokenizer(name, ranks=None, home=home, environ=os.environ)

    if (run / JSON_FILE).is_file():
        return named(str(run / JSON_FILE))
    if config.tokenizer:
        return named(config.tokenizer)
    try:
        tokenizer = open_dataset(config.dataset, home=home, environ=os.environ).tokenizer
        problem = "the data folder does not say how its tokens were made"
    except OnecardError as error:
        tokenizer, problem = None, error.what
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
