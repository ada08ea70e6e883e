"""Reads the byte code that packages were installed with, where the run's own is in a folder.

With `PYTHONPYCACHEPREFIX` Python looks for all byte code there, and compiles what is ready beside the
sources: 4 s of processor time for OpenAI's package alone, 3 s for what collecting the tests imports. Python
runs this file as it starts, where its folder is in `PYTHONPATH`.
"""

from __future__ import annotations

import os
import sys
from importlib import _bootstrap_external as loading
from typing import Any

OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep  # noqa: PTH100, PTH120
of_the_run = loading.cache_from_source


def cache_from_source(path: Any, *given: Any, **more: Any) -> str:
    path = os.fspath(path)
    ours = path.startswith(OWN) and "site-packages" not in path
    if not (ours or given or more or sys.flags.optimize):
        folder, name = os.path.split(path)
        compiled = f"{name.rpartition('.')[0]}.{sys.implementation.cache_tag}.pyc"
        installed = os.path.join(folder, "__pycache__", compiled)  # noqa: PTH118
        if os.path.exists(installed):  # noqa: PTH110
            return installed
    return of_the_run(path, *given, **more)


loading.cache_from_source = cache_from_source
