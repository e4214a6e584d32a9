"""Reads runs from lines of bytes, in one pass, with little memory. No text makes it fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from onecard.errors import OnecardError
from onecard.runs.foreign import card_names, hf_trainer, llmc, messages, minimal, modded, nanochat, nanogpt
from onecard.runs.foreign.draft import Draft
from onecard.runs.foreign.shapes import RecordShape, StatementShape, shape
from onecard.runs.foreign.text import LONGEST_LINE_BYTES, decimals, segments, whole
from onecard.runs.logged import Line, LoggedRun, recorded_run
from onecard.runs.record_json import holds_record
from onecard.runs.records import Step

RECORDS: tuple[RecordShape, ...] = (
    *nanogpt.RECORDS,
    *llmc.RECORDS,
    *modded.RECORDS,
    *nanochat.RECORDS,
    *hf_trainer.RECORDS,
    *minimal.RECORDS,
)
STATEMENTS: tuple[StatementShape, ...] = (
    *nanogpt.STATEMENTS,
    *llmc.STATEMENTS,
    *modded.STATEMENTS,
    *nanochat.STATEMENTS,
    *hf_trainer.STATEMENTS,
    *card_names.STATEMENTS,
)

# A line is read only if it contains one of these. Most of them are ruled out for thousands of lines at once.
_WORDS = {
    *(known.needle for known in RECORDS),
    *(known.needle for known in STATEMENTS),
    *messages.NEEDLES,
    *("loss", "param", "batch", "iter", "step", "Overriding", "saving checkpoint"),
}
_NEEDLES = tuple(word.encode() for word in _WORDS if not any(other in word for other in _WORDS - {word}))
_LINES_AT_ONCE = 4096
_MOST_WRAPS = 8  # pieces into which a narrow terminal wraps one line
_LONGEST_WRAP = 400
_MOST_CONFIG_LINES, _MOST_FRAMES = 500, 200
_MOST_COMMON, _ENOUGH_DECIMALS = 4, 6
_CONFIG_LINE = shape(
    r"(?!Overriding)\s*(?:#|\w{1,64}(?:, ?\w{1,64}){0,8} *(?:: *\w{1,64} *)?[-+*/]?=(?!=)"
    r"|(?:import|from|if|else) |[)\]},'\"])"
)
_SAVED = shape(r"saving checkpoint to (\S{1,4096})")


def read_logs(lines: Iterable[bytes], *, source: str) -> tuple[LoggedRun, ...]:
    """The runs in a log, in order; OnecardError if nothing in it can be read."""
    beginning = list(islice(lines := iter(lines), _LINES_AT_ONCE))
    if hf_trainer.is_state(b"".join(beginning)):
        text = b"".join(_first_bytes(chain(beginning, lines), hf_trainer.LARGEST_STATE_BYTES)).decode(
            "utf-8", "replace"
        )
        if run := hf_trainer.state_run(text, source=source):
            return (run,)
        beginning = text.encode().splitlines(keepends=True)
    if beginning and holds_record(beginning[0]):
        return (recorded_run(chain(beginning, lines), source=source),)
    reading = _Reading(source)
    reading.read(chain(beginning, lines))
    runs = [draft.finish() for draft in reading.drafts if not draft.empty]
    if any(run.records for run in runs):  # a stage that trained nothing is not a run, unless it failed
        runs = [run for run in runs if run.records or any(said.kind in _FAILURES for said in run.messages)]
    if not runs:
        raise _nothing_read(source, reading)
    return tuple(runs)


class _Reading:
    """The state of reading a log: the runs found so far, and what the next line may continue."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.drafts = [Draft(source, first_line=1)]
        self.lines = 0
        self._wrapped: Line | None = None  # the beginning of a record
        self._oom: list[Line] = []
        self._frames: list[Line] | None = None  # of the current traceback
        self._raises = False  # the error that ends it is still to come
        self._announced: Line | None = None  # an error that the next line names
        self._in_config = False
        self._last_shape: RecordShape | None = None
        self._record_line = 0  # the last line that held a record
        self._expects_more = False
        self._long = False  # there are too many steps to keep all
        self._records, self._statements = RECORDS, STATEMENTS  # the shapes that may be in the current lines

    def read(self, lines: Iterator[bytes]) -> None:
        """Read to the end."""
        previous = b""
        while batch := list(islice(lines, _LINES_AT_ONCE)):
            together = b"".join(batch)
            if b"\0" in together:  # UTF-16, as PowerShell writes it: everything we read in a log is ASCII
                batch = [raw.translate(None, b"\0") for raw in batch]
                together = b"".join(batch)
            needles = self._look_for(together)
            for piece in batch:
                raw, goes_on = _after_cut(piece, previous), _is_cut(previous)
                self.lines += not goes_on
                if goes_on and not raw:
                    pass
                elif self._expects_more:
                    self._line(raw, previous)
                elif not (self._long and self._spares(raw)):
                    for needle in needles:
                        if needle in raw:
                            self._line(raw, previous)
                            break
                previous = piece
        self._give_up_wrapped(at_end=True)
        self._end_oom()
        if self._announced:
            self._other(Line(self._announced.number, ""))
        self.draft.last_line = self.lines

    def _look_for(self, together: bytes) -> Sequence[bytes]:
        """The needles that occur in these lines; also selects the shapes that these lines can have."""
        if self._long or b"\x1b" in together:  # nearly every line is a step, or colour codes may split a needle
            self._records, self._statements = RECORDS, STATEMENTS
            return _NEEDLES
        present = [needle for needle in _NEEDLES if needle in together]
        words = [needle.decode() for needle in present]
        self._records = tuple(known for known in RECORDS if _occurs(known.needle, words, together))
        self._statements = tuple(known for known in STATEMENTS if _occurs(known.needle, words, together))
        return present

    @property
    def draft(self) -> Draft:
        return self.drafts[-1]

    def _spares(self, raw: bytes) -> bool:
        """Whether the line is a step that will not be kept: the fast path through a long log."""
        known, draft = self._last_shape, self.drafts[-1]
        found = known.pattern.search(raw.decode("latin-1")) if known else None
        if not found or not found["loss"][-1].isdigit() or (step := int(found["step"])) <= draft.last_step:
            return False
        if not draft.steps.spares(step):
            return False
        draft.last_step = step
        draft.read_lines += 1
        self._record_line = self.lines
        return True

    def _line(self, raw: bytes, previous: bytes) -> None:
        for text in segments(raw):
            line = Line(self.lines, text)
            begun = self._wrapped is not None  # if so, try its rest first: `val loss 3.3` can also be a record
            if self._oom and not self._goes_on(line):
                self._end_oom()
            if (not begun and self._record(line)) or self._continued(line, previous) or (begun and self._record(line)):
                self._in_config = False
                self._frames = None
                self._raises = False
            elif not (self._config_line(line) or self._statement(line)):
                self._other(line)
        self._expects_more = bool(self._wrapped or self._in_config or self._oom or self._raises or self._announced)
        known = self._last_shape
        self._long = bool(
            self.draft.steps.one_in > 1 and known and known.kind is Step and "step" in known.pattern.groupindex
        )

    def _record(self, line: Line, *, across: int = 0) -> bool:
        """Add the record in a line. If the line was joined from two at `across`, the record must span that position."""
        last, shapes = self._last_shape, RECORDS if across else self._records
        for known in (last, *shapes) if last else shapes:
            found = known.pattern.search(line.text) if known.needle in line.text else None
            if found and self._whole(known, found) and (not across or found.start() < across < found.end()):
                self._take(known, found, line)
                return True
        return False

    def _whole(self, known: RecordShape, found: re.Match[str]) -> bool:
        """Whether the loss has all its decimals: a number that is cut off must not be read as another loss.

        The program's other lines show how many decimals it prints. Six are enough if it prints all it has.
        """
        if found.end("loss") < len(found.string) or (not found["loss"][-1].isdigit() and found["loss"][-1] != "."):
            return True
        return decimals(found["loss"]) >= min(_ENOUGH_DECIMALS, self._usual_decimals(known, found) or _MOST_COMMON)

    def _usual_decimals(self, known: RecordShape, found: re.Match[str]) -> int | None:
        """The number of decimals in losses of this kind; None before the first loss."""
        last = (self.draft.steps if known.kind is Step else self.draft.evals).last
        texts = (last.loss if last else None, found.groupdict().get("train"))
        return max((decimals(text) for text in texts if text), default=None)

    def _take(self, known: RecordShape, found: re.Match[str], line: Line) -> None:
        self._wrapped = None
        self._last_shape = known
        self._record_line = self.lines
        sighting = self.draft.sighting(known, found, line)
        if self.draft.contradicts(sighting):
            self._next_run(line)
            sighting = self.draft.sighting(known, found, line)
        self.draft.add(sighting)

    def _continued(self, line: Line, previous: bytes) -> bool:
        """Whether the line is the rest of a record that a narrow terminal wrapped."""
        begun = self._wrapped
        if begun is None and self._record_line < line.number - 1 and _TOKEN_CUT.search(previous[-16:]):
            before = segments(previous[-_LONGEST_WRAP:])
            begun = Line(line.number - 1, before[-1]) if before else None
        if begun and len(begun.text) + len(line.text) <= _LONGEST_WRAP and line.number - begun.number <= _MOST_WRAPS:
            for between in ("", " "):  # a terminal drops a space at its edge
                joined = Line(begun.number, begun.text + between + line.text)
                if self._record(joined, across=len(begun.text)):
                    return True
            if self._wrapped and not _begins(line.text):
                self._wrapped = Line(begun.number, begun.text + line.text)
                return False
        self._give_up_wrapped()
        if _begins(line.text):
            self._wrapped = line
        return False

    def _give_up_wrapped(self, *, at_end: bool = False) -> None:
        """Stop waiting for the rest of a wrapped record, and add the part that is complete."""
        begun, self._wrapped = self._wrapped, None
        if begun is None:
            return
        for known in RECORDS:
            if known.cut and (found := known.cut.search(begun.text)):
                self._take(known, found, begun)
                return
            # the line was not wrapped after all: this program prints few decimals
            found = known.pattern.search(begun.text)
            if found and not at_end and self._usual_decimals(known, found) is None:
                self._take(known, found, begun)
                return

    def _config_line(self, line: Line) -> bool:
        """Whether the line belongs to the config file that nanoGPT prints unchanged."""
        if not self._in_config or not _CONFIG_LINE.match(line.text):
            return False
        if len(self.draft.config_source) < _MOST_CONFIG_LINES:
            self.draft.config_source.append(line)
            self.draft.read_lines += 1
        return True

    def _statement(self, line: Line) -> bool:
        if nanogpt.CONFIG_BEGINS.search(line.text):
            if self.draft.has_records or self.draft.begun:
                self._next_run(line)
            self._in_config = True  # nanoGPT can take several files, one after the other
            self.draft.read_lines += 1
            self.draft.formats.setdefault("nanogpt", 0)
            return True
        if found := nanogpt.PARAMETER_TENSORS.search(line.text):
            self._in_config = False
            self._add_tensors(found, line)
            return True
        for known in self._statements:
            if known.needle in line.text and (found := known.pattern.search(line.text)):
                if known.begins and (self.draft.has_records or self.draft.begun):
                    self._next_run(line)
                self._in_config = False
                self.draft.state(known, found, line)
                return True
        return False

    def _add_tensors(self, found: re.Match[str], line: Line) -> None:
        """Add up the two lines that nanoGPT prints: decayed and other parameters. Their sum is all parameters."""
        draft = self.draft
        draft.read_lines += 1
        draft.formats.setdefault("nanogpt", 0)
        draft.printed[found["kind"]] = whole(found["count"])
        draft.printed_lines[found["kind"]] = line
        both = [draft.printed.get(kind) for kind in ("decayed", "non-decayed")]
        if all(isinstance(count, int) for count in both):
            draft.printed["printed_params_total"] = sum(both)  # type: ignore[arg-type]
            draft.printed_lines["printed_params_total"] = line

    def _other(self, line: Line) -> None:
        """Read a line that is neither record nor statement: config text, a message, a traceback frame, or nothing."""
        if self._announced:
            line, self._announced = Line(self._announced.number, f"{self._announced.text} {line.text}".rstrip()), None
        elif messages.named_below(line.text):
            self._announced = line
            return
        if self._oom or messages.out_of_memory(line.text):
            self._in_config = self._raises = False
            self._oom.append(line)
        elif messages.TRACEBACK in line.text:
            self._in_config = False
            self._frames = []
            self._raises = True
        elif message := messages.message_in(line) or (self._raises and messages.raised(line)) or None:
            self._raises = False
            self.draft.say(message)
        elif "saving" in line.text and (found := _SAVED.search(line.text)):
            self.draft.save(line, found[1])
        elif self._frames is not None and len(self._frames) < _MOST_FRAMES and messages.frame(line.text):
            self._frames.append(line)

    def _goes_on(self, line: Line) -> bool:
        """Whether an out-of-memory message continues on this line."""
        return messages.oom_goes_on(line.text) and len(self._oom) < messages.MOST_OOM_LINES

    def _end_oom(self) -> None:
        if self._oom:
            self.draft.say(messages.oom_message(tuple(self._oom), self._frames))
            self._oom = []
            self._frames = None

    def _next_run(self, line: Line) -> None:
        """Start another run at this line."""
        self.draft.last_line = line.number - 1
        self.drafts.append(Draft(self.source, first_line=line.number))


