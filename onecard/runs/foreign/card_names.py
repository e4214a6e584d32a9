"""The name of the card, wherever a log prints it: nanochat's banner, nvidia-smi's table, a script's own print."""

from __future__ import annotations

import re

from onecard.runs.foreign.shapes import Stated, StatementShape, shape


def _card(found: re.Match[str]) -> Stated:
    return Stated(printed={"card_name": found[1].strip()})


_ENDS = r"(?=\s{2,}|\s*[|,;:()\[\]'\"]|\s+(?:On|Off)\b|\s*$)"
STATEMENTS = tuple(
    StatementShape(format=None, needle=needle, pattern=shape(pattern + _ENDS), says=_card)
    for needle, pattern in (
        ("NVIDIA ", r"\b(NVIDIA (?:GeForce|RTX|GTX|TITAN|Tesla|Quadro|[ABHL]\d|G[BH]\d)[\w .+-]{0,40}?)"),
        ("Tesla ", r"\b(Tesla [A-Z]\d[\w-]{1,20})"),
        ("GeForce ", r"\b(GeForce [GR]TX [\w .-]{1,24}?)"),
    )
)
