"""Golden models: tiny random models and the logits that llama.cpp computed for them.

`tests/data/goldens/NAME.json` holds the GGUF metadata and the tensors' shapes, `NAME.npz` the logits of
llama.cpp 0.5.0 (CPU, weights and KV cache in f32, flash attention off). Weights are not stored: a formula
makes them from the tensor's name, by a counter-based generator whose raw output NumPy keeps stable.

`python tests/golden.py SPEC.json [PATTERN ...]` brings a spec with every array written out into the compact
form on stdout, without the tensors that match a pattern (`*.ffn_*.scale`): those that llama.cpp loads for the
architecture and then does not use.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import gguf
import graphml_quant
import numpy as np
from numpy.typing import NDArray

from graphml.loading import discovery

FOLDER = Path(__file__).parent / "data" / "goldens"
Floats = NDArray[np.float32]
Metadata = Mapping[str, tuple[str, Any]]


@dataclass(frozen=True)
class Golden:
    """A model: metadata (key -> type, value), tensors (name -> shape in GGUF order), tokens, logits.

    logits: of an encoder its hidden rows.
    """

    name: str
    seed: int
    tokens: list[int]
    metadata: Metadata
    tensors: Mapping[str, tuple[int, ...]]
    logits: Floats

    @property
    def architecture(self) -> str:
        """As GGUF calls it."""
        return str(self.metadata["general.architecture"][1])


def names() -> list[str]:
    """The goldens in the repository."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


@cache
def decoders() -> list[str]:
    """The goldens in the repository whose rows are logits; those of encoders are hidden rows."""
    return [name for name in names() if discovery.architecture(read(name).architecture).output == "logits"]


def some(count: int = 10) -> list[str]:
    """The two llamas and others evenly spread over the rest, for tests that take long with each.

    Those whose tokens see later ones are left out: they continue no text.
    """
    causal = {
        path.stem: '.attention.causal": ["BOOL", false]' not in path.read_text()
        for path in FOLDER.glob("*.json")
    }
    others = [name for name in decoders() if name not in FEW and causal[name]]
    step = max(1, -(-len(others) // (count - len(FEW))))
    return [*FEW, *others[::step]]


FEW = ["llama-dense", "llama-moe"]  # for tests that try many things with each


@cache
def read(name: str) -> Golden:
    """A golden of the repository, which its readers share."""
    of = spec(FOLDER / f"{name}.json")
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return replace(of, logits=arrays["logits"])


def spec(path: Path) -> Golden:
    """A golden without its logits, by the file of its metadata and shapes."""
    parts = json.loads(path.read_text())
    metadata = {key: (kind, _expand(value)) for key, (kind, value) in parts["metadata"].items()}
    tensors = {tensor: tuple(sizes) for tensor, sizes in parts["tensors"].items()}
    return Golden(path.stem, parts["seed"], parts["tokens"], metadata, tensors, np.empty(0, np.float32))


def weights(name: str, sizes: tuple[int, ...], seed: int) -> NDArray[Any]:
    """The weights of the tensor `name`; `sizes` in GGUF order (the first is contiguous).

    Of experts by token: whole numbers below 5, the fewest that a model here has. Of WavTokenizer's
    convolutions: numbers of bfloat16, since for others llama.cpp rounds what they read to half precision.
    """
    if name.startswith(("conv1d.", "posnet.", "convnext.")) and len(sizes) == 3:
        form = graphml_quant.by_name("bf16")
        values = weights(f"convolution {name}", sizes, seed)
        return graphml_quant.dequantize(form, graphml_quant.quantize(form, values), values.shape)
    if "tid2eid" in name:
        raw = np.random.Philox(key=_key(name, seed)).random_raw(prod(sizes))
        return (raw % np.uint64(5)).astype(np.int32).reshape(sizes[::-1])
    if "rope_f" in name:
        kind = "frequencies"
    elif "ssm_a" in name and "norm" not in name:
        kind = "decays"
    elif ("norm" in name and name.endswith(".weight")) or name.endswith((".scale", ".scales")):
        kind = "scales"
    elif name.endswith(".bias") or len(sizes) == 1:
        kind = "biases"
    else:
        kind = "embeddings" if "embd" in name else "matrix"
    values, of_sums = np.empty(prod(sizes), np.float32), _of_sums(kind, sizes[0] if kind == "matrix" else 1)
    generator = np.random.Philox(key=_key(name, seed))
    for first in range(0, len(values), _AT_ONCE):
        part = values[first : first + _AT_ONCE]
        of_sums.take(_sums(generator.random_raw(len(part))), out=part, mode="clip")
    return values.reshape(sizes[::-1])


def _key(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:16], "little")


@cache
def _of_sums(kind: str, columns: int) -> Floats:
    """Weight of each sum of four 16-bit numbers, which are about normal: as many values as are computed."""
    normal = ((np.arange(4 * 0xFFFF + 1) / 65536.0 - 2.0) * np.sqrt(3.0)).astype(np.float32)
    if kind == "frequencies":
        return np.abs(1 + 0.1 * normal)
    if kind == "decays":
        return -np.abs(0.5 + 0.5 * normal) - 0.05
    if kind == "scales":
        return 1 + 0.1 * normal
    if kind == "biases":
        return 0.1 * normal
    return (normal / np.sqrt(columns)).astype(np.float32)


def _sums(raw: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The sums of the four 16-bit parts of the generator's raw numbers."""
    pairs = raw >> np.uint64(16)
    pairs &= _EVEN_PARTS
    raw &= _EVEN_PARTS
    pairs += raw
    pairs += pairs >> np.uint64(32)
    pairs &= _LOWER_HALF
    return pairs.view(np.int64)


_AT_ONCE = 1 << 14  # what a processor's cache holds
_EVEN_PARTS = np.uint64(0x0000FFFF0000FFFF)  # whose sums do not reach the parts between them
_LOWER_HALF = np.uint64(0xFFFFFFFF)


def write_gguf(
    path: Path,
    architecture: str,
    metadata: Metadata,
    tensors: Mapping[str, NDArray[Any]],
    form: str | None = None,
    vectors: bool = False,
) -> Path:
    """A GGUF file, without a vocabulary unless the metadata have one.

    metadata: key -> type (`UINT32`, `ARRAY FLOAT32`, ...) and value; form: what all weights are quantised to,
    norms and biases only if `vectors`, or what the tensors of bytes are, if there are any.
    """
    encoded = any(array.dtype == np.uint8 for array in tensors.values())
    writer = gguf.GGUFWriter(path, architecture)
    for key, (kind, value) in metadata.items():
        if key != "general.architecture":
            types = [gguf.GGUFValueType[part] for part in kind.split()]
            writer.add_key_value(key, value, types[0], sub_type=types[-1] if len(types) > 1 else None)
    if "tokenizer.ggml.model" not in metadata:
        writer.add_tokenizer_model("no_vocab")
    for name, array in tensors.items():
        if form is not None and array.dtype == np.uint8:
            writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType[form.upper()])
        elif form is not None and not encoded and array.dtype.kind == "f" and (vectors or array.ndim > 1):
            blocks = graphml_quant.quantize(graphml_quant.by_name(form), array)
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[form.upper()])
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def build(golden: Golden, path: Path) -> Path:
    """Write the golden as GGUF. One of the repository is a copy of `file`, which the test may change."""
    if _files is not None and (FOLDER / f"{golden.name}.json").exists() and read(golden.name) is golden:
        return Path(shutil.copyfile(file(golden.name), path))
    return _write(golden, path)


