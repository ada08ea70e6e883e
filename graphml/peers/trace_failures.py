"""Why a module could not be traced, in one line: the model's own line, its module path, what torch said.

Knows tracebacks; nothing of what is traced.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import FrameType
from typing import Any

LONGEST = 300  # characters of what torch said


def failure(error: BaseException, module: Any) -> str:
    """The last line of the model's own code, the module that ran it, and the error.

    That module is the first argument (`self`) of the innermost frame in which it is one of `module`.
    """
    said = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:LONGEST]}"
    frames = _own_frames(error)
    if not frames:
        return said
    paths = {
        id(submodule): name.removeprefix("wrapped").lstrip(".") for name, submodule in module.named_modules()
    }
    owners = [id(frame.f_locals.get(first)) for frame, _ in frames for first in frame.f_code.co_varnames[:1]]
    path = next((paths[owner] for owner in reversed(owners) if owner in paths), "")
    frame, number = frames[-1]
    line = traceback.FrameSummary(frame.f_code.co_filename, number, "").line or ""
    at = f"{frame.f_code.co_filename}:{number}"
    return f"`{line.strip()}` in {path or 'the model itself'} ({at}): {said}"


def _own_frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Frames of the model's code, outermost first; torch may raise an error of its own because of another."""
    here, standard = Path(__file__).parent, Path(traceback.__file__).parent
    cause: BaseException | None = error
    while cause is not None:
        walked = traceback.walk_tb(cause.__traceback__)
        frames = [
            (frame, number)
            for frame, number in walked
            if "/torch/" not in frame.f_code.co_filename
            and Path(frame.f_code.co_filename).parent not in (here, standard)
        ]
        if frames:
            return frames
        cause = cause.__cause__ or cause.__context__
    return []
