"""The loops that are open: each ends with its owner, and all before Python does.

Knows loops; nothing of what they run.
"""

from __future__ import annotations

import atexit
import weakref

from graphml.runtime.loop.step_loop import StepLoop

_OPEN: weakref.WeakSet[StepLoop] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """No step may run while Python ends."""
    for loop in list(_OPEN):
        loop.close()


def opened(owner: object, loop: StepLoop) -> None:
    """A loop ends when its owner is collected, which waits for nobody, and when the process ends."""
    _OPEN.add(loop)
    weakref.finalize(owner, StepLoop.ask_to_close, loop)  # in any thread, so it must not wait
