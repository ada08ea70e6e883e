"""Damaged packings of every kind: each part missing, of another dtype or shape, or with a NaN."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from graphml.errors import WeightsError
from graphml.weights.safetensors import StoredTensor
from tests.looped import looped
from tests.packed_parts import EXAMPLES, Example, opened, record, stored

PARTS = [(name, end) for name, example in EXAMPLES.items() for end in example.parts]
MAIN = ("", ".qweight", "_packed", "_blocks")  # the shape of the matrix is theirs
SCALES = [(name, end) for name, end in PARTS if "scale" in end]
NAN = {"F16": b"\x00\x7e", "BF16": b"\xc0\x7f", "F32": b"\x00\x00\xc0\x7f", "F8_E4M3": b"\x7f"}
NAN |= {"F8_E8M0": b"\xff", "U8": b"\xff"}


def refused(example: Example, changed: dict[str, StoredTensor | None], wanted: str) -> None:
    with pytest.raises(WeightsError, match=wanted):
        opened(example.config, example.stem, {**example.parts, **changed}).numpy()


@looped("name, end", PARTS, ids=str)
def test_a_missing_part_is_named(name: str, end: str) -> None:
    example = EXAMPLES[name]
    if len(example.parts) > 1:
        spelled = f"{end}(_inv)?" if end == "_scale" else end  # FP8 has two names for it
        named = rf"^model: tensor '{example.stem}{spelled}': wanted .*; got no such tensor beside "
        refused(example, {end: None}, named)


@looped("name, end", PARTS, ids=str)
def test_a_part_of_another_dtype_is_named(name: str, end: str) -> None:
    example = EXAMPLES[name]
    part = example.parts[end]
    other = StoredTensor(part.name, "BOOL", part.shape, part.data)
    refused(example, {end: other}, rf"^model: tensor '{example.stem}{end}': wanted .*; got BOOL")


@looped("name, end", [pair for pair in PARTS if pair[1] not in MAIN], ids=str)
def test_a_part_of_another_shape_is_named(name: str, end: str) -> None:
    example = EXAMPLES[name]
    part = example.parts[end]
    data = part.data.reshape(part.shape[0] if part.shape else 1, -1)
    longer = (len(data) + 1, *part.shape[1:])
    changed = StoredTensor(part.name, part.dtype, longer, np.concatenate([data, data[:1]]).reshape(-1))
    place = rf"^model: tensor '{example.stem}({end}|_blocks)': wanted .*; got "  # blocks go by their scales
    refused(example, {end: changed}, place)


@looped("name, end", PARTS, ids=str)
def test_an_empty_part_is_named(name: str, end: str) -> None:
    example = EXAMPLES[name]
    part = example.parts[end]
    empty = StoredTensor(part.name, part.dtype, (0, *part.shape[1:]), part.data[:0])
    refused(example, {end: empty}, rf"^model: tensor '{example.stem}.*': wanted ")


@looped("name, end", [pair for pair in PARTS if pair[1] in MAIN], ids=str)
def test_a_matrix_that_is_one_number_is_named(name: str, end: str) -> None:
    example = EXAMPLES[name]
    part = example.parts[end]
    number = StoredTensor(part.name, part.dtype, (), part.data[: 4 if part.dtype == "I32" else 1])
    refused(example, {end: number}, rf"^model: tensor '{example.stem}.*': wanted ")


@looped("name, end", SCALES, ids=str)
def test_a_scale_that_is_no_number_is_named(name: str, end: str) -> None:
    example = EXAMPLES[name]
    part = example.parts[end]
    data = part.data.copy()
    nan = NAN[part.dtype]
    data[-len(nan) :] = np.frombuffer(nan, np.uint8)
    changed = StoredTensor(part.name, part.dtype, part.shape, data)
    refused(example, {end: changed}, rf"^model: tensor '{example.stem}{end}': wanted .*; got .*(nan|NaN)")


def test_a_factor_of_all_is_above_0() -> None:
    for name, end in (("compressed-tensors-nvfp4", "_global_scale"), ("modelopt-NVFP4", "_scale_2"),
                      ("bitnet-bitlinear", "_scale")):  # fmt: skip
        for value in (0.0, -1.0):
            zero = stored(np.full(1, value, np.float32))
            refused(EXAMPLES[name], {end: zero}, rf"{end}': wanted one scale above 0; got {value}")
        if name != "modelopt-NVFP4":  # which multiplies by it
            least = stored(np.full(1, 1e-45, np.float32))
            refused(
                EXAMPLES[name], {end: least}, rf"{end}': wanted a scale whose inverse is finite; got 1e-45"
            )


def test_a_part_without_a_use_is_refused() -> None:
    cases = {"compressed-tensors-nvfp4": "_g_idx", "compressed-tensors-float-channel": "_shape"}
    for name, end in {
        **cases,
        "modelopt-FP8": "_scale_2",
        "compressed-tensors-mxfp4": "_global_scale",
    }.items():
        extra = stored(np.zeros(4, np.int32))
        refused(
            EXAMPLES[name], {end: extra}, rf"a\.q_proj\.weight{end}': wanted no such tensor in this packing"
        )


def test_zeros_of_a_symmetric_packing_are_0() -> None:
    for name in ("int-channel", "float-channel"):
        example = record(f"compressed-tensors-{name}")
        for value, fits in ((0, True), (1, False)):
            zeros = stored(np.full((16, 1), value, np.int8))
            if fits:
                matrix = opened(example.config, example.stem, {**example.parts, "_zero_point": zeros})
                assert np.array_equal(matrix.numpy(), example.values)
            else:
                refused(
                    example, {"_zero_point": zeros}, "_zero_point': wanted zeros of 0, .* symmetric = true"
                )


def test_a_group_and_a_sum_of_ternary_numbers_that_there_are_not() -> None:
    order = EXAMPLES["gptq-4-order"]
    refused(
        order, {".g_idx": stored(np.full(128, 9, np.int32))}, r"\.g_idx': wanted groups 0 to 1; got 9 to 9"
    )
    ternary = EXAMPLES["bitnet-bitlinear"]
    refused(ternary, {"": stored(np.full((4, 128), 255, np.uint8))}, "wanted numbers -1, 0 and 1.*; got 3")


def test_two_scales_of_one_matrix_are_refused() -> None:
    example = EXAMPLES["fp8-block"]
    refused(
        example, {"_scale": example.parts["_scale_inv"]}, "_scale': wanted one scale, .*_scale_inv; got two"
    )


def test_a_matrix_packed_and_as_it_is_is_refused() -> None:
    example = EXAMPLES["gptq-4"]
    with pytest.raises(WeightsError, match=r"'a\.q_proj\.weight' is there packed and as it is"):
        opened(
            example.config, "a.q_proj", {**example.parts, ".weight": stored(np.ones((32, 128), np.float32))}
        )


WEIRD: list[Any] = [None, True, -1, 0, 3, 1 << 40, 0.5, "x", "", [], ["x"], [0, 0], {}, {"x": 1}]


def _changed(config: Any, rng: random.Random) -> Any:
    """A config with one of its fields replaced, at any depth."""
    if isinstance(config, dict) and config and rng.random() < 0.9:
        key = rng.choice(sorted(config))
        return {**config, key: _changed(config[key], rng)}
    return rng.choice(WEIRD)


@looped("name", list(EXAMPLES), ids=str)
def test_any_config_opens_or_is_refused(name: str) -> None:
    example = EXAMPLES[name]
    rng = random.Random(name)
    refusals = 0
    for _ in range(60):
        config = _changed(dict(example.config), rng)
        if isinstance(config, dict):
            try:
                opened(config, example.stem, example.parts).numpy()
            except WeightsError:
                refusals += 1
    assert refusals


def test_scales_of_nvfp4_are_not_negative() -> None:
    """In blocks of ggml their sign would be lost."""
    example = EXAMPLES["modelopt-NVFP4"]
    negative = StoredTensor("x", "F8_E4M3", (16, 8), example.parts["_scale"].data | np.uint8(128))
    matrix = opened(example.config, example.stem, {**example.parts, "_scale": negative})
    for read in (matrix.numpy, lambda: matrix.data):
        with pytest.raises(WeightsError, match=r"weight_scale': wanted scales from 0 up; got -"):
            read()