def _first_bytes(lines: Iterable[bytes], most: int) -> Iterator[bytes]:
    """The lines of about the first `most` bytes."""
    for line in lines:
        yield line
        most -= len(line)
        if most < 0:
            return


def _is_cut(piece: bytes) -> bool:
    """Whether a long line goes on in the next piece."""
    return len(piece) >= LONGEST_LINE_BYTES and not piece.endswith(b"\n")


def _after_cut(piece: bytes, previous: bytes) -> bytes:
    """What to read of a piece: all of it, or, if a text was cut in the middle, what follows that text."""
    if not _is_cut(previous) or previous.endswith(b"\r"):
        return piece
    return piece.partition(b"\r")[2]


# The start of a record that is cut off: its first word and number, then nothing or only the loss.
_RECORD_BEGINS = shape(
    r"(?:iter|[Ss]tep)[ :]{0,5}(?:$|\d{1,12}(?:[:,]? ?\w{0,5} ?\w{0,4} ?$|[:,]? (?:train )?loss|[/ ][\d(|]|/?$))"
    r"|\bs:\d{0,12} ?(?:t|$)|\{'(?:eval_)?loss"
)
_BEGINNINGS = ("iter", "tep", "s:", "{'")
_TOKEN_CUT = re.compile(rb"(?:i|it|ite|[sS]|[sS]t|[sS]te|\{|\{'\w{0,9})\s*$")
_FAILURES = ("oom", "compile-failed", "crash")


def _begins(text: str) -> bool:
    """Whether a line without a complete record may be the start of one."""
    return any(word in text for word in _BEGINNINGS) and _RECORD_BEGINS.search(text[-_LONGEST_WRAP:]) is not None


def _occurs(needle: str, words: Sequence[str], together: bytes) -> bool:
    """Whether a needle occurs in the lines; `words` are the shorter words known to occur."""
    return any(word in needle for word in words) and needle.encode() in together


def _nothing_read(source: str, reading: _Reading) -> OnecardError:
    if reading.lines == 0:
        return OnecardError(
            f"{source} is empty",
            why="a log has lines such as `iter 100: loss 4.1234, time 250.00ms, mfu 30.00%`",
            fix="give the file that holds the training program's output",
            name="empty-log",
        )
    return OnecardError(
        f"no run was found in {source}",
        why=f"none of its {reading.lines:,} lines looks like a loss, a config or a known error message",
        fix="give a log of nanoGPT, nanochat, llm.c, modded-nanogpt or Hugging Face Trainer, or a onecard run folder",
        name="unreadable-log",
    )
