"""What types cost a model's matrices, measured on a text: kept in a file, drawn, and chosen from.

The file is one of importance, by how much columns matter to the model's answers: any quantiser can read it.
The costs are in a key of it. Knows models, files and pictures; nothing of commands.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphml.api.model import Model
from graphml.api.quantize import formats_of_files
from graphml.backend import Progress, no_progress
from graphml.errors import UsageError
from graphml.system.read_files import guarded, plain_text, reason
from graphml.system.replaced_file import replacing
from graphml.weights.gguf_writing import TensorPlan
from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import Tensor, type_named
from graphml.workshop.importance import Importance
from graphml.workshop.importance_file import read_with_keys, write_importance
from graphml.workshop.quantized_file import can_change
from graphml.workshop.sensitivity import sensitivity
from graphml.workshop.type_costs import CANDIDATES, Costs, TypeCost, choose, parsed, type_costs, written

COSTS, OF_MODEL, OF_TEXT = "graphml.type_costs", "graphml.model", "graphml.text"
DARK = 7.0
"""Bits of a weight from which a field of the picture is dark."""
SCALE = float(1 << 20)
"""Times which columns' importance is kept, so that float32 holds it well."""


@dataclass(frozen=True)
class MeasuredTypes:
    """costs: of matrices by type; importance: of their columns; model, text: fingerprints of both."""

    costs: Costs
    importance: Importance
    model: str
    text: str


def matrices(file: ModelFile) -> list[Tensor]:
    """The tensors that can get another type."""
    return [tensor for tensor in file.tensors.values() if can_change(tensor)]


def measure_types(
    model: Model, ids: Sequence[int], dataset: str, types: Sequence[str], n_texts: int = 32, threads: int = 1,
    progress: Progress = no_progress,
) -> MeasuredTypes:  # fmt: skip
    """Measure all matrices on the text of `ids`. UsageError without PyTorch, for too short a text."""
    file = model.executor.file
    tensors = matrices(file)
    names = [tensor.name for tensor in tensors]
    progress("gradients", 0, n_texts)
    for seen in sensitivity(model, ids, names, n_texts):
        progress("gradients", seen.n_texts, n_texts)
    if missing := [name for name in names if name not in seen.sums or not seen.sums[name].any()]:
        raise UsageError(
            f"--auto: {missing[0]}: the text's answers do not depend on it, so that its types cost nothing; "
            "wanted a longer text, or more --texts"
        )
    costs: Costs = {}
    progress("types", 0, len(tensors))
    for name, of_types in type_costs(tensors, seen, types, threads):
        costs[name] = of_types
        progress("types", len(costs), len(tensors))
    columns = {name: seen.columns(name) * SCALE for name in names}
    counts = {name: np.ones(len(means), np.int64) for name, means in columns.items()}
    importance = Importance(columns, counts, (dataset,), seen.n_texts, seen.length)
    return MeasuredTypes(costs, importance, file.fingerprint, text_fingerprint(ids))


def text_fingerprint(ids: Sequence[int]) -> str:
    """What distinguishes a text from others, by its ids."""
    return hashlib.sha256(np.asarray(ids, np.int64).tobytes()).hexdigest()


def write_measured(path: Path, measured: MeasuredTypes) -> None:
    """Keep it in a file that `read_measured` reads, and any program that reads importance."""
    keys = {COSTS: written(measured.costs), OF_MODEL: measured.model, OF_TEXT: measured.text}
    write_importance(path, measured.importance, keys)


def read_measured(path: Path, file: ModelFile) -> MeasuredTypes:
    """The file at `path`; a UsageError where it is none, or of another model than `file`."""
    importance, keys = read_with_keys(path)
    text = keys.get(COSTS)
    if not isinstance(text, str):
        raise UsageError(f"{path}: key {COSTS}: wanted costs of types, as --auto --costs writes them")
    if keys.get(OF_MODEL) != file.fingerprint:
        raise UsageError(f"{path}: was measured with another model than {file.path}")
    try:
        costs = parsed(text)
    except UsageError as error:
        raise UsageError(f"{path}: key {COSTS}: {error}") from None
    wanted = {tensor.name: tensor for tensor in matrices(file)}
    if other := wanted.keys() ^ costs.keys():
        raise UsageError(
            f"{path}: key {COSTS}: {min(other)}: wanted costs of each matrix of the model, alone"
        )
    for name, of_types in costs.items():
        for dtype, cost in of_types.items():
            _check_cost(f"{path}: key {COSTS}: {name}: {dtype[:40]}", wanted[name], dtype, cost)
    return MeasuredTypes(costs, importance, file.fingerprint, str(keys.get(OF_TEXT)))


