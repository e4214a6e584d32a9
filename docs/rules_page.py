"""The reference of the doctor's rules, from their docstrings."""

from __future__ import annotations

from onecard.doctor.explain import explanations


def rules_page() -> str:
    """Every rule in the four parts of its docstring, in the order in which the doctor goes through them."""
    rules = explanations()
    lines = [
        "# Rules of the doctor",
        "",
        f"`onecard doctor` knows {len(rules)} rules; `onecard doctor --explain RULE` prints one of these sections.",
        "They stand in the order in which findings of equal severity are shown: what to look at first. A rule that",
        "lacks what it needs (the config, the card, the size of the data) is silent, or says that it is less sure.",
        "",
        *(f"- [{rule.name}](#{rule.name}): {rule.summary[0].lower()}{rule.summary[1:].rstrip('.')}" for rule in rules),
        "",
    ]
    for rule in rules:
        lines += [f"## {rule.name}", "", rule.summary, ""]
        for heading, words in rule.parts.items():
            lines += [f"**{heading}.** {words[0].upper()}{words[1:]}", ""]
    return "\n".join(lines)
