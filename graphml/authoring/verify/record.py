"""Records: a program's values for some tokens, logits and values inside of the model under common names.

`stream.I` is the residual stream before layer I (for the first layer the embedding, as its input);
`blk.I.NAME.in` and `.out` are the input of the product with the tensor NAME, and the product with its scale
and bias. All are f32 [T, n]. Files: an .npz of this module, or a golden (JSON and NPZ), which has logits
alone. Peers (llama.cpp, transformers) make records, each in a process of its own. Knows files and processes;
nothing of models, nor of how records are compared.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from graphml.authoring.peer_process import ask
from graphml.errors import BackendError, UsageError
from graphml.inspect.compare import archive
from graphml.ir.op import Array
from graphml.loading.huggingface.family import Family, as_float32, transposed, unchanged
from graphml.loading.huggingface.tensors import looked_up
from graphml.system.read_files import guarded, plain_json

FORMAT = "graphml-record-1"
MOST_TOKENS = 1 << 16
LARGEST_SPEC_BYTES = 64 << 20


@dataclass(frozen=True)
class PeerRecord:
    """by: who computed it; ids: the tokens, in one batch from position 0; logits: f32 [T, vocabulary]."""

    by: str
    ids: tuple[int, ...]
    logits: Array
    values: Mapping[str, Array] = field(default_factory=dict)


def save(record: PeerRecord, path: str | Path) -> None:
    """Write a record as .npz; its arrays depend on the prompt."""
    header = {"format": FORMAT, "by": record.by, "ids": record.ids}
    archive.write(Path(path), header, {"logits": record.logits, **record.values})


def read(path: str | Path) -> PeerRecord:
    """A record, or a golden by the path of its JSON or its NPZ; a UsageError for any other file."""
    path = Path(path)
    if path.suffix == ".json":
        path = path.with_suffix(".npz")
    beside = path.with_suffix(".json")
    if path.suffix != ".npz" or not path.is_file():
        raise UsageError(f"{path}: wanted hf, llama.cpp or a file NAME.npz that has logits")
    if _is_golden(path):
        return _golden(path, beside)
    header, arrays = archive.read(path, "a record")
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UsageError(f"{path}: wanted the format {FORMAT}, as graphml verify --record writes it")
    logits = arrays.pop("logits", None)
    return _checked(path, header.get("by"), header.get("ids"), logits, arrays)


def _is_golden(path: Path) -> bool:
    return archive.HEADER not in archive.names_in(path, UsageError, "cannot be read as a record")


def _golden(path: Path, beside: Path) -> PeerRecord:
    if not beside.exists():
        raise UsageError(f"{path}: wanted a record, or {beside.name} beside it, with `tokens`")
    with guarded(beside, UsageError, "wanted `tokens`"):
        ids = plain_json(beside, UsageError, LARGEST_SPEC_BYTES)["tokens"]
    logits = archive.arrays_of(path, UsageError, "wanted an array `logits`", ("logits",))["logits"]
    with guarded(beside, UsageError):
        _check_ids(ids)
    return _checked(path, f"golden {path.stem}", ids, logits, {}, f" of {beside.name}")


def _checked(
    path: Path, by: Any, ids: Any, logits: Any, values: Mapping[str, Array], where: str = ""
) -> PeerRecord:
    with guarded(path, UsageError):
        _check_ids(ids)
    for name, array in {"logits": logits, **values}.items():
        fits = isinstance(array, np.ndarray) and array.ndim == 2 and len(array) == len(ids)
        if not fits or array.dtype.kind != "f":
            got = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else "nothing"
            raise UsageError(
                f"{path}: {name}: wanted floats [{len(ids)}, n], a row for each token{where}; got {got}"
            )
    return PeerRecord(str(by), tuple(ids), logits.astype(np.float32, copy=False), dict(values))


def _check_ids(ids: Any) -> None:
    whole = isinstance(ids, list) and all(type(token) is int and 0 <= token < 1 << 31 for token in ids)
    if not whole or not 0 < len(ids) <= MOST_TOKENS:
        raise UsageError(f"wanted a list of 1 to {MOST_TOKENS} token ids; got {str(ids)[:60]}")


PEERS = {"llama.cpp": "record_llama_cpp.py", "hf": "record_transformers.py", "module": "record_module.py"}


def record_of(
    against: str,
    model: Path,
    architecture: str,
    ids: tuple[int, ...],
    python: str = sys.executable,
    family: Family | None = None,
) -> PeerRecord:
    """The record of a peer for the tokens.

    against: `llama.cpp` or `hf`, with `:PATH` for another file, or `module:FILE.py:factory`. family: of the
    checkpoint's folder, which has its names.

    python: of an environment that has the peer's package. A UsageError or BackendError names what is missing.
    """
    name, _, path = against.partition(":")
    if name == "module" and not Path(path.rpartition(":")[0]).is_file():
        raise UsageError(
            f"--against: wanted module:FILE.py:factory, a file that is there; got {against!r:.80}"
        )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.npz"
        request = {"model": path or str(model), "ids": list(ids), "out": str(out)}
        by = ask(name, PEERS[name], python, request)
        left = archive.arrays_of(out, BackendError, f"{name}: its process left no record")
        arrays = {array_name: array.astype(np.float32, copy=False) for array_name, array in left.items()}
    logits = arrays.pop("logits", None)
    if logits is None:
        raise BackendError(f"{name}: its process left no logits")
    values = from_transformers(arrays, architecture, family) if name == "hf" else arrays
    return PeerRecord(by, ids, logits, values)


Places = Callable[[str], "list[tuple[str, bool]]"]
"""Tensors of a module by its path, and whether a product with the tensor is what the module returns."""


def from_transformers(
    arrays: Mapping[str, Array], architecture: str, family: Family | None = None
) -> dict[str, Array]:
    """Names of modules -> names of tensors; unknown ones are omitted.

    By the gguf package's table where that knows the architecture and the module, else by the family of the
    checkpoint's folder. Products with attn_q and attn_k are left out: some files have their rows in another
    order.
    """
    tables = [_by_gguf(arrays, architecture), *([] if family is None else [_by_family(family)])]
    by_point: dict[str, Array] = {}
    for name, array in arrays.items():
        module, _, side = name.rpartition(".")
        if name.startswith("stream."):
            by_point[name] = array
            continue
        for tensor, is_product in next((places for table in tables if (places := table(module))), []):
            reordered = tensor.endswith(("attn_q", "attn_k", "attn_qkv"))
            if side == "in" or (is_product and not reordered):
                by_point[f"{tensor}.{side}"] = array
    return by_point


def _by_gguf(arrays: Mapping[str, Array], architecture: str) -> Places:
    known = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    kind = known.get(architecture.replace("_", "-"), known.get(architecture))
    if kind is None:
        return lambda module: []
    numbers = (int(number) for name in arrays for number in re.findall(r"\.(\d+)\.", name))
    table = gguf.get_tensor_name_map(kind, 1 + max(numbers, default=0))

    def places(module: str) -> list[tuple[str, bool]]:
        tensor = table.get_name(module, try_suffixes=(".weight",))
        return [] if tensor is None else [(tensor, True)]

    return places


def _by_family(family: Family) -> Places:
    def places(module: str) -> list[tuple[str, bool]]:
        targets, numbers, suffix = looked_up(family, f"{module}.weight")
        listed = []
        for target in targets or ():
            pattern, change = (target, unchanged) if isinstance(target, str) else (target.name, target.change)
            if suffix and pattern.count("{}") == len(numbers) and getattr(target, "behind", None) is None:
                whole = len(targets or ()) == 1 and change in (unchanged, as_float32, transposed)
                listed.append((pattern.format(*numbers), whole))
        return listed

    return places
