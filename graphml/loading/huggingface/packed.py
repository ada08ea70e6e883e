"""Matrices of quantised checkpoints, unpacked exactly: GPTQ and AWQ of 4 bits, FP8 with scales, MXFP4.

GPTQ and AWQ store 4-bit numbers q, a zero z and a float16 scale s for each group of inputs: s * (q - z). That
is Q4_0 where every zero is 8, else Q8_0, both exact and without more memory than needed, as long as a block
of 32 inputs is in one group; float32 otherwise. Formats: AutoGPTQ `qlinear_cuda`, AutoAWQ `WQLinear_GEMM`,
compressed FP8 of DeepSeek-V3 (arXiv:2412.19437). Knows layouts of packed matrices; nothing of names beyond
their last part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphml.errors import WeightsError
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml.weights.filemap import Bytes
from graphml.weights.safetensors import StoredTensor

Numbers = NDArray[np.int8]
PER_WORD, BLOCK = 8, 32  # numbers of 4 bits in an int32; elements of a block of Q4_0 and Q8_0
HALF = 8  # the zero of numbers that are signed
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in its word the number of a column is
DTYPES = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "I64": "<i8", "BF16": "<u2"}
PARTS = ("qweight", "qzeros", "scales", "g_idx")
MXFP4_PARTS = ("_blocks", "_scales")
FP8_SCALES = ("weight_scale_inv", "weight_scale")


class Packing(NamedTuple):
    """What `quantization_config` says.

    method: "gptq", "awq", "fp8" or "mxfp4"; zero: added to GPTQ's stored zeros; symmetric: all zeros are 8.
    """

    method: str
    group: int
    zero: int = 0
    block: tuple[int, int] = (0, 0)
    symmetric: bool = False


def read_packing(path: Path, quantization: Any) -> Packing | None:
    """The packing of a config's `quantization_config`; WeightsError for one that is not known."""
    if quantization is None:
        return None
    fields = quantization if isinstance(quantization, dict) else {}
    method = str(fields.get("quant_method", ""))[:40]
    if method in ("gptq", "awq"):
        bits, group = fields.get("bits", 4), fields.get("group_size", 128)
        version = str(fields.get("version") or "gemm").lower()
        if bits != 4 or type(group) is not int or group == 0 or (method == "awq" and version != "gemm"):
            raise WeightsError(
                f"{path}: quantization_config: of {method} graphml reads 4 bits"
                + (" in the layout gemm" if method == "awq" else "")
                + f"; got bits = {bits!r}, group_size = {group!r}, version = {version!r}"
            )
        second = fields.get("checkpoint_format") == "gptq_v2"
        first = method == "gptq" and not second
        return Packing(method, group, int(first), symmetric=first and fields.get("sym") is True)
    block = fields.get("weight_block_size") or (0, 0)
    if method == "fp8" and len(block) == 2 and all(type(size) is int and size >= 0 for size in block):
        return Packing(method, 0, block=(block[0], block[1]))
    if method == "mxfp4":
        return Packing(method, BLOCK)
    raise WeightsError(
        f"{path}: quantization_config: wanted quant_method gptq, awq, fp8 or mxfp4; got {method!r}. "
        "The unquantised model, with quant (--quant), or a GGUF file of it can be read"
    )


def unpacked(path: Path, packing: Packing | None, stored: Mapping[str, StoredTensor]) -> dict[str, Tensor]:
    """All tensors of a checkpoint with packed ones in place of their parts, by the checkpoint's names."""
    done: dict[str, Tensor] = {}
    parts: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        stem, _, last = name.rpartition(".")
        grouped = packing is not None and packing.method in ("gptq", "awq")
        end = last[-len(MXFP4_PARTS[0]) :]
        if packing is not None and packing.method == "mxfp4" and end in MXFP4_PARTS:
            parts.setdefault(name.removesuffix(end), {})[end] = tensor
        elif (grouped and last in PARTS) or (packing and last in FP8_SCALES) or tensor.dtype.startswith("F8"):
            parts.setdefault(stem, {})[last] = tensor
        else:
            done[name] = plain(path, tensor)
    for stem, of in parts.items():
        unpacked_tensor = _unpack(path, packing, stem, of)
        done[unpacked_tensor.name] = unpacked_tensor
    return done


