"""The proof of an imported file: PyTorch's logits, and the traced module's values with other parameters.

Fresh norms are 1 and biases 0, which hides mistakes: part by part the file is compared with parameters that
are random everywhere, at lengths on both sides of every window, at once, in steps and in odd splits. With
the outputs of attention, shifts and convolutions given, a token may change no other. Knows runs and records;
nothing of how the file came about.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import graphml
from graphml.authoring.gguf_file import write_gguf
from graphml.authoring.importing.aten import cast
from graphml.authoring.importing.description import TracedNode
from graphml.authoring.importing.evaluation import Evaluator, random_parameter
from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.importing import Imported
from graphml.authoring.importing.places import tensor_name, value_of
from graphml.authoring.importing.region import concrete
from graphml.authoring.verify.record import PeerRecord
from graphml.authoring.verify.search import SearchResult
from graphml.authoring.verify.search import verify as verify_model
from graphml.authoring.verify.stages import nmse
from graphml.errors import ArchitectureError, GraphError, WeightsError
from graphml.loading.carried_definition import SOURCE
from graphml.loading.discovery import DEFINITION
from graphml.loading.open_file import open_path
from graphml.weights import Metadata


def first_layers(imported: Imported, largest: int) -> tuple[Imported | None, str]:
    """The model's first layers, with no more parameters than `largest`; and what is left out, as text.

    None if there would be no layer of each kind.
    """
    layered = imported.layers
    ends = sum(map(_parameters, (layered.before, layered.after)))
    sizes = np.cumsum([ends, *map(_parameters, layered.layers)])
    total, count = len(layered.layers), int(np.count_nonzero(sizes <= largest)) - 1
    if count >= total:
        return imported, ""
    if count <= max(layered.firsts):
        return None, (
            f"no layer was compared with random parameters: {sizes[max(layered.firsts) + 1]} numbers, of a "
            f"layer of each kind, are more than {largest}"
        )
    keys = {
        key: value[:count] if isinstance(value, list) and len(value) == total else value
        for key, value in imported.keys.items()
    }
    layers = replace(layered, layers=layered.layers[:count], kinds=layered.kinds[:count])
    shortened = (
        f"layers {count} to {total - 1} were not compared with random parameters: more than {largest} numbers"
    )
    return replace(imported, layers=layers, keys=keys | {"block_count": count}), shortened


def _parameters(of: Sequence[Expression]) -> int:
    return sum(int(np.prod(weight.shape)) for expr in of for weight in expr.weights.values())


def evaluator_of(imported: Imported, ids: Array, values: dict[str, Any] | None = None) -> Evaluator:
    """The traced module on ids with random parameters; what is after the layers follows the last one kept."""
    description = imported.dependence.description
    evaluator = Evaluator(description, {**description.with_ids(ids), **(values or {})}, random_parameter)
    if imported.last is not imported.layers.leaving(-1):
        last, kept = (imported.made_by[id(expr)] for expr in (imported.last, imported.layers.leaving(-1)))
        evaluator.held[last.name] = evaluator.value(kept.name)
    return evaluator


def tokens_alone(imported: Imported, ids: Array) -> float:
    """How much a token changes others if the outputs of attention, shifts and convolutions are given: 0.

    One token and its rows of these outputs are changed; ArchitectureError names the first op in which
    another token's values change.
    """
    changed = ids.copy()
    at = len(ids) // 2
    changed[at] = (ids[at] + 1) % imported.layers.result.shape[-1]
    nodes = imported.dependence.description.nodes
    outputs = [name for name, recognised in imported.recognised.items() if recognised.op == "attend"]
    outputs += [name for name in nodes if name in imported.neighbours and _axis(nodes[name]) is not None]
    runs = []
    for tokens in (ids, changed):
        entries = {}
        for i, name in enumerate(outputs):
            axis = _axis(nodes[name])
            shape = [len(ids) if isinstance(size, str) else size for size in nodes[name].shape or ()]
            numbers = np.random.default_rng(i).standard_normal(shape)
            numbers = cast(numbers, nodes[name].dtype)
            values: Array = np.moveaxis(numbers, axis or 0, 0)
            if tokens is changed:
                values[at] += 1
            entries[name] = np.moveaxis(values, 0, axis or 0)
        runs.append(evaluator_of(imported, tokens, entries))
        runs[-1].value(imported.dependence.description.result)
    for node in imported.dependence.needed:
        axis = _axis(node)
        if axis is None or any(node.name not in run.held for run in runs):
            continue
        a, b = (np.delete(np.asarray(run.held[node.name]), at, axis) for run in runs)
        if not np.array_equal(a, b):
            raise ArchitectureError(
                f"{node.told}: mixes tokens: with attention's outputs given, it changes with another token"
            )
    return 0.0


def _axis(node: TracedNode) -> int | None:
    """The dimension of the tokens, where it is one that counts nothing else."""
    axes = [i for i, size in enumerate(node.shape or ()) if isinstance(size, str)]
    return axes[0] if len(axes) == 1 and str((node.shape or ())[axes[0]]).isidentifier() else None


Array = NDArray[Any]
LIMIT = 1e-8
LARGEST = 1 << 28  # parameters that are replaced by random ones
SHORT, FAR = 11, 600  # tokens of texts that the traced module is evaluated on
MOST_HELD = 4 << 30  # bytes of the values of a longer text
MOST_PAIRS = 1 << 28  # of tokens, of all heads and layers


@dataclass(frozen=True)
class Line:
    """One comparison: what was compared, tokens, NMSE of the logits."""

    what: str
    tokens: int
    nmse: float


@dataclass(frozen=True, eq=False)
class Proof:
    """lines: comparisons of logits; verdicts: part by part, for each length with random parameters.

    left_out: what was too large to be compared; empty if nothing. fusions: of a step of one token on the
    backend `fused_on`, one for each time; misses: fusion and reason.
    """

    lines: tuple[Line, ...]
    verdicts: tuple[tuple[SearchResult, PeerRecord], ...]
    left_out: str = ""
    fused_on: str = ""
    fusions: tuple[str, ...] = ()
    misses: tuple[tuple[str, str], ...] = ()

    @property
    def holds(self) -> bool:
        """Whether everything agrees."""
        return all(line.nmse <= LIMIT for line in self.lines) and not any(
            verdict.first for verdict, _ in self.verdicts
        )


def prove(imported: Imported, arch: Path, folder: Path | None) -> Proof:
    """Compare an imported file. folder: the checkpoint, which the file must run as it is."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            return _proved(imported, arch, folder, Path(directory))
        except (GraphError, WeightsError) as error:
            text = str(error).replace(f"{directory}/", "")
            raise ArchitectureError(f"the imported file does not run: {text}") from None


