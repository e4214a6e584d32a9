"""The cards, wherever a log prints them: their name (nanochat's banner, nvidia-smi's table, a script's own print) and
their number (torchrun's command, nvidia-smi's table, a script's own print)."""

from __future__ import annotations

import re

from onecard.runs.foreign.shapes import Stated, StatementShape, printed_count, shape

_ROW = shape(r"^\| +(\d{1,3})  ")  # of a card in nvidia-smi's table


def _card(found: re.Match[str]) -> Stated:
    return Stated(printed={"card_name": found[1].strip(), **_number(found).printed})


def _number(found: re.Match[str]) -> Stated:
    row = _ROW.match(found.string)
    return Stated(printed={"card_number": int(row[1])} if row else {})


def _memory(found: re.Match[str]) -> Stated:
    return Stated(printed={"card_memory": int(found[1]) * 2**20})


def _ranks(found: re.Match[str]) -> Stated:
    return Stated(printed={"world_size": int(found[1]) + 1})


_ENDS = r"(?=\s{2,}|\s*[|,;:()\[\]'\"]|\s+(?:On|Off)\b|\s*$)"
STATEMENTS = (
    *(
        StatementShape(format=None, needle=needle, pattern=shape(pattern + _ENDS), says=_card)
        for needle, pattern in (
            ("NVIDIA ", r"\b(NVIDIA (?:GeForce|RTX|GTX|TITAN|Tesla|Quadro|[ABHL]\d|G[BH]\d)[\w .+-]{0,40}?)"),
            ("Tesla ", r"\b(Tesla [A-Z]\d[\w-]{1,20})"),
            ("GeForce ", r"\b(GeForce [GR]TX [\w .-]{1,24}?)"),
        )
    ),
    StatementShape(format=None, needle=":00.0 ", pattern=_ROW, says=_number),
    StatementShape(
        format=None,
        needle="MiB |",
        pattern=shape(r"^\| .{8,40}\| +(\d{1,7})MiB / +\d{1,7}MiB \|"),
        says=_memory,
    ),
    *(
        StatementShape(format=None, needle=needle, pattern=shape(pattern), says=printed_count("world_size"))
        for needle, pattern in (
            ("orld", r"(?i)world[ _]?size\b['\"]?(?: is)? ?(?::|=(?! ?1\b))? ?(\d{1,5})\b(?! ?[*/+-])"),
            ("--nproc", r"--nproc[-_]per[-_]node[= ](\d{1,3})\b"),
            (" GPUs", r"(?i)\b(?:using|on|number of gpus:?) (\d{1,5}) GPUs\b"),
        )
    ),
    StatementShape(format=None, needle="rank ", pattern=shape(r"^rank (\d{1,4}) sample \d"), says=_ranks),
)
