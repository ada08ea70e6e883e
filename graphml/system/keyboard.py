"""The mode of the terminal that is typed at, changed for a while.

Knows termios, which Windows lacks: there nothing changes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def keyboard_mode(lines: bool) -> Iterator[bool]:
    """Within, the terminal has another mode.

    lines: echo and whole lines, and what was typed before is dropped; otherwise no echo, and keys are kept.
    Ctrl-C sends its signal in both. Yields whether the mode was changed.
    """
    try:
        import termios
    except ImportError:
        yield False
        return
    keyboard = sys.stdin.fileno()
    before, mode = termios.tcgetattr(keyboard), termios.tcgetattr(keyboard)
    if lines:
        mode[0] |= termios.ICRNL
        mode[3] |= termios.ECHO | termios.ICANON
    else:
        mode[0] &= ~termios.ICRNL
        mode[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(keyboard, termios.TCSAFLUSH if lines else termios.TCSANOW, mode)
    try:
        yield True
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)
