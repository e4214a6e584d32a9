"""Asks for prompts on a terminal, one after another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import click

from onecard.cli import signals

MARK = "> "
HOW = "Type how a text begins; an empty line begins a new one. Ctrl-C stops a text, twice leaves."


def ask_again_and_again(answer: Callable[[str], object]) -> int:
    """Answer every line that is typed, until the end of input (Ctrl-D) or until Ctrl-C is pressed twice."""
    with suppress(ImportError):  # with it, lines can be edited, and earlier ones called back
        import readline  # noqa: F401
    click.echo(HOW, err=True)
    stopped = False
    while True:
        try:
            try:
                typed = input(MARK)
            except EOFError:
                click.echo()
                return 0
            stopped = False
            answer(typed)
        except KeyboardInterrupt:
            if stopped:
                raise
            stopped = True
            signals.forget()
            click.echo("\n(Ctrl-C again leaves)")
