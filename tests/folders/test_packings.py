"""Every packing gives the values of its library or definition, to the last bit; others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphml.errors import WeightsError
from graphml.loading.huggingface import module_patterns
from graphml.loading.huggingface.packed import read_packing, unpacked
from graphml.loading.huggingface.packings import packings
from tests.looped import looped
from tests.packed_parts import EXAMPLES, PATH, Example, gptq, opened, record, stored

CT = "compressed-tensors"


def test_every_packing_has_an_example_and_is_in_the_docs() -> None:
    methods = sorted(method for packing in packings() for method in packing.methods)
    assert methods == sorted({example.config["quant_method"] for example in EXAMPLES.values()})
    page = (Path(__file__).parents[2] / "docs" / "folders.md").read_text(encoding="utf-8")
    assert not [method for method in methods if f"| `{method}` |" not in page]


@looped("name", list(EXAMPLES), ids=str)
def test_values_are_exact(name: str) -> None:
    example = EXAMPLES[name]
    matrix = example.opened()
    assert matrix.name == "a.q_proj.weight"
    assert matrix.shape == example.values.shape
    assert np.array_equal(matrix.numpy(), example.values.astype(np.float32))


DTYPES = {
    "gptq-2": "q4_0", "gptq-3": "q4_0", "gptq-4-middle": "q4_0", "gptq-4": "q8_0", "gptq-8-middle": "q8_0",
    "gptq-8": "f32", "gptq-4-order": "f32", "awq-gemm": "q8_0", "awq-gemv": "q8_0", "awq-gemv_fast": "f32",
    "mxfp4": "mxfp4", f"{CT}-mxfp4": "mxfp4", f"{CT}-nvfp4": "nvfp4", "modelopt-NVFP4": "nvfp4",
    "fp8-block": "f32",
}  # fmt: skip


@looped("name", list(DTYPES), ids=str)
def test_matrices_are_as_small_as_they_can_be(name: str) -> None:
    assert EXAMPLES[name].opened().dtype == DTYPES[name]


def test_bfloat16_scales_are_those_of_blocks_where_float16_holds_them() -> None:
    example = record(f"{CT}-pack4-group")
    scales = np.frombuffer(example.parts["_scale"].data.tobytes(), np.uint32).reshape(16, 4)
    upper = (scales >> 16).astype(np.uint16)
    rounded = (upper.astype(np.uint32) << 16).view(np.float32)
    matrix = example.opened(_scale=stored(upper))
    factors = np.frombuffer(example.parts["_scale"].data.tobytes(), np.float32).reshape(16, 4)
    whole = np.round(example.values / np.repeat(factors, 32, 1))
    assert matrix.dtype == "q4_0"
    assert np.array_equal(matrix.numpy(), (whole * np.repeat(rounded, 32, 1)).astype(np.float32))


def test_inputs_in_the_order_of_activations_have_the_scales_of_their_group() -> None:
    example = record(f"{CT}-pack4-group-zeros")
    order = np.random.default_rng(2).permutation(np.arange(128) // 64).astype(np.int32)
    matrix = example.opened(_g_idx=stored(order))
    scales = np.frombuffer(example.parts["_scale"].data.tobytes(), np.float32).reshape(16, 2)
    plain = example.opened(_g_idx=stored(np.full(128, -1, np.int32)))  # what stands there for no order
    assert np.array_equal(plain.numpy(), example.values)
    zeros = np.round(-_zero_of(example) / scales)
    q = np.round(example.values / np.repeat(scales, 64, 1) + np.repeat(zeros, 64, 1))
    wanted = scales[:, order] * (q - zeros[:, order]).astype(np.float32)
    assert np.array_equal(matrix.numpy(), wanted.astype(np.float32))


def _zero_of(example: Example) -> Any:
    """The value of q = 0 in each group: zeros, 4 bits less 8, are packed along outputs."""
    packed = np.frombuffer(example.parts["_zero_point"].data.tobytes(), np.uint32).reshape(2, 2)
    zeros = np.array([[(packed[o // 8, g] >> (4 * (o % 8))) & 15 for g in range(2)] for o in range(16)])
    scales = np.frombuffer(example.parts["_scale"].data.tobytes(), np.float32).reshape(16, 2)
    return -(zeros.astype(np.int64) - 8) * scales


def test_numbers_of_older_versions_do_not_straddle_words() -> None:
    example = record(f"{CT}-pack3-group")
    scales = np.frombuffer(example.parts["_scale"].data.tobytes(), np.float32).reshape(16, 4)
    q = np.round(example.values / np.repeat(scales, 32, 1)).astype(np.int64) + 4
    packed = np.zeros((16, 13), np.uint32)  # 10 numbers of 3 bits a word
    for i in range(128):
        packed[:, i // 10] |= q[:, i].astype(np.uint32) << np.uint32(3 * (i % 10))
    assert np.array_equal(example.opened(_packed=stored(packed.view(np.int32))).numpy(), example.values)
    config = json.loads(json.dumps(example.config))
    config["config_groups"]["group_0"]["weights"]["symmetric"] = False
    zeros = np.random.default_rng(3).integers(0, 8, (16, 4))
    words = np.zeros((2, 4), np.uint32)
    for row in range(16):
        words[row // 10] |= zeros[row].astype(np.uint32) << np.uint32(3 * (row % 10))
    parts = {**example.parts, "_zero_point": stored(words.view(np.int32))}
    straddling = words.copy()  # 16 numbers are 48 bits: two words in either way
    straddling[:] = 0
    for row in range(16):
        for bit in range(3):
            at = 3 * row + bit
            straddling[at // 32] |= ((zeros[row] >> bit & 1) << (at % 32)).astype(np.uint32)
    wanted = scales.repeat(32, 1) * (q - zeros.repeat(32, 1)).astype(np.float32)
    of_newer = {**parts, "_zero_point": stored(straddling.view(np.int32))}
    assert np.array_equal(opened(config, example.stem, of_newer).numpy(), wanted.astype(np.float32))
    of_older = {**parts, "_packed": stored(packed.view(np.int32))}
    assert np.array_equal(opened(config, example.stem, of_older).numpy(), wanted.astype(np.float32))


def groups(**of: tuple[list[str], str]) -> dict[str, Any]:
    """A config of several groups: the targets of each, and the record whose format and weights it has."""
    made = {}
    for name, (targets, of_record) in of.items():
        config = record(f"{CT}-{of_record}").config
        weights = config["config_groups"]["group_0"]["weights"]
        made[name] = {"targets": targets, "weights": weights, "format": config["format"]}
    return {"quant_method": CT, "format": "mixed-precision", "config_groups": made}


def opened_as(config: dict[str, Any], module: str, of_record: str) -> Any:
    return opened(config, f"{module}.weight", record(f"{CT}-{of_record}").parts).numpy()


def test_each_module_has_the_group_that_it_is_a_target_of() -> None:
    config = groups(
        all=(["Linear"], "pack4-group"),
        pattern=(["re:.*(gate|up)_proj"], "int-channel"),
        name=(["model.layers.0.gate_proj"], "float-channel"),
        embedding=(["Embedding"], "pack8-channel"),
    )
    for module, of_record in (
        ("model.layers.0.gate_proj", "float-channel"),
        ("model.layers.1.gate_proj", "int-channel"),
        ("model.layers.1.up_projection", "int-channel"),  # patterns are of beginnings, as re.match
        ("model.layers.1.q_proj", "pack4-group"),
        ("model.embed_tokens", "pack8-channel"),
    ):
        assert np.array_equal(opened_as(config, module, of_record), record(f"{CT}-{of_record}").values)
    without = groups(pattern=(["re:.*x"], "int-channel"), name=(["model.y"], "float-channel"))
    with pytest.raises(
        WeightsError, match=r"model\.q\.weight: is packed, but is in none of the 2 config_groups"
    ):
        opened_as(without, "model.q", "int-channel")
    ignored = {**config, "ignore": ["lm_head", "re:.*layers.1.*"]}
    with pytest.raises(WeightsError, match=r"model\.layers\.1\.q_proj\.weight: is packed, but .* in ignore"):
        opened_as(ignored, "model.layers.1.q_proj", "pack4-group")


def test_patterns_may_not_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_patterns, "SECONDS", 0.05)
    config = groups(pattern=(["re:(a|aa)+b"], "int-channel"))
    with pytest.raises(WeightsError, match="wanted patterns of names that match in"):
        opened_as(config, "a" * 64, "int-channel")


def test_floats_beside_packed_matrices_stay() -> None:
    layout = read_packing(PATH, record(f"{CT}-int-channel").config)
    plain = {
        "a.norm.weight": stored(np.ones(3, np.float32)),
        "a.q_proj.bias": stored(np.ones(3, np.float32)),
        "a.router.per_expert_scale": stored(np.ones(3, np.float32)),
    }
    assert sorted(unpacked(PATH, layout, plain)) == sorted(plain)


UNUSED = [
    "q_proj.input_scale", "q_proj.input_zero_point", "q_proj.input_global_scale", "q_proj.output_scale",
    "q_proj.activation_scale", "q_proj.input_scale_ub", "k_proj.k_scale", "v_proj.v_scale", "attn.q_scale",
    "self_attn.k_scale", "self_attn.attn.kv_scale", "self_attn.v_zero_point", "attn.prob_scale",
    "experts.gate_up_proj_activation_scale", "experts.down_proj_input_scale",
]  # fmt: skip


@looped("name", UNUSED, ids=str)
def test_scales_of_activations_and_caches_are_left_out(name: str) -> None:
    for config in (None, record("fp8-block").config, modelopt_config()):
        layout = read_packing(PATH, config)
        assert not unpacked(PATH, layout, {f"a.{name}": stored(np.ones(1, np.float32), name=name)})
    with pytest.raises(WeightsError, match=rf"'{name}': wanted finite scales; got nan"):
        unpacked(PATH, None, {name: stored(np.full(1, np.nan, np.float32), name=name)})


def modelopt_config() -> dict[str, Any]:
    return dict(EXAMPLES["modelopt-FP8"].config)


def rotation(*locations: Any) -> dict[str, Any]:
    """A group of `transform_config` that is applied in these places."""
    return {"type": "hadamard", "apply": [{"location": place, "targets": ["x"]} for place in locations]}


SCHEME = {"num_bits": 8, "strategy": "channel"}
REFUSED: list[tuple[Any, str]] = [
    (3, "quant_method"),
    ({"quant_method": "bitsandbytes"}, "quant_method"),
    ({"quant_method": "quark"}, "quant_method"),
    ({"quant_method": CT, "ignore": ["re:("]}, "ignore: wanted a regular expression"),
    ({"quant_method": "modelopt", "quant_algo": "FP8", "quantized_layers": {"a": 3}}, r"quantized_layers\.a"),
    ({"quant_method": "auto-round"}, "quant_method"),
    ({"quant_method": "gptq", "bits": 5}, "bits"),
    ({"quant_method": "gptq", "bits": True}, "bits"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size"),
    ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format"),
    ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "checkpoint_format"),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": 3}}, r"dynamic\."),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*down.*": {"bits": 5}}}, "bits"),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {"-:(": {}}}, r"dynamic\."),
    ({"quant_method": "awq", "bits": 8}, "bits"),
    ({"quant_method": "awq", "version": "marlin"}, "version: .*'marlin'"),
    ({"quant_method": "awq", "version": "llm-awq"}, "version"),
    ({"quant_method": "awq", "backend": "llm-awq"}, "version: .*'llm-awq'"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "quant_algo"),
    ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
    (
        {"quant_method": "modelopt", "quantized_layers": {"a": {"quant_algo": "INT4_AWQ"}}},
        r"quantized_layers\.a: ",
    ),
    ({"quant_method": "bitnet", "quantization_mode": "online"}, "quantization_mode"),
    ({"quant_method": "bitnet", "linear_class": "x"}, "linear_class"),
    ({"quant_method": "bitnet", "use_rms_norm": True}, "use_rms_norm"),
    ({"quant_method": CT, "format": "marlin-24"}, "format: .*'marlin-24'"),
    ({"quant_method": CT, "format": "sparse-24-bitmask"}, "format"),
    ({"quant_method": CT, "format": "mxfp6-pack-quantized"}, "format"),
    ({"quant_method": CT, "sparsity_config": {"format": "sparse-bitmask"}}, r"sparsity_config\.format"),
    *(
        (
            {"quant_method": CT, "transform_config": {"config_groups": {"u": group}}},
            r"transform_config\S*\.u: ",
        )
        for group in (
            {},
            3,
            {"apply": []},
            {"apply": [3]},
            rotation("weight_input", "input"),
            rotation(["x"]),
        )
    ),
    (
        {"quant_method": CT, "config_groups": {"g": {"targets": ["Linear"], "weights": SCHEME}}},
        r"config_groups\.g\.format",
    ),
    (
        {
            "quant_method": CT,
            "format": "int-quantized",
            "config_groups": {"g": {"targets": "Linear", "weights": SCHEME}},
        },
        r"config_groups\.g\.targets",
    ),
    ({"quant_method": CT, "format": "int-quantized", "config_groups": {"g": 3}}, r"config_groups\.g: "),
    ({"quant_method": CT, "ignore": "lm_head"}, "ignore"),
    (groups(pattern=(["re:("], "int-channel")), "config_groups"),
]


@looped("config, where", REFUSED, ids=str)
def test_what_is_not_read_is_refused_by_its_field(config: Any, where: str) -> None:
    with pytest.raises(WeightsError, match=rf"^model: quantization_config: (?=.*; got){where}"):
        read_packing(PATH, config)


def test_a_config_of_activations_alone_or_of_rotated_weights_packs_nothing() -> None:
    attention = {"g": {"targets": ["LlamaAttention"], "weights": None, "input_activations": {"num_bits": 8}}}
    for config in (
        {"format": "dense"},
        {"format": None},
        {"config_groups": attention, "kv_cache_scheme": {}},
        {"transform_config": {"config_groups": {"u": rotation("weight_input", "weight_output")}}},
    ):
        layout = read_packing(PATH, {"quant_method": CT, **config})
        assert sorted(unpacked(PATH, layout, {"a.weight": stored(np.ones((2, 2), np.float16))})) == [
            "a.weight"
        ]


def test_a_block_of_gptq_may_be_all_inputs() -> None:
    example = gptq(4, 8, group=128)
    config = {**example.config, "group_size": -1}
    matrix = opened(config, example.stem, example.parts)
    assert np.array_equal(matrix.numpy(), example.values.astype(np.float32))


def test_experts_in_one_tensor_have_scales_by_expert_row_column_or_block() -> None:
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 0x7E, (3, 8, 24)).astype(np.uint8)
    plain = opened(None, "a.w", {"": stored(codes, "F8_E4M3")}).numpy()
    for shape in ((3,), (3, 1, 1), (3, 8, 1), (3, 1, 24), (3, 2, 3), (1,)):
        scales = rng.uniform(0.5, 2, shape).astype(np.float32)
        block = [4, 8] if shape == (3, 2, 3) else None
        parts = {"": stored(codes, "F8_E4M3"), "_scale_inv": stored(scales)}
        matrix = opened({"quant_method": "fp8", "weight_block_size": block}, "a.experts.down_proj", parts)
        wide = scales.reshape(*shape, *(1,) * (3 - len(shape)))
        wide = np.repeat(np.repeat(wide, 4, 1), 8, 2) if block else wide
        assert matrix.name == "a.experts.down_proj"
        assert np.array_equal(matrix.numpy(), plain * wide)


def test_fp4_of_deepseek_is_mxfp4() -> None:
    example = record(f"{CT}-mxfp4")
    parts = {
        "": stored(example.parts["_packed"].data.reshape(16, 64), "I8"),
        "_scale_inv": stored(example.parts["_scale"].data.reshape(16, 4), "F8_E8M0"),
    }
    matrix = opened({"quant_method": "fp8", "scale_fmt": "ue8m0", "expert_dtype": "fp4"}, "a.weight", parts)
    assert matrix.dtype == "mxfp4"
    assert np.array_equal(matrix.numpy(), example.values)


def test_symmetric_zeros_of_the_second_format_under_the_name_of_the_first_are_the_middle() -> None:
    for bits in (2, 3, 4, 8):
        half = 1 << (bits - 1)
        for second in (False, True):
            example = gptq(bits, half, second=second)
            config = {**example.config, "checkpoint_format": "gptq", "sym": True}
            matrix = opened(config, example.stem, example.parts)
            assert np.array_equal(matrix.numpy(), example.values.astype(np.float32))
        example = gptq(bits, half - 1)
        with pytest.raises(WeightsError, match=rf"qzeros': wanted .* sym = true; got \[{half - 1}\]"):
            opened({**example.config, "sym": True}, example.stem, example.parts)


def test_fp8_bytes_are_their_values() -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    e5m2 = opened(None, "a.w", {"": stored(every, "F8_E5M2")}).numpy()
    wanted = (every.astype(np.uint16) << 8).view(np.float16).astype(np.float32)  # a float16's upper byte
    assert np.array_equal(e5m2, wanted, equal_nan=True)
    e4m3 = opened(None, "a.w", {"": stored(every, "F8_E4M3")}).numpy().reshape(-1)
    known = {0x00: 0.0, 0x01: 2.0**-9, 0x07: 7 * 2.0**-9, 0x08: 2.0**-6, 0x38: 1.0, 0x3C: 1.5, 0x7E: 448.0}
    for code, value in known.items():
        assert (e4m3[code], e4m3[code | 0x80]) == (value, -value)
    assert np.isnan(e4m3[[0x7F, 0xFF]]).all()
    assert (np.diff(e4m3[:127]) > 0).all()


def test_modules_of_gptq_may_have_bits_of_their_own() -> None:
    dynamic = {"-:.*lm_head": {}, "+:a": {"bits": 8, "group_size": 32}, "+:.*q_proj": {"bits": 2}, "-:b": {}}
    for module, bits, group in (("a.q_proj", 8, 32), ("c.q_proj", 2, 64), ("c.k_proj", 4, 64)):
        example = gptq(bits, group=group)
        config = {**gptq(4).config, "dynamic": dynamic}
        assert np.array_equal(
            opened(config, module, example.parts).numpy(), example.values.astype(np.float32)
        )
    for module in ("lm_head", "b.k_proj"):
        with pytest.raises(WeightsError, match=rf"{module}\.weight: is packed, but dynamic .* leaves it out"):
            opened({**gptq(4).config, "dynamic": dynamic}, module, gptq(4).parts)


def test_experts_of_fbgemm_are_inputs_by_outputs() -> None:
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 0x7E, (3, 8, 8)).astype(np.uint8)
    weight = stored(codes, "F8_E4M3")
    plain = opened(None, "a.w", {"": weight}).numpy()
    for shape in ((3, 1, 8), (3, 8, 1)):
        scales = rng.uniform(0.5, 2, shape).astype(np.float32)
        matrix = opened(
            {"quant_method": "fbgemm_fp8"}, "experts.down_proj", {"": weight, "_scale": stored(scales)}
        )
        assert np.array_equal(matrix.numpy(), plain * scales.reshape(3, 1, 8))
    with pytest.raises(WeightsError, match=r"down_proj_scale': wanted a shape of \[3, 1, 8\]; got \[3, 8\]"):
        opened(
            {"quant_method": "fbgemm_fp8"},
            "experts.down_proj",
            {"": weight, "_scale": stored(np.ones((3, 8), np.float32))},
        )


def test_differences_above_7_are_no_q4_0() -> None:
    for zero, dtype in ((7, "q8_0"), (8, "q4_0"), (9, "q8_0")):
        example = gptq(4, zero)
        matrix = example.opened()
        assert matrix.dtype == dtype
        assert np.array_equal(matrix.numpy(), example.values.astype(np.float32))
