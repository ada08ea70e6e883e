"""Matrices of quantised checkpoints, unpacked exactly: finds the parts of each and gives them to its packing.

A packing is a file in `packings`. Scales of activations and of caches are left out, since both are floats
here (decision 117). Knows which parts belong together; nothing of single packings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.loading.huggingface.json_files import read_json
from graphml.loading.huggingface.packings import packings
from graphml.loading.huggingface.packings._layout import Layout, PackingFields
from graphml.loading.huggingface.packings._parts import FLOATS, FP8, StoredParts
from graphml.loading.huggingface.packings.fp8 import unscaled
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml.weights.safetensors import StoredTensor

MOST_IN_ONE, MOST_IN_BYTE = 32, 8
"""How many inputs or outputs one element along an axis of a part can hold, at most: a word, and a byte."""
PLAIN = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64", "I64": "i64", "I32": "i32"}
# What a static quantisation of activations, or of a cache, has beside the weights.
ACTIVATIONS = re.compile(
    r"(.*\.)?(((input|output|activation|act|q|k|v|kv|prob)_(scale|zero_point|global_scale))|input_scale_ub"
    r"|\w+_(input|activation)_scale)"
)
# Files beside config.json that older versions of tools wrote, and the method that they are of.
BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}


def stated_quantization(folder: Path, stated: Any, stored: Mapping[str, StoredTensor]) -> tuple[Path, Any]:
    """The `quantization_config` of a folder and its file: config.json's, else that of a file beside it.

    stated: what config.json has; an algorithm without a method is ModelOpt's. Of those the file beside it
    says more where config.json has no algorithm, or not those of single modules.
    """
    fields = stated if isinstance(stated, dict) else {}
    if fields.get("quant_algo") and fields.get("quant_method") is None:
        stated = fields = {**fields, "quant_method": "modelopt"}
    if stated is not None and (
        fields.get("quant_method") != "modelopt" or fields.get("quant_algo") not in (None, "MIXED_PRECISION")
    ):
        return folder / "config.json", stated
    if fields.get("quantized_layers") or not any(map(_looks_packed, stored.values())):
        return folder / "config.json", stated
    for name, method in BESIDE.items():
        if (folder / name).is_file():
            beside = read_json(folder / name)
            inner = beside.get("quantization") if method == "modelopt" else beside
            if not isinstance(inner, dict):
                raise WeightsError(
                    f"{folder / name}: quantization: wanted an object; got {str(inner)[:60]!r}"
                )
            return folder / name, {**fields, "quant_method": method, **inner}
    return folder / "config.json", stated


def _looks_packed(tensor: StoredTensor) -> bool:
    return tensor.dtype in (*FP8, "U8", "I8") or tensor.name.endswith(".qweight")


def read_packing(path: Path, quantization: Any) -> Layout | None:
    """The layout of a `quantization_config`, None where there is none; WeightsError for an unknown one.

    path: of the file that has it.
    """
    if quantization is None:
        return None
    fields = PackingFields(path, quantization if isinstance(quantization, dict) else {})
    method = str(fields.get("quant_method") or "")[:40]
    known = {name: packing for packing in packings() for name in packing.methods}
    if method not in known:
        names = ", ".join(sorted(known))
        raise fields.error(
            f"quant_method: wanted one of {names}; got {method!r}. "
            "The unquantised model, with quant (--quant), or a GGUF file of it can be read"
        )
    return known[method].read(fields)


def unpacked(path: Path, layout: Layout | None, stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """All tensors of a checkpoint with packed ones in place of their parts, by the checkpoint's names.

    path: of the checkpoint, for errors.
    """
    layout = unscaled() if layout is None else layout
    ends = sorted(layout.ends, key=len, reverse=True)
    matrices: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        if ACTIVATIONS.fullmatch(name):
            _check_unused(path, tensor)
            continue
        end = next(end for end in (*ends, "") if name.endswith(end))
        matrices.setdefault(name.removesuffix(end), {})[end] = tensor
    done: dict[str, Tensor] = {}
    for stem, parts_by_end in matrices.items():
        alone = parts_by_end.get("")
        if alone is not None and len(parts_by_end) == 1 and alone.dtype not in layout.dtypes:
            done[stem] = plain(path, alone)
        elif _is_of_another_name(stem, parts_by_end, layout):
            done |= {stem + end: plain(path, tensor) for end, tensor in parts_by_end.items()}
        else:
            parts = StoredParts(path, stem + layout.whole, stem, parts_by_end)
            matrix = layout.unpack(parts)
            parts.check_all_used()
            if matrix.name in stored and "" not in parts_by_end:
                raise WeightsError(f"{path}: tensor {matrix.name[:200]!r} is there packed and as it is")
            done[matrix.name] = matrix
    return done


def _is_of_another_name(stem: str, parts_by_end: Mapping[str, StoredTensor], layout: Layout) -> bool:
    """Whether tensors only happen to end as parts do: there is no matrix beside them, nor is one named."""
    return (
        "" in layout.ends and not parts_by_end.keys() - {"_scale", "_shape"} and not stem.endswith(".weight")
    )


def _check_unused(path: Path, tensor: StoredTensor) -> None:
    """Scales that nothing reads are numbers nevertheless, or the file is damaged."""
    if tensor.dtype in FLOATS:
        StoredParts(path, tensor.name, tensor.name, {"": tensor}).scales("")


def plain(path: Path, tensor: StoredTensor) -> Tensor:
    """A tensor of plain numbers, in the map unless its bytes are not aligned to its numbers."""
    kind = PLAIN.get(tensor.dtype)
    if kind is None:
        raise WeightsError(
            f"{path}: tensor {tensor.name[:200]!r} holds {tensor.dtype}, which no architecture reads"
        )
    width = {"f64": 8, "i64": 8, "f32": 4, "i32": 4}.get(kind, 2)
    if tensor.data.nbytes and tensor.data.ctypes.data % width:
        return DeferredTensor.of(tensor.name, kind, tensor.shape, lambda: tensor.data.copy())
    return Tensor(tensor.name, kind, tensor.shape, tensor.data)
