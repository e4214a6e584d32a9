"""The reference of the doctor's rules, from their docstrings."""

from __future__ import annotations

from onecard.doctor.explain import Explanation, explanations, live_explanations


def rules_page() -> str:
    """Every rule in the four parts of its docstring, in the order in which the doctor goes through them."""
    rules, live = explanations(), live_explanations()
    lines = [
        "# Rules of the doctor",
        "",
        f"`onecard doctor` knows {len(rules)} rules; `onecard doctor --explain RULE` prints one of these sections.",
        "They stand in the order in which findings of equal severity are shown: what to look at first. A rule that",
        "lacks what it needs (the config, the card, the size of the data) is silent, or says that it is less sure.",
        "",
        *(f"- [{rule.name}](#{rule.name}): {rule.summary[0].lower()}{rule.summary[1:].rstrip('.')}" for rule in rules),
        "",
        "While it trains, a run also tells of itself:",
        "",
        *(f"- [{rule.name}](#{rule.name}): {rule.summary[0].lower()}{rule.summary[1:].rstrip('.')}" for rule in live),
        "",
    ]
    return "\n".join(lines + [line for rule in [*rules, *live] for line in _section(rule)])


def _section(rule: Explanation) -> list[str]:
    lines = [f"## {rule.name}", "", rule.summary, ""]
    for heading, words in rule.parts.items():
        lines += [f"**{heading}.** {words[0].upper()}{words[1:]}", ""]
    return lines
