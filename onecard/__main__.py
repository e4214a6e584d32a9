"""`onecard`, and `python -m onecard`. Signals are handled before anything slow is imported."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False  # as typing's, which takes longer to import than everything here
if TYPE_CHECKING:
    from typing import NoReturn

MACHINE, INTERRUPTED = 3, 130  # exit codes of the contract; here again because nothing is imported yet
_NO_MEMORY = b"""error: the computer ran out of memory  [out-of-memory]
  why: there is not even enough to load the command
  fix: close other programs, or raise the limit (ulimit -v shows it), then try again
"""


def main() -> NoReturn:
    """Run the command line and exit. Ctrl-C, SIGTERM and SIGHUP end with 130, and no traceback, from here on."""
    gc.set_threshold(50_000)  # Python's 700 makes it look through all modules again and again while they are imported
    # pydantic looks for its plugins in every package that is installed, which takes a tenth of a plan's time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        from onecard.cli import signals

        signals.leave_at_signals()
        from onecard.cli.main import main as answer

        signals.interrupt_at_signals()
        try:
            answer()
        finally:
            signals.ignore_signals()
    except KeyboardInterrupt:
        # CPython remembers a KeyboardInterrupt that came inside an exec of text (dataclasses use it), even if it is
        # caught, and kills itself with SIGINT at the end. Executing another text makes it forget.
        exec("")
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        exec("")
        raise end from None
    except (MemoryError, ImportError) as problem:
        if isinstance(problem, ImportError) and "map segment" not in str(problem):
            raise
        os.write(2, _NO_MEMORY)
        sys.exit(MACHINE)


if __name__ == "__main__":
    main()
