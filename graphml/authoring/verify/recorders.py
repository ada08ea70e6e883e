"""Records made by other programs, each in a process of its own: llama.cpp, transformers.

Knows processes and names of tensors; nothing of how records are compared.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np

from graphml import peers
from graphml.authoring.verify.record import Record
from graphml.errors import BackendError, UsageError
from graphml.ir.op import Array

PEERS = {"llama.cpp": "record_llama_cpp.py", "hf": "record_transformers.py"}
LONGEST_S = 3600.0


def record_of(
    against: str, model: Path, architecture: str, ids: tuple[int, ...], python: str = sys.executable
) -> Record:
    """The record of a peer for the tokens. against: `llama.cpp` or `hf`, with `:PATH` for another file.

    python: of an environment that has the peer's package. A UsageError or BackendError names what is missing.
    """
    name, _, path = against.partition(":")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "record.npz"
        request = {"model": path or str(model), "ids": list(ids), "out": str(out)}
        by = _run(name, [python, str(Path(peers.__file__).with_name(PEERS[name]))], request)
        try:
            with np.load(out, allow_pickle=False) as held:
                arrays = {one: held[one].astype(np.float32, copy=False) for one in held.files}
        except (OSError, ValueError) as error:
            raise BackendError(f"{name}: its process left no record: {error}") from None
    logits = arrays.pop("logits", None)
    if logits is None:
        raise BackendError(f"{name}: its process left no logits")
    values = _from_transformers(arrays, architecture) if name == "hf" else arrays
    return Record(by, ids, logits, values)


def _run(name: str, command: list[str], request: Mapping[str, object]) -> str:
    """Run a peer; returns its description of itself."""
    try:
        done = subprocess.run(
            command, input=json.dumps(request), capture_output=True, text=True, encoding="utf-8",
            timeout=LONGEST_S, check=False,
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{name}: {command[0]} cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise BackendError(f"{name}: gave nothing within {LONGEST_S:.0f} s") from None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BackendError(f"{name}: its process ended with {done.returncode}: {last}") from None
    if "error" in answer:
        raise BackendError(f"{name}: {answer['error']}")
    return str(answer["by"])


def _from_transformers(arrays: Mapping[str, Array], architecture: str) -> dict[str, Array]:
    """Names of modules -> names of tensors, by the gguf package's table; unknown ones are omitted.

    Products with attn_q and attn_k are left out: some files have their rows in another order.
    """
    known = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    kind = known.get(architecture.replace("_", "-"), known.get(architecture))
    lookup: Callable[[str], str | None] = lambda name: None  # noqa: E731 - a table of nothing
    if kind is not None:
        layers = 1 + max((int(one) for name in arrays for one in re.findall(r"\.(\d+)\.", name)), default=0)
        table = gguf.get_tensor_name_map(kind, layers)
        lookup = lambda name: table.get_name(name, try_suffixes=(".weight",))  # noqa: E731
    found: dict[str, Array] = {}
    for name, array in arrays.items():
        module, _, side = name.rpartition(".")
        if name.startswith("stream."):
            found[name] = array
            continue
        tensor = lookup(module)
        rows = side == "out" and tensor is not None and tensor.endswith(("attn_q", "attn_k", "attn_qkv"))
        if tensor is not None and not rows:
            found[f"{tensor}.{side}"] = array
    return found
