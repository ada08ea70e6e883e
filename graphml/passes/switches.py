"""Fusion switches: parses `--fuse=-swiglu`, `GRAPHML_FUSE` and `fuse=`. Knows which fusions need others."""

from __future__ import annotations

import functools

from graphml.errors import UsageError, did_you_mean
from graphml.ir.op import Op
from graphml.passes.fusion import Fusion, fusions


def switched(switches: str, origin: str = "fuse") -> frozenset[str]:
    """The names of the fusions that are on: "" or "all", "none", "-swiglu,+linear", "none,+swiglu".

    A switch names a fusion, or a fused op and so all fusions that make it. Switching it off switches off the
    fusions that need it: without `swiglu` there is no fused SwiGLU of any kind. Switching it on switches on
    those that it needs. origin: the source of the switches, for the `UsageError` of an unknown name.
    """
    return _switched(switches, origin, tuple(fusions().values()))


@functools.lru_cache(maxsize=64)  # for every graph that is compiled
def _switched(switches: str, origin: str, some: tuple[Fusion, ...]) -> frozenset[str]:
    known = {fusion.name: fusion for fusion in some}
    groups = {
        f.replace.name: {g.name for g in known.values() if g.replace is f.replace} for f in known.values()
    }
    groups |= {name: {name} for name in known}
    on = set(known)
    for position, switch in enumerate(part.strip() for part in switches.split(",") if part.strip()):
        if switch in ("all", "none"):
            if position:
                raise UsageError(f"{origin}: {switch!r} comes first or not at all; got {switches!r}")
            on = set(known) if switch == "all" else set()
            continue
        sign, name = switch[0], switch[1:]
        if sign not in "+-":
            raise UsageError(
                f"{origin}: wanted all, none, +NAME or -NAME; got {switch!r} (only these: none,+NAME)"
                f"{did_you_mean(switch, groups)}"
            )
        if name not in groups:
            hint = did_you_mean(name, groups)
            raise UsageError(f"{origin}: no fusion is called {name!r}.{hint} Known: {', '.join(groups)}")
        on = _with_ingredients(on | groups[name]) if sign == "+" else on - groups[name]
    return frozenset(_possible(on))


def _makers(op: Op) -> set[str]:
    """The fusions that make an op from other ops; a fusion that extends the op needs one of these first."""
    return {
        name for name, f in fusions().items() if f.replace is op and not any(op in ops for ops in f.ops())
    }


def _with_ingredients(names: set[str]) -> set[str]:
    """The fusions, and those that make the fused ops in their patterns."""
    while True:
        more = {
            maker for name in names for ops in fusions()[name].ops() for op in ops for maker in _makers(op)
        }
        if more <= names:
            return names
        names = names | more


def _possible(names: set[str]) -> set[str]:
    """The fusions with at least one pattern whose ops are all plain or made by the others."""
    while True:
        made_ops = {op for f in fusions().values() for op in [f.replace] if _makers(op) & names}
        left = {
            name
            for name in names
            if any(all(op.decompose is None or op in made_ops for op in ops) for ops in fusions()[name].ops())
        }
        if left == names:
            return names
        names = left