def _proved(imported: Imported, arch: Path, folder: Path | None, directory: Path) -> Proof:
    """The comparisons. directory: for files of weights."""
    description = imported.dependence.description
    lines: list[Line] = []
    if folder is None and description.samples:
        folder = directory / "weights.gguf"
        write_weights(imported, folder)
    if folder is not None and description.samples:
        with graphml.load(folder, "reference", kv="f32", quant="fp32", arch=arch) as model:
            for ids, wanted in description.samples:
                lines += _compared(model, ids, wanted, "PyTorch's logits")
    sized, more = _as_folder(imported, arch, folder) if description.config and folder else (imported, ())
    kept, shortened = first_layers(sized, LARGEST)
    verdicts = []
    if kept is not None:
        context = imported.keys["context_length"]
        path = directory / "random.gguf"
        write_weights(kept, path, random=True, more=more)
        text = longest(kept)
        for count in sorted({min(SHORT, context), min(text.tokens, context)}):
            verdicts.append(_by_parts(kept, arch, path, count, lines))
        shortened = "; ".join(part for part in (shortened, text.left_out) if part)
        folder = folder or path
    fused = ("", (), ()) if folder is None else _fused(folder, arch)
    return Proof(tuple(lines), tuple(verdicts), shortened, *fused)


def _as_folder(imported: Imported, arch: Path, folder: Path) -> tuple[Imported, list[tuple[str, Array]]]:
    """The file with the keys that it reads from config.json, and the tensors that follow from it.

    In small weights, as fresh ones are, mistakes in them hardly show.
    """
    with open_path(folder, arch) as file:
        stored = {place.name for place in imported.tensors}
        more = [
            (name, file.tensors[name].numpy())
            for name in file.tensors
            if name.startswith(("rope_", "position_embd")) and name not in stored
        ]
        return replace(imported, keys=_keys_of(file.metadata), factors=None), more


def _keys_of(metadata: Metadata) -> dict[str, Any]:
    """The architecture's keys of a file, without its name."""
    name = f"{metadata.text('general.architecture')}."
    return {key.removeprefix(name): metadata[key] for key in metadata if key.startswith(name)}


