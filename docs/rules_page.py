"""Writes the reference page of the doctor's rules from their docstrings."""

from __future__ import annotations

from onecard.doctor.explain import Explanation, explanations, live_explanations


def rules_page() -> str:
    """The page: every rule with the four parts of its docstring, in the order in which the doctor checks them."""
    rules, live = explanations(), live_explanations()
    lines = [
        "# Rules of the doctor",
        "",
        f"`onecard doctor` has {len(rules)} rules; `onecard doctor --explain RULE` prints one of these sections.",
        "Findings of equal severity are shown in this order: what to look at first. If a rule lacks something it needs",
        "(the config, the card, the size of the data), it reports nothing, or says that it is less sure.",
        "",
        *(f"- [{rule.name}](#{rule.name}): {rule.summary[0].lower()}{rule.summary[1:].rstrip('.')}" for rule in rules),
        "",
        "While a run trains, it also reports:",
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
