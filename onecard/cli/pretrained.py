"""init_from: a model that exists already, and whether its tokens are the data's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from onecard.errors import ConfigError, OnecardError

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.data.dataset import Dataset
    from onecard.data.tokenizers import Tokenizer
    from onecard.train.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A model to start from, and where it lay."""

    source: Path
    snapshot: Snapshot


def pretrained(resolved: Resolved) -> tuple[Resolved, Pretrained | None]:
    """(the config with the model's shape, the model cropped to the config's block_size); None from scratch."""
    from onecard.cli.import_run import bring
    from onecard.config.resolve import with_shape
    from onecard.train.snapshot import cropped

    name = resolved.config.init_from
    if not resolved.config.starts_pretrained:
        return resolved, None
    source, snapshot = bring(name)
    resolved = with_shape(resolved, snapshot.shape, origin=f"init_from={name}")
    return resolved, Pretrained(source=source, snapshot=cropped(snapshot, resolved.config.block_size, source=source))


def check_vocabulary(model: Pretrained, dataset: Dataset) -> list[str]:
    """What to know where a model meets data of another vocabulary; ConfigError where their tokenizers differ."""
    learned = model.snapshot.shape["vocab_size"]
    return check_tokens(model.source, learned, dataset, instead="--init_from=scratch")


def check_tokens(source: Path, learned: int, dataset: Dataset, *, instead: str) -> list[str]:
    """The same for the model of a run or a folder, with a vocabulary of `learned`; `instead` is what else to type."""
    from onecard.data.tokenizers import agree

    own, datas = _tokenizer_of(source), dataset.tokenizer
    if own and datas and not agree(own, datas):
        same = {"gpt2": "gpt2", "bytes": "bytes", "tokenizer.json": quote(str(source))}.get(own.name)
        prepare = f"onecard data prepare SOURCE --out DIR --tokenizer={same}, or " if same else ""
        raise ConfigError(
            f"{source} was trained on tokens of {own.name} ({own.vocab_size:,}), and {dataset.name} has those of "
            f"{datas.name} ({datas.vocab_size:,})",
            why="the same number is another text in each, and the model knows its own only",
            fix=f"{prepare}{instead}",
            name="other-tokenizer",
        )
    known = dataset.vocab_size
    if not (own and datas) and known and known < 0.9 * learned:
        return [
            f"{dataset.name} has a vocabulary of {known:,}, and {source} was trained with {learned:,}: "
            "with another tokenizer its weights know nothing of this text"
        ]
    return []


def _tokenizer_of(source: Path) -> Tokenizer | None:
    """The tokenizer that a run or a Hugging Face folder was trained with; None where it cannot be known."""
    from onecard.cli.settle import config_of
    from onecard.cli.tokenizer import tokenizer_of
    from onecard.data.tokenizer_files import JSON_FILE, find_tokenizer
    from onecard.runs.folder import is_run, load_run

    try:
        if is_run(source):
            return tokenizer_of(source, config_of(source, load_run(source).config))
        if (source / JSON_FILE).is_file():
            return find_tokenizer(str(source), ranks=None, environ=os.environ)
    except OnecardError:
        pass  # it does not say, or not here
    return None
