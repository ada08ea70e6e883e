"""GPTQ, AWQ and FP8 against plain loops over their definitions: equal, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.errors import WeightsError
from graphml.loading.huggingface.packed import read_packing, unpacked
from graphml.weights import Tensor
from graphml.weights.safetensors import StoredTensor
from tests.looped import looped

PATH = Path("model")
N_IN, N_OUT, GROUP = 128, 16, 64
RNG = np.random.default_rng(2)
NAMES = {"int32": "I32", "float16": "F16", "float32": "F32", "uint8": "F8_E4M3", "uint16": "BF16"}


def stored(name: str, values: np.ndarray[Any, Any], dtype: str = "") -> StoredTensor:
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return StoredTensor(name, dtype or NAMES[str(values.dtype)], values.shape, data)


def opened(method: dict[str, Any] | None, parts: dict[str, StoredTensor]) -> Tensor:
    packing = read_packing(PATH, method)
    (made,) = unpacked(PATH, packing, {f"a.q_proj.{last}": one for last, one in parts.items()}).values()
    assert made.name == "a.q_proj.weight"
    return made


def words(numbers: np.ndarray[Any, Any], order: tuple[int, ...] = tuple(range(8))) -> np.ndarray[Any, Any]:
    """4-bit numbers [n, 8 m] in int32 [n, m]; order: which number of eight each place in a word has."""
    eights = numbers.reshape(len(numbers), -1, 8).astype(np.uint32)
    packed = sum(eights[:, :, order[place]] << np.uint32(4 * place) for place in range(8))
    return np.asarray(packed, np.uint32).view(np.int32)


def gptq(zeros: Any, g_idx: Any = None, v2: bool = False) -> tuple[dict[str, StoredTensor], Any]:
    """The parts of a layer, and its matrix [out, in]."""
    n_group = N_IN // GROUP
    q = RNG.integers(0, 16, (N_IN, N_OUT))
    z = np.broadcast_to(zeros, (n_group, N_OUT))
    s = RNG.normal(size=(n_group, N_OUT)).astype(np.float16)
    of = np.arange(N_IN) // GROUP if g_idx is None else g_idx
    matrix = np.array(
        [[np.float32(s[of[i], o]) * (q[i, o] - z[of[i], o]) for i in range(N_IN)] for o in range(N_OUT)]
    )
    parts = {
        "qweight": stored("qweight", np.ascontiguousarray(words(q.T).T)),
        "qzeros": stored("qzeros", words(z - (not v2))),
        "scales": stored("scales", s),
    }
    if g_idx is not None:
        parts["g_idx"] = stored("g_idx", np.asarray(g_idx, np.int32))
    return parts, matrix


@pytest.mark.parametrize(
    ("zeros", "g_idx", "v2", "dtype"),
    [
        (8, None, False, "q4_0"),
        (8, np.arange(N_IN) // GROUP, True, "q4_0"),
        (RNG.integers(0, 16, (N_IN // GROUP, N_OUT)), None, False, "q8_0"),
        (RNG.integers(0, 16, (N_IN // GROUP, N_OUT)), None, True, "q8_0"),
        (8, RNG.integers(0, N_IN // GROUP, N_IN), False, "f32"),
    ],
    ids=["symmetric", "symmetric-v2", "zeros", "zeros-v2", "act-order"],
)
def test_gptq_is_exact(zeros: Any, g_idx: Any, v2: bool, dtype: str) -> None:
    parts, matrix = gptq(zeros, g_idx, v2)
    method = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": GROUP,
        "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }
    made = opened(method, parts)
    assert (made.dtype, made.shape) == (dtype, (N_OUT, N_IN))
    assert np.array_equal(made.numpy(), matrix.astype(np.float32))


def test_symmetric_zeros_of_the_second_format_under_the_name_of_the_first_are_8() -> None:
    method = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": True}
    for v2 in (False, True):
        parts, matrix = gptq(8, v2=v2)
        assert np.array_equal(opened(method, parts).numpy(), matrix.astype(np.float32))
    with pytest.raises(WeightsError, match=r"a\.q_proj\.weight: .*sym = true, .* zeros 8; got \[3\]"):
        opened(method, gptq(3)[0])
    assert opened({**method, "sym": False}, gptq(8, v2=True)[0]).dtype == "q8_0"  # nothing says which it is


def test_fp8_without_its_scale_is_refused_where_the_config_says_that_there_is_one() -> None:
    with pytest.raises(
        WeightsError, match=r"a\.q_proj\.weight holds F8_E4M3: wanted its scale, a\.q_proj\.we"
    ):
        opened({"quant_method": "fp8"}, {"weight": stored("w", np.zeros((2, 2), np.uint8))})


def test_awq_is_exact() -> None:
    n_group = N_IN // GROUP
    q, z = RNG.integers(0, 16, (N_IN, N_OUT)), RNG.integers(0, 16, (n_group, N_OUT))
    s = RNG.normal(size=(n_group, N_OUT)).astype(np.float16)
    order = (0, 2, 4, 6, 1, 3, 5, 7)  # AutoAWQ's order of columns in a word
    parts = {
        "qweight": stored("w", words(q, order)),
        "qzeros": stored("z", words(z, order)),
        "scales": stored("s", s),
    }
    made = opened({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "GEMM"}, parts)
    group = np.arange(N_IN) // GROUP
    assert made.dtype == "q8_0"
    assert np.array_equal(made.numpy(), (s[group].astype(np.float32) * (q - z[group])).T)


def test_fp8_bytes_are_their_values() -> None:
    every = np.arange(256, dtype=np.uint8)
    e5m2 = opened(None, {"weight": stored("w", every.reshape(16, 16), "F8_E5M2")}).numpy()
    wanted = (every.astype(np.uint16) << 8).view(np.float16).astype(np.float32)  # the upper byte of a float16
    assert np.array_equal(e5m2.reshape(-1), wanted, equal_nan=True)
    e4m3 = opened(None, {"weight": stored("w", every.reshape(16, 16))}).numpy().reshape(-1)
    known = {0x00: 0.0, 0x01: 2.0**-9, 0x07: 7 * 2.0**-9, 0x08: 2.0**-6, 0x38: 1.0, 0x3C: 1.5, 0x7E: 448.0}
    for code, value in known.items():
        assert (e4m3[code], e4m3[code | 0x80]) == (value, -value)
    assert np.isnan(e4m3[[0x7F, 0xFF]]).all()
    assert (np.diff(e4m3[:127]) > 0).all()


@pytest.mark.parametrize(
    ("name", "scales", "block"),
    [("weight_scale_inv", (2, 2), [8, 16]), ("weight_scale", (12, 1), None), ("weight_scale", (1,), None)],
    ids=["blocks", "rows", "one"],
)
def test_fp8_is_scaled(name: str, scales: tuple[int, ...], block: list[int] | None) -> None:
    codes = RNG.integers(0, 0x7E, (12, 24)).astype(np.uint8)
    factors = RNG.uniform(0.5, 2, scales).astype(np.float32)
    plain = opened(None, {"weight": stored("w", codes)}).numpy()
    made = opened(
        {"quant_method": "fp8", "weight_block_size": block},
        {"weight": stored("w", codes), name: stored("s", factors)},
    )
    for row in range(12):
        for column in range(24):
            at = {2: (row // 8, column // 16), 12: (row, 0), 1: (0,)}[scales[0]]
            assert made.numpy()[row, column] == np.float32(plain[row, column] * factors[at])


OTHERS = [
    {"quant_method": "gptq", "bits": 3},
    {"quant_method": "bitsandbytes"},
    {"quant_method": "awq", "version": "gemv"},
    {"quant_method": "gptq", "bits": 4, "group_size": 0},
    3,
]


@looped("method", OTHERS, ids=str)
def test_other_methods_are_refused(method: Any) -> None:
    with pytest.raises(WeightsError, match="model: quantization_config: "):
        read_packing(PATH, method)


def test_parts_that_do_not_fit_are_refused() -> None:
    method = {"quant_method": "gptq", "bits": 4, "group_size": GROUP}
    good, _ = gptq(8)
    wrong = {
        "qzeros": stored("z", np.zeros((2, 3), np.int32)),
        "scales": stored("s", np.zeros((3, 16), np.float16)),
        "g_idx": stored("g", np.full(N_IN, 9, np.int32)),
    }
    for part, one in wrong.items():
        with pytest.raises(WeightsError, match=r"a\.q_proj\.weight"):
            opened(method, {**good, part: one})
    with pytest.raises(WeightsError, match=r"wanted a matrix qzeros"):
        opened(method, {part: one for part, one in good.items() if part != "qzeros"})


def mxfp4() -> tuple[dict[str, StoredTensor], Any]:
    """The parts of two experts' matrices, as gpt-oss has them, and their values by the definition."""
    floats = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    pairs = RNG.integers(0, 256, (2, N_OUT, N_IN // 32, 16)).astype(np.uint8)
    exponents = RNG.integers(110, 130, (2, N_OUT, N_IN // 32)).astype(np.uint8)
    values = np.zeros((2, N_OUT, N_IN), np.float32)
    for place in np.ndindex(pairs.shape):
        *rows, block, byte = place
        for half, code in enumerate((pairs[place] & 15, pairs[place] >> 4)):
            number = floats[code & 7] * (-1 if code & 8 else 1)
            values[(*rows, 32 * block + 2 * byte + half)] = number * 2.0 ** (
                int(exponents[(*rows, block)]) - 127
            )
    parts = {"_blocks": stored("_blocks", pairs, "U8"), "_scales": stored("_scales", exponents, "U8")}
    return parts, values


def test_mxfp4_is_exact_in_blocks_of_ggml() -> None:
    parts, values = mxfp4()
    packing = read_packing(PATH, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    found = {f"a.experts.down_proj{end}": one for end, one in parts.items()}
    (made,) = unpacked(PATH, packing, found).values()
    assert (made.name, made.dtype, made.shape) == ("a.experts.down_proj", "mxfp4", values.shape)
    assert np.array_equal(made.numpy(), values)


def test_damaged_mxfp4_is_refused() -> None:
    parts, _ = mxfp4()
    packing = read_packing(PATH, {"quant_method": "mxfp4"})
    for changed in ({"_scales": stored("_scales", np.zeros((2, 3), np.uint8), "U8")}, {"_scales": None}):
        found = {f"a.w{end}": one for end, one in (parts | changed).items() if one is not None}
        with pytest.raises(WeightsError, match=r"a\.w: wanted blocks U8 \[\.\., in / 32, 16\] and scales U8"):
            unpacked(PATH, packing, found)
