"""Stages of a model between another program's known values: the error of each, end to end and by itself.

A step of one token at a time is compared with the whole text. Knows runs and records; nothing of mistakes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from graphml.authoring.verify.record import PeerRecord
from graphml.authoring.verify.runs import RecordRuns
from graphml.inspect.compare import tolerances
from graphml.ir.graph import Graph
from graphml.ir.op import Array
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.pinned import Room

LOGITS = "output:logits"
TOP = 10  # number of most likely tokens for the overlap
INFINITE = float("inf")


@dataclass(frozen=True)
class ModelStage:
    """A part of the model between two places. start: its input node, None: the tokens; end: its result."""

    name: str
    layer: int | None
    start: str | None
    end: str
    place: str  # of the end, in records


@dataclass(frozen=True)
class StageRow:
    """A stage's NMSE: end to end, and computed from the other program's values at its start.

    part: the first place within the stage that differs, "" if none is known.
    """

    stage: ModelStage
    nmse: float
    own: float
    part: str = ""


@dataclass(frozen=True)
class LogitDifferences:
    """Differences of the logits. same_top: share of tokens with the same most likely next token.

    overlap: the share of the top ten that is in both; kl, worst_kl: divergence of our distribution from the
    other's in nats, the mean and the largest over the tokens.
    """

    nmse: float
    same_top: float
    overlap: float
    kl: float
    worst_kl: float


def nmse(got: Array | None, wanted: Array) -> float:
    """Squared error over the wanted values' squares; infinite for another shape, NaN or infinity."""
    if got is None or got.shape != wanted.shape:
        return INFINITE
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    energy = float(np.sum(b * b))
    error = float(np.sum((a - b) ** 2))
    ratio = 0.0 if error == 0 else error / energy if energy else INFINITE
    return ratio if np.isfinite(ratio) else INFINITE


def compare_logits(got: Array, wanted: Array) -> LogitDifferences:
    """Compare logits, both f32 [T, vocabulary]."""
    if got.shape != wanted.shape:
        return LogitDifferences(INFINITE, 0.0, 0.0, INFINITE, INFINITE)
    k = min(TOP, got.shape[1])
    ours, theirs = (np.argsort(-x, axis=-1, kind="stable")[:, :k] for x in (got, wanted))
    shared = [len(set(a) & set(b)) / k for a, b in zip(ours.tolist(), theirs.tolist(), strict=True)]
    p, q = _log_softmax(wanted), _log_softmax(got)
    kl = np.sum(np.exp(p) * (p - q), axis=-1)
    return LogitDifferences(
        nmse(got, wanted), float(np.mean(ours[:, 0] == theirs[:, 0])), float(np.mean(shared)),
        max(0.0, float(np.mean(kl))), max(0.0, float(np.max(kl))),
    )  # fmt: skip


def _log_softmax(x: Array) -> Array:
    wide = x.astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    result: Array = wide - np.log(np.sum(np.exp(wide), axis=-1, keepdims=True))
    return result


def stages(places: Mapping[str, str], record: PeerRecord) -> list[ModelStage]:
    """The parts between the residual stream's places in the record; else the whole model."""
    known = sorted(
        int(name.removeprefix("stream.")) for name in places
        if name.startswith("stream.") and name in record.values
    )  # fmt: skip
    listed: list[ModelStage] = []
    start, before = None, 0
    for at in known:
        end = places[f"stream.{at}"]
        layers = list(range(before, at))
        name = "embedding" if at == 0 else _named(layers, start)
        listed.append(ModelStage(name, layers[0] if len(layers) == 1 else None, start, end, f"stream.{at}"))
        start, before = end, at
    last = "output" if known else "model"
    return [*listed, ModelStage(last, None, start, LOGITS, "logits")]


def _named(layers: list[int], start: str | None) -> str:
    layer_range = f"layer {layers[0]}" if len(layers) == 1 else f"layers {layers[0]}-{layers[-1]}"
    return layer_range if start is not None else f"embedding and {layer_range}"


def target(stage: ModelStage, record: PeerRecord) -> Array:
    """The other program's value at the end of the stage."""
    return record.logits if stage.end == LOGITS else record.values[stage.place]


def own_error(stage: ModelStage, got: Array | None, record: PeerRecord, start: Array | None) -> float:
    """The NMSE of a stage's result from the other's `start`; of the part that it adds, if it is as wide.

    The error of the sum would be relative to the sums of all layers, which a few large numbers dominate.
    """
    wanted = target(stage, record)
    if got is None or start is None or not got.shape == start.shape == wanted.shape:
        return nmse(got, wanted)
    return nmse(got.astype(np.float64) - start, wanted.astype(np.float64) - start)


