"""What is wrong with the data, found before training begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shlex import quote

from onecard import units
from onecard.data.dataset import Dataset, padded
from onecard.data.folders import LOSS_MASK, META
from onecard.data.indexed import is_indexed, last_tokens
from onecard.data.manifest import read_progress
from onecard.data.split import VAL_TOKENS, both_sides
from onecard.data.tokens import Tokens, first_outside, largest_id, looks_like_uint32, val_in_train
from onecard.errors import ConfigError
from onecard.files import free_name
from onecard.findings import Finding, Severity
from onecard.plan.data import val_same_as_train

USUAL_VOCABULARY = 50304  # GPT-2's in whole tiles: what a run has if nothing sets another
_LOOKED_AT, _ENOUGH = 100, 8  # documents whose last tokens tell whether an end of text is there


def check_dataset(
    dataset: Dataset, *, block_size: int, vocab_size: int, eval_block_size: int | None = None, eval_tokens: int = 0
) -> tuple[Finding, ...]:
    """What a person should know about the data; ConfigError if no run with it can work.

    `eval_tokens` is what one evaluation reads from a split. Every token is checked, so this takes as long as reading
    the files once, unless every id they can hold is in the vocabulary.
    """
    for split, tokens in (("train", dataset.train), ("val", dataset.val)):
        if fault := _unusable(dataset, tokens, split=split):
            raise fault
        _long_enough(tokens, split=split, block_size=block_size, eval_block_size=eval_block_size)
        if outside := first_outside(tokens, vocab_size=vocab_size):
            raise _damaged(dataset) or _outside(dataset, tokens, *outside, vocab_size=vocab_size)
    tiny = (_tiny_val(dataset, eval_tokens),) if len(dataset.val) < eval_tokens else ()
    return (*_same_splits(dataset), *_of_its_index(dataset), *tiny)


def data_findings(dataset: Dataset) -> tuple[Finding, ...]:
    """The first thing `check_dataset` would refuse for a run without settings of its own, as an error.

    Ids beyond the usual vocabulary, of data that does not state its own, are a warning: a run can set it. So is a
    validation split that is part of the training split.
    """
    splits = (("train", dataset.train), ("val", dataset.val))
    for split, tokens in splits:
        if fault := _unusable(dataset, tokens, split=split):
            return (_finding(fault, severity="error"),)
    vocab_size = dataset.model_vocab_size or USUAL_VOCABULARY
    for _, tokens in splits:
        if outside := first_outside(tokens, vocab_size=vocab_size):
            if damage := _damaged(dataset):
                return (replace(_finding(damage, severity="error"), fix="prepare the data again"),)
            outside_it = _finding(_outside(dataset, tokens, *outside, vocab_size=vocab_size), severity="warn")
            return (outside_it, *_same_splits(dataset), *_of_its_index(dataset))
    return (*_same_splits(dataset), *_of_its_index(dataset))


def _of_its_index(dataset: Dataset) -> Iterator[Finding]:
    """What datatrove's and Megatron's files leave open, and what lies beside them and would not be seen."""
    if dataset.held_out:
        yield Finding(
            rule="val-held-out",
            severity="info",
            sure="high",
            what=f"no file is for validation: it gets {dataset.held_out}, {len(dataset.val):,} tokens, and training "
            "does not read them",
            why="datatrove and Megatron write one set of files; an evaluation needs text that was not learned",
            fix="nothing; or put files of your own choice, with val in their names, beside the others",
        )
    first = dataset.train.files[0].path
    end = dataset.tokenizer.end_of_text if dataset.tokenizer else None
    if end is not None and is_indexed(first):
        last = last_tokens(first, most=_LOOKED_AT)
        if len(last) >= _ENOUGH and end not in last:
            yield Finding(
                rule="no-end-of-text",
                severity="warn",
                sure="high",
                what=f"documents follow each other without an end of text: none of the first {len(last):,} ends with "
                f"token {end:,}",
                why="the model then learns neither where a text ends nor that the next one is another",
                fix="make the tokens again with it: eos_token in datatrove, --append-eod in Megatron",
                seen=(f"{first}: the documents end with {', '.join(map(str, last[:5]))}, …",),
            )
    if (mask := first.with_name(first.name + LOSS_MASK)).exists():
        yield Finding(
            rule="loss-mask-ignored",
            severity="warn",
            sure="high",
            what=f"{mask} says which tokens to learn, and that is not used: all of them are learned",
            why="datatrove writes it for texts of which only a part, such as the answers, should be learned",
            fix="nothing, if all of the text should be learned",
        )


def _same_splits(dataset: Dataset) -> tuple[Finding, ...]:
    where = val_in_train(dataset.train, dataset.val)
    return (val_same_as_train(where, source=_names(dataset.val)),) if where else ()


def _finding(fault: ConfigError, *, severity: Severity) -> Finding:
    return Finding(rule=fault.name, severity=severity, sure="high", what=fault.what, why=fault.why, fix=fault.fix)


def _unusable(dataset: Dataset, tokens: Tokens, *, split: str) -> ConfigError | None:
    """Why no run can use a split: too few tokens for any block_size, or tokens of another type than expected."""
    if len(tokens) < 2:
        return _empty(dataset, tokens, split=split)
    if not dataset.dtype_is_known and looks_like_uint32(tokens):
        return _wrong_dtype(dataset, tokens)
    return None


def _long_enough(tokens: Tokens, *, split: str, block_size: int, eval_block_size: int | None) -> None:
    is_val, longest = split == "val", len(tokens) - 1
    key, needed = ("eval_block_size", eval_block_size) if is_val and eval_block_size else ("block_size", block_size)
    if needed > longest:
        keys = ["eval_block_size"] if is_val else ["block_size"]
        if not is_val and (eval_block_size or 0) > longest:  # it must not be longer than block_size
            keys.append("eval_block_size")
        raise ConfigError(
            f"{_names(tokens)} has {len(tokens):,} tokens, but one sequence needs {needed + 1:,}",
            why=f"a sequence is {key}={needed} tokens, and the token after them to predict",
            fix=f"{' '.join(f'--{each}={longest}' for each in keys)} or less, or more {split} data",
            name="data-too-short",
        )


def _names(tokens: Tokens) -> str:
    return ", ".join(str(file.path) for file in tokens.files[:3])


def _empty(dataset: Dataset, tokens: Tokens, *, split: str) -> ConfigError:
    progress = read_progress(dataset.folder)
    options = both_sides(progress.counts.lowest, dataset.folder) if progress else f"--out {free_name(dataset.folder)}"
    by_index = dataset.documents is not None and not progress
    return ConfigError(
        f"{_names(tokens) or dataset.path} has {units.things(len(tokens), 'token')}: there is nothing to "
        f"{'train on' if split == 'train' else 'validate with'}",
        why="data is split by document, and this split got none"
        if progress or by_index
        else "the shortest sequence is one token, and the token after it to predict",
        fix="use more documents, or put files named train and val into one folder"
        if by_index
        else f"onecard data prepare SOURCE {options}",
        name="data-too-short",
    )


def _wrong_dtype(dataset: Dataset, tokens: Tokens) -> ConfigError:
    return ConfigError(
        f"{tokens.files[0].path} looks like uint32 tokens, but would be read as uint16",
        why="every second 16-bit value is nearly 0, as the upper halves of 32-bit ids are",
        fix=f"""echo '{{"dtype": "uint32"}}' > {quote(str(dataset.folder / META))}   """
        """("uint16" if the data really is like that)""",
        name="wrong-dtype",
    )


def _damaged(dataset: Dataset) -> ConfigError | None:
    """The error if the data has an id outside its own stated vocabulary, which no vocab_size can fix."""
    own = dataset.vocab_size
    for tokens in (dataset.train, dataset.val):
        if own and (outside := first_outside(tokens, vocab_size=own)):
            position, token = outside
            path, index = tokens.file_at(position)
            return ConfigError(
                f"{path} has token id {token:,} at position {index:,}, but its own vocabulary has only {own:,} tokens",
                why="the file is damaged or has another type, or its meta.json or meta.pkl belongs to other data",
                fix=f"onecard data info {quote(str(dataset.path))}   (compares checksums, if there are any), "
                "then prepare the data again",
                name="token-out-of-range",
            )
    return None


def _outside(dataset: Dataset, tokens: Tokens, position: int, token: int, *, vocab_size: int) -> ConfigError:
    path, index = tokens.file_at(position)
    own = dataset.vocab_size
    return ConfigError(
        f"{path} has token id {token:,} at position {index:,}, but vocab_size is {vocab_size:,}",
        why="ids go from 0 to vocab_size - 1; the data was made with a larger vocabulary, or has another type",
        fix=f"--vocab_size={own} (the vocabulary that the data states)"
        if own
        else f"--vocab_size={_enough(dataset)} (or the size of this data's tokenizer), or prepare the data again",
        name="token-out-of-range",
    )


def _enough(dataset: Dataset) -> int:
    """A vocabulary that has every id of both splits: the usual one, or whole tiles."""
    largest = max(largest_id(dataset.train), largest_id(dataset.val))
    return max(USUAL_VOCABULARY, padded(largest + 1))


def _tiny_val(dataset: Dataset, eval_tokens: int) -> Finding:
    enough = max(VAL_TOKENS, eval_tokens)
    return Finding(
        rule="val-set-tiny",
        severity="warn",
        sure="high",
        what=f"the validation data has {len(dataset.val):,} tokens, fewer than one evaluation reads ({eval_tokens:,})",
        why="each evaluation reads all of it once, and so few tokens give a noisy loss",
        fix=f"split off at least {enough:,} tokens for validation, by document; or lower eval_iters",
        seen=(f"{dataset.val.files[0].path}: {len(dataset.val):,} tokens",),
    )
