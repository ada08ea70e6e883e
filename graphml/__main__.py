"""The start of `graphml` and of `python -m graphml`: signals first, then the command line, which loads long.

SIGHUP, which ends a process that does not take it, tells a server to read its keys again: one that comes
while a server starts is kept until it can. Knows which command takes signals; nothing of commands.
"""

from __future__ import annotations

import sys
from itertools import pairwise

from graphml.system.signals import keep


def main() -> None:
    """Run the command line."""
    # The first word that is no option, and no value of one.
    commands = (
        word
        for before, word in pairwise(sys.argv)
        if not word.startswith("-") and before not in ("--config", "--profile", "--log-level")
    )
    if next(commands, "") in ("serve", "server"):
        keep("SIGHUP")
    try:
        from graphml.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
