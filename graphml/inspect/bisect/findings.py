"""Findings of a bisection, as text to read and as plain values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from graphml.inspect.bisect.bisect import Bisection, Finding, RunValue
from graphml.inspect.compare.observe import Observation
from graphml.inspect.compare.tolerances import ArrayDifference
from graphml.inspect.dumps.document import source_of
from graphml.inspect.profile.text_table import aligned

AROUND = 3  # readings before and after the first finding
_KINDS = {
    "kernel": "the kernel is wrong: {a} computes another value than the node means, from the same inputs",
    "rewrite": "the rewriting is wrong: the node means something else than what stood there before",
    "copy": "the copy is wrong: {target} has another value than {source} computed",
    "plan": "the values are right as long as all are kept: suspect a barrier{copies} (plans are checked)",
}


def as_text(bisection: Bisection, a: Observation, b: Observation) -> str:
    """The verdict, the readings around it, the inside of the node, and the other findings."""
    head = f"{told(a)} against {told(b)}, {len(a.ids)} tokens, {len(bisection.readings)} values\n"
    first = bisection.first
    if first is None:
        return head + _nothing(bisection)
    parts = [head, _verdict(bisection, first, a), _around(bisection, first)]
    if first.inside is not None:
        parts.append(_inside(first))
    if len(bisection.findings) > 1:
        parts.append(_others(bisection))
    return "\n".join(parts)


def told(run: Observation) -> str:
    """The backend of a run, its placement if it has one, and its fusions if they are not the default."""
    said = ((name, run.facts.get(name)) for name in ("place", "fuse"))
    return run.facts["backend"] + "".join(f" --{name}={value}" for name, value in said if value)


def _nothing(bisection: Bisection) -> str:
    nearest = max(
        bisection.readings, key=lambda reading: reading.here.nmse / reading.limit if reading.limit else 0.0
    )
    inherited = sum(reading.verdict == "inherited" for reading in bisection.readings)
    differ = f"{inherited} values differ end to end all the same: allowed errors, as of int8, add up\n"
    return (
        "nothing is wrong by itself\n"
        f"nearest to its limit: {nearest.node.name} ({nearest.step}), NMSE {nearest.here.nmse:.1e} of "
        f"{nearest.limit:.0e}\n"
        + differ * (inherited > 0)
        + "".join(f"\n{head}:\n" + "".join(f"- {line}\n" for line in lines) for head, lines in (
            ("looked at", bisection.coverage.looked_at), ("not looked at", bisection.coverage.not_looked_at)))
    )  # fmt: skip


def _verdict(found_all: Bisection, first: Finding, a: Observation) -> str:
    node, difference = first.node, first.difference
    lines = [
        f"first wrong: {_named(first)} in {first.step}{_place(first)}",
        _told_kind(first, a),
        f"NMSE {difference.nmse:.1e}, allowed {first.limit:.0e}; max abs {difference.max_abs:.1e}, "
        f"max ULP {difference.max_ulp}{_odd(difference)}",
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
    culprits = first.culprits
    names = ", ".join(dict.fromkeys((*first.suspects, *(culprits or ()))))
    if culprits is None:
        return f"fusions of these nodes, none tried alone: {names}"
    if not culprits:
        return f"it is wrong without these fusions too: {names}; suspect another pass"
    off = ",".join(f"-{name}" for name in culprits)
    if len(culprits) == 1:
        return f"right with {off} alone; tried: {names}"
    return f"right with {off} only together; tried: {names}"


def _place(first: Finding) -> str:
    if not first.position:  # from the very first token on: the place says nothing
        return ""
    return f", first at token {first.token} of it, position {first.position}"


def _shared(bisection: Bisection, first: Finding) -> list[str]:
    """Lines about a value that cannot be read and whose readers are all wrong."""
    wrong = {finding.node for finding in bisection.findings}
    lines = []
    for hidden in first.unit[:-1]:
        readers = list(
            dict.fromkeys(reading.node for reading in bisection.readings if hidden in reading.node.inputs)
        )
        if len(readers) > 1 and wrong.issuperset(readers):
            # Results of one node are no evidence against its inputs.
            alternatives = [f" or {x.op.name} ({x.name})" for x in hidden.inputs if x in first.unit[:-1]]
            said = "results" if hidden.type.parts else "readers"
            suspects = hidden.op.name + "".join(alternatives if hidden.type.parts else ())
            lines.append(f"all {len(readers)} {said} of {hidden.name} are wrong: it is likely {suspects}")
    return lines


def _lines(graph: Any) -> list[str]:
    return [f"  {node!r} {dict(node.attributes) or ''}".rstrip() for node in graph.nodes if node.inputs]


def _odd(error: ArrayDifference) -> str:
    odd = [f"{what} {a} against {b}" for what, (a, b) in (("NaN", error.nan), ("Inf", error.inf)) if a or b]
    return "".join(f"; {text}" for text in odd)


def _around(bisection: Bisection, first: Finding) -> str:
    if first.kind == "plan":
        return ""
    places = [(reading.step, reading.node.name) for reading in bisection.readings]
    at = places.index((first.step, first.node.name))
    rows = [_cells(reading) for reading in bisection.readings[max(at - AROUND, 0) : at + AROUND + 1]]
    return aligned(("value", "op", "end to end", "here", "meaning", "allowed", ""), rows)


def _cells(reading: RunValue) -> tuple[str, ...]:
    def nmse(difference: ArrayDifference | None) -> str:
        return "" if difference is None else f"{difference.nmse:.1e}"

    verdict = "" if reading.verdict == "ok" else reading.verdict
    return (
        reading.node.name, reading.op, nmse(reading.total), nmse(reading.here), nmse(reading.meaning),
        f"{reading.limit:.0e}", verdict,
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
    wrong = [f"{part.node.name} ({part.node.op.name})" for part in first.inside.parts if part.wrong]
    if wrong:
        return f"{', '.join(wrong)} wrong too"
    return "right; it is the fused kernel" if first.kind == "kernel" else "right; it is which they are"


def _others(bisection: Bisection) -> str:
    counts: dict[tuple[str, str], list[Finding]] = {}
    for finding in bisection.findings[1:]:
        counts.setdefault((finding.kind, finding.op), []).append(finding)
    lines = [
        f"also wrong by themselves: {len(many)} x {op if op == kind else f'{op} ({kind})'}: "
        + many[0].node.name
        + (f" to {many[-1].node.name}" if len(many) > 1 else "")
        for (kind, op), many in counts.items()
    ]
    return "\n".join(lines) + "\n"


def as_json(bisection: Bisection) -> dict[str, Any]:
    """Plain values: the findings, first to last, and every reading."""
    return {
        "findings": [_finding(finding) for finding in bisection.findings],
        "coverage": bisection.coverage.as_json(),
        "readings": [
            {
                "step": reading.step, "node": reading.node.name, "op": reading.op, "verdict": reading.verdict,
                "limit": reading.limit,
                **{
                    name: None if read is None else read.as_json()
                    for name, read in (
                        ("total", reading.total), ("here", reading.here), ("meaning", reading.meaning),
                    )
                },
            }
            for reading in bisection.readings
        ],
    }  # fmt: skip


def _finding(finding: Finding) -> dict[str, Any]:
    parts = [] if finding.inside is None else finding.inside.parts
    return {
        "kind": finding.kind, "step": finding.step, "node": finding.node.name, "op": finding.op,
        "backend": finding.backend or None,
        "copied": None if finding.copied is None else asdict(finding.copied),
        "token": finding.token, "position": finding.position,
        "source": source_of(finding.node.source),
        "fusion": finding.applied.fusion if finding.applied else None,
        "covered": list(finding.applied.covered) if finding.applied else [],
        "suspects": list(finding.suspects),
        "culprits": None if finding.culprits is None else list(finding.culprits),
        "unit": [node.name for node in finding.unit],
        "limit": finding.limit, "difference": finding.difference.as_json(),
        "hints": [] if finding.inside is None else list(finding.inside.hints),
        "parts": [
            {
                "node": part.node.name, "op": part.node.op.name, "wrong": part.wrong,
                **part.difference.as_json(),
            }
            for part in parts
        ],
    }  # fmt: skip
