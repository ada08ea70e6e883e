"""A model's file with its tensors in other types: which gets which, and the file.

Decoded and encoded by pieces of rows on all threads; no tensor is in memory as a whole but its new blocks.
Knows files, types and importance; nothing of commands.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import graphml_quant
import numpy as np
from graphml_quant import FormatError
from numpy.typing import NDArray

from graphml.api.quantize import INFINITE_FROM, formats_of_files, quantize
from graphml.api.quantize_plan import fitted, mixture
from graphml.backend import Progress, no_progress
from graphml.errors import GraphmlError, UsageError, WeightsError
from graphml.system.read_files import reason
from graphml.system.unfinished_work import put_in_place, unfinished_work
from graphml.weights.deferred import PassingTensor
from graphml.weights.filemap import FileMap
from graphml.weights.gguf import read_part
from graphml.weights.gguf_writing import TensorPlan, stored_values, write_parts
from graphml.weights.metadata import StoredValue, stored
from graphml.weights.model_file import ModelFile
from graphml.weights.requantise import SCALE
from graphml.weights.split import split_values
from graphml.weights.tensor import PLAIN_DTYPES, Tensor
from graphml.weights.type_mixes import file_type, is_kept
from graphml.workshop.importance import Importance

PIECE = 1 << 20
"""Elements that a thread decodes and encodes at a time."""
VERSION = 2
"""Of ggml's quantisation, which all types here have."""
NEEDING = ("iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s")
"""Types that llama-quantize writes with importance alone, but of the embedding and the output matrix."""
ENDS = ("token_embd.weight", "output.weight")
UNQUANTISED = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Change:
    """A tensor's type before and after. reason: why it is not that of most; "" for no reason."""

    tensor: Tensor
    dtype: str
    reason: str = ""

    @property
    def n_bytes(self) -> int:
        """Of the new file's tensor."""
        return TensorPlan(self.tensor.name, self.dtype, self.tensor.shape).n_bytes


@dataclass(frozen=True)
class WantedTypes:
    """What a file becomes. kind: its file type, "Q4_K_M". types: regular expressions of names -> type.

    The first that is found in a name decides. pure: all matrices have the type of most; keep_output: the
    output matrix stays as it is; requantise: matrices that are quantised already are quantised again.
    """

    kind: str
    types: tuple[tuple[str, str], ...] = ()
    pure: bool = False
    keep_output: bool = False
    requantise: bool = False


def changes(file: ModelFile, wanted: WantedTypes, importance: Importance | None) -> list[Change]:
    """What becomes of each tensor, in the file's order.

    UsageError for what cannot be meant: an unknown type, an expression that finds nothing, a type that wants
    importance where there is none, a matrix that is quantised already, rows that no type takes.
    """
    kind = file_type(wanted.kind)
    _check_model(file, importance)
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    matrices = {
        name: tensor.shape
        for name, tensor in file.tensors.items()
        if can_change(tensor) and not (wanted.keep_output and name == "output.weight")
    }
    try:
        mixed = mixture(file.metadata, shapes, wanted.kind, importance is not None)
    except UsageError as error:
        raise UsageError(f"{file.path}: {str(error).removeprefix('metadata: ')}") from None
    stated = _stated(wanted.types, matrices)
    done = []
    for name, tensor in file.tensors.items():
        change = Change(tensor, tensor.dtype)
        if name in matrices:
            asked = stated.get(name) or (kind.format if wanted.pure else mixed[name][0])
            dtype = fitted(name, asked, tensor.shape[-1])
            change = Change(tensor, dtype, _reason(asked, dtype, kind.format, tensor, name in stated))
        if change.dtype != tensor.dtype:
            _check(file, change, kind.name, wanted, importance)
        done.append(change)
    return done


def planned(
    file: ModelFile, types: Mapping[str, str], requantise: bool, importance: Importance | None
) -> list[Change]:
    """What becomes of each tensor by a choice of types; the others stay. Refuses what `changes` does."""
    _check_model(file, importance)
    plan = [Change(tensor, types.get(name, tensor.dtype)) for name, tensor in file.tensors.items()]
    for change in plan:
        if change.dtype != change.tensor.dtype:
            _check(file, change, "", WantedTypes("", requantise=requantise), importance)
    return plan


