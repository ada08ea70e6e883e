"""One GGUF file of an open model: its weights as they are open, adapters merged, its architecture's source.

A folder of a known family is written as llama.cpp reads it. What is written is opened again and compared
before it has its name. Knows metadata, tensors and pairs of adapters; nothing of options of a command.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import graphml_quant
import numpy as np
from numpy.typing import NDArray

from graphml.api.load_model import load_model
from graphml.api.model import Model
from graphml.authoring.file_types import AUTO, types_of_file
from graphml.authoring.handing_back.checks import check_logits
from graphml.authoring.llama_cpp.card import card_values
from graphml.authoring.llama_cpp.terms import in_its_terms
from graphml.authoring.llama_cpp.vocabulary import vocabulary_values
from graphml.backend import Progress, no_progress
from graphml.errors import UsageError
from graphml.loading.carried_definition import LARGEST, SOURCE
from graphml.loading.discovery import DEFINITION, IMPORTED
from graphml.loading.huggingface.folder import is_folder_of_model
from graphml.passes.lora import EMBEDDING, Adapter
from graphml.runtime.programs.load_options import LoadOptions
from graphml.weights.gguf_writing import stored_values
from graphml.weights.metadata import Metadata, StoredValue, stored
from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import Tensor
from graphml.weights.type_mixes import file_type
from graphml.workshop.quantized_file import (
    UNQUANTISED,
    Change,
    paths_of,
    quantized_parts,
    split_plan,
    work_key,
    written_together,
)

FURTHEST, FURTHEST_PLAIN = 0.05, 1e-5
"""NMSE of logits: with adapters merged into matrices that are rounded again, and else."""
FURTHEST_PACKED = 0.7
"""NMSE of logits where few bits are asked for; another model's are at about 2."""
PRE = "tokenizer.ggml.pre"
TABLE = "token_embd.weight"


@dataclass(frozen=True)
class WrittenAs:
    """type: `auto`, the model's own types, or a file type. most_bytes: of the tensors of a part; None: one.

    progress: of what is written.
    """

    type: str = AUTO
    most_bytes: int | None = None
    progress: Progress = no_progress


@dataclass(frozen=True)
class HandedOn:
    """paths: the files. n_merged: matrices with adapters in them. nmse: logits against the open model's."""

    paths: tuple[Path, ...]
    n_merged: int
    nmse: float

    @property
    def path(self) -> Path:
        """The file, or the first part."""
        return self.paths[0]


def hand_on(
    model: Model, output: Path, source: Path | None, options: LoadOptions, writing: WrittenAs | None = None
) -> HandedOn:
    """Write a model with its tokenizer, its template and its adapters at their factors as one file, or parts.

    source: the Python file that the model's architecture is from; None for a built-in one, and for one that
    the file carries. options: backend, threads and type of the cache that both are compared with.
    UsageError for a model that denoises or answers a source text, for adapters that no weights stand for, and
    for what cannot be written; GraphmlError where the file's logits, or rows, are others.
    """
    check_convertible(model, embeds=True)
    text = None if source is None else _text_of(source)
    if output.exists() and output.samefile(model.path):
        raise UsageError(f"{output}: convert: is the model itself; wanted another name")
    merged, writing = merged_tensors(model), writing or WrittenAs()
    held = model.executor.file.tensors
    tensors = {key: merged[key].tensor if key in merged else tensor for key, tensor in held.items()}
    file = _to_be_written(model, text, options.pre, tensors)
    plan, kind = types_of_file(file, writing.type)
    most = _furthest(plan, kind, merged)
    own, parts = model.executor.file.with_tensors(tensors), split_plan(plan, writing.most_bytes)
    with written_together(own, output, len(parts), work_key(own, plan)) as folder:
        partial = quantized_parts(
            file, plan, kind, folder / output.name, threads=options.threads or 1,
            progress=writing.progress, parts=parts,
        )  # fmt: skip
        nmse = _compared(model, partial[0], options, most)
    return HandedOn(tuple(paths_of(output, len(parts))), len(merged), nmse)


def check_convertible(model: Model, embeds: bool = False) -> None:
    """UsageError for a model that does not predict tokens, or is more than its weights.

    embeds: one whose rows embed texts or score pairs is wanted, too.
    """
    executor = model.executor
    if not (executor.generates or embeds) or executor.encodes or executor.denoises:
        more = ", or embeds texts" if embeds else ""
        raise UsageError(
            f"{model.path}: convert: wanted a model that predicts the next token of a text{more}"
        )
    if executor.options.control is not None:
        raise UsageError("convert: a control vector is no weight of the model: wanted none")


def _text_of(source: Path) -> str:
    text = source.read_text(encoding="utf-8")
    if len(text) > LARGEST:
        raise UsageError(f"{source}: wanted at most {LARGEST:,} characters; got {len(text):,}")
    return text


