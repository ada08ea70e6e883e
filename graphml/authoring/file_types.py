"""Which type each tensor of a written GGUF file gets: the model's own, or a file type's.

What llama.cpp multiplies or adds in float32 alone is float32: vectors, norms, routers, convolutions. Knows
names and types; writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from graphml.weights.model_file import ModelFile
from graphml.weights.tensor import PLAIN_DTYPES
from graphml.weights.type_mixes import FILE_TYPES, file_type, is_kept
from graphml.workshop.quantized_file import UNQUANTISED, Change, WantedTypes, changes

AUTO = "auto"
MULTIPLIED = ("altup", "laurel", "per_layer_model_proj", "indexer.")
"""Parts of names of matrices that llama-quantize leaves as they are, and that may have any type."""


def types_of_file(file: ModelFile, wanted: str) -> tuple[list[Change], str]:
    """What becomes of each tensor, and the file's type; wanted: `auto` or the name of a file type."""
    if wanted == AUTO:
        plan = [Change(tensor, _own(tensor.dtype)) for tensor in file.tensors.values()]
    else:
        kind = file_type(wanted)
        lossless = kind.format in UNQUANTISED
        plan = changes(file, WantedTypes(kind.name, requantise=lossless), None)
    plan = [Change(change.tensor, "f32", change.reason) if _is_float32(change) else change for change in plan]
    return plan, _most(plan) if wanted == AUTO else file_type(wanted).name


def _own(dtype: str) -> str:
    """A type of files: all of FP8 is in float16."""
    return "f16" if dtype.startswith("f8") else dtype


def _is_float32(change: Change) -> bool:
    name, shape = change.tensor.name, change.tensor.shape
    plain = change.dtype in PLAIN_DTYPES and change.dtype not in UNQUANTISED
    return is_kept(name, shape) and not plain and not any(part in name for part in MULTIPLIED)


def _most(plan: Sequence[Change]) -> str:
    """The file type by the type that most elements of matrices have."""
    counts: Counter[str] = Counter()
    for change in plan:
        if len(change.tensor.shape) > 1:
            counts[change.dtype] += change.tensor.n_elements
    for dtype, _ in counts.most_common():
        names = [name for name, kind in FILE_TYPES.items() if kind.format == dtype]
        if names:
            return dtype.upper() if dtype.upper() in names else names[0]
    return "F32"
