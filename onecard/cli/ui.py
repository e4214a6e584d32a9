"""onecard ui: a local page over runs and logs."""

from __future__ import annotations

import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import click

from onecard.cli.files import PathType
from onecard.cli.flags import Flag
from onecard.cli.library import no_flags
from onecard.errors import ConfigError, MachineError

PORT = 8765
RUNS = "runs"  # where training puts its runs
PACKAGES = ("starlette", "uvicorn")  # of the extra `ui`


@click.command(short_help="A local page: your runs, the planner, comparisons.")
@click.argument("path", nargs=-1, type=PathType())
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes any free port.")
@click.option(
    "--host", default="127.0.0.1", metavar="ADDRESS", help="Let other machines in, by the token in the printed link."
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.pass_obj
def ui(flags: list[Flag], path: tuple[str, ...], port: int, host: str, no_browser: bool) -> int:
    """\b
    Example:
      onecard ui runs train.log

    A page in your browser: what your runs do while they do it, the planner, and comparisons. Ctrl-C ends it.

    PATH is a run folder, a folder of them, or a log of another program; without one, runs/. The page only reads: it can
    start, stop and delete nothing, and only this machine can open it. --host ADDRESS lets others in who have the link
    with its token.
    """
    no_flags(flags, "ui")
    for named in path:
        if not Path(named).exists():
            raise ConfigError(
                f"there is no {named}",
                why="onecard ui shows run folders and logs that are there",
                fix=f"onecard ui   (shows {RUNS}/, also while it is still empty)",
                name="no-such-file",
            )
    _needs_its_packages()
    from onecard.ui.server import Server

    with Server([Path(named) for named in path or (RUNS,)], host=host, port=port) as server:
        try:
            click.echo(f"onecard ui: {server.guard.link}")
            sys.stdout.flush()
            threading.Thread(target=server.warm, daemon=True).start()
            if not no_browser and _has_screen():
                threading.Thread(target=_open, args=(server.guard.link,), daemon=True).start()
            server.wait()
        except KeyboardInterrupt:
            pass
    return 0


def _needs_its_packages() -> None:
    """MachineError unless the packages of the extra are installed; they are not imported yet."""
    if missing := [package for package in PACKAGES if find_spec(package) is None]:
        raise MachineError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            why="the page of onecard ui is served by starlette and uvicorn",
            fix='pip install "onecard[ui]"',
            name="no-ui",
        )


def _has_screen() -> bool:
    """Whether a browser can show a window: without one it would take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _open(link: str) -> None:
    import webbrowser

    webbrowser.open(link)