@dataclass(frozen=True)
class MergedTensor:
    """A matrix with adapters in it. is_rounded: its numbers were rounded to its type."""

    tensor: Tensor
    is_rounded: bool


def merged_tensors(model: Model, packed: str = "q8_0") -> dict[str, MergedTensor]:
    """The matrices with the adapters' products added.

    packed: what packed ones become, where their rows have whole blocks of it; else F16.
    """
    executor, tensors = model.executor, model.executor.file.tensors
    changes: dict[str, NDArray[Any]] = {}
    for adapter, factor in zip(executor.options.adapters, executor.options.factors, strict=True):
        _check(adapter, tensors)
        for name, (a, b) in adapter.pairs.items():
            product = a @ b.T if name == EMBEDDING else b @ a
            changes[name] = np.float32(factor) * product + changes.get(name, 0)
    merged = {}
    for name, change in changes.items():
        tensor = tensors[name]
        kind = tensor.dtype if graphml_quant.by_name(tensor.dtype).block_elements == 1 else packed
        if tensor.shape[-1] % graphml_quant.by_name(kind).block_elements:
            kind = "f16"
        coded = graphml_quant.quantize(graphml_quant.by_name(kind), tensor.numpy() + change)
        merged[name] = MergedTensor(
            Tensor(name, kind, tensor.shape, coded.reshape(-1), mapped=False), kind != "f32"
        )
    return merged


def _check(adapter: Adapter, tensors: Mapping[str, Tensor]) -> None:
    """UsageError for an adapter that no weights stand for."""
    why = None
    if adapter.invocation:
        why = "works from some ids on alone"
    elif adapter.offsets:
        why = f"adds to products, as with {next(iter(adapter.offsets))}"
    elif EMBEDDING in adapter.pairs and "output.weight" not in tensors:
        why = "changes the embedding, which is the output matrix, too"
    for name in adapter.pairs:
        if f"{name.removesuffix('.weight')}.scale" in tensors:
            why = f"changes {name}, whose products have a factor of their own"
    if why is not None:
        raise UsageError(f"{adapter.name}: convert: cannot be merged: it {why}")


def _to_be_written(
    model: Model, text: str | None, pre: str | None, tensors: Mapping[str, Tensor]
) -> ModelFile:
    """The file as it is written: of a folder in llama.cpp's terms, of a GGUF file as it is.

    text: a definition, whose architecture has a name of its own, since it says what the tensors are. pre: of
    the tokenizer, in place of the file's; None: that. tensors: with adapters in them.
    """
    file = model.executor.file.with_tensors(tensors)
    if text is None and is_folder_of_model(file.path):
        values, tensors = in_its_terms(file)
        values |= card_values(file.path, sum(tensor.n_elements for tensor in tensors.values()))
        values |= vocabulary_values(file, tensors[TABLE].shape[0], pre)
    else:
        values = _values(file.metadata, text, pre)
    return file.with_metadata(Metadata(file.path, values)).with_tensors(tensors)


def _values(metadata: Metadata, text: str | None, pre: str | None) -> dict[str, StoredValue]:
    own = metadata.text("general.architecture")
    is_named = text is None or own.startswith(IMPORTED)
    name = own if is_named else f"{IMPORTED}-{own}"
    values = {}
    for key, value in stored_values(metadata).items():
        if not key.startswith(("split.", "GGUF.")):
            values[f"{name}{key.removeprefix(own)}" if key.startswith(f"{own}.") else key] = value
    values["general.architecture"] = stored(name)
    if pre is not None:
        values[PRE] = stored(pre)
    if text is not None:
        values[DEFINITION] = stored(hashlib.sha256(text.encode()).hexdigest())
        values[SOURCE] = stored(text)
    return values


def _furthest(plan: Sequence[Change], kind: str, merged: Mapping[str, MergedTensor]) -> float:
    """The most that the NMSE of the file's logits may be."""
    rounded = any(change.dtype not in ("f32", change.tensor.dtype) for change in plan)
    if rounded and file_type(kind).format not in (*UNQUANTISED, "q8_0"):
        return FURTHEST_PACKED
    return FURTHEST if rounded or any(each.is_rounded for each in merged.values()) else FURTHEST_PLAIN


def _compared(model: Model, path: Path, options: LoadOptions, most: float) -> float:
    """The NMSE of the file's logits, or rows, against the model's; GraphmlError where they are others."""
    kv = model.executor.cache_dtype  # that of the model, whatever the types of the file's weights
    same = LoadOptions(backend=options.backend, threads=options.threads, kv=kv, trust_arch=True)
    with load_model(path, same, no_progress) as other:
        return check_logits(model, other, most, "file")