@dataclass(frozen=True)
class Longest:
    """The longest text with random parameters: tokens, bytes of its values; window: a longer one, or 0."""

    tokens: int
    n_bytes: int
    window: int

    @property
    def left_out(self) -> str:
        """What is not compared; empty if nothing."""
        if not self.window:
            return ""
        return (
            f"texts with random parameters have {self.tokens} tokens: those beyond the window of "
            f"{self.window} would take more than {MOST_HELD >> 30} GB or {MOST_PAIRS} scores, and its mask "
            "was looked at by positions alone"
        )


def longest(imported: Imported) -> Longest:
    """Beyond the traced windows and chunks, where that takes no more than the limits; else `FAR` tokens."""
    attends = [expr for layer in imported.layers.layers for expr in layer if expr.op == "attend"]
    spans = [int(expr.numbers[kind]) for expr in attends for kind in ("window", "chunk")]
    wanted = max([imported.dependence.description.length, *(span for span in spans if span <= FAR)]) + 5
    pairs = sum(map(_heads, attends)) * wanted**2
    if _held_bytes(imported, wanted) <= MOST_HELD and pairs <= MOST_PAIRS:
        return Longest(wanted, _held_bytes(imported, wanted), 0)
    count = min(wanted, FAR + 5)
    beyond = min((span for span in spans if span >= count), default=0)
    return Longest(count, _held_bytes(imported, count), beyond)


def _held_bytes(imported: Imported, n_tokens: int) -> int:
    """Of the values of the traced module for a text: the evaluator keeps them all, and scores for a while."""
    nodes = imported.dependence.description.nodes.values()
    kept = sum(prod(concrete(node.shape, n_tokens)) for node in nodes if node.shape is not None)
    attends = (expr for layer in imported.layers.layers for expr in layer if expr.op == "attend")
    return 8 * kept + 24 * max(map(_heads, attends), default=0) * n_tokens**2


def _heads(attend: Expression) -> int:
    return attend.shape[0] if len(attend.shape) > 1 else 1


