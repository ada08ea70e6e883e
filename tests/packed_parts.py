"""Packed matrices with their values, of every packing: recorded from the libraries, or made by definition.

`EXAMPLES` is what tests of all packings go over: a new packing needs one here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphml.loading.huggingface.packed import read_packing, unpacked
from graphml.weights import Tensor
from graphml.weights.filemap import FileMap
from graphml.weights.safetensors import StoredTensor, read_safetensors

PATH = Path("model")
RECORDS = Path(__file__).parent / "data" / "packings"
NAMES = {"int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16", "float32": "F32",
         "uint8": "U8", "uint16": "BF16"}  # fmt: skip
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Example:
    """A packed matrix: its quantization_config, its parts by the ends of their names, and its values."""

    config: Mapping[str, Any]
    parts: Mapping[str, StoredTensor]
    values: Array

    @property
    def stem(self) -> str:
        """What the names of the parts begin with."""
        return "a.q_proj" if ".qweight" in self.parts else "a.q_proj.weight"

    def opened(self, **changed: StoredTensor | None) -> Tensor:
        """The matrix, with some of its parts changed or left out."""
        return opened(self.config, self.stem, {**self.parts, **changed})


def opened(config: Mapping[str, Any] | None, stem: str, parts: Mapping[str, StoredTensor | None]) -> Tensor:
    """The one tensor that comes of parts."""
    layout = read_packing(PATH, None if config is None else dict(config))
    held = {f"{stem}{end}": part for end, part in parts.items() if part is not None}
    (matrix,) = unpacked(PATH, layout, held).values()
    return matrix


def stored(values: Any, dtype: str = "", name: str = "x") -> StoredTensor:
    """Numbers as a file has them; dtype: its name for them, where the array's own does not say it."""
    array = np.ascontiguousarray(values)
    data = array.reshape(-1).view(np.uint8)
    return StoredTensor(name, dtype or NAMES[str(array.dtype)], array.shape, data)


@functools.cache
def record(name: str) -> Example:
    """A matrix that a library packed, and the values that it unpacks."""
    path = RECORDS / f"{name}.safetensors"
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    file = FileMap(path)
    held = {
        end: StoredTensor(end, part.dtype, part.shape, part.data.copy())
        for end, part in read_safetensors(file).items()
    }
    file.close()
    values = held.pop("=")
    array = np.frombuffer(values.data.tobytes(), np.float32).reshape(values.shape)
    return Example(json.loads(header["__metadata__"]["config"]), held, array)


