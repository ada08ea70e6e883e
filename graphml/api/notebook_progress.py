"""Progress of opening a model in a notebook: one line of output that is written over, and removed at the end.

Knows what progress functions are told; nothing of models.
"""

from __future__ import annotations

import sys

from graphml.system.progress_labels import amount, label


class NotebookProgress:
    """Called as progress(what, done, total) until it is closed; total 0: not known."""

    def __init__(self) -> None:
        self._line, self._closed, self._shown = "", False, ("", -1)

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far it is: bytes, or counts with their unit; redrawn at each whole percent."""
        percent = 100 * done // total if total else -1
        if (what, percent) == self._shown and total:
            return
        self._shown = what, percent
        line = f"{label(what)}: {amount(what, done, total)}"
        if not self._closed and line != self._line:
            print(f"\r{line:{len(self._line)}}", end="", flush=True)
            self._line = line

    def close(self) -> None:
        """Remove the line; later calls write nothing."""
        if self._line:
            print(f"\r{'':{len(self._line)}}\r", end="", flush=True)
        self._line, self._closed = "", True


def notebook_progress() -> NotebookProgress | None:
    """Progress for a notebook; None where no kernel of IPython runs."""
    shell_of = getattr(sys.modules.get("IPython"), "get_ipython", None)
    in_kernel = shell_of is not None and type(shell_of()).__name__ == "ZMQInteractiveShell"
    return NotebookProgress() if in_kernel else None
