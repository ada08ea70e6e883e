"""What ggml itself does with fixed inputs, kept as digests in tests/data/quant/ggml.json.

And what it writes into files, with importance and without, in ggml_files.json.

The inputs here are made of a raw bit stream, whose values NumPy promises never to change. To record anew,
run this file with the folder of a ggml build's shared libraries (llama-cpp-python ships them):

    python tests/quant/ggml_record.py site-packages/llama_cpp/lib
"""

import ctypes
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from graphml_quant import Format, formats

RECORD = Path(__file__).parents[1] / "data" / "quant" / "ggml.json"
FILES_RECORD = RECORD.with_name("ggml_files.json")
BLOCKS = 3000


def sample_blocks(format: Format) -> np.ndarray:
    """Make uint8 [BLOCKS, block_bytes]: random bits, and every scale that a repeated byte pair can spell."""
    count = BLOCKS * format.block_bytes
    stream = np.random.PCG64(format.ggml_type).random_raw(-(-count // 8)).astype("<u8").view(np.uint8)
    blocks = stream[:count].reshape(BLOCKS, format.block_bytes).copy()
    blocks[:256] = np.arange(256, dtype=np.uint8)[:, None]
    # infinities, zeros and the smallest and largest subnormals of float16, at even and at odd places
    pairs = [(low, high) for high in (0x7C, 0xFC, 0x00, 0x80, 0x03) for low in (0x00, 0x01, 0xFF)]
    for number, (low, high) in enumerate(pairs):
        blocks[256 + number] = np.resize([low, high], format.block_bytes)
        blocks[280 + number] = np.resize([high, low], format.block_bytes)
        blocks[300 + 30 * number : 330 + 30 * number, :2] = (low, high)
        blocks[1000 + 30 * number : 1030 + 30 * number, -2:] = (low, high)
    return blocks


def sample_values(format: Format) -> np.ndarray:
    """Make float32 [300, 4 blocks] of many magnitudes, some rows zero or constant."""
    columns = 4 * max(format.block_elements, 16)
    stream = np.random.PCG64(1000 + format.ggml_type).random_raw(300 * columns)
    values = ((stream >> np.uint64(40)).astype(np.float32) - np.float32(2**23)).reshape(300, columns)
    values = np.ldexp(values, (np.arange(300, dtype=np.int32) % 20 - 30)[:, None])
    values[3], values[4], values[5], values[6, ::2] = 0, 1.5, -1.5, 0
    # halves between two steps, which tell the ways of rounding apart: steps of 1 in Q8, Q4_0 and Q4_1
    halves = np.arange(columns) / 2
    values[7], values[8], values[9] = halves % 127, halves % 16 - 8, halves % 15.5
    values[7, ::16], values[9, ::16] = 127, 15
    return values


def file_values() -> np.ndarray:
    """Make float32 [44, 1024]: bell-shaped numbers, and rows of every kind that encoders treat apart."""
    raw = np.random.PCG64(77).random_raw(4 * 44 * 1024).reshape(4, 44, 1024)
    sums = (raw >> np.uint64(40)).sum(axis=0).astype(np.int64) - (1 << 25)
    values = np.ldexp(sums.astype(np.float32), -23)
    values[8:16] *= values[8:16] * values[8:16]
    values[16:20] *= raw[0, 16:20] % 16 == 0
    values[20:24] = np.rint(values[20:24] * 4)
    values[24], values[25], values[26] = 0, 1.5, -0.75
    values[27], values[28], values[29] = values[27] * 2.0**-40, values[28] * 2.0**13, abs(values[29]) + 2
    values[30:38] = np.ldexp(values[30:38], np.arange(1024) // 64 % 24 - 16)
    values[38, 400:] = 0
    values[39, ::47] *= 32
    # Just below powers of two and below halves of a step, which tell roundings apart; E4M3's largest scales.
    column = np.arange(1024)
    values[40] = np.nextafter(
        np.ldexp(np.float32(1), column // 16 % 12 - 8).astype(np.float32), np.float32(0)
    )
    values[41] = np.nextafter((column % 100 + 0.5).astype(np.float32), np.float32(0))
    values[42] = np.nextafter(np.float32([0.5, 1.5])[column % 2], np.float32(0)) / 2
    values[41, ::16], values[42, ::16] = 127, 1
    values[43] *= np.float32(1500) / abs(values[43]).max()
    return values


def file_importance() -> np.ndarray:
    """Make float32 [1024], a few columns that matter much."""
    raw = (np.random.PCG64(78).random_raw(1024) >> np.uint64(40)).astype(np.float32)
    importance = np.ldexp(raw, -24) ** 2 + np.float32(0.05)
    importance[::29] *= 32
    return importance


def defined(format: Format, encoded: np.ndarray) -> np.ndarray:
    """Encoded blocks without what ggml leaves undefined: the indices in IQ4_NL's blocks of zeros."""
    if format.name != "iq4_nl":
        return encoded
    blocks = encoded.reshape(-1, format.block_bytes).copy()
    blocks[(blocks[:, :2] == 0).all(axis=1)] = 0
    return blocks.reshape(encoded.shape)


def placed(format: Format, values: np.ndarray, encoded: np.ndarray) -> np.ndarray:
    """Encoded blocks without those of IQ3_S with a group of zeros: ggml moves the vectors behind it."""
    if format.name != "iq3_s":
        return encoded
    blocks = encoded.reshape(-1, format.block_bytes).copy()
    blocks[~values.reshape(len(blocks), -1, 32).any(axis=2).all(axis=1)] = 0
    return blocks.reshape(encoded.shape)


def digest(array: np.ndarray) -> str:
    """Hash the bytes of an array; all NaNs count as one."""
    if array.dtype == np.float32:
        array = np.where(np.isnan(array), np.float32(np.nan), array).astype("<f4")
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:24]


class _Traits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_elements", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


class _CpuTraits(ctypes.Structure):
    _fields_ = (
        ("from_float", ctypes.c_void_p),
        ("vec_dot", ctypes.c_void_p),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    )


def _address(library: ctypes.CDLL, name: str) -> int | None:
    function = getattr(library, name, None)
    return function and ctypes.cast(function, ctypes.c_void_p).value


def _call(address: int, source: np.ndarray, target: np.ndarray, count: int) -> np.ndarray:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
    function(source.ctypes.data, target.ctypes.data, count)
    return target


def record(folder: Path) -> dict:
    """Ask the libraries in `folder` for sizes, pairings and results."""
    base = ctypes.CDLL(str(folder / "libggml-base.so"))
    cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"))
    base.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    base.ggml_version.restype = ctypes.c_char_p
    base.ggml_type_name.restype = ctypes.c_char_p
    cpu.ggml_get_type_traits_cpu.restype = ctypes.POINTER(_CpuTraits)
    types = {}
    for format in formats().values():
        if base.ggml_type_name(format.ggml_type).decode().lower() != format.name:
            continue  # not one of this ggml's own
        traits = base.ggml_get_type_traits(format.ggml_type).contents
        cpu_traits = cpu.ggml_get_type_traits_cpu(format.ggml_type).contents
        partner = base.ggml_get_type_traits(cpu_traits.vec_dot_type).contents if cpu_traits.vec_dot else None
        entry = {
            "ggml_type": format.ggml_type,
            "block_elements": traits.block_elements,
            "block_bytes": traits.block_bytes,
            "vec_dot_type": partner and partner.type_name.decode().lower(),
        }
        # the activation formats are not in the tables, but their functions are exported
        c_name = traits.type_name.decode()
        to_float = traits.to_float or _address(base, f"dequantize_row_{c_name}")
        from_float = traits.from_float_ref or _address(base, f"quantize_row_{c_name}_ref")
        if to_float:
            blocks = sample_blocks(format)
            values = np.empty((BLOCKS, format.block_elements), np.float32)
            entry["decoded"] = digest(_call(to_float, blocks, values, values.size))
        if from_float and format.encode:
            values = sample_values(format)
            encoded = np.zeros((len(values), format.bytes_for(values.shape[1])), np.uint8)
            entry["encoded"] = digest(defined(format, _call(from_float, values, encoded, values.size)))
        types[c_name.lower()] = entry
    return {"source": f"ggml {base.ggml_version().decode()}, tests/quant/ggml_record.py", "types": types}


def record_files(folder: Path) -> dict:
    """Ask the library in `folder` what it writes for `file_values`; without importance where it can."""
    base = ctypes.CDLL(str(folder / "libggml-base.so"))
    base.ggml_version.restype = ctypes.c_char_p
    base.ggml_quantize_chunk.restype = ctypes.c_size_t
    base.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    values, importance = file_values(), file_importance()
    types: dict = {}
    for format in formats().values():
        if format.name in ("f32", "q8_1", "q8_k"):
            continue  # neither encoded nor in files
        encoded = np.zeros((len(values), format.bytes_for(values.shape[1])), np.uint8)
        sizes = [ctypes.c_int64(size) for size in (0, *values.shape)]
        needs = base.ggml_quantize_requires_imatrix(format.ggml_type)
        for tag, address in (("weighted", importance.ctypes.data), *([] if needs else [("plain", None)])):
            source, target = ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(encoded.ctypes.data)
            base.ggml_quantize_chunk(format.ggml_type, source, target, *sizes, ctypes.c_void_p(address))
            types.setdefault(format.name, {})[tag] = digest(placed(format, values, encoded))
    return {"source": f"ggml {base.ggml_version().decode()}, tests/quant/ggml_record.py", "types": types}


if __name__ == "__main__":
    FILES_RECORD.write_text(json.dumps(record_files(Path(sys.argv[1])), indent=1) + "\n")
    RECORD.write_text(json.dumps(record(Path(sys.argv[1])), indent=1) + "\n")
