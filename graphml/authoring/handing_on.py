"""One GGUF file of an open model: its weights as they are open, adapters merged, its architecture's source.

What is written is opened again and compared before it has its name. Knows metadata, tensors and pairs of
adapters; nothing of options of a command.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import graphml_quant
import numpy as np
from numpy.typing import NDArray

from graphml.api.load_model import load_model
from graphml.api.model import Model
from graphml.backend import no_progress
from graphml.errors import GraphmlError, UsageError
from graphml.loading.carried_definition import LARGEST, SOURCE
from graphml.loading.discovery import DEFINITION, IMPORTED
from graphml.passes.lora import EMBEDDING, Adapter
from graphml.runtime.programs.load_options import LoadOptions
from graphml.system.read_files import reason
from graphml.system.replaced_file import replacing
from graphml.weights.tensor import PLAIN_TYPES, Tensor

FURTHEST, FURTHEST_PLAIN = 0.05, 1e-5
"""NMSE of logits: with adapters merged into matrices that are rounded again, and else."""
_NUMBERS = {name: number for number, name in PLAIN_TYPES.items()}
_TYPES = {"u": "UINT", "i": "INT", "f": "FLOAT"}
_COMPARED = 24  # tokens
PRE = "tokenizer.ggml.pre"


@dataclass(frozen=True)
class HandedOn:
    """path: the file. n_merged: matrices with adapters in them. nmse: its logits against the open model's."""

    path: Path
    n_merged: int
    nmse: float


def hand_on(model: Model, output: Path, source: Path | None, options: LoadOptions) -> HandedOn:
    """Write a model with its tokenizer, its template and its adapters at their factors as one file.

    source: the Python file that the model's architecture is from; None for a built-in one, and for one that
    the file carries. options: backend, threads and type of the cache that both are compared with.
    UsageError for a model that does not predict tokens, for adapters that no weights stand for, and for what
    cannot be written; GraphmlError where the file's logits are others.
    """
    check_convertible(model)
    text = None if source is None else _text_of(source)
    if text is None and model.path.is_dir():
        raise UsageError(
            f"{model.path}: convert: a folder of a known family runs as it is; wanted a GGUF file, --arch, "
            "or a folder as output"
        )
    if output.exists() and output.samefile(model.path):
        raise UsageError(f"{output}: convert: is the model itself; wanted another name")
    merged = merged_tensors(model)
    try:
        with replacing(output) as partial:
            _write(model, partial, text, merged, options.pre)
            nmse = _compared(
                model, partial, options, rounded=any(each.is_rounded for each in merged.values())
            )
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {reason(error)}") from None
    return HandedOn(output, len(merged), nmse)


def check_convertible(model: Model) -> None:
    """UsageError for a model that does not predict tokens, or is more than its weights."""
    executor = model.executor
    if not executor.generates or executor.encodes or executor.denoises:
        raise UsageError(f"{model.path}: convert: wanted a model that predicts the next token of a text")
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


def _write(
    model: Model, path: Path, text: str | None, merged: Mapping[str, MergedTensor], pre: str | None
) -> None:
    """The file: a definition's architecture has a name of its own, since it says what the tensors are.

    pre: of the tokenizer, in place of the file's; None: that.
    """
    metadata = model.executor.file.metadata
    own = metadata.text("general.architecture")
    is_named = text is None or own.startswith(IMPORTED)
    name = own if is_named else f"{IMPORTED}-{own}"
    writer = gguf.GGUFWriter(path, name)
    for key in metadata:
        if key == "general.architecture" or key.startswith(("split.", "GGUF.")):
            continue
        if (text is not None and key in (SOURCE, DEFINITION)) or (pre is not None and key == PRE):
            continue
        kind, count, _ = metadata.beginning(key, 0)
        renamed = f"{name}{key.removeprefix(own)}" if key.startswith(f"{own}.") else key
        of = _type_of(kind)
        if count is None:
            writer.add_key_value(renamed, metadata[key], of)
        elif count:
            writer.add_key_value(renamed, metadata[key], gguf.GGUFValueType.ARRAY, sub_type=of)
    if pre is not None:
        writer.add_string(PRE, pre)
    if text is not None:
        writer.add_string(DEFINITION, hashlib.sha256(text.encode()).hexdigest())
        writer.add_string(SOURCE, text)
    for key, tensor in _tensors(model, merged):
        number = _NUMBERS.get(tensor.dtype)
        number = graphml_quant.by_name(tensor.dtype).ggml_type if number is None else number
        try:
            of_tensor = gguf.GGMLQuantizationType(number)
        except ValueError:
            raise UsageError(f"{key}: convert: no file of {tensor.dtype} can be written") from None
        rows = np.asarray(tensor.data).reshape(*tensor.shape[:-1], -1)
        writer.add_tensor(key, np.ascontiguousarray(rows), raw_dtype=of_tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Model, merged: Mapping[str, MergedTensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in model.executor.file.tensors.items():
        yield name, merged[name].tensor if name in merged else tensor


def _type_of(kind: str) -> Any:
    """GGUF's type of a metadata type."""
    short = {"string": "STRING", "bool": "BOOL"}
    return gguf.GGUFValueType[short.get(kind) or f"{_TYPES[kind[0]]}{kind[1:]}"]


def _compared(model: Model, path: Path, options: LoadOptions, rounded: bool) -> float:
    """The NMSE of the file's logits against the model's; GraphmlError where they are others."""
    same = LoadOptions(backend=options.backend, threads=options.threads, kv=options.kv, trust_arch=True)
    count = min(_COMPARED, model.n_ctx)
    ids = np.random.default_rng(0).integers(0, model.executor.n_vocab, count).tolist()
    with load_model(path, same, no_progress) as other:
        wanted, came = (each.session(count).eval(ids, all_logits=True) for each in (model, other))
    nmse = float(((came - wanted) ** 2).sum() / (wanted**2).sum())
    most = FURTHEST if rounded else FURTHEST_PLAIN
    if not nmse <= most:
        raise GraphmlError(
            f"convert: the file's logits are not the model's: wanted an NMSE of at most {most:g}; "
            f"got {nmse:.2g}"
        )
    return nmse
