"""Findings of a bisection, as text to read and as plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from graphml.inspect.bisect.bisect import Bisection, Finding, Reading
from graphml.inspect.compare.compare import aligned
from graphml.inspect.compare.observe import Observation
from graphml.inspect.compare.tolerances import Difference
from graphml.inspect.dumps.document import source_of

AROUND = 3  # readings before and after the first finding
_KINDS = {
    "kernel": "the kernel is wrong: {a} computes another value than the node means, from the same inputs",
    "rewrite": "the rewriting is wrong: the node means something else than what stood there before",
    "copy": "the copy is wrong: {target} has another value than {source} computed",
    "plan": "the values are right as long as all are kept: suspect a barrier{copies} (plans are checked)",
}


def as_text(found: Bisection, a: Observation, b: Observation) -> str:
    """The verdict, the readings around it, the inside of the node, and the other findings."""
    head = f"{told(a)} against {told(b)}, {len(a.ids)} tokens, {len(found.readings)} values\n"
    first = found.first
    if first is None:
        return head + _nothing(found)
    parts = [head, _verdict(found, first, a), _around(found, first)]
    if first.inside is not None:
        parts.append(_inside(first))
    if len(found.findings) > 1:
        parts.append(_others(found))
    return "\n".join(parts)


def told(run: Observation) -> str:
    """The backend of a run, its placement if it has one, and its fusions if they are not the default."""
    said = ((name, run.facts.get(name)) for name in ("place", "fuse"))
    return run.facts["backend"] + "".join(f" --{name}={value}" for name, value in said if value)


def _nothing(found: Bisection) -> str:
    nearest = max(found.readings, key=lambda one: one.here.nmse / one.limit if one.limit else 0.0)
    inherited = sum(one.verdict == "inherited" for one in found.readings)
    differ = f"{inherited} values differ end to end all the same: allowed errors, as of int8, add up\n"
    return (
        "nothing is wrong by itself\n"
        f"nearest to its limit: {nearest.node.name} ({nearest.step}), NMSE {nearest.here.nmse:.1e} of "
        f"{nearest.limit:.0e}\n"
        + differ * (inherited > 0)
        + "".join(f"\n{head}:\n" + "".join(f"- {line}\n" for line in lines) for head, lines in (
            ("looked at", found.coverage.looked_at), ("not looked at", found.coverage.not_looked_at)))
    )  # fmt: skip


def _verdict(found_all: Bisection, first: Finding, a: Observation) -> str:
    node, found = first.node, first.difference
    lines = [
        f"first wrong: {_named(first)} in {first.step}{_place(first)}",
        _told_kind(first, a),
        f"NMSE {found.nmse:.1e}, allowed {first.limit:.0e}; max abs {found.max_abs:.1e}, "
        f"max ULP {found.max_ulp}{_odd(found)}",
    ]
    if first.applied is not None:
        lines.append(f"made by the fusion {first.applied.fusion} of {', '.join(first.applied.covered)}")
    if first.kind == "rewrite" and (first.culprits is not None or len(first.suspects) > 1):
        lines.append(_blamed(first))
    if len(first.unit) > 1:
        lines.append(
            f"computed together with {', '.join(f'{n.name} ({n.op.name})' for n in first.unit[:-1])}"
        )
        lines += _shared(found_all, first)
    if node.source is not None:
        lines.append(f"built at {source_of(node.source)}")
    if first.kind == "rewrite":
        lines += ["before:", *_lines(first.other), "after:", *_lines(first.graph)]
    return "\n".join(lines) + "\n"


def _named(first: Finding) -> str:
    if first.copied is None:
        return f"{first.node.name} ({first.op})"
    return f"{first.copied.value}, copied from {first.copied.source} to {first.copied.target},"


def _told_kind(first: Finding, a: Observation) -> str:
    ends = {} if first.copied is None else {"source": first.copied.source, "target": first.copied.target}
    copies = " or a copy between devices" if any(step.copies for step in a.steps) else ""
    return _KINDS[first.kind].format(a=first.backend or a.facts["backend"], copies=copies, **ends)


def _blamed(first: Finding) -> str:
    found = first.culprits
    names = ", ".join(dict.fromkeys((*first.suspects, *(found or ()))))
    if found is None:
        return f"fusions of these nodes, none tried alone: {names}"
    if not found:
        return f"it is wrong without these fusions too: {names}; suspect another pass"
    off = ",".join(f"-{name}" for name in found)
    if len(found) == 1:
        return f"right with {off} alone; tried: {names}"
    return f"right with {off} only together; tried: {names}"


def _place(first: Finding) -> str:
    if not first.position:  # from the very first token on: the place says nothing
        return ""
    return f", first at token {first.token} of it, position {first.position}"


def _shared(found: Bisection, first: Finding) -> list[str]:
    """Lines about a value that cannot be read and whose readers are all wrong."""
    wrong = {one.node for one in found.findings}
    lines = []
    for hidden in first.unit[:-1]:
        readers = list(dict.fromkeys(one.node for one in found.readings if hidden in one.node.inputs))
        if len(readers) > 1 and wrong.issuperset(readers):
            # Results of one node are no evidence against its inputs.
            given = [f" or {x.op.name} ({x.name})" for x in hidden.inputs if x in first.unit[:-1]]
            said = "results" if hidden.type.parts else "readers"
            suspects = hidden.op.name + "".join(given if hidden.type.parts else ())
            lines.append(f"all {len(readers)} {said} of {hidden.name} are wrong: it is likely {suspects}")
    return lines


def _lines(graph: Any) -> list[str]:
    return [f"  {node!r} {dict(node.attributes) or ''}".rstrip() for node in graph.nodes if node.inputs]


def _odd(one: Difference) -> str:
    odd = [f"{what} {a} against {b}" for what, (a, b) in (("NaN", one.nan), ("Inf", one.inf)) if a or b]
    return "".join(f"; {text}" for text in odd)


def _around(found: Bisection, first: Finding) -> str:
    if first.kind == "plan":
        return ""
    places = [(one.step, one.node.name) for one in found.readings]
    at = places.index((first.step, first.node.name))
    rows = [_cells(one) for one in found.readings[max(at - AROUND, 0) : at + AROUND + 1]]
    return aligned(("value", "op", "end to end", "here", "meaning", "allowed", ""), rows)


def _cells(one: Reading) -> tuple[str, ...]:
    def nmse(found: Difference | None) -> str:
        return "" if found is None else f"{found.nmse:.1e}"

    verdict = "" if one.verdict == "ok" else one.verdict
    return (
        one.node.name, one.op, nmse(one.total), nmse(one.here), nmse(one.meaning),
        f"{one.limit:.0e}", verdict,
    )  # fmt: skip


def _inside(first: Finding) -> str:
    assert first.inside is not None
    lines = list(first.inside.hints)
    if first.inside.parts:
        lines.append(f"its parts, one by one: {_parts_verdict(first)}")
        rows = [
            (part.node.name, part.node.op.name, f"{part.difference.nmse:.1e}", f"{part.limit:.0e}",
             "wrong" if part.wrong else "")
            for part in first.inside.parts
        ]  # fmt: skip
        lines += ["", aligned(("part", "op", "here", "allowed", ""), rows).rstrip()]
    return "\n".join(lines) + "\n"


def _parts_verdict(first: Finding) -> str:
    assert first.inside is not None
    wrong = [f"{one.node.name} ({one.node.op.name})" for one in first.inside.parts if one.wrong]
    if wrong:
        return f"{', '.join(wrong)} wrong too"
    return "right; it is the fused kernel" if first.kind == "kernel" else "right; it is which they are"


def _others(found: Bisection) -> str:
    counts: dict[tuple[str, str], list[Finding]] = {}
    for one in found.findings[1:]:
        counts.setdefault((one.kind, one.op), []).append(one)
    lines = [
        f"also wrong by themselves: {len(many)} x {op if op == kind else f'{op} ({kind})'}: "
        + many[0].node.name
        + (f" to {many[-1].node.name}" if len(many) > 1 else "")
        for (kind, op), many in counts.items()
    ]
    return "\n".join(lines) + "\n"


def as_json(found: Bisection) -> dict[str, Any]:
    """Plain values: the findings, first to last, and every reading."""
    return {
        "findings": [_finding(one) for one in found.findings],
        "coverage": found.coverage.as_json(),
        "readings": [
            {
                "step": one.step, "node": one.node.name, "op": one.op, "verdict": one.verdict,
                "limit": one.limit,
                **{
                    name: None if read is None else read.as_json()
                    for name, read in (("total", one.total), ("here", one.here), ("meaning", one.meaning))
                },
            }
            for one in found.readings
        ],
    }  # fmt: skip


def _finding(one: Finding) -> dict[str, Any]:
    parts = [] if one.inside is None else one.inside.parts
    return {
        "kind": one.kind, "step": one.step, "node": one.node.name, "op": one.op,
        "backend": one.backend or None, "copied": None if one.copied is None else asdict(one.copied),
        "token": one.token, "position": one.position,
        "source": source_of(one.node.source),
        "fusion": one.applied.fusion if one.applied else None,
        "covered": list(one.applied.covered) if one.applied else [],
        "suspects": list(one.suspects),
        "culprits": None if one.culprits is None else list(one.culprits),
        "unit": [node.name for node in one.unit],
        "limit": one.limit, "difference": one.difference.as_json(),
        "hints": [] if one.inside is None else list(one.inside.hints),
        "parts": [
            {
                "node": part.node.name, "op": part.node.op.name, "wrong": part.wrong,
                **part.difference.as_json(),
            }
            for part in parts
        ],
    }  # fmt: skip
