"""`onecard`, and `python -m onecard`."""

import sys
from typing import NoReturn

INTERRUPTED = 130  # as a shell says it; here again because nothing may be imported yet


def main() -> NoReturn:
    """Run the command line and exit; Ctrl-C while Python is still reading modules ends as quietly as later."""
    try:
        from onecard.cli.main import main as answer

        answer()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
