"""Writes the reference pages and the outputs shown in README from the code, so that they cannot become outdated.

python docs/generate.py            # `make docs`; a test fails if a page differs from what this writes
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import get_args

import click

from bench import onecard_speed
from docs import made_runs, memory_pages, trainer_pages
from docs.python_page import python_page
from docs.rules_page import rules_page
from docs.terminal_picture import terminal_svg
from onecard.cli.commands import cli
from onecard.cli.main import run
from onecard.config.schema import KEYS, RESUME, Effect
from onecard.inputs.make_plan import plan_named
from onecard.plan.cards import Card, known_cards
from onecard.plan.interconnects import INTERCONNECTS
from onecard.units import GIB, MIB

ROOT = Path(__file__).parents[1]
PICTURED = 'onecard plan configs/gpt2_124m.py --batch_size=16 --gradient_accumulation_steps=32 --gpu "RTX 4070"'
MADE = "<!-- made by docs/generate.py -->\n"
SHOWN = re.compile(r"(<!-- shown: (.+?) -->\n```text\n).*?(```)", re.DOTALL)
TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> dict[Path, str]:
    """Every generated page, by its path."""
    found = {
        **{ROOT / path: text for path, text in made_runs.logs().items()},
        ROOT / "docs/reference/config-keys.md": config_keys(),
        ROOT / "docs/reference/commands.md": commands(),
        ROOT / "docs/reference/cards.md": cards(),
        ROOT / "docs/reference/python.md": MADE + python_page(),
        ROOT / "docs/reference/rules.md": MADE + rules_page(),
    }
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if path not in found:
            text = SHOWN.sub(lambda block: block[1] + output(block[2]) + block[3], path.read_text())
            found[path] = TABLE.sub(lambda block: block[1] + "\n" + TABLES[block[2]]() + "\n" + block[3], text)
    found[ROOT / "docs/plan.svg"] = terminal_svg(PICTURED, output(PICTURED))
    found[ROOT / "docs/explain/memory-errors.svg"] = memory_pages.error_plot()
    return found


def output(shown: str) -> str:
    """What a command prints when run in the repository; only its first lines if `| head -20` follows it."""
    command, _, lines = shown.partition(" | head -")
    words = shlex.split(command)
    assert words[0] == "onecard", command
    caught = io.StringIO()
    os.environ.pop("COLUMNS", None)  # pages are as wide as a pipe, whatever the terminal
    with redirect_stdout(caught):
        code = run(words[1:])
    assert code in (0, 1), f"{command} ended with {code}: its output must not be shown"
    printed = caught.getvalue().splitlines()
    kept = printed[: int(lines)] if lines else printed
    return "".join(line.rstrip() + "\n" for line in kept)


def config_keys() -> str:
    lines = [
        MADE + "# Config keys",
        "",
        "Written `key = value` in a config file and `--key=value` on the command line.",
        "",
        "A key may affect the memory of the card, the speed of an update, what is learned (loss), what the loss is",
        "measured on (measure), or only chance. What a resume does with a change: [resuming](resuming.md).",
        "",
    ]
    for heading, nanogpt in (("nanoGPT's", True), ("onecard's own (nanoGPT ignores them in a file)", False)):
        lines += [
            f"## {heading}",
            "",
            "| key | default | meaning | affects | a resume may change it |",
            "|---|---|---|---|---|",
        ]
        for name, key in KEYS.items():
            if key.nanogpt == nanogpt:
                effects = ", ".join(effect for effect in get_args(Effect) if effect in key.affects) or "nothing"
                cells = (f"`{name}`", f"`{key.default!r}`", key.meaning, effects, RESUME[key.resume])
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def commands() -> str:
    lines = [MADE + "# Commands", ""]
    for name, command in _all_commands(cli):
        words = f"onecard {name}".strip()
        context = click.Context(command, info_name=words, terminal_width=100, help_option_names=["-h", "--help"])
        lines += [
            f"## `onecard {name}`".replace(" `", "`").strip(),
            "",
            "```text",
            command.get_help(context),
            "```",
            "",
        ]
    return "\n".join(lines).replace("##`", "## `")


def _all_commands(group: click.Group, above: str = "") -> list[tuple[str, click.Command]]:
    """A group and all commands below it, each with the words that call it."""
    found: list[tuple[str, click.Command]] = [(above, group)]
    for name, command in sorted(group.commands.items()):
        words = f"{above} {name}".strip()
        found += _all_commands(command, words) if isinstance(command, click.Group) else [(words, command)]
    return found


def cards() -> str:
    lines = [
        MADE + "# Cards",
        "",
        "`onecard gpus` prints this table; `onecard gpus --json` adds the source of every figure. ~ marks an estimate.",
        "Peaks are dense, with 16-bit operands and fp32 accumulation: the rate that training can use.",
        "",
        "The last column has the sources of: the driver's figure, torch's, the context, the peak, bf16, and the rest.",
        "",
        "| card | driver MiB | torch GiB | context MiB | TFLOP/s | bf16 | GB/s | fp32 TFLOP/s | cc | SMs | sources |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_card_line(card) for card in known_cards()]
    return "\n".join(lines) + "\n"


def _card_line(card: Card) -> str:
    def figure(value: str, source: str) -> str:
        return f"~{value}" if source.startswith("estimate") else value

    specified, capability = card.specification_source, card.compute_capability
    cells = [
        card.name,
        figure(f"{card.vram_bytes // MIB:,}", card.vram_source),
        figure(f"{card.allocatable_bytes / GIB:.2f}", card.allocatable_source),
        figure(f"{card.context_bytes // MIB}", card.context_source),
        figure(f"{(card.peak_flops or 0) / 1e12:,.1f}", card.peak_source),
        figure("yes" if card.native_bf16 else "no", card.bf16_source),
        figure(f"{(card.bandwidth_bytes_per_second or 0) / 1e9:,.0f}", specified),
        figure(f"{(card.fp32_flops or 0) / 1e12:,.1f}", specified),
        f"{capability[0]}.{capability[1]}" if capability else "-",
        str(card.multiprocessors or "-"),
        " · ".join(
            (
                card.vram_source,
                card.allocatable_source,
                card.context_source,
                card.peak_source,
                card.bf16_source,
                specified,
            )
        ),
    ]
    return f"| {' | '.join(cells)} |"


def interconnects() -> str:
    """Every link, with the sources of its figures."""
    lines = ["| name | GB/s each way | source | share reached | seen |", "|---|---|---|---|---|"]
    for link in INTERCONNECTS:
        share = link.reached
        reached = f"{share.likely:.0%} ({share.low:.0%} to {share.high:.0%})"
        rate = f"{link.bytes_per_second / 1e9:,.4g}"
        lines.append(f"| `{link.name}` | {rate} | {link.source} | {reached} | {link.reached_source} |")
    return "\n".join(lines)


def two_cards() -> str:
    """What a second card brings, by link."""
    lines = ["| card | link | sums | one card | two cards |", "|---|---|---|---|---|"]
    named = (
        ("RTX 4070", "pcie-4-x8"),
        ("RTX 4090", "pcie-4-x8"),
        ("RTX 4090", "pcie-4-x16"),
        ("RTX 5090", "pcie-5-x16"),
    )
    for card, link in named:
        plan = plan_named(str(ROOT / "configs/gpt2_124m.py"), [], gpu=card, gpus=2, interconnects=[link])
        found = plan.several_cards
        assert found
        assert found.pace
        assert found.alone
        sums = found.pace.sum_seconds
        alone, both = (each.tokens_per_second.likely / 1000 for each in (found.alone, found.pace))
        lines.append(
            f"| {card} | {found.asked.links[0].title} | {sums.likely * 1000:.0f} ms ({sums.low * 1000:.0f} to "
            f"{sums.high * 1000:.0f}) | {alone:.1f}k tokens/s | {both:.1f}k tokens/s, {both / alone:.2f} times |"
        )
    return "\n".join(lines)


TABLES = {
    "two cards": two_cards,
    "interconnects": interconnects,
    "memory errors": memory_pages.error_table,
    "memory errors, own trainer": memory_pages.own_error_table,
    "memory errors, short": memory_pages.short_error_table,
    "other estimators": memory_pages.estimator_table,
    "memory of the notes' configs": trainer_pages.notes_table,
    "beside nanoGPT": lambda: trainer_pages.beside_table("bench_h200_fused_check.csv"),
    "beside nanoGPT, compiled blocks": lambda: trainer_pages.beside_table("bench_h200.csv"),
    "12 GiB": lambda: trainer_pages.limit_table("bench_h200_fused.csv", "bench_h200_fused_check.csv"),
    "12 GiB, compiled blocks": lambda: trainer_pages.limit_table("bench_h200_12gib.csv"),
    "our trainer's speed": onecard_speed.table,
}


def main() -> None:
    write(made_runs.logs())  # first, because some shown outputs are about these logs
    write(pages())


def write(files: Mapping[Path, str]) -> None:
    for path, text in files.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()
