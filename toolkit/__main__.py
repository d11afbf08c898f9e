"""Runs the command `toolkit` as `python -m toolkit`, with whichever Python is called."""

from toolkit.cli import main

if __name__ == "__main__":
    main(prog_name="toolkit")
