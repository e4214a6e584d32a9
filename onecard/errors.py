"""What goes wrong, in three lines: what happened, why, what to type."""

from __future__ import annotations


class OnecardError(Exception):
    """A problem the user can act on; `name` is its kebab-case name and docs anchor."""

    name = "error"
    exit_code = 2

    def __init__(self, what: str, *, why: str, fix: str, name: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        if name is not None:
            self.name = name
        self.add_note(f"  why: {why}\n  fix: {fix}")  # so that a traceback shows all three lines

    def as_json(self) -> dict[str, object]:
        """The error object of the contract."""
        error = {"name": self.name, "what": self.what, "why": self.why, "fix": self.fix}
        return {"schema": 1, "error": error}


class UsageError(OnecardError):
    """The command line itself is wrong: an unknown command, option or key."""

    name = "usage"


class ConfigError(OnecardError):
    """A config file or a --key=value that cannot be used."""

    name = "bad-config"


class UnknownCard(OnecardError):
    """A card name that matches nothing, or too much."""

    name = "unknown-card"


class MachineError(OnecardError):
    """The machine cannot do it: no GPU, no torch, disk full."""

    name = "machine"
    exit_code = 3


class DoesNotFit(OnecardError):
    """The answer is no: the card's memory is not enough."""

    name = "does-not-fit"
    exit_code = 1


def first_line(error: BaseException, longest: int = 600) -> str:
    """The first line of an error's message, at most `longest` characters; the kind of error where it is empty."""
    (said, *_) = str(error).strip().splitlines() or [type(error).__name__]
    return said[:longest]


def kind_and_line(error: BaseException, longest: int = 600) -> str:
    """`ValueError: message`; only the kind where there is no message."""
    kind, said = type(error).__name__, first_line(error, longest)
    return f"{kind}: {said}" if str(error).strip() else kind
