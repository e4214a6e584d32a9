"""What a rule's docstring says, in its four parts."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from onecard.config.names import nearest
from onecard.doctor.live import LIVE
from onecard.doctor.rules import EVERY, NAMES, rule_name
from onecard.errors import UsageError

PARTS = ("What it sees", "Why it matters", "What to do", "When it is wrong")


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A rule in words."""

    name: str
    summary: str
    parts: dict[str, str]  # by PARTS


def explain(name: str) -> Explanation:
    """The explanation of the rule of that name; UsageError with the nearest name if there is none."""
    wanted = name.strip().lower().replace("_", "-")
    for rule in (*EVERY, *LIVE):
        if rule_name(rule) == wanted:
            return _read(wanted, inspect.getdoc(rule) or "")
    known = [*NAMES, *map(rule_name, LIVE)]
    near = nearest(wanted, known)
    raise UsageError(
        f'there is no rule "{name}"',
        why=f"{len(NAMES)} rules are known, such as {', '.join(NAMES[:3])}",
        fix=f"onecard doctor --explain {near}" if near else "docs/reference/rules.md lists them all",
        name="unknown-rule",
    )


def explanations() -> list[Explanation]:
    """Every rule in words, in their order."""
    return [explain(name) for name in NAMES]


def live_explanations() -> list[Explanation]:
    """What a run says of itself, in words."""
    return [explain(rule_name(finding)) for finding in LIVE]


def _read(name: str, docstring: str) -> Explanation:
    summary, _, rest = docstring.partition("\n\n")
    parts = {}
    for paragraph in rest.split("\n\n"):
        text = re.sub(r"\s+", " ", paragraph).strip()
        heading, colon, words = text.partition(": ")
        if colon and heading in PARTS:
            parts[heading] = words
    return Explanation(name=name, summary=re.sub(r"\s+", " ", summary).strip(), parts=parts)
