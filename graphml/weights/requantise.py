"""Requantises a model's weights: all to float32, or matrices to Q8_0 or Q4_0.

The format of each tensor depends on its name and shape alone; several threads convert tensor by tensor.
The factor of NVFP4, a tensor `.scale`, becomes part of the numbers: not every product of another format reads
it.
Vectors and norms are unchanged: they are small, and combined with activations element by element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType

import graphml_quant
import numpy as np
from graphml_quant import Format, FormatError

from graphml.backend import Progress, no_progress
from graphml.errors import UsageError, WeightsError
from graphml.system import pages
from graphml.weights.filemap import Bytes
from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import PLAIN_DTYPES, Tensor

QUANTS = MappingProxyType({"fp32": "f32", "q8": "q8_0", "q4": "q4_0"})
"""Allowed value of `quant` -> the format of the weights."""

SCALE = ".scale"
# Elements that a thread converts at a time: below 32 MB with all temporaries.
_CHUNK_ELEMENTS = 1 << 20
# Matrices that are not used in products, or so sensitive that llama.cpp's quantiser keeps them too.
_LEFT_NAMES = (
    "_norm.weight", "ffn_gate_inp", "position_embd", "token_types", "conv1d", "shortconv.conv", "altup",
    "laurel", "per_layer_model_proj", "attn_rel_b", "time_mix", "ssm_a", "ssm_d",
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The new format of a tensor; `reason`: why it keeps the file's format, None if it changes."""

    dtype: str
    n_bytes: int
    reason: str | None


def checked(quant: str | None) -> str | None:
    """`quant` if it is allowed; else a `UsageError` that lists the allowed values."""
    if quant is not None and not (isinstance(quant, str) and quant in QUANTS):
        raise UsageError(f"quant: wanted one of {', '.join(QUANTS)}; got {quant!r}")
    return quant


def choose(tensor: Tensor, quant: str) -> Choice:
    """The choice for a tensor under `quant`, one of `QUANTS`."""
    wanted = graphml_quant.by_name(QUANTS[quant])
    reason = _reason(tensor, wanted)
    if reason is not None:
        return Choice(tensor.dtype, tensor.n_bytes, reason)
    return Choice(wanted.name, wanted.bytes_for_shape(tensor.shape), None)


def _reason(tensor: Tensor, wanted: Format) -> str | None:
    if tensor.dtype == wanted.name:
        return f"is {wanted.name} already"
    if tensor.dtype in PLAIN_DTYPES:
        return f"holds {tensor.dtype}"
    if wanted.block_elements == 1:
        return None
    if len(tensor.shape) < 2:
        return "is a vector"
    if any(name in tensor.name for name in _LEFT_NAMES) or not tensor.name.endswith(".weight"):
        return "is no factor of a large product"
    if tensor.shape[-1] % wanted.block_elements:
        return f"has rows of {tensor.shape[-1]}, which are no whole blocks of {wanted.block_elements}"
    return None


def requantised(file: ModelFile, quant: str, threads: int = 1, progress: Progress = no_progress) -> ModelFile:
    """The file with its tensors requantised to `quant`; changed ones are in memory, others in the map.

    The result owns the file: closing it closes both. progress: called as progress("converting", done, total)
    in bytes of the result. Raises `UsageError` for another quant, `WeightsError` if a weight is no number.
    """
    quant = checked(quant) or ""
    choices = {name: choose(tensor, quant) for name, tensor in file.tensors.items()}
    for name in _with_scales_of_layers(file.tensors):
        tensor = file.tensors[name]
        choices[name] = Choice(tensor.dtype, tensor.n_bytes, "has a factor in each layer that shares it")
    changing = {name: tensor for name, tensor in file.tensors.items() if choices[name].reason is None}
    total = sum(choices[name].n_bytes for name in changing)
    tensors = dict(file.tensors)
    done = 0
    progress("converting", 0, total)
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for name, tensor in changing.items():
            format = graphml_quant.by_name(choices[name].dtype)
            try:
                data = pages.fresh(choices[name].n_bytes, large=True)
            except MemoryError as error:
                what = f"{file.path}: {name} as {choices[name].dtype}, {total:,} bytes with all other weights"
                raise pages.out_of_memory(what, error, "give a smaller quant, or none") from None
            scale = _scale_of(tensor, file)
            todo = [(tensor, format, data, *rows, scale) for rows in _chunks(tensor)]
            try:
                list(pool.map(_convert, *zip(*todo, strict=True)))
            except FormatError as error:
                raise WeightsError(f"{file.path}: {name}: {error}") from None
            data.flags.writeable = False
            tensors[name] = replace(tensor, dtype=format.name, data=data, mapped=False)
            if scale is not None:
                del tensors[scale.name]
            done += data.nbytes
            file.forget_pages()  # otherwise the file would be in the process's memory beside the result
            progress("converting", done, total)
    return file.with_tensors(tensors)


