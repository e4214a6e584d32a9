"""The data a run reads: how often, and whether its validation split is large enough to trust."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onecard import units
from onecard.config.command import flags_of
from onecard.config.schema import RunConfig
from onecard.findings import Finding
from onecard.models.evaluation import eval_tokens
from onecard.plan.speed import TrainerName

# Repeated tokens are worth nearly as much as new ones up to 4 epochs, and almost nothing after 16 (arXiv 2305.16264).
MANY_EPOCHS, FAR_TOO_MANY_EPOCHS = 4, 16
EPOCHS_BEYOND = 0.005  # tolerated: updates are whole, and the last may read a little more
WANTED_VAL_TOKENS = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSizes:
    """Tokens in each split; None where nobody knows."""

    train_tokens: int | None = None
    val_tokens: int | None = None
    source: str = ""  # the folder, the option or the table that says so
    held_out: str = ""  # in words, what validation takes from the files for training, where it has none of its own
    problem: str = ""  # why the data that is here cannot be used
    here: bool = True  # False for data that is known by its name only
    val_in_train: str | None = None  # how val is part of train, in words; "" where it is not, None where nobody looked

    def epochs(self, tokens: int) -> float | None:
        """How often `tokens` read the training split; None where its size is unknown."""
        return tokens / self.train_tokens if self.train_tokens else None


NO_SIZES = DataSizes()


def data_findings(config: RunConfig, data: DataSizes, trainer: TrainerName) -> Iterator[Finding]:
    """What the sizes of the data say about a run that has not started, where the data is here."""
    if not data.here:
        return
    yield from _too_many_epochs(config, data)
    if data.val_in_train:
        yield val_same_as_train(data.val_in_train, source=data.source)
    if data.val_tokens is not None and data.val_tokens < (read := tokens_per_evaluation(config, trainer)):
        yield val_set_tiny(data.val_tokens, read, trainer, seen=(f"{data.val_tokens:,} tokens in {data.source}",))


def _too_many_epochs(config: RunConfig, data: DataSizes) -> Iterator[Finding]:
    epochs = data.epochs(config.total_tokens)
    if epochs is None or data.train_tokens is None or epochs <= MANY_EPOCHS + EPOCHS_BEYOND:
        return
    steps = MANY_EPOCHS * data.train_tokens // config.tokens_per_step
    fewer = flags_of({"max_iters": steps, "lr_decay_iters": steps})
    shorter = f", or {fewer} for {MANY_EPOCHS} epochs" if steps else ""
    yield Finding(
        rule="too-many-epochs",
        severity="warn",
        sure="high",
        what=f"the run reads its training data {epochs:,.1f} times",
        why=f"{units.count(config.total_tokens)} tokens are planned and {data.source} has "
        f"{units.count(data.train_tokens)}; after {MANY_EPOCHS} epochs repeated data is worth less and less",
        fix=f"more data: at least {units.count(config.total_tokens / MANY_EPOCHS)} tokens{shorter}",
        seen=(f"{data.train_tokens:,} tokens in {data.source}", f"{config.total_tokens:,} tokens planned"),
    )


def val_same_as_train(where: str, *, source: str) -> Finding:
    """The finding about a validation split that is part of the training split, or all of it."""
    return Finding(
        rule="val-same-as-train",
        severity="warn",
        sure="high",
        what=f"the validation data {where}",
        why="the model is evaluated on text that it trains on: val shows nothing about new text, and overfitting is "
        "not seen",
        fix="split by document, and take the validation documents out of the training data "
        "(onecard data prepare does both)",
        seen=(source or "train and val compared, token by token",),
    )


def val_set_tiny(size: int, read: int, trainer: TrainerName, *, seen: tuple[str, ...]) -> Finding:
    """The finding about a validation split of `size` tokens where one evaluation asks for `read`."""
    ours = trainer == "onecard"
    again = f"each token is read {read / max(1, size):,.1f} times per evaluation"
    return Finding(
        rule="val-set-tiny",
        severity="warn",
        sure="high",
        what=f"the validation data has {size:,} tokens; one evaluation {'would read' if ours else 'reads'} {read:,}",
        why=f"{'each evaluation reads all of it, once' if ours else again}: the loss is of these few documents only",
        fix=f"set aside at least {max(WANTED_VAL_TOKENS, read):,} tokens for validation, split by document",
        seen=seen,
    )


def tokens_per_evaluation(config: RunConfig, trainer: TrainerName) -> int:
    """Validation tokens that one evaluation asks for."""
    if trainer == "onecard":
        return eval_tokens(config)
    return config.eval_iters * config.batch_size * config.block_size  # nanoGPT has no other keys for it