def given(stages: Sequence[ModelStage], record: PeerRecord) -> dict[str, Array]:
    """The other program's values of the nodes at the starts of stages."""
    ends = {stage.end: target(stage, record) for stage in stages}
    return {stage.start: ends[stage.start] for stage in stages if stage.start is not None}


def rows(
    runs: RecordRuns,
    graph: Graph,
    cut: Sequence[ModelStage],
    record: PeerRecord,
    limit: float,
    keep: bool = False,
) -> tuple[list[StageRow], Array]:
    """A row for each stage, and the logits of the graph end to end."""
    ends = [stage.end for stage in cut]
    whole = runs.values(graph, ends, keep=keep)
    places = {place: node for place, node in runs.places.items() if place in record.values}
    starts = given(cut, record)
    alone = runs.values(graph, [*ends, *places.values()], starts)
    measured = []
    for stage in cut:
        wanted = target(stage, record)
        own = own_error(stage, alone.get(stage.end), record, starts.get(stage.start or ""))
        part = _first_part(stage, places, alone, record, limit) if own > limit else ""
        measured.append(StageRow(stage, nmse(whole.get(stage.end), wanted), own, part))
    return measured, whole[LOGITS]


def _first_part(
    stage: ModelStage, places: Mapping[str, str], alone: Mapping[str, Array], record: PeerRecord, limit: float
) -> str:
    """The first place of the stage's layer that differs although the layer's input is right."""
    prefix = "output" if stage.end == LOGITS else f"blk.{stage.layer}."
    for place, node in places.items():
        if place.startswith(prefix) and nmse(alone.get(node), record.values[place]) > limit:
            name, _, side = place.removeprefix(f"blk.{stage.layer}.").rpartition(".")
            return f"input of {name}" if side == "in" else name
    return ""


def wrong_parts(
    runs: RecordRuns,
    graph: Graph,
    stage: ModelStage,
    cut: Sequence[ModelStage],
    record: PeerRecord,
    limit: float,
) -> int:
    """How many places of the stage's layer differ although the layer's input is right."""
    if stage.layer is None:
        return 0
    prefix = f"blk.{stage.layer}."
    places = {p: n for p, n in runs.places.items() if p in record.values and p.startswith(prefix)}
    alone = runs.values(graph, places.values(), given(cut, record))
    return sum(nmse(alone.get(node), record.values[place]) > limit for place, node in places.items())


UNEVEN = (1, 3, 2)
MOST = 12  # tokens that are tried: each is a step of the whole model in NumPy
LIMIT = 1e-6  # NMSE, of float32 numbers that are added in another order


@dataclass(frozen=True)
class InSteps:
    """A way of cutting a text: the worst token's NMSE to the same text at once, and the token."""

    way: str
    nmse: float
    token: int

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the difference."""
        return self.nmse <= LIMIT


def in_steps(executor: Executor, ids: tuple[int, ...]) -> list[InSteps]:
    """Each way of cutting the text; none for a model whose steps are whole texts."""
    if executor.encodes or not executor.architecture.causal:
        return []
    ids = ids[:MOST]
    whole = _logits(executor, ids, [len(ids)])
    ways = {"uneven steps": list(_uneven(len(ids))), "one token a step": [1] * len(ids)}
    results = []
    for way, counts in ways.items():
        logits = _logits(executor, ids, counts)
        errors = [tolerances.nmse(mine, right) for mine, right in zip(logits, whole, strict=True)]
        worst = int(np.argmax(errors))
        results.append(InSteps(way, float(errors[worst]), worst))
    return results


def _uneven(count: int) -> Iterator[int]:
    for step in cycle(UNEVEN):
        if count <= 0:
            return
        yield min(step, count)
        count -= step


def _logits(executor: Executor, ids: tuple[int, ...], counts: list[int]) -> Array:
    """The logits of every token, [tokens, n_vocab]."""
    room = Room(executor, executor.options, len(ids))
    sequence, at, rows = room.pinned(0), 0, []
    for count in counts:
        for begin in range(at, at + count, executor.n_batch):
            part = np.asarray(ids[begin : min(begin + executor.n_batch, at + count)], np.int32)
            rows.append(room.step({sequence: part}, all_logits=True))
        at += count
    return np.concatenate(rows)