def _check_cost(where: str, tensor: Tensor, dtype: str, cost: TypeCost) -> None:
    if dtype not in CANDIDATES or tensor.shape[-1] % type_named(dtype).block_elements:
        raise UsageError(f"{where}: wanted a type that the matrix can have")
    n_bytes = TensorPlan(tensor.name, dtype, tensor.shape).n_bytes
    if cost.n_bytes != n_bytes or not 0 <= cost.kl < math.inf:
        raise UsageError(
            f"{where}: wanted {n_bytes} bytes and a KL divergence; got {cost.n_bytes}, {cost.kl}"
        )


def chosen_types(
    measured: MeasuredTypes, file: ModelFile, n_bytes: int, candidates: Sequence[str]
) -> tuple[dict[str, str], float]:
    """Name -> type of each matrix, for tensors of n_bytes in all; and the predicted KL divergence a token.

    candidates: the types that may be chosen, of those that were measured.
    """
    others = sum(tensor.n_bytes for name, tensor in file.tensors.items() if name not in measured.costs)
    costs = {
        name: {dtype: cost for dtype, cost in of_types.items() if dtype in candidates}
        for name, of_types in measured.costs.items()
    }
    for name, of_types in costs.items():
        if not of_types:
            width = file.tensors[name].shape[-1]
            raise UsageError(f"--types: {name}: none of them has blocks that divide its rows of {width}")
    types = choose(costs, n_bytes, others)
    return types, sum(measured.costs[name][dtype].kl for name, dtype in types.items())


def write_plan(path: Path, types: Mapping[str, str]) -> None:
    """Keep a choice of types, to be edited or used again."""
    try:
        with replacing(path) as partial:
            partial.write_text(json.dumps({"types": dict(types)}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {reason(error)}") from None


def read_plan(path: Path, file: ModelFile) -> dict[str, str]:
    """A choice of types for a model; a UsageError that names what is wrong in it."""
    text = plain_text(path, UsageError)
    with guarded(path, UsageError):
        content = json.loads(text, object_pairs_hook=_once)
    stated = content.get("types") if isinstance(content, dict) else None
    if not isinstance(stated, dict) or not all(isinstance(dtype, str) for dtype in stated.values()):
        raise UsageError(f'{path}: wanted {{"types": {{NAME: TYPE, ...}}}}, as --save-plan writes it')
    types = {name: dtype.lower() for name, dtype in stated.items()}
    known = {tensor.name: tensor for tensor in matrices(file)}
    for name, dtype in types.items():
        if name not in known:
            raise UsageError(f"{path}: {name}: wanted a matrix of the model that can get another type")
        if dtype not in formats_of_files() or known[name].shape[-1] % type_named(dtype).block_elements:
            raise UsageError(
                f"{path}: {name}: wanted a type whose blocks divide rows of {known[name].shape[-1]}; "
                f"got {dtype!r}"
            )
    if missing := known.keys() - types.keys():
        raise UsageError(f"{path}: {min(missing)}: wanted a type for each matrix")
    return types


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which no name is twice: one of both would be left out."""
    names = Counter(name for name, _ in pairs)
    if pairs and names.most_common(1)[0][1] > 1:
        raise UsageError(f"{names.most_common(1)[0][0]}: wanted it once; it is there twice")
    return dict(pairs)


def draw_plan(path: Path, file: ModelFile, types: Mapping[str, str]) -> None:
    """A picture of the types: a row for each layer, a column for each matrix of a layer, bits as colour."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise UsageError(
            "--plot: matplotlib is not installed; in a clone of graphml: pip install '.[plots]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    places = {name: _place(name) for name in types}
    columns = list(dict.fromkeys(column for column, _ in places.values()))
    n_rows = 1 + max(row for _, row in places.values())
    bits = np.full((n_rows, len(columns)), np.nan)
    figure, axes = pyplot.subplots(figsize=(2 + 1.1 * len(columns), 2 + 0.28 * n_rows), layout="constrained")
    for name, dtype in types.items():
        column, row = places[name]
        at = columns.index(column)
        kind = type_named(dtype)
        bits[row, at] = 8 * kind.block_bytes / kind.block_elements
        colour = "white" if bits[row, at] > DARK else "black"
        axes.text(at, row, dtype.upper(), ha="center", va="center", fontsize=7, color=colour)
    image = axes.imshow(bits, aspect="auto", cmap="YlGnBu", vmin=2, vmax=10)
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    axes.set_ylabel("layer")
    axes.set_title(f"types of {file.path.name}")
    figure.colorbar(image, label="bits a weight")
    try:
        with replacing(path) as partial:
            figure.savefig(partial, dpi=120, format=path.suffix[1:].lower())
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {path}: cannot be written: {error}") from None
    finally:
        pyplot.close(figure)


def _place(name: str) -> tuple[str, int]:
    """A matrix's column and row in the picture: those outside of layers are above the first layer's."""
    layer = re.match(r"blk\.(\d+)\.(.+?)(?:\.weight)?$", name)
    return (layer[2], int(layer[1])) if layer else (name.removesuffix(".weight"), 0)
