"""`python -m onecard` is the same as `onecard`."""

from onecard.cli.main import main

if __name__ == "__main__":
    main()