def _fused(folder: Path, arch: Path) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The default backend, its fusions of a step of one token, and its near misses."""
    with graphml.load(folder, arch=arch) as model:
        log = model.executor.compiled(1, 1).fusions
        backend = model.executor.backend.name
    fusions = tuple(sorted(fusion.fusion for fusion in log.applied))
    return backend, fusions, tuple(sorted((fusion.fusion, fusion.reason) for fusion in log.refused))


def write_weights(
    imported: Imported,
    path: Path,
    random: bool = False,
    tokenizer: Mapping[str, Any] | None = None,
    more: Sequence[tuple[str, Array]] = (),
) -> None:
    """The tensors of a plain module as a GGUF file, or random ones in their place; and a tokenizer.

    more: further tensors, by their names.
    """
    description = imported.dependence.description

    def traced(leaf: Any) -> Array:
        return description.values[leaf.name].astype(np.float64)

    listed = [*_tensors(imported, random_parameter if random else traced), *more]
    if imported.factors is not None:
        listed.append(("rope_freqs.weight", imported.factors))
    _write(imported, path, imported.keys, tokenizer or {}, listed)


def write_checkpoint(imported: Imported, arch: Path, folder: Path, path: Path) -> list[Line]:
    """A folder's model as a GGUF file, with tokenizer and template; and its logits against PyTorch's."""
    with open_path(folder, arch) as file:
        name = f"{file.metadata.text('general.architecture')}."
        keys = _keys_of(file.metadata)
        rest = {
            key: file.metadata[key]
            for key in file.metadata
            if not key.startswith((name, "general.architecture"))
        }
        _write(imported, path, keys, rest, ((key, tensor.numpy()) for key, tensor in file.tensors.items()))
    with graphml.load(path, "reference", kv="f32", quant="fp32", arch=arch) as model:
        samples = imported.dependence.description.samples
        return [
            line for ids, wanted in samples for line in _compared(model, ids, wanted, "the file of weights")
        ]


def _write(
    imported: Imported,
    path: Path,
    keys: Mapping[str, Any],
    rest: Mapping[str, Any],
    tensors: Iterable[tuple[str, Array]],
) -> None:
    """A file whose architecture has a name of its own: the definition says how its tensors are laid out."""
    name = imported.file_architecture
    definition = hashlib.sha256(imported.text.encode()).hexdigest()
    named = {f"{name}.{key}": value for key, value in keys.items()}
    named |= {DEFINITION: definition, SOURCE: imported.text}
    write_gguf(path, name, {**rest, **named}, tensors)


def _tensors(imported: Imported, parameters: Callable[..., Array]) -> Iterator[tuple[str, Array]]:
    """Every tensor by our name, float32; of a tied model the embedding stands for the output."""
    model = imported.layers
    layers = [(f"blk.{i % model.n_blocks}.", layer, model.like(i)) for i, layer in enumerate(model.layers)]
    ends = [("", group, group) for group in (model.before, model.after)]
    done: set[str] = set()
    for prefix, expressions, alike in [ends[0], *layers, ends[1]]:
        for expr, like in zip(expressions, alike, strict=True):
            for role, weight in expr.weights.items():
                start = "" if model.is_of_model(expr) else prefix
                name = start + tensor_name(imported.named[id(like)], role)
                if name in done or (imported.tied and name == "output.weight"):
                    continue
                done.add(name)
                yield name, value_of(imported.dependence, weight, parameters).astype(np.float32)


def _compared(model: graphml.Model, ids: Sequence[int], wanted: Array, what: str) -> list[Line]:
    """At once, in single steps after a first part, and in odd splits."""
    n = len(ids)
    ways = {"at once": [n], "in steps": [5, *([1] * (n - 5))], "in odd splits": [3, 1, *_odd(n - 4)]}
    lines = []
    for way, sizes in ways.items():
        if way != "at once" and n > 600:
            sizes = [n - 7, *([1] * 7)]
        session = model.session(n_ctx=n)
        at, rows = 0, []
        for size in (block_size for block_size in sizes if at < n):
            rows.append(np.atleast_2d(session.eval(list(ids[at : at + size]), all_logits=True)))
            at += size
        session.close()
        lines.append(Line(f"{what}, {way}", n, nmse(np.concatenate(rows), wanted)))
    return lines


def _odd(left: int) -> list[int]:
    sizes, size = [], 5
    while left > 0:
        sizes.append(min(size, left))
        left -= sizes[-1]
        size += 2
    return sizes


def _by_parts(
    imported: Imported, arch: Path, path: Path, count: int, lines: list[Line]
) -> tuple[SearchResult, PeerRecord]:
    """With random parameters: the file against the traced module, evaluated in NumPy."""
    description = imported.dependence.description
    ids = np.random.default_rng(count).integers(0, imported.layers.result.shape[-1], count)
    evaluator = evaluator_of(imported, ids)
    others = tokens_alone(imported, ids)
    lines.append(Line("each token by itself, outside attention", count, others))
    logits = np.asarray(evaluator.value(description.result)).reshape(count, -1)
    record = PeerRecord(
        f"the traced module ({description.by})",
        tuple(map(int, ids)),
        logits.astype(np.float32),
        _values(imported, evaluator, count),
    )
    with graphml.load(path, "reference", kv="f32", quant="fp32", arch=arch) as model:
        lines += _compared(model, record.ids, logits, "random parameters")
        return verify_model(model.executor, record, LIMIT), record


def _values(imported: Imported, evaluator: Evaluator, count: int) -> dict[str, Array]:
    """The residual stream, and inputs and outputs of products, under the names of records."""

    def value(expr: Any) -> Array | None:
        node = imported.made_by.get(id(expr))
        if node is None or node.shape is None:
            return None
        axis = next(i for i, size in enumerate(node.shape) if isinstance(size, str))
        moved = np.moveaxis(np.asarray(evaluator.value(node.name)), axis, 0)
        return moved.reshape(count, -1).astype(np.float32)

    values: dict[str, Array] = {}
    layers = imported.layers
    flat = [expr for expr in layers.kept if len(expr.shape) == 1]
    unclear = {i + 1 for i, layer in enumerate(layers.layers) if any(expr in flat for expr in layer)}
    if any(each in layers.beside for expr in layers.layers[0] for each in expr.inputs):
        unclear.add(0)  # `verify` could take the value beside it for the stream
    for number, layer in enumerate(layers.layers):
        entering = value(layers.entering(number))
        if entering is not None and number not in unclear:
            values[f"stream.{number}"] = entering
        for expr, like in zip(layer, layers.like(number), strict=True):
            name = imported.named.get(id(like), "")
            if expr.op == "linear" and all(weight.rows is None for weight in expr.weights.values()):
                array = value(expr)
                if array is not None:
                    values[f"blk.{number}.{name}.out"] = array
    leaving = value(layers.leaving(-1))
    if leaving is not None and len(layers.layers) not in unclear:
        values[f"stream.{len(layers.layers)}"] = leaving
    return values
