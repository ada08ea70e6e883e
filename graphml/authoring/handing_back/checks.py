"""What holds before a written folder has its name: its tensors, its graph and its logits are the model's.

Knows open models; nothing of how the folder came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from graphml.api.load_model import load_model
from graphml.api.model import Model
from graphml.api.text_rows import longest_text
from graphml.authoring.peer_process import ask
from graphml.authoring.verify.stages import nmse
from graphml.backend import no_progress
from graphml.errors import GraphmlError
from graphml.inspect.compare import archive
from graphml.ir.graph import Graph
from graphml.loading.open_file import open_path
from graphml.loading.pooling import PADDING_ID
from graphml.runtime.programs.load_options import LoadOptions
from graphml.weights import Tensor

N_TOKENS = 24
EXACT, FURTHEST = 1e-8, 1e-3  # NMSE of logits against transformers': of the reference, of other backends
SMALL = 1 << 28  # numbers of a model that the reference runs
TYPE = "from_dtype"  # the setting that is a type of weights
SMALL_DIFFERENCE = 1e-6  # of settings, which files have as float32


def check_tensors(wanted: Mapping[str, Tensor], got: Mapping[str, Tensor], settings: set[str]) -> None:
    """GraphmlError for a tensor with another number. settings: tensors that follow from config.json."""
    different = sorted(wanted.keys() ^ got.keys())
    if different:
        side = "the model" if different[0] in wanted else "the written folder"
        raise GraphmlError(
            f"convert: {different[0]} is in {side} alone: the folder's class has another graph"
        )
    for name, tensor in wanted.items():
        ours, theirs = (np.asarray(each.numpy(), np.float32) for each in (tensor, got[name]))
        near = name in settings and ours.shape == theirs.shape
        same = np.allclose(ours, theirs, rtol=SMALL_DIFFERENCE) if near else _same_bits(ours, theirs)
        if not same:
            what = f"shape {list(theirs.shape)}" if ours.shape != theirs.shape else "other numbers"
            raise GraphmlError(f"convert: {name}: the written folder has {what} than the model: not written")


def _same_bits(left: Any, right: Any) -> bool:
    return left.shape == right.shape and np.array_equal(left.view(np.uint32), right.view(np.uint32))


def check_graphs(wanted: Graph, got: Graph) -> None:
    """GraphmlError for the first node that is another: the folder's class computes something else."""
    sides = [_without_types(graph) for graph in (wanted, got)]
    for ours, theirs in zip_longest(*sides):
        if ours is None or theirs is None or not _is_same(ours, theirs):
            raise GraphmlError(
                "convert: the class of the folder computes another graph than the model: wanted "
                f"{_told(ours)}; got {_told(theirs)}"
            )


@dataclass(frozen=True)
class _GraphStep:
    """A node without the types of weights, which a folder has as floats. called: its beginning, as text."""

    called: tuple[str, ...]
    inputs: tuple[str, ...]
    settings: Mapping[str, Any]


def _without_types(graph: Graph) -> list[_GraphStep]:
    """The nodes but those that unpack weights."""
    unpacked: dict[str, str] = {}
    steps = []
    for node in graph.nodes:
        names = [unpacked.get(each.name, each.name) for each in node.inputs]
        if node.op.name == "dequantize":
            unpacked[node.name] = names[0]
            continue
        settings = {key: value for key, value in node.attributes.items() if key != TYPE}
        steps.append(_GraphStep((node.name, node.op.name, str(node.shape)), tuple(names), settings))
    return steps


def _is_same(ours: _GraphStep, theirs: _GraphStep) -> bool:
    if (ours.called, ours.inputs, ours.settings.keys()) != (
        theirs.called,
        theirs.inputs,
        theirs.settings.keys(),
    ):
        return False
    return all(_is_near(value, theirs.settings[key]) for key, value in ours.settings.items())