def plain(path: Path, tensor: StoredTensor) -> Tensor:
    """A tensor of plain numbers, in the map unless its bytes are not aligned to its numbers."""
    kind = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64", "I64": "i64", "I32": "i32"}.get(
        tensor.dtype
    )
    if kind is None:
        raise WeightsError(
            f"{path}: tensor {tensor.name[:200]!r} holds {tensor.dtype}, which no architecture reads"
        )
    width = {"f64": 8, "i64": 8, "f32": 4, "i32": 4}.get(kind, 2)
    if tensor.data.nbytes and tensor.data.ctypes.data % width:
        return DeferredTensor.of(tensor.name, kind, tensor.shape, lambda: tensor.data.copy())
    return Tensor(tensor.name, kind, tensor.shape, tensor.data)


def _unpack(path: Path, packing: Packing | None, stem: str, of: Mapping[str, StoredTensor]) -> Tensor:
    name = f"{stem}.weight"
    if set(of) & set(MXFP4_PARTS):
        return _mxfp4(path, stem, of)
    if "weight" in of:
        if packing is not None and not any(part in of for part in FP8_SCALES):
            raise WeightsError(
                f"{path}: {name[:200]} holds {of['weight'].dtype}: wanted its scale, {stem[-100:]}."
                f"{' or '.join(FP8_SCALES)}, as quantization_config says that it is {packing.method}"
            )
        return _fp8(path, name, of, packing.block if packing else (0, 0))
    for part in ("qweight", "qzeros", "scales"):
        if part not in of or len(of[part].shape) != 2:
            raise WeightsError(
                f"{path}: {stem[:200]}: wanted a matrix {part}; there are {', '.join(sorted(of))}"
            )
    if packing is None:
        raise WeightsError(f"{path}: {stem[:200]}: is packed, but config.json has no quantization_config")
    return _grouped(path, name, of, packing)


def _array(part: StoredTensor) -> NDArray[Any]:
    """The numbers of a part; bfloat16 as float32."""
    array = np.frombuffer(part.data.tobytes(), DTYPES[part.dtype]).reshape(part.shape)
    return (array.astype(np.uint32) << 16).view(np.float32) if part.dtype == "BF16" else array


def _nibbles(words: NDArray[np.int32]) -> NDArray[np.int8]:
    """The 4-bit numbers of words, a new last dimension of 8, lowest bits first."""
    shifts = np.arange(PER_WORD, dtype=np.uint32) * 4
    return ((words.view(np.uint32)[..., None] >> shifts) & 15).astype(np.int8)