def _write(golden: Golden, path: Path) -> Path:
    tensors = {name: weights(name, sizes, golden.seed) for name, sizes in golden.tensors.items()}
    return write_gguf(path, golden.architecture, golden.metadata, tensors)


_files: Path | None = None


def keep_files(folder: Path) -> None:
    """Write the repository's goldens once, into the folder, which several processes may share."""
    global _files
    _files = folder
    folder.mkdir(exist_ok=True)


def file(name: str) -> Path:
    """The file of a golden of the repository, for tests that only read it."""
    assert _files is not None, "wanted a folder, see `keep_files`"
    path = _files / f"{name}.gguf"
    if not path.exists():
        _write(read(name), _files / f"{name}-{os.getpid()}").replace(path)
    return path


def poisoned(golden: Golden, path: Path, tensor: str, target: Path) -> Path:
    """A copy of the golden's file `path` with the sign of a tensor turned."""
    values, whole = weights(tensor, golden.tensors[tensor], golden.seed), path.read_bytes()
    assert whole.count(values.tobytes()) == 1
    target.write_bytes(whole.replace(values.tobytes(), (-values).tobytes()))
    return target


def nmse(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    """Squared error in proportion to the wanted values' squares, in float64."""
    a, b = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    return float(np.sum((a - b) ** 2) / np.sum(b**2))


def compact(spec: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """The compact form of a spec: one line a key or tensor, long arrays of one value as value and count."""
    metadata = {key: [" ".join(kv["types"]), _shorten(kv["value"])] for key, kv in spec["kv"].items()}
    tensors = {tensor["name"]: tensor["ne"] for tensor in spec["tensors"]}
    for pattern in without:
        unread = fnmatch.filter(tensors, pattern)
        if not unread:
            raise SystemExit(f"{pattern!r} matches no tensor of the golden")
        tensors = {name: sizes for name, sizes in tensors.items() if name not in unread}
    parts = [f'"seed": {spec["seed"]}', f'"tokens": {json.dumps(spec["tokens"])}']
    for title, entries in (("metadata", metadata), ("tensors", tensors)):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in entries.items())
        parts.append(f'"{title}": {{\n{lines}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _shorten(value: Any) -> Any:
    same = isinstance(value, list) and len(value) > 8 and len(set(value)) == 1
    return {"value": value[0], "count": len(value)} if same else value


def _expand(value: Any) -> Any:
    return [value["value"]] * value["count"] if isinstance(value, dict) else value


if __name__ == "__main__":
    sys.stdout.write(compact(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]))
