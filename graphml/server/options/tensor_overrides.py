"""llama-server's overrides of tensors' buffers as rules of placement: `-ot`, `-cmoe`, `-ncmoe`, `-ncffn`.

Knows flags, names of backends and llama.cpp's names of weights; nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from graphml.errors import UsageError
from graphml.passes.placement_rules import with_named

EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
DENSE: Final = r"\.ffn_(up|down|gate)\."
HOST: Final = "cpu"
_ON_THE_HOST: Final = (HOST, "reference", "numba")
MOST_LAYERS: Final = 9999


def placed(values: Mapping[str, Any], backend: str) -> dict[str, str]:
    """`place` and `backend` of the options of opening a model, as far as overrides say them.

    Of two overrides for one weight llama.cpp takes the first, and rules the last; `-ot` comes before the
    switches. Rules are not needed where all of the model is on the CPU. UsageError for a buffer that is of
    none of the backends.
    """
    backends = [name.strip() for name in backend.split(",")]
    overrides = [
        _override(text, backends)
        for texts in values.get("override_tensor", ())
        for text in texts.split(",")
        if text
    ]
    overrides += [(HOST, EXPERTS)] if values.get("cpu_moe") else []
    for flag, into, weights in (("--n-cpu-moe", "n_cpu_moe", EXPERTS), ("--n-cpu-ffn", "n_cpu_ffn", DENSE)):
        count = values.get(into, 0)
        if not 0 <= count <= MOST_LAYERS:
            raise UsageError(f"{flag}: wanted a number of layers from 0 to {MOST_LAYERS}, got {count}")
        if count:
            overrides.append((HOST, rf"blk\.({'|'.join(map(str, range(count)))}){weights}"))
    stated = values.get("place", "")
    if all(name in _ON_THE_HOST for name in backends):
        return {"place": stated} if stated else {}
    rules = [f"{name}:/{pattern}/" for name, pattern in reversed(overrides)]
    place = ",".join(filter(None, (*rules, stated)))
    return {"place": place, "backend": with_named(backend, place)} if place else {}


def _override(text: str, backends: Sequence[str]) -> tuple[str, str]:
    """The backend and the pattern of `PATTERN=BUFFER`."""
    pattern, equals, buffer = text.partition("=")
    name = buffer.lower()
    if not equals or not pattern:
        raise UsageError(f"--override-tensor: wanted PATTERN=BUFFER, such as exps=CPU; got {text!r:.80}")
    if name not in (HOST, *backends):
        wanted = ", ".join(dict.fromkeys(("CPU", *(name for name in backends if name != HOST))))
        raise UsageError(
            f"--override-tensor: {text!r:.80}: wanted a buffer of a backend that --backend names ({wanted})"
        )
    return name, pattern
