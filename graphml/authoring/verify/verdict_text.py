"""Verdicts as text and as plain values. Knows verdicts; nothing of how they were reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphml.authoring.mistakes.copied import left_out
from graphml.authoring.verify.record import PeerRecord
from graphml.authoring.verify.search import Cause, SearchResult
from graphml.authoring.verify.stages import TOP, InSteps, LogitDifferences
from graphml.inspect.compare.tolerances import spans
from graphml.inspect.dumps.layers import layer_of
from graphml.inspect.profile.text_table import aligned

MOST_UNUSED = 12


def as_text(verdict: SearchResult, record: PeerRecord, model: str, architecture: str) -> str:
    """The table, the logits, the first wrong part and its likely cause."""
    lines = [f"# {model} ({architecture}) against {record.by}, {len(record.ids)} tokens\n", _table(verdict)]
    lines.append(_logits_text(verdict.logits))
    lines += [_steps_text(way) for way in verdict.steps if not way.agrees]
    lines += _agreement(verdict) if verdict.first is None else _difference(verdict)
    if verdict.unreached:
        sizes = ", ".join(map(str, verdict.unreached))
        lines.append(
            f"not looked at: windows or chunks of {sizes} tokens, which a text of {len(record.ids)} does not "
            f"leave; --tokens {verdict.unreached[-1] + 5} does"
        )
    return "\n".join(lines) + "\n"


def _agreement(verdict: SearchResult) -> list[str]:
    """The limit that all parts keep, and parts that keep it, but are much worse than rounding makes them."""
    lines = [f"every part agrees: NMSE at most {verdict.limit:.0e} from the same input"]
    if verdict.outliers:
        best = min(row.own for row in verdict.rows)
        named = ", ".join(f"{row.stage.name} ({row.own:.0e})" for row in verdict.outliers)
        lines.append(
            f"more than rounding does, of which the best part has {best:.0e}: {named}; an eps, a form of "
            "GELU or a base of rope may be another: --limit 1e-10 searches for it"
        )
    return lines


def _difference(verdict: SearchResult) -> list[str]:
    """The first wrong part, what explains it, and tensors that nothing reads."""
    assert verdict.first is not None
    inside = f", at {verdict.first.part}" if verdict.first.part else ""
    lines = [f"\nfirst wrong: {verdict.first.stage.name}{inside}"]
    lines += [line for cause in verdict.causes for line in _cause(cause)]
    if not any(cause.enough for cause in verdict.causes):
        lines.append("no mistake of the catalogue explains it")
    if verdict.mended is not None and any(cause.enough for cause in verdict.causes):
        lines.append(f"with that undone: {_logits_text(verdict.mended)}")
    unused = _by_part(left_out(verdict.unused))
    if unused:
        more = len(unused) - MOST_UNUSED
        names = ", ".join(unused[:MOST_UNUSED]) + (f" and {more} more" if more > 0 else "")
        lines.append(f"tensors that the architecture leaves unused: {names}")
    return lines


def _steps_text(way: InSteps) -> str:
    return (
        f"wrong in {way.way}: NMSE {way.nmse:.1e} to the text at once, at token {way.token}: a value depends "
        "on how the text is cut, such as a state that two ops share"
    )


def _by_part(names: Sequence[str]) -> list[str]:
    """Names of tensors, those of several layers in one: `blk.0-29.ffn_norm.weight`."""
    layers: dict[str, list[int]] = {}
    for name in names:
        layer = layer_of(name)
        part = name if layer is None else name.split(".", 2)[2]
        layers.setdefault(part, []).extend([] if layer is None else [layer])
    return [
        f"blk.{spans(np.array(sorted(numbers)))}.{part}" if numbers else part
        for part, numbers in layers.items()
    ]


def _table(verdict: SearchResult) -> str:
    head = ("part", "NMSE", "by itself", "")
    cells = []
    for row in verdict.rows:
        verdicts = "" if row.own <= verdict.limit else f"wrong, at {row.part}" if row.part else "wrong"
        inherited = not verdicts and row.nmse > verdict.limit
        cells.append(
            (row.stage.name, f"{row.nmse:.1e}", f"{row.own:.1e}", "inherited" if inherited else verdicts)
        )
    return aligned(head, cells)


def _logits_text(logits: LogitDifferences) -> str:
    return (
        f"logits: NMSE {logits.nmse:.1e}, same likeliest token {logits.same_top:.0%}, "
        f"{logits.overlap:.0%} of the {TOP} likeliest, KL {logits.kl:.1e} (at most {logits.worst_kl:.1e})"
    )


def _cause(cause: Cause) -> list[str]:
    where = "" if cause.layers is None else f", in layer {', '.join(map(str, cause.layers))} alone"
    if not cause.enough:
        return [
            f"nearest: {cause.mistake.name}: {cause.says} brings {cause.at} from {cause.before:.1e} to "
            f"{cause.after:.1e}, which is not enough"
        ]
    lines = [
        f"likely cause: {cause.mistake.name}: {cause.mistake.says}",
        f"  {cause.says}{where}: {cause.at} goes from {cause.before:.1e} to {cause.after:.1e}",
    ]
    if cause.rivals:
        lines.append(f"  as well: {', '.join(cause.rivals)}")
    return lines


def as_json(verdict: SearchResult, record: PeerRecord) -> dict[str, Any]:
    """Plain values; an infinite number is the text "inf"."""
    fields = {
        "against": record.by, "tokens": len(record.ids), "limit": verdict.limit,
        "agrees": verdict.agrees,
        "first_wrong": None if verdict.first is None else verdict.first.stage.name,
        "parts": [
            {"part": row.stage.name, "nmse": row.nmse, "by_itself": row.own, "at": row.part}
            for row in verdict.rows
        ],
        "logits": vars(verdict.logits),
        "causes": [
            {
                "name": cause.mistake.name, "mistake": cause.mistake.says, "edit": cause.says, "at": cause.at,
                "layers": cause.layers, "before": cause.before, "after": cause.after,
                "rivals": cause.rivals, "enough": cause.enough,
            }
            for cause in verdict.causes
        ],
        "mended": None if verdict.mended is None else vars(verdict.mended),
        "unused_tensors": verdict.unused,
        "outliers": [row.stage.name for row in verdict.outliers], "unreached_windows": verdict.unreached,
        "in_steps": [{"way": step.way, "nmse": step.nmse, "token": step.token} for step in verdict.steps],
    }  # fmt: skip
    plain: dict[str, Any] = _finite(fields)
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else "inf"
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