def _check_model(file: ModelFile, importance: Importance | None) -> None:
    if importance is not None and not importance.sums.keys() & file.tensors.keys():
        raise UsageError("--imatrix: has none of the model's matrices: it is of another model")


def can_change(tensor: Tensor) -> bool:
    """Whether a tensor can get another type: not norms, vectors, routers, or tables of whole numbers."""
    return not is_kept(tensor.name, tensor.shape) and tensor.dtype not in PLAIN_DTYPES


def _stated(types: Sequence[tuple[str, str]], matrices: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Name -> type of the matrices that expressions are about."""
    stated: dict[str, str] = {}
    for text, dtype in types:
        try:
            expression = re.compile(text)
        except re.error as error:
            raise UsageError(f"--tensor-type {text}: is no regular expression: {error}") from None
        if dtype.lower() not in formats_of_files():
            known = ", ".join(formats_of_files()).upper()
            raise UsageError(f"--tensor-type {text}={dtype}: wanted one of {known}; got {dtype!r}")
        hits = [name for name in matrices if expression.search(name)]
        if not hits:
            raise UsageError(f"--tensor-type {text}: no matrix that can be quantised has such a name")
        for name in hits:
            stated.setdefault(name, dtype.lower())
    return stated


def _reason(asked: str, dtype: str, common: str, tensor: Tensor, is_stated: bool) -> str:
    """Why a matrix has a type. common: that of most; an output matrix that it does not fit has another."""
    if asked == dtype and is_stated:
        return "as asked for"
    wanted = common if asked == dtype else asked
    width, block = tensor.shape[-1], graphml_quant.by_name(wanted).block_elements
    if (asked != dtype or dtype not in (common, tensor.dtype)) and width % block:
        return f"rows of {width} are no whole blocks of {block}, as of {wanted.upper()}"
    return ""


def _check(
    file: ModelFile, change: Change, kind: str, wanted: WantedTypes, importance: Importance | None
) -> None:
    name, dtype = change.tensor.name, change.dtype
    needs = dtype in NEEDING or (dtype == "q2_k" and kind == "Q2_K_S")
    has = importance is not None and name in importance.sums
    if needs and name not in ENDS and not has:
        what = "it has none of this tensor" if importance is not None else "graphml imatrix makes it"
        raise UsageError(f"{name}: {dtype.upper()} wants importance, --imatrix FILE; {what}")
    if change.tensor.dtype not in UNQUANTISED and not wanted.requantise:
        raise UsageError(
            f"{name}: is {change.tensor.dtype.upper()} already, and loses twice; "
            "wanted a file of F32, F16 or BF16, or --allow-requantize"
        )
    factor = name.removesuffix(".weight") + SCALE
    if change.tensor.dtype == "nvfp4" and factor in file.tensors:
        raise UsageError(f"{name}: {factor} is its factor, which products of other types do not have")
    if has:
        _importance_of(change.tensor, importance)


def _importance_of(tensor: Tensor, importance: Importance | None) -> NDArray[np.float32] | None:
    """float32 [matrices, columns], one row for each matrix of the tensor, or None."""
    means = None if importance is None else importance.of(tensor.name)
    if means is None:
        return None
    n_mat = int(np.prod(tensor.shape[:-2], dtype=np.int64))
    columns = tensor.shape[-1]
    if means.size == n_mat * columns:  # of the older form in one row
        table = means.reshape(n_mat, columns)
        return np.where(table.any(axis=1, keepdims=True), table, np.float32(1))
    if tensor.name == ENDS[0]:
        return None  # of an output matrix with other columns, as llama-quantize has it
    raise UsageError(
        f"--imatrix: {tensor.name}: wanted {n_mat} x {columns} numbers; got {means.shape[0]} x "
        f"{means.shape[1]}. It is of another model"
    )


def write_quantized(
    file: ModelFile, plan: Sequence[Change], kind: str, output: Path, importance: Importance | None = None,
    imatrix_name: str = "", threads: int = 1, progress: Progress = no_progress,
    parts: Sequence[Sequence[Change]] = (),
) -> list[Path]:  # fmt: skip
    """Write the file, or a file for each of `parts` of the plan; its paths, see `paths_of`.

    All get their names when all are whole. A killed process's work is gone on with. UsageError where one
    cannot be written, WeightsError for weights that are no numbers; nothing is left behind then.
    """
    with written_together(file, output, len(parts or [plan]), work_key(file, plan, importance)) as folder:
        quantized_parts(
            file, plan, kind, folder / output.name, importance, imatrix_name, threads, progress, parts
        )
    return paths_of(output, len(parts or [plan]))


@contextmanager
def written_together(file: ModelFile, output: Path, count: int, key: str) -> Iterator[Path]:
    """Within, write the files of `paths_of` to the folder that comes; after it they have their names.

    key: see `unfinished_work`. UsageError where one is the model's own, or cannot be written.
    """
    target = Path(os.path.realpath(output))
    finals = paths_of(target, count)
    check_not_own(file, finals)
    try:
        with unfinished_work(target, key) as folder:
            yield folder
            put_in_place([folder / path.name for path in paths_of(output, count)], finals)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {reason(error)}") from None


def work_key(file: ModelFile, plan: Sequence[Change], importance: Importance | None = None) -> str:
    """What decides the bytes of new tensors: files, weights in memory, importance, and encoders."""
    digest = hashlib.sha256()
    for path in file.paths:
        state = path.stat()
        digest.update(repr((str(path.resolve()), state.st_size, state.st_mtime_ns)).encode())
    for tensor in file.tensors.values():
        if not tensor.mapped and not isinstance(tensor, PassingTensor):
            digest.update(tensor.name.encode())
            digest.update(tensor.data.data)
    if importance is not None:
        for name, sums in sorted(importance.sums.items()):
            digest.update(name.encode() + sums.tobytes() + importance.counts[name].tobytes())
    sample = np.random.default_rng(0).standard_normal((2, 512), np.float32)
    for dtype in sorted({change.dtype for change in plan if change.dtype != change.tensor.dtype}):
        digest.update(quantize(sample, dtype, np.ones(512, np.float32), threads=1).data)
    return digest.hexdigest()


def quantized_parts(
    file: ModelFile, plan: Sequence[Change], kind: str, output: Path, importance: Importance | None = None,
    imatrix_name: str = "", threads: int = 1, progress: Progress = no_progress,
    parts: Sequence[Sequence[Change]] = (),
) -> list[Path]:  # fmt: skip
    """The files of `write_quantized`, in a folder of `unfinished_work`; OSError where they cannot be."""
    parts = parts or [plan]
    paths = paths_of(output, len(parts))
    changes_by_name = {change.tensor.name: change for part in parts for change in part}
    sizes = (change.tensor.n_bytes for change in changes_by_name.values())
    ends = dict(zip(changes_by_name, accumulate(sizes), strict=True))
    total = sum(change.tensor.n_bytes for change in plan)
    progress("quantize", 0, total)

    def data(of: TensorPlan) -> Iterator[NDArray[np.uint8]]:
        change = changes_by_name[of.name]
        return _data(file, change, _importance_of(change.tensor, importance), pool)

    def added(of: TensorPlan) -> None:
        tensor = changes_by_name[of.name].tensor
        if isinstance(tensor, PassingTensor):
            tensor.forget()
        file.forget_pages()
        progress("quantize", ends[of.name], total)

    heads = heads_of(_values(file, kind, importance, imatrix_name), parts)
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        write_parts(paths, heads, [tensor_plans(part) for part in parts], data, added)
    return paths


def check_not_own(file: ModelFile, paths: Sequence[Path]) -> None:
    """UsageError for a path that is one of the model's own files."""
    own = {path.resolve() for path in file.paths}
    for path in paths:
        if path.resolve() in own:
            raise UsageError(f"{path}: is the model itself; wanted another name")


def tensor_plans(part: Sequence[Change]) -> list[TensorPlan]:
    """The tensors of a file of these changes."""
    return [TensorPlan(change.tensor.name, change.dtype, change.tensor.shape) for change in part]


def heads_of(
    values: Mapping[str, StoredValue], parts: Sequence[Sequence[Change]]
) -> list[Mapping[str, StoredValue]]:
    """The keys of each part: the model's in the first, and which part it is where there are several."""
    if len(parts) == 1:
        return [values]
    n_tensors = sum(map(len, parts))
    return [
        {**(values if number == 0 else {}), **split_values(number, len(parts), n_tensors)}
        for number in range(len(parts))
    ]


def whole_values(file: ModelFile) -> dict[str, StoredValue]:
    """The keys of a model's file, but those that say which part it is."""
    return {key: value for key, value in stored_values(file.metadata).items() if not key.startswith("split.")}


def _values(
    file: ModelFile, kind: str, importance: Importance | None, imatrix_name: str
) -> dict[str, StoredValue]:
    """The file's keys, and what is known of its types now."""
    values = whole_values(file)
    values["general.quantization_version"] = stored(VERSION, "u32")
    values["general.file_type"] = stored(file_type(kind).number, "u32")
    if importance is not None:
        values["quantize.imatrix.file"] = stored(imatrix_name)
        values["quantize.imatrix.dataset"] = stored(importance.datasets[0] if importance.datasets else "")
        values["quantize.imatrix.entries_count"] = stored(len(importance.sums), "u32")
        values["quantize.imatrix.chunks_count"] = stored(importance.n_chunks, "u32")
    return values


def parts_of(file: ModelFile, plan: Sequence[Change]) -> list[Sequence[Change]]:
    """The changes by the file that each tensor is in."""
    parts: list[Sequence[Change]] = []
    by_name = {change.tensor.name: change for change in plan}
    for path in file.paths:
        opened = FileMap(path)
        try:
            parts.append([by_name[name] for name in read_part(opened)[1]])
        finally:
            opened.close()
    return parts


def split_plan(plan: Sequence[Change], most: int | None, tensors: int | None = None) -> list[list[Change]]:
    """The changes by parts, in order, of at most so many bytes or tensors; None for one part.

    UsageError for a tensor that is larger.
    """
    parts: list[list[Change]] = [[]]
    size = 0
    for change in plan:
        n_bytes = change.n_bytes
        if most is not None and n_bytes > most:
            raise UsageError(
                f"--split-max-size: wanted at least {n_bytes} bytes, as {change.tensor.name} has; got {most}"
            )
        full = most is not None and size + n_bytes > most
        if parts[-1] and (full or (tensors is not None and len(parts[-1]) >= tensors)):
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += n_bytes
    return parts


def paths_of(output: Path, count: int) -> list[Path]:
    """Where so many parts are written: a single one has the name itself."""
    return part_names(output, count) if count > 1 else [output]


def part_names(output: Path, count: int) -> list[Path]:
    """The names of a split model's files, as gguf-split has them."""
    stem = output.name.removesuffix(".gguf")
    return [output.with_name(f"{stem}-{number + 1:05d}-of-{count:05d}.gguf") for number in range(count)]


def _data(
    file: ModelFile, change: Change, importance: NDArray[np.float32] | None, pool: ThreadPoolExecutor
) -> Iterator[NDArray[np.uint8]]:
    """The new data of a tensor, piece by piece."""
    tensor = change.tensor
    if change.dtype == tensor.dtype:
        yield np.asarray(tensor.data)
        return
    columns = tensor.shape[-1]
    rows = tensor.n_elements // columns
    per_matrix = tensor.shape[-2] if len(tensor.shape) > 1 else rows
    step = max(1, PIECE // columns)
    pieces = [
        (begin, min(begin + step, first + per_matrix), None if importance is None else importance[matrix])
        for matrix, first in enumerate(range(0, rows, per_matrix))
        for begin in range(first, first + per_matrix, step)
    ]
    try:
        yield from pool.map(lambda piece: _encoded(change, *piece), pieces)
    except (GraphmlError, FormatError) as error:
        raise WeightsError(f"{file.path}: {tensor.name}: {str(error).removeprefix('x: ')}") from None


def _encoded(
    change: Change, begin: int, end: int, importance: NDArray[np.float32] | None
) -> NDArray[np.uint8]:
    tensor = change.tensor
    source = graphml_quant.by_name(tensor.dtype)
    columns = tensor.shape[-1]
    row_bytes = source.bytes_for(columns)
    data = tensor.data[begin * row_bytes : end * row_bytes]
    values = graphml_quant.dequantize(source, data, (end - begin, columns))
    if change.dtype in INFINITE_FROM:  # which the encoder does not look at
        largest = float(np.abs(values).max(initial=0))
        if not largest < INFINITE_FROM[change.dtype]:
            raise WeightsError(
                f"{change.dtype.upper()} wants finite values below {INFINITE_FROM[change.dtype]:.6g}; "
                f"one is {largest:.6g} in rows {begin} to {end - 1}"
            )
    return quantize(values, change.dtype, importance, threads=1).reshape(-1)
