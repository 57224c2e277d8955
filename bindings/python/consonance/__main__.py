"""The command ``consonance``: ``python -m consonance`` or, where the package is installed, ``consonance``."""

import signal
import sys

from ._native import command


def main() -> int:
    """Runs the command, and returns its exit status."""
    # Ctrl-C ends it at once: no code of Python runs that could hear it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return command(["consonance", *sys.argv[1:]], [sys.executable, "-m", "consonance"])


if __name__ == "__main__":
    sys.exit(main())
