"""A command and what it prints, as a picture of a terminal: SVG text that needs no font of its own."""

from __future__ import annotations

from html import escape

CHARACTER, LINE, MARGIN, BAR = 7.8, 19, 22, 34
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
LABEL_WIDTH, LABELLED = 9, 2  # of a plan's lines: its first two paragraphs have labels


def terminal_svg(command: str, printed: str) -> str:
    """The picture as SVG text; every line is as wide as its characters, whatever the font."""
    lines = printed.rstrip("\n").splitlines()
    columns = max(len(line.rstrip()) for line in [f"$ {command}", *lines])
    width, height = round(2 * MARGIN + CHARACTER * columns), BAR + LINE * (len(lines) + 2)
    body = [_text(0, 0, f"$ {command}", fill="#7ee787", bold=True)]
    for number, line in enumerate(lines):
        label, words = line[:LABEL_WIDTH], line[LABEL_WIDTH:]
        if label.strip() and lines[:number].count("") < LABELLED:
            body.append(_text(number + 1, 0, label.rstrip(), fill="#79c0ff", bold=True))
            body.append(_text(number + 1, LABEL_WIDTH, words))
        else:
            body.append(_text(number + 1, 0, line))
    circles = "".join(
        f'<circle cx="{MARGIN + 18 * place}" cy="17" r="5" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="{FONT}" font-size="13">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>{circles}\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(line: int, column: int, words: str, *, fill: str = "#e6edf3", bold: bool = False) -> str:
    started = words.lstrip(" ")
    x = MARGIN + CHARACTER * (column + len(words) - len(started))
    words = started.rstrip()
    weight = ' font-weight="bold"' if bold else ""
    length = f' textLength="{CHARACTER * len(words):.1f}" lengthAdjust="spacingAndGlyphs"' if words else ""
    return (
        f'<text x="{x:.1f}" y="{BAR + LINE * (line + 1) - 5}" fill="{fill}"{weight}{length} xml:space="preserve">'
        f"{escape(words)}</text>"
    )