def _is_near(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float | int):
        return isclose(left, right, rel_tol=SMALL_DIFFERENCE)
    if isinstance(left, tuple | list) and isinstance(right, tuple | list):
        return len(left) == len(right) and all(map(_is_near, left, right))
    return bool(left == right)


def _told(step: _GraphStep | None) -> str:
    if step is None:
        return "no further node"
    settings = ", ".join(f"{key}={value}" for key, value in step.settings.items())
    return f"{step.called[0]} = {step.called[1]}({settings})"


def check_logits(wanted: Model, got: Model, most: float, whose: str) -> float:
    """The NMSE of what was written, open again; GraphmlError where it is more than `most`.

    Of a model that embeds texts its rows are compared. whose: file or folder, for the error.
    """
    furthest = 0.0
    generates = wanted.executor.generates and got.executor.generates
    if generates:
        furthest = _compared("logits", whose, most, _logits_of(wanted)[1], _logits_of(got)[1])
    stated = got.executor.pooling
    for pooling in (*(() if generates else ("none",)), *(() if stated == "none" else (stated,))):
        rows = [_rows_of(model, pooling, wanted) for model in (wanted, got)]
        furthest = max(furthest, _compared("rows", whose, most, *rows))
    return furthest


def _compared(what: str, whose: str, most: float, wanted: Any, got: Any) -> float:
    if not np.isfinite(wanted).all():
        raise GraphmlError(
            f"convert: the model's own {what} hold NaN or infinity, so that nothing of it can be compared; "
            "`graphml doctor` names the tensors that do"
        )
    came = nmse(got, wanted) if got.shape == wanted.shape else float("inf")
    if not came <= most:
        raise GraphmlError(
            f"convert: the {whose}'s {what} are not the model's: wanted an NMSE of at most {most:g}; "
            f"got {came:.2g}"
        )
    return came


def _rows_of(model: Model, pooling: str, of: Model) -> Any:
    """The rows of some ids; of: the model that says which ids a text may have."""
    count = min(N_TOKENS, longest_text(of.executor))
    padding = of.executor.file.metadata.integer(f"{of.executor.architecture.name}.{PADDING_ID}", -1)
    ids = np.random.default_rng(0).integers(0, of.executor.config.n_vocab, 2 * count).tolist()
    return model.embed_ids([[id for id in ids if id != padding][:count]], pooling)[0]


def _logits_of(model: Model) -> tuple[list[int], Any]:
    """Some ids and a model's logits of them."""
    count = min(N_TOKENS, model.n_ctx)
    ids = np.random.default_rng(0).integers(0, model.executor.n_vocab, count).tolist()
    return ids, model.session(count).eval(ids, all_logits=True)


def against_transformers(folder: Path, arch: str | None, backend: str, python: str) -> tuple[str, float]:
    """transformers' version and the NMSE of its logits of the folder; GraphmlError where they are others.

    backend: of larger models.
    """
    options = LoadOptions(backend="reference", kv="f32", arch=arch)
    with open_path(folder, None if arch is None else Path(arch)) as file:
        if sum(tensor.n_elements for tensor in file.tensors.values()) > SMALL:
            options = replace(options, backend=backend)
    with load_model(folder, options, no_progress) as model:
        ids, logits = _logits_of(model)
    most = EXACT if options.backend == "reference" else FURTHEST
    with TemporaryDirectory() as directory:
        out = Path(directory) / "logits.npz"
        by = ask("convert", "record_transformers.py", python,
                 {"model": str(folder.resolve()), "ids": ids, "out": str(out)})  # fmt: skip
        wanted = archive.arrays_of(out, GraphmlError, "cannot be read")["logits"]
    came = nmse(logits, wanted)
    if not came <= most:
        raise GraphmlError(
            f"convert: transformers' logits of the written folder are not the model's: wanted an NMSE of at "
            f"most {most:g}; got {came:.2g}"
        )
    return by, came