def _chunks(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Rows [begin, end) of about `_CHUNK_ELEMENTS` elements."""
    width = tensor.shape[-1] if tensor.shape else 1
    rows = tensor.n_elements // width if width else 0
    step = max(1, _CHUNK_ELEMENTS // max(width, 1))
    return ((begin, min(begin + step, rows)) for begin in range(0, max(rows, 1), step))


def _scale_of(tensor: Tensor, file: ModelFile) -> Tensor | None:
    """The factor of an NVFP4 matrix, or those of its rows or experts."""
    scale = file.tensors.get(tensor.name.removesuffix(".weight") + SCALE)
    if tensor.dtype != "nvfp4" or scale is None:
        return None
    if scale.n_elements not in (1, tensor.shape[0]):
        wanted = f"1 number or {tensor.shape[0]}"
        raise WeightsError(f"{file.path}: tensor {scale.name!r}: wanted {wanted}; got {scale.n_elements}")
    return scale


def _with_scales_of_layers(tensors: Mapping[str, Tensor]) -> list[str]:
    """NVFP4 matrices with a factor that no multiple of their numbers can hold: several layers share them.

    Such a layer has a factor, and no matrix of that name.
    """
    stems = (name.removesuffix(SCALE) for name in tensors if name.endswith(SCALE))
    shared = {stem.rpartition(".")[2] for stem in stems if f"{stem}.weight" not in tensors}
    return [
        name
        for name, tensor in tensors.items()
        if tensor.dtype == "nvfp4" and name.removesuffix(".weight").rpartition(".")[2] in shared
    ]


def _convert(tensor: Tensor, format: Format, data: Bytes, begin: int, end: int, scale: Tensor | None) -> None:
    """Decode rows begin to end of a tensor, times scale, and encode them again into their place in `data`."""
    width = tensor.shape[-1] if tensor.shape else 1
    source = graphml_quant.by_name(tensor.dtype)
    source_bytes, wanted = source.bytes_for(width), format.bytes_for(width)
    values = graphml_quant.dequantize(
        source, tensor.data[begin * source_bytes : end * source_bytes], (end - begin, width)
    )
    if scale is not None:
        factors = scale.numpy().astype(np.float32).reshape(-1)
        of_rows = np.repeat(factors, tensor.n_elements // width // len(factors))
        values = values * of_rows[begin:end, None]
    data[begin * wanted : end * wanted] = graphml_quant.quantize(format, values).reshape(-1)


def memory_of(tensors: Mapping[str, Tensor], quant: str | None = None) -> tuple[int, int]:
    """Bytes of weights in the map and in memory of their own, under a quant or as the tensors are."""
    mapped = copied = 0
    for tensor in tensors.values():
        choice = None if quant is None else choose(tensor, quant)
        if choice is None or choice.reason is not None:
            mapped += tensor.n_bytes * tensor.mapped
            copied += tensor.n_bytes * (not tensor.mapped)
        else:
            copied += choice.n_bytes
    return mapped, copied
