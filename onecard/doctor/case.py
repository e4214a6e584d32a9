"""What the doctor knows about one run: the log, the config, the card, the data, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass

from onecard.config.resolve import Resolved
from onecard.plan.cards import Card, plain_card
from onecard.plan.data import DataSizes as DataSizes
from onecard.plan.place import Place
from onecard.runs.logged import LoggedRun, Message
from onecard.runs.records import End, Eval, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What follows from the log, the config and the card; None where nothing does. Seconds exclude evaluation and
    checkpoints."""

    params: int | None  # without position embeddings, as nanoGPT counts
    params_total: int | None
    tokens_per_step: int | None
    seconds_per_step: float | None  # median of steps without evaluation
    seconds_per_micro_batch: float | None
    tokens_per_second: float | None
    mfu: float | None  # of the dense peak of the cards it ran on: decision 9 of the contract
    too_fast: str | None  # why the card cannot have made this speed; then no share of its peak is known
    cards: int | None  # it ran on; None where nobody says and several processes were started
    printed_mfu: float | None  # what the log claims, median
    evaluation_seconds: float | None  # one evaluation with its checkpoint
    evaluation_share: float | None  # of all time
    evaluation_noise: float | None  # standard deviation of one validation loss from the next
    sampling_error: float | None  # recorded, over the windows: shared by evaluations that read the same ones
    last_step: int | None  # None too where the log does not say its steps: then records only have their order
    tokens: int | None
    seconds: float | None  # so far
    steps_to_go: int | None  # of a run that has ended: what a resume would have to do
    seconds_to_go: float | None
    best_val: Eval | None
    last_val: Eval | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Everything a rule may look at."""

    run: LoggedRun
    resolved: Resolved | None  # the config: from --config, a file that fits the log, the log, or the run folder
    card: Card | None  # it ran on; for a run that had none, the one the next is planned for
    data: DataSizes
    facts: Facts
    steps: tuple[Step, ...]
    evals: tuple[Eval, ...]
    other_bytes: int | None = None  # of the card, held by other programs; None where nobody said
    cardless: str | None = None  # `cpu` or `mps`, where it ran without a card
    next_folder: str | None = None  # for a run of ours: a free folder beside its own
    rejected: str | None = None  # the config that was given, and by whose tokens no card were that fast
    config_note: str = ""  # how its config was found, or why none of those that are there was taken

    @property
    def end(self) -> End | None:
        """How a run of ours ended; None if it was killed or is still going, and for other programs' runs."""
        return next((record for record in reversed(self.run.records) if isinstance(record, End)), None)

    @property
    def available_bytes(self) -> int | None:
        """What the driver may show for the run before the card is full; None without a card."""
        return max(0, self.card.allocatable_bytes - (self.other_bytes or 0)) if self.card else None

    @property
    def place(self) -> Place | None:
        """The card and what other programs hold of it, for planning; where nobody named a card, one of the size that an
        out-of-memory message states. None where neither is known."""
        card = self.card
        if card is None and (size := next(filter(None, map(_capacity, self.run.messages)), None)):
            card = plain_card(size, source="the out-of-memory message")
        return Place(card=card, other_bytes=self.other_bytes) if card else None


def _capacity(message: Message) -> int | None:
    size = message.values.get("capacity_bytes")
    return size if message.kind == "oom" and isinstance(size, int) and size > 0 else None