def words(numbers: Array, bits: int) -> Array:
    """Numbers [rows, n] as AutoGPTQ packs them into int32, each row by itself."""
    packed = np.zeros((len(numbers), numbers.shape[1] * bits // 32), np.uint32)
    q = numbers.astype(np.uint32)
    if bits != 3:
        each = 32 // bits
        for i in range(q.shape[1]):
            packed[:, i // each] |= q[:, i] << np.uint32(bits * (i % each))
        return packed.view(np.int32)
    for base in range(0, q.shape[1] // 32):
        of, at = q[:, 32 * base : 32 * base + 32], 3 * base
        for j in range(10):
            packed[:, at] |= of[:, j] << np.uint32(3 * j)
        packed[:, at] |= of[:, 10] << np.uint32(30)
        packed[:, at + 1] |= (of[:, 10] >> np.uint32(2)) & np.uint32(1)
        for j in range(11, 21):
            packed[:, at + 1] |= of[:, j] << np.uint32(3 * (j - 11) + 1)
        packed[:, at + 1] |= of[:, 21] << np.uint32(31)
        packed[:, at + 2] |= (of[:, 21] >> np.uint32(1)) & np.uint32(3)
        for j in range(22, 32):
            packed[:, at + 2] |= of[:, j] << np.uint32(3 * (j - 22) + 2)
    return packed.view(np.int32)


def gptq(bits: int, zeros: Any = None, g_idx: Any = None, second: bool = False, group: int = 64) -> Example:
    """A GPTQ matrix [32, 128]; zeros: drawn where there are none; second: the second format."""
    n_in, n_out = 128, 32
    rng = np.random.default_rng(bits)
    q = rng.integers(0, 1 << bits, (n_in, n_out))
    drawn = rng.integers(0 if second else 1, 1 << bits, (n_in // group, n_out))
    z = drawn if zeros is None else np.broadcast_to(zeros, drawn.shape)
    s = rng.normal(size=z.shape).astype(np.float16)
    of = np.arange(n_in) // group if g_idx is None else g_idx
    values = s[of].astype(np.float32) * (q - z[of]).astype(np.float32)
    parts = {
        ".qweight": stored(words(q.T, bits).T),
        ".qzeros": stored(words(z if second else z - 1, bits)),
        ".scales": stored(s),
    }
    if g_idx is not None:
        parts[".g_idx"] = stored(np.asarray(g_idx, np.int32))
    form = "gptq_v2" if second else "gptq"
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": form}
    return Example({**config, "desc_act": g_idx is not None}, parts, values.T)


def awq_gemm(version: str = "gemm", group: int = 64) -> Example:
    """An AWQ matrix [16, 128] as `WQLinear_GEMM` packs it."""
    n_in, n_out, order = 128, 16, (0, 2, 4, 6, 1, 3, 5, 7)
    rng = np.random.default_rng(3)
    q, z = rng.integers(0, 16, (n_in, n_out)), rng.integers(0, 16, (n_in // group, n_out))
    s = rng.normal(size=z.shape).astype(np.float16)
    of = np.arange(n_in) // group
    columns = [8 * eight + at for eight in range(n_out // 8) for at in order]
    parts = {
        ".qweight": stored(words(q[:, columns], 4)),
        ".qzeros": stored(words(z[:, columns], 4)),
        ".scales": stored(s),
    }
    config = {
        "quant_method": "awq",
        "w_bit": 4,
        "q_group_size": group,
        "zero_point": True,
        "version": version,
    }
    return Example(config, parts, (s[of].astype(np.float32) * (q - z[of])).T)


def modelopt(algorithm: str, **fields: Any) -> Example:
    """A matrix of ModelOpt: of what compressed-tensors packs alike, under ModelOpt's names."""
    config = {"quant_method": "modelopt", "quant_algo": algorithm, **fields}
    if algorithm == "MXFP8":
        other = record("compressed-tensors-mxfp8")
        return Example(config, other.parts, other.values)
    if algorithm.endswith("FP8"):
        other = record("compressed-tensors-float-tensor")
        scale = stored(np.frombuffer(other.parts["_scale"].data.tobytes(), np.float32).reshape(()))
        return Example(config, {**other.parts, "_scale": scale}, other.values)
    of = record("compressed-tensors-nvfp4")
    codes = np.stack([of.parts["_packed"].data & 15, of.parts["_packed"].data >> 4], -1).reshape(16, 128)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    numbers = np.where(codes & 8, -1, 1) * table[codes & 7]
    fours = of.parts["_scale"].data.reshape(16, 8)  # E4M3: 1 + m / 8 times 2^(e - 7)
    scales = (1 + (fours & 7) / 8) * 2.0 ** ((fours >> 3).astype(int) - 7)
    second = np.float32(0.0031)
    factors = scales.astype(np.float32) * second
    parts = {"": of.parts["_packed"], "_scale": of.parts["_scale"], "_scale_2": stored(second.reshape(()))}
    return Example(config, parts, np.repeat(factors, 16, 1) * numbers.astype(np.float32))


def modelopt_blocks() -> Example:
    """FP8 in blocks of 128 x 128 with scales of four axes."""
    rng = np.random.default_rng(8)
    codes, scales = rng.integers(0, 0x7E, (256, 160)).astype(np.uint8), rng.uniform(0.5, 2, (2, 1, 2, 1))
    scales = scales.astype(np.float32)
    exponent, fraction = (codes >> 3).astype(int), (codes & 7) / 8
    plain = np.where(exponent, (1 + fraction) * 2.0 ** (exponent - 7), fraction * 2.0**-6).astype(np.float32)
    wide = np.repeat(np.repeat(scales[:, 0, :, 0], 128, 0), 128, 1)[:, :160]
    parts = {"": stored(codes, "F8_E4M3"), "_scale": stored(scales)}
    return Example({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, parts, plain * wide)


def mxfp4() -> Example:
    """Two experts' matrices as gpt-oss has them."""
    rng = np.random.default_rng(4)
    floats = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    pairs = rng.integers(0, 256, (2, 16, 4, 16)).astype(np.uint8)
    exponents = rng.integers(110, 130, (2, 16, 4)).astype(np.uint8)
    values = np.zeros((2, 16, 128), np.float32)
    for place in np.ndindex(pairs.shape):
        *rows, block, byte = place
        for half, code in enumerate((pairs[place] & 15, pairs[place] >> 4)):
            number = floats[code & 7] * (-1 if code & 8 else 1)
            power = 2.0 ** (int(exponents[(*rows, block)]) - 127)
            values[(*rows, 32 * block + 2 * byte + half)] = number * power
    return Example(
        {"quant_method": "mxfp4"}, {"_blocks": stored(pairs), "_scales": stored(exponents)}, values
    )


def examples() -> dict[str, Example]:
    """All of them by name."""
    orders = np.random.default_rng(1).permutation(np.arange(128) // 64)
    by_definition = {
        **{f"gptq-{bits}": gptq(bits) for bits in (2, 3, 4, 8)},
        **{f"gptq-{bits}-v2": gptq(bits, second=True) for bits in (2, 3, 4, 8)},
        **{f"gptq-{bits}-order": gptq(bits, 1 << (bits - 1), orders) for bits in (2, 3, 4, 8)},
        **{f"gptq-{bits}-middle": gptq(bits, 1 << (bits - 1)) for bits in (2, 3, 4, 8)},
        "awq-gemm": awq_gemm(),
        "awq-exllama": awq_gemm("exllama"),
        **{f"modelopt-{name}": modelopt(name) for name in ("FP8", "NVFP4", "W4A16_NVFP4", "MXFP8")},
        "modelopt-mixed": modelopt("MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "NVFP4"}}),
        "modelopt-blocks": modelopt_blocks(),
        "mxfp4": mxfp4(),
    }
    return {path.stem: record(path.stem) for path in sorted(RECORDS.iterdir())} | by_definition


EXAMPLES = examples()
