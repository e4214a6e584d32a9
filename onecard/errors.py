"""What goes wrong, told in three lines: what happened, why, what to type."""

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
    """What an error says, in one line of at most `longest` characters; what it is, where it says nothing."""
    (said, *_) = str(error).strip().splitlines() or [type(error).__name__]
    return said[:longest]


def kind_and_line(error: BaseException, longest: int = 600) -> str:
    """`ValueError: what it says`; what it is alone, where it says nothing"""
    kind, said = type(error).__name__, first_line(error, longest)
    return f"{kind}: {said}" if str(error).strip() else kind
