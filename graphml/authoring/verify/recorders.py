"""Records made by other programs, each in a process of its own: llama.cpp, transformers.

Knows processes and names of tensors; nothing of how records are compared.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np

from graphml.authoring.peer_process import ask
from graphml.authoring.verify.record import PeerRecord
from graphml.errors import BackendError
from graphml.ir.op import Array

PEERS = {"llama.cpp": "record_llama_cpp.py", "hf": "record_transformers.py"}


def record_of(
    against: str, model: Path, architecture: str, ids: tuple[int, ...], python: str = sys.executable
) -> PeerRecord:
    """The record of a peer for the tokens. against: `llama.cpp` or `hf`, with `:PATH` for another file.

    python: of an environment that has the peer's package. A UsageError or BackendError names what is missing.
    """
    name, _, path = against.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.npz"
        request = {"model": path or str(model), "ids": list(ids), "out": str(out)}
        by = ask(name, PEERS[name], python, request)
        try:
            with np.load(out, allow_pickle=False) as held:
                arrays = {
                    array_name: held[array_name].astype(np.float32, copy=False) for array_name in held.files
                }
        except (OSError, ValueError) as error:
            raise BackendError(f"{name}: its process left no record: {error}") from None
    logits = arrays.pop("logits", None)
    if logits is None:
        raise BackendError(f"{name}: its process left no logits")
    values = _from_transformers(arrays, architecture) if name == "hf" else arrays
    return PeerRecord(by, ids, logits, values)


def _from_transformers(arrays: Mapping[str, Array], architecture: str) -> dict[str, Array]:
    """Names of modules -> names of tensors, by the gguf package's table; unknown ones are omitted.

    Products with attn_q and attn_k are left out: some files have their rows in another order.
    """
    known = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    kind = known.get(architecture.replace("_", "-"), known.get(architecture))
    lookup: Callable[[str], str | None] = lambda name: None  # noqa: E731 - a table of nothing
    if kind is not None:
        layers = 1 + max(
            (int(number) for name in arrays for number in re.findall(r"\.(\d+)\.", name)), default=0
        )
        table = gguf.get_tensor_name_map(kind, layers)
        lookup = lambda name: table.get_name(name, try_suffixes=(".weight",))  # noqa: E731
    by_point: dict[str, Array] = {}
    for name, array in arrays.items():
        module, _, side = name.rpartition(".")
        if name.startswith("stream."):
            by_point[name] = array
            continue
        tensor = lookup(module)
        rows = side == "out" and tensor is not None and tensor.endswith(("attn_q", "attn_k", "attn_qkv"))
        if tensor is not None and not rows:
            by_point[f"{tensor}.{side}"] = array
    return by_point
