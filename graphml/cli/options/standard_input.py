"""Standard input beside texts on the command line: when it is read, and how long it is waited for.

Knows kinds of files and who may share them; nothing of what the text is for.
"""

from __future__ import annotations

import os
import select
import stat
import sys
from typing import Final

from graphml.cli.terminal.console import remark, say
from graphml.errors import UsageError

MOST_CHARACTERS: Final = 64 << 20  # of a program that never ends, too
WAIT_S: Final = 10.0
"""For the first byte of a pipe: a program that starts another often leaves its pipe open and never writes."""


def text_beside(what: str) -> str:
    """The text that is piped to a command whose line has texts already; empty where there is none.

    Read are pipes, and files that nobody has begun to read: of a loop `while read` the file is the loop's. A
    pipe from which nothing comes in WAIT_S is left alone, and a line on stderr says so. UsageError for more
    than MOST_CHARACTERS. what: the texts of the command line, as a note names them.
    """
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # a text in memory that Python has in place of a file
        mode = None
    if sys.stdin.isatty() or not (mode is None or _is_piped(mode, what)):
        return ""
    text = sys.stdin.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"stdin: wanted at most {MOST_CHARACTERS} characters beside {what}")
    text = text.removesuffix("\n")
    if text.strip():
        tell = remark if mode is None or stat.S_ISREG(mode) else say  # a pipe may be that of a loop
        tell(f"graphml: stdin: its {len(text):,} characters come before {what}")
        return text
    return ""


def _is_piped(mode: int, what: str) -> bool:
    """Whether standard input, of that mode, has something for this command. what: as of `text_beside`."""
    descriptor = sys.stdin.fileno()
    if stat.S_ISREG(mode):
        begun = os.lseek(descriptor, 0, os.SEEK_CUR) > 0
        if begun:
            remark(f"stdin: a file that something else has begun to read: {what} alone")
        return not begun
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    # Windows cannot wait for a pipe: there it is read to its end.
    if sys.platform != "win32" and not select.select([descriptor], [], [], WAIT_S)[0]:
        say(
            f"graphml: stdin: an open pipe, from which nothing came in {WAIT_S:g} s: {what} alone; "
            "`-` or `-f -` waits for it, `< /dev/null` saves the wait"
        )
        return False
    return True