def _grouped(path: Path, name: str, of: Mapping[str, StoredTensor], packing: Packing) -> Tensor:
    """GPTQ packs qweight [in / 8, out] along inputs, AWQ [in, out / 8] along outputs; zeros along outputs."""
    qweight, qzeros, scales = of["qweight"], of["qzeros"], of["scales"]
    gptq = packing.method == "gptq"
    n_in = qweight.shape[0] * (PER_WORD if gptq else 1)
    n_out = qweight.shape[1] * (1 if gptq else PER_WORD)
    group = n_in if packing.group < 0 else packing.group
    n_group = -(-n_in // group)
    if (qweight.dtype, qzeros.dtype) != ("I32", "I32") or scales.dtype not in ("F16", "BF16", "F32"):
        raise WeightsError(f"{path}: {name[:200]}: wanted qweight and qzeros of I32 and scales of floats")
    if qzeros.shape != (n_group, n_out // PER_WORD) or scales.shape != (n_group, n_out) or n_out % PER_WORD:
        raise WeightsError(
            f"{path}: {name[:200]}: {n_in} inputs in groups of {group}, {n_out} outputs: wanted qzeros "
            f"[{n_group}, {n_out // PER_WORD}] and scales [{n_group}, {n_out}]; got {list(qzeros.shape)} and "
            f"{list(scales.shape)}"
        )
    zeros = _nibbles(_array(qzeros))
    zeros = zeros if gptq else zeros[..., AWQ_ORDER]
    zeros = zeros.reshape(n_group, n_out)
    if packing.symmetric and bool((zeros == HALF).all()):  # of the second format, under the name of the first
        packing = packing._replace(zero=0)
    zeros = (zeros + np.int8(packing.zero)) & np.int8(15)  # the first format has 15 for a zero of 0
    if packing.symmetric and not bool((zeros == HALF).all()):
        raise WeightsError(
            f"{path}: {name[:200]}: quantization_config has sym = true, which makes all zeros {HALF}; got "
            f"{sorted(set(zeros.reshape(-1).tolist()))[:8]}"
        )
    groups = np.arange(n_in) // group
    if "g_idx" in of:
        groups = _order(path, name, of["g_idx"], n_in, n_group, groups)
    factors = _array(scales)
    blocks = groups[: n_in // BLOCK * BLOCK].reshape(-1, BLOCK)
    exact = n_in % BLOCK == 0 and bool((blocks == blocks[:, :1]).all()) and _is_half(factors)
    dtype = "f32" if not exact else "q4_0" if bool((zeros == HALF).all()) else "q8_0"

    def compute() -> Bytes:
        words = _nibbles(_array(qweight))
        q = words.swapaxes(1, 2).reshape(n_in, n_out) if gptq else words[..., AWQ_ORDER].reshape(n_in, n_out)
        if dtype == "f32":
            values = factors.astype(np.float32)[groups] * (q - zeros[groups])
            return np.ascontiguousarray(values.T).reshape(-1).view(np.uint8)
        return _blocks(q, zeros, factors, groups, dtype)

    return DeferredTensor.of(name, dtype, (n_out, n_in), compute)


def _order(
    path: Path, name: str, g_idx: StoredTensor, n_in: int, n_group: int, plain_order: NDArray[np.intp]
) -> NDArray[np.intp]:
    """The group of each input, checked."""
    if g_idx.dtype not in ("I32", "I64") or g_idx.shape != (n_in,):
        raise WeightsError(
            f"{path}: {name[:200]}: wanted g_idx I32 [{n_in}]; got {g_idx.dtype} {g_idx.shape}"
        )
    groups = _array(g_idx).astype(np.intp)
    if n_in and not 0 <= int(groups.min()) <= int(groups.max()) < n_group:
        raise WeightsError(f"{path}: {name[:200]}: g_idx: wanted groups 0 to {n_group - 1}")
    return groups


def _is_half(factors: NDArray[Any]) -> bool:
    """Whether float16 holds them exactly, as blocks need."""
    with np.errstate(over="ignore"):
        return factors.dtype == np.float16 or bool((factors.astype(np.float16) == factors).all())


def _blocks(q: Numbers, zeros: Numbers, factors: NDArray[Any], groups: NDArray[np.intp], dtype: str) -> Bytes:
    """Rows of Q4_0 or Q8_0 blocks: a float16 factor, then 32 numbers."""
    n_out = q.shape[1]
    of_block = groups[::BLOCK]
    head = np.ascontiguousarray(factors.astype("<f2")[of_block].T).view(np.uint8).reshape(n_out, -1, 2)
    if dtype == "q8_0":
        body = np.ascontiguousarray((q - zeros[groups]).T).view(np.uint8).reshape(n_out, -1, BLOCK)
    else:  # the lower bits of 16 bytes are the first half of a block
        halves = np.ascontiguousarray(q.T).view(np.uint8).reshape(n_out, -1, 2, BLOCK // 2)
        body = np.bitwise_or(halves[:, :, 0], np.left_shift(halves[:, :, 1], 4), dtype=np.uint8)
    return np.concatenate([head, body], axis=2).reshape(-1)


def _fp8_table(dtype: str) -> NDArray[np.float32]:
    """The value of each byte of E4M3, which has no infinities, or E5M2 (arXiv:2209.05433)."""
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    code = np.arange(256)
    exponent, mantissa = (code & 127) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    value = np.where(exponent, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    if dtype == "F8_E4M3":
        value[code & 127 == 127] = np.nan
    else:
        value[(exponent == 31) & (mantissa == 0)] = np.inf
        value[(exponent == 31) & (mantissa > 0)] = np.nan
    return np.where(code > 127, -value, value).astype(np.float32)


def _fp8(path: Path, name: str, of: Mapping[str, StoredTensor], block: tuple[int, int]) -> Tensor:
    """Bytes times scales, float32: one for all, one for each row, or one for each block."""
    weight = of["weight"]
    scale = next((of[part] for part in FP8_SCALES if part in of), None)
    if not weight.dtype.startswith("F8"):
        raise WeightsError(f"{path}: {name[:200]}: has a scale, but holds {weight.dtype}")
    factors = np.ones(1, np.float32) if scale is None else _scales(path, name, scale)
    shape = weight.shape
    if factors.size > 1:
        rows, columns = shape if len(shape) == 2 else (0, 0)
        if factors.shape in ((rows,), (rows, 1)):
            steps = (1, max(columns, 1))
            factors = factors.reshape(rows, 1)
        else:
            steps = block
        wanted = tuple(-(-n // step) if step else 0 for n, step in zip((rows, columns), steps, strict=True))
        if factors.shape != wanted:
            raise WeightsError(
                f"{path}: {name[:200]} {list(shape)}: wanted one scale, one a row or {list(wanted)} for "
                f"blocks of {list(block)}; got {list(factors.shape)}"
            )

    def compute() -> Bytes:
        values = _fp8_table(weight.dtype)[weight.data].reshape(shape)
        if factors.size == 1:
            values *= factors.reshape(-1)[0]
        else:
            whole = np.repeat(np.repeat(factors, steps[0], 0), steps[1], 1)
            values *= whole[: shape[0], : shape[1]]
        return values.reshape(-1).view(np.uint8)

    return DeferredTensor.of(name, "f32", shape, compute)


def _scales(path: Path, name: str, scale: StoredTensor) -> NDArray[np.float32]:
    if scale.dtype not in ("F32", "BF16", "F16"):
        raise WeightsError(f"{path}: {name[:200]}: wanted scales of floats; got {scale.dtype}")
    scales: NDArray[np.float32] = _array(scale).astype(np.float32)
    return scales


def _mxfp4(path: Path, name: str, of: Mapping[str, StoredTensor]) -> Tensor:
    """Bytes [.., out, in / 32, 16] of neighbouring numbers, exponents [.., out, in / 32]: blocks as in ggml.

    There a block is its exponent and 16 bytes whose low nibbles are the first half.
    """
    parts = [of.get(part) for part in MXFP4_PARTS]
    pairs, exponents = parts
    if (
        pairs is None
        or exponents is None
        or (pairs.dtype, exponents.dtype) != ("U8", "U8")
        or pairs.shape != (*exponents.shape, BLOCK // 2)
    ):
        got = [f"{part.dtype} {list(part.shape)}" if part else "none" for part in parts]
        raise WeightsError(
            f"{path}: {name[:200]}: wanted blocks U8 [.., in / 32, 16] and scales U8 [.., in / 32]; got "
            f"{' and '.join(got)}"
        )

    def compute() -> Bytes:
        packed = pairs.data.reshape(-1, BLOCK // 2)
        numbers = np.stack([packed & 15, packed >> 4], -1).reshape(-1, 2, BLOCK // 2)
        body = np.bitwise_or(numbers[:, 0], np.left_shift(numbers[:, 1], 4), dtype=np.uint8)
        return np.concatenate([exponents.data.reshape(-1, 1), body], axis=1).reshape(-1)

    shape = (*exponents.shape[:-1], exponents.shape[-1] * BLOCK)
    return DeferredTensor.of(name, "mxfp4", shape, compute)
