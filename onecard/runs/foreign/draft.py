"""A run while its log is read: records, statements and messages are added line by line until the run is over."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from onecard.config.reader import NotAConfig, read_config
from onecard.config.schema import KEYS, NANOGPT_KEYS
from onecard.runs.foreign.epochs import MOST_EPOCHS, steps_by_epoch, updates_per_epoch
from onecard.runs.foreign.shapes import RecordShape, StatementShape
from onecard.runs.logged import Line, LogFormat, LoggedRun, Message
from onecard.runs.records import Checkpoint, Record, Step

MOST_RECORDS = 50_000  # of a kind; beyond that, every second one is dropped, as often as needed
MOST_MESSAGES = 1_000  # of a kind
FIRST_STEP = 1  # programs count from 0 or from 1
SAME_FAILURE = 200  # lines
MOST_ODD = 1_000  # losses that are NaN or infinite
IN_USE = 2**30  # bytes that nvidia-smi shows on a card that a program uses


class Sighting(NamedTuple):
    """A record as found in the log; the record itself is built when the run is complete."""

    step: int
    loss: str
    line: Line
    found: re.Match[str]
    shape: RecordShape
    told: bool = True  # False: the log has no step, and `step` counts the losses so far

    @property
    def epoch(self) -> float | None:
        epoch = float(self.found["epoch"]) if "epoch" in self.found.re.groupindex else -1.0
        return epoch if 0 <= epoch < MOST_EPOCHS else None

    def record(self) -> Record:
        return self.shape.record(self.found, self.line, self.step)


@dataclass(slots=True)
class Sightings:
    """Sightings of one kind by step, thinned evenly if there are too many; NaN and infinite losses stay."""

    kept: list[Sighting] = field(default_factory=list)
    highest: int = -1  # the highest step, kept or not
    one_in: int = 1
    seen: int = 0
    odd: set[int] = field(default_factory=set)  # steps whose loss is NaN or infinite, up to MOST_ODD

    def add(self, sighting: Sighting) -> None:
        """Add a sighting whose step is higher than all before."""
        self.highest = sighting.step
        self.seen += 1
        odd = not sighting.loss[-1].isdigit() and len(self.odd) < MOST_ODD
        if odd:
            self.odd.add(sighting.step)
        if odd or (self.seen - 1) % self.one_in == 0:
            self.kept.append(sighting)
        if len(self.kept) > MOST_RECORDS:
            self.one_in *= 2
            numbered = enumerate(self.kept)
            self.kept = [kept for number, kept in numbered if number % 2 == 0 or kept.step in self.odd]

    def spares(self, step: int) -> bool:
        """Whether a sighting with a finite loss would be dropped; if so it is counted here and need not be added."""
        if step <= self.highest or self.seen % self.one_in == 0:
            return False
        self.highest = step
        self.seen += 1
        return True

    @property
    def last(self) -> Sighting | None:
        return self.kept[-1] if self.kept else None


@dataclass(slots=True)
class Draft:
    """What is known so far about the run being read."""

    source: str
    steps: Sightings = field(default_factory=Sightings)
    evals: Sightings = field(default_factory=Sightings)
    formats: dict[LogFormat, int] = field(default_factory=dict)
    config_source: list[Line] = field(default_factory=list)
    config: dict[str, object] = field(default_factory=dict)
    config_lines: dict[str, Line] = field(default_factory=dict)
    printed: dict[str, object] = field(default_factory=dict)
    printed_lines: dict[str, Line] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    said: dict[str, int] = field(default_factory=dict)  # messages by kind
    busy_cards: set[object] = field(default_factory=set)  # numbers of the cards in nvidia-smi's table: those in use
    listed_cards: set[object] = field(default_factory=set)  # and those that are not
    source_values: dict[str, tuple[object, Line]] = field(default_factory=dict)  # constants of the source, by our names
    checkpoints: list[tuple[int, Line, str]] = field(default_factory=list)
    last_step: int = -1
    allocated_bytes: int = 0  # as llm.c says
    position: int | None = None  # of a progress bar
    bar_total: int | None = None
    begun: bool = False  # the line that a program prints once at the start was seen
    ended: bool = False  # the line that it prints once at the end was seen
    first_line: int = 0
    last_line: int = 0
    read_lines: int = 0

    @property
    def empty(self) -> bool:
        return not (self.steps.kept or self.evals.kept or self.messages or self.config or self.printed)

    @property
    def has_records(self) -> bool:
        return bool(self.steps.kept or self.evals.kept)

    def contradicts(self, sighting: Sighting) -> bool:
        """Whether a record must belong to another run: it is not a repeated line, and its step number is lower than the
        last one or this run has already ended."""
        if self.ended and sighting.shape.kind is Step:
            return not self._repeats(sighting)
        return sighting.step < self.last_step and not self._repeats(sighting)

    def add(self, sighting: Sighting) -> None:
        """Add a record, unless it repeats an earlier one."""
        self.read_lines += 1
        sightings = self._of(sighting)
        if sighting.step <= sightings.highest and (sighting.told or self._follows_itself(sighting)):
            return
        self.last_step = max(self.last_step, sighting.step)
        self.formats[sighting.shape.format] = self.formats.get(sighting.shape.format, 0) + 1
        sightings.add(sighting)
        if "of" in sighting.found.re.groupindex and "max_iters" not in self.config and sighting.found["of"]:
            self.config["max_iters"] = int(sighting.found["of"])
            self.config_lines["max_iters"] = sighting.line

    def state(self, shape: StatementShape, found: re.Match[str], line: Line) -> None:
        """Add what a line states. A later statement wins: nanoGPT prints overrides last."""
        self.read_lines += 1
        said = shape.says(found)
        if shape.format:
            self.formats.setdefault(shape.format, 0)
        for key, value in said.config.items():
            self.config[key] = value
            self.config_lines[key] = line
        for name, value in said.source.items():
            self.source_values[name] = (value, line)
        if isinstance(allocating := said.printed.get("allocating_bytes"), int):  # llm.c announces each part
            self.allocated_bytes += allocating
            self.printed["printed_allocated_bytes"] = self.allocated_bytes
            self.printed_lines["printed_allocated_bytes"] = line
        for name, value in said.printed.items():
            if name == "world_size" and isinstance(value, int):  # the largest: every rank says its own number
                value = max(value, int(str(self.printed.get(name, 0))))
            self.printed[name] = value
            self.printed_lines[name] = line
        if isinstance(used := said.printed.get("card_memory"), int):
            (self.busy_cards if used >= IN_USE else self.listed_cards).add(self.printed.get("card_number"))
        if said.position and self.bar_total in (None, said.position[1]):  # other bars belong to evaluations
            self.position, self.bar_total = said.position
        self.begun = self.begun or shape.begins
        self.ended = self.ended or "printed_seconds" in said.printed

    def sighting(self, known: RecordShape, found: re.Match[str], line: Line) -> Sighting:
        """A record with its step: as printed, else from its epoch or the progress bar, else by counting losses."""
        step = self._told_step(found)
        counted = max(self.last_step, 0) + (known.kind is Step)
        return Sighting(counted if step is None else step, found["loss"], line, found, known, told=step is not None)

    def _told_step(self, found: re.Match[str]) -> int | None:
        groups = found.re.groupindex
        if "step" in groups:
            return int(found["step"])
        if "epoch" in groups:
            total, epochs, epoch = self.config.get("max_iters"), self.printed.get("epochs"), float(found["epoch"])
            if isinstance(total, int) and isinstance(epochs, int) and epochs and 0 <= epoch <= epochs:
                return round(epoch / epochs * total)
            return self.position
        return max(self.last_step, 0)

    def say(self, message: Message) -> None:
        """Add a message. A failure that prints several lines is one message."""
        self.read_lines += len(message.lines)
        last = self.messages[-1] if self.messages else None
        near = last and last.kind == message.kind and message.lines[0].number - last.lines[-1].number < SAME_FAILURE
        if last and near and message.kind == "crash" and message.values.get("cause") == last.values.get("cause"):
            return  # every rank, or every thread of a card, says it
        if last and near and message.kind == "compile-failed":
            cause = last.values if last.values.get("cause") != "backend" else message.values
            self.messages[-1] = replace(last, lines=(*last.lines, *message.lines)[:8], values=cause)
        elif self.said.get(message.kind, 0) < MOST_MESSAGES:
            self.said[message.kind] = self.said.get(message.kind, 0) + 1
            values = {**message.values, "step": self.last_step} if self.last_step >= 0 else message.values
            tried = self.printed.get("allocating_bytes")
            if message.kind == "oom" and self.last_step < 0 and isinstance(tried, int):
                values = {"tried_bytes": tried, "allocated_bytes": self.allocated_bytes - tried, **values}
            self.messages.append(replace(message, values=values))

    def save(self, line: Line, path: str) -> None:
        """Add a checkpoint that was written after the last record."""
        self.read_lines += 1
        if len(self.checkpoints) < MOST_RECORDS:
            self.checkpoints.append((max(self.last_step, 0), line, path))

    def _of(self, sighting: Sighting) -> Sightings:
        return self.steps if sighting.shape.kind is Step else self.evals

    def _repeats(self, sighting: Sighting) -> bool:
        """Whether the same record was read before, because captures of a terminal overlap. The first line of a log or
        run is not an overlap: if it appears again, the log or run starts again."""
        kept = self._of(sighting).kept
        low, high = 0, len(kept)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if kept[middle].step < sighting.step else (low, middle)
        if low == 0 and (sighting.step <= FIRST_STEP or sighting.line.text == self._first_text):
            return False
        return low < len(kept) and (kept[low].step, kept[low].loss) == (sighting.step, sighting.loss)

    @property
    def _first_text(self) -> str | None:
        """The line of the first record of any kind; None before it."""
        lines = [sightings.kept[0].line for sightings in (self.steps, self.evals) if sightings.kept]
        return min(lines, key=lambda line: line.number).text if lines else None

    def _follows_itself(self, sighting: Sighting) -> bool:
        last = self._of(sighting).last
        return last is not None and last.line.text == sighting.line.text

    def _place(self) -> bool:
        """Find steps for records that print none, from their epochs; whether every record now has a known step."""
        losses, evaluations = self.steps.kept, self.evals.kept
        everyone = (*losses, *evaluations)
        if all(sighting.told for sighting in everyone):
            return True
        per_epoch = updates_per_epoch(self.printed, self.config.get("max_iters"), everyone)
        if per_epoch is None:
            return False
        steps = steps_by_epoch(losses, evaluations, per_epoch)
        trained, evaluated = pairwise(steps[: len(losses)]), pairwise(steps[len(losses) :])
        if any(after <= before for before, after in trained) or any(after < before for before, after in evaluated):
            return False  # a damaged log: its epochs are out of order
        placed = [sighting._replace(step=step) for sighting, step in zip(everyone, steps, strict=True)]
        self.steps.kept, self.evals.kept = placed[: len(losses)], placed[len(losses) :]
        return True

    def finish(self) -> LoggedRun:
        """The complete run."""
        told = self._place()
        self._conclude()
        values, lines, unresolved = self._dumped_config()
        counted = max(self.formats, key=lambda name: self.formats[name], default=None)
        if counted == "minimal" and "nanogpt" in self.formats:
            counted = "nanogpt"
        known = {name: self.printed[name] for name in _PRINTED if name in self.printed}
        return LoggedRun(
            source=self.source,
            format=counted or "messages",
            records=self._records(),
            config={**values, **self.config},
            config_lines={**lines, **self.config_lines},
            config_source=tuple(self.config_source),
            unresolved=frozenset(unresolved - self.config.keys()),
            printed=self.printed_lines,
            messages=tuple(self.messages),
            unread_lines=max(0, self.last_line - self.first_line + 1 - self.read_lines),
            kept_one_step_in=self.steps.one_in,
            steps_told=told,
            **known,  # type: ignore[arg-type]  # the readers state them in their types
        )

    def _conclude(self) -> None:
        """What follows from several lines: the tokens of an update, when the rate begins to fall, how many cards."""
        modded = self.formats.get("modded-nanogpt", 0) > 0
        if modded:
            self._read_source()
        # a table from before the start shows idle cards; modded-nanogpt trains on all of them
        cards = self.busy_cards or (self.listed_cards if modded else self.busy_cards)
        if len(cards) > 1 and "world_size" not in self.printed:
            self.printed["world_size"] = len(cards)
            self.printed_lines["world_size"] = self.printed_lines["card_memory"]

    def _read_source(self) -> None:
        """Settings by the constants of modded-nanogpt's source. It counts its batch in sequences."""
        found = {name: value for name, (value, _) in self.source_values.items()}
        update, cooldown, length = map(found.get, ("update_size", "cooldown_steps", "block_size"))
        end = self.config.get("max_iters", found.get("max_iters"))
        if isinstance(update, int):  # or in tokens, since it joins documents
            self.printed["printed_tokens_per_step"] = update * (length if isinstance(length, int) else 1)
            self.printed_lines["printed_tokens_per_step"] = self.source_values["update_size"][1]
        if isinstance(cooldown, int | float) and isinstance(end, int) and 0 < cooldown <= end:
            found["decay_share"] = cooldown / end
        if "decay_share" in found:
            self.config["schedule"] = "wsd"
        for key in found.keys() & KEYS.keys() - self.config.keys():
            self.config[key] = found[key]
            if key in self.source_values:
                self.config_lines[key] = self.source_values[key][1]

    def _records(self) -> tuple[Record, ...]:
        """Records and checkpoints in the order of the log."""
        records = [(s.line.number, s.record()) for s in (*self.evals.kept, *self.steps.kept)]
        best: dict[int, bool] = {}
        lowest = float("inf")
        for sighting in self.evals.kept:
            loss = float(sighting.loss)
            best[sighting.step] = loss < lowest
            lowest = min(lowest, loss) if loss == loss else lowest
        records += [(line.number, _checkpoint(step, line, path, best)) for step, line, path in self.checkpoints]
        return tuple(record for _, record in sorted(records, key=lambda pair: pair[0]))

    def _dumped_config(self) -> tuple[dict[str, object], dict[str, Line], set[str]]:
        """Values, their lines, and unresolved keys of the config that is printed in the log."""
        if not self.config_source:
            return {}, {}, set()
        numbered = self.config_source
        try:
            file = read_config("\n".join(line.text for line in numbered), _DEFAULTS)
        except NotAConfig:  # wrapped or damaged: read only the complete lines
            numbered = [line for line in numbered if _is_assignment(line.text)]
            file = read_config("\n".join(line.text for line in numbered), _DEFAULTS)
        lines = {key: numbered[number - 1] for key, number in file.lines.items() if number <= len(numbered)}
        return dict(file.values), lines, set(file.unresolved) & KEYS.keys()


_PRINTED = (
    "printed_params printed_params_total printed_tokens_per_step world_size card_name printed_flops_per_token "
    "printed_seconds_per_step printed_seconds printed_allocated_bytes".split()
)
_DEFAULTS = {key: KEYS[key].default for key in NANOGPT_KEYS - {"dtype"}} | {"device": "cuda"}


def _is_assignment(text: str) -> bool:
    try:
        return bool(read_config(text, _DEFAULTS).lines)
    except NotAConfig:
        return False


def _checkpoint(step: int, line: Line, path: str, best: dict[int, bool]) -> Checkpoint:
    return Checkpoint(
        step=step,
        tokens=None,
        path=path,
        seconds=None,
        reason="evaluation",
        best=best.get(step, False),
        more={"line": line},
    )
