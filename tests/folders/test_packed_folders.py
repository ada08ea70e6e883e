"""Folders with packed matrices compute what those with the same values as floats do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_models.huggingface._delta_net import columns

import graphml
from graphml.errors import GraphmlError, WeightsError
from graphml.loading.huggingface.config import HfConfig
from graphml.loading.huggingface.family import Family, transposed
from graphml.loading.huggingface.packed import plain
from graphml.loading.huggingface.packings._parts import fp8_table
from graphml.loading.huggingface.tensors import our_tensors
from graphml.loading.open_file import open_path
from graphml.weights import ModelFile, Tensor
from graphml.weights.filemap import FileMap
from graphml.weights.safetensors import StoredTensor, read_safetensors
from tests.folder_records import TOKENS, about, values
from tests.golden import Floats, nmse
from tests.packed_parts import EXAMPLES, Example, opened, record, stored

BY_HEADS = ("q_proj", "k_proj", "v_proj")  # matrices [heads * 8, 128], whose rows are permuted
ONE_BY_ONE = [name for name, example in EXAMPLES.items() if example.values.shape[1:] == (128,)]


def write_safetensors(path: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """A file of these tensors, of any dtype that the format has."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.data.nbytes
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    path.write_bytes(
        len(text).to_bytes(8, "little")
        + text
        + b"".join(tensor.data.tobytes() for tensor in tensors.values())
    )


def write_llama(path: Path, of: Example | None, fields: Mapping[str, Any], **more: StoredTensor) -> Path:
    """A llama whose q, k and v are an example's, in its parts or, without fields, as floats."""
    rows = 16 if of is None else len(of.values)
    config = about("llama")[0] | {"hidden_size": 128, "num_attention_heads": rows // 8, "head_dim": 8}
    config |= {"num_key_value_heads": rows // 8, "intermediate_size": 32, "tie_word_embeddings": False}
    shapes = {"o_proj": (128, rows), "gate_proj": (32, 128), "up_proj": (32, 128), "down_proj": (128, 32)}
    held: dict[str, StoredTensor] = {}
    for name in ("model.embed_tokens", "model.norm", "lm_head"):
        held[f"{name}.weight"] = stored(values(name, (128,) if name.endswith("norm") else (64, 128)))
    for i in range(config["num_hidden_layers"]):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            name = f"model.layers.{i}.{norm}.weight"
            held[name] = stored(values(name, (128,)))
        for part, shape in {**shapes, **dict.fromkeys(BY_HEADS, (rows, 128))}.items():
            room = "self_attn" if part in BY_HEADS or part == "o_proj" else "mlp"
            stem = f"model.layers.{i}.{room}.{part}"
            if of is None or part not in BY_HEADS:
                held[f"{stem}.weight"] = stored(values(stem, shape))
            elif fields:
                whole = "" if ".qweight" in of.parts else ".weight"
                held |= {f"{stem}{whole}{end}": tensor for end, tensor in of.parts.items()}
            else:
                held[f"{stem}.weight"] = stored(of.values.astype(np.float32))
    path.mkdir()
    (path / "config.json").write_text(json.dumps({**config, **fields}))
    write_safetensors(path / "model.safetensors", {**held, **more})
    return path


def logits(path: Path) -> Floats:
    with graphml.load(path, backend="reference", kv="f32", quant="fp32") as model:
        return np.asarray(model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True))


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_packed_llama_is_that_of_floats(tmp_path: Path, name: str) -> None:
    example = EXAMPLES[name]
    config = json.loads(json.dumps(example.config).replace('{"a":', '{"model":'))
    packed = write_llama(tmp_path / "packed", example, {"quantization_config": config})
    floats = write_llama(tmp_path / "floats", example, {})
    if "nvfp4" in name.lower() or "mixed" in name:  # a factor multiplies products, not weights
        assert nmse(logits(packed), logits(floats)) < 1e-12
    else:
        assert np.array_equal(logits(packed), logits(floats))


def test_scales_of_activations_and_caches_change_nothing(tmp_path: Path) -> None:
    one = stored(np.full(1, 0.25, np.float32))
    names = ("q_proj.input_scale", "o_proj.input_scale", "k_proj.k_scale", "v_scale")
    more = {f"model.layers.0.self_attn.{name}": one for name in names}
    with_scales = write_llama(tmp_path / "scales", None, {}, **more)
    assert np.array_equal(logits(with_scales), logits(write_llama(tmp_path / "floats", None, {})))


BESIDE = {
    "quantize_config.json": ("gptq-8", ("bits", "group_size", "desc_act")),
    "quant_config.json": ("awq-gemv", ("version", "bits", "group_size")),
    "hf_quant_config.json": ("modelopt-NVFP4", ("quant_algo",)),
}


@pytest.mark.parametrize("file", list(BESIDE))
def test_a_file_beside_the_config_says_how_weights_are_packed(tmp_path: Path, file: str) -> None:
    name, keys = BESIDE[file]
    example = EXAMPLES[name]
    said: dict[str, Any] = {key: example.config[key] for key in keys}
    if file == "hf_quant_config.json":
        said = {"producer": {"name": "modelopt"}, "quantization": {**said, "kv_cache_quant_algo": "FP8"}}
    packed = write_llama(tmp_path / "packed", example, {"quantization_config": None})
    (packed / file).write_text(json.dumps(said))
    assert nmse(logits(packed), logits(write_llama(tmp_path / "floats", example, {}))) < 1e-12
    plain = write_llama(tmp_path / "plain", None, {})
    (plain / file).write_text(json.dumps({"quantization": 3, "bits": 7}))  # of no packed weights
    open_path(plain).close()
    (packed / file).write_text(json.dumps({"quantization": 3, "bits": 7}))
    with pytest.raises(WeightsError, match=rf"{file}: .*(quantization|bits): wanted .*; got"):
        open_path(packed)


@pytest.mark.parametrize("beside", [False, True])
def test_an_algorithm_without_a_method_is_of_modelopt(tmp_path: Path, beside: bool) -> None:
    example = EXAMPLES["modelopt-NVFP4"]
    config: dict[str, Any] = {"quant_algo": "MIXED_PRECISION" if beside else "NVFP4"}
    packed = write_llama(tmp_path / "packed", example, {"quantization_config": config})
    if beside:
        said = {**config, "quantized_layers": {"model.layers": {"quant_algo": "NVFP4"}}}
        (packed / "hf_quant_config.json").write_text(json.dumps({"quantization": said}))
    assert nmse(logits(packed), logits(write_llama(tmp_path / "floats", example, {}))) < 1e-12


def test_mixed_modules_are_in_the_file_beside_a_config_that_lacks_them(tmp_path: Path) -> None:
    example = EXAMPLES["modelopt-mixed"]
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    packed = write_llama(tmp_path / "packed", example, {"quantization_config": config})
    layers = {"model.layers": {"quant_algo": "NVFP4"}}
    said = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    (packed / "hf_quant_config.json").write_text(json.dumps(said))
    assert nmse(logits(packed), logits(write_llama(tmp_path / "floats", example, {}))) < 1e-12


def test_experts_whose_scales_fit_other_blocks_are_joined_as_floats(tmp_path: Path) -> None:
    """One expert's scales are none that float16 holds, so that it is no Q4_0 as the others are."""
    example = record("compressed-tensors-pack4-group")
    sparse = stored((np.frombuffer(example.parts["_scale"].data.tobytes(), "<u4") >> 16).astype(np.uint16))
    half = StoredTensor("x", "BF16", (16, 4), sparse.data)
    fits = Example(example.config, {**example.parts, "_scale": half}, example.values)
    assert (fits.opened().dtype, example.opened().dtype) == ("q4_0", "f32")
    file = open_experts(tmp_path, fits, example)
    joined = file.tensors["blk.0.ffn_gate_exps.weight"]
    assert joined.dtype == "f32"
    assert np.array_equal(joined.numpy(), np.stack([fits.opened().numpy(), example.values]))
    file.close()


def open_experts(path: Path, *examples: Example) -> ModelFile:
    """A mixture whose experts' gates are these examples."""
    config = about("qwen3_moe")[0] | {"hidden_size": 128, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    config |= {
        "num_experts": len(examples),
        "num_local_experts": len(examples),
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    held = {}
    for name in ("model.embed_tokens", "lm_head"):
        held[f"{name}.weight"] = stored(values(name, (64, 128)))
    layer = "model.layers.0"
    norms = {
        "input_layernorm": 128,
        "post_attention_layernorm": 128,
        "self_attn.q_norm": 8,
        "self_attn.k_norm": 8,
    }
    held |= {f"{layer}.{norm}.weight": stored(values(norm, (size,))) for norm, size in norms.items()}
    held["model.norm.weight"] = stored(values("norm", (128,)))
    for part in BY_HEADS:
        held[f"{layer}.self_attn.{part}.weight"] = stored(values(part, (16, 128)))
    held[f"{layer}.self_attn.o_proj.weight"] = stored(values("o", (128, 16)))
    held[f"{layer}.mlp.gate.weight"] = stored(values("gate", (len(examples), 128)))
    for expert, of in enumerate(examples):
        held[f"{layer}.mlp.experts.{expert}.down_proj.weight"] = stored(values("down", (128, 16)))
        for part in ("gate_proj", "up_proj"):
            stem = f"{layer}.mlp.experts.{expert}.{part}.weight"
            held |= {f"{stem}{end}": tensor for end, tensor in of.parts.items()}
    stated = {**config, "quantization_config": examples[0].config}
    (path / "config.json").write_text(json.dumps(stated))
    write_safetensors(path / "model.safetensors", held)
    return open_path(path)


def write_llama4(path: Path, scales: Floats | None = None, algorithm: str = "FP8") -> Path:
    """A Llama 4 as ModelOpt writes it: `gate_up_proj` [experts, in, out] and `gate_up_proj_weight_scale`.

    scales: of the experts; 1 for all, as floats, where there are none.
    """
    config, tensors, _ = about("llama4")
    rng, held = np.random.default_rng(3), dict[str, StoredTensor]()
    for name, shape in tensors.items():
        if ".experts." not in name:
            held[name] = stored(values(name, tuple(shape)))
            continue
        codes = (rng.integers(0, 64, shape) + 128 * rng.integers(0, 2, shape)).astype(np.uint8)
        if scales is None:
            held[name] = stored(fp8_table("F8_E4M3")[codes])
        else:
            held[name], held[f"{name}_weight_scale"] = stored(codes, "F8_E4M3"), stored(scales)
            held[f"{name}_input_scale"] = stored(np.full(1, 0.5, np.float32))
    if scales is not None:
        config |= {"quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm}}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    write_safetensors(path / "model.safetensors", held)
    return path


@pytest.mark.parametrize("shape", [(), (1,), (4,), (4, 1, 1)])
def test_experts_of_modelopt_in_one_tensor_have_a_scale(shape: tuple[int, ...], tmp_path: Path) -> None:
    ones = np.ones(shape, np.float32)
    floats, packed = write_llama4(tmp_path / "floats"), write_llama4(tmp_path / "packed", ones)
    assert np.array_equal(logits(packed), logits(floats))
    factors = np.exp2(-np.arange(ones.size), dtype=np.float32)
    scaled = write_llama4(tmp_path / "scaled", factors.reshape(shape))
    with open_path(scaled) as file, open_path(floats) as plain_file:
        for name in (name for name in file.tensors if name.endswith("_exps.weight")):
            wanted = plain_file.tensors[name].numpy() * factors.reshape(-1, 1, 1)
            assert np.array_equal(file.tensors[name].numpy(), wanted), name


@pytest.mark.parametrize(
    ("shape", "algorithm", "wanted"),
    [((4, 2), "FP8", r"down_proj_weight_scale': wanted a shape of \[1, 1, 1\] or \[4, 1, 1\]; got \[4, 2\]"),
     ((), "NVFP4", r"experts\.down_proj: of experts in one tensor graphml reads FP8 or .*; got NVFP4")],
)  # fmt: skip
def test_other_scales_of_experts_in_one_tensor_are_refused(
    shape: tuple[int, ...], algorithm: str, wanted: str, tmp_path: Path
) -> None:
    with pytest.raises(GraphmlError, match=wanted):
        open_path(write_llama4(tmp_path / "m", np.ones(shape, np.float32), algorithm))


def test_factors_of_experts_in_nvfp4_are_one_tensor(tmp_path: Path) -> None:
    example = EXAMPLES["modelopt-NVFP4"]
    twice = stored(np.full((), 0.0062, np.float32))
    other = Example(example.config, {**example.parts, "_scale_2": twice}, 2 * example.values)
    file = open_experts(tmp_path, example, other)
    joined, scale = (file.tensors[f"blk.0.ffn_gate_exps.{kind}"] for kind in ("weight", "scale"))
    assert (joined.dtype, joined.shape) == ("nvfp4", (2, 16, 128))
    assert scale.numpy().tolist() == np.float32([0.0031, 0.0062]).tolist()
    whole = joined.numpy() * scale.numpy()[:, None, None]
    assert np.allclose(whole, np.stack([example.values, other.values]), rtol=3e-7, atol=0)
    file.close()


def test_nvfp4_runs_in_its_blocks_with_its_factor_beside_them(tmp_path: Path) -> None:
    example = EXAMPLES["compressed-tensors-nvfp4"]
    packed = write_llama(tmp_path / "packed", example, {"quantization_config": example.config})
    file = open_path(packed)
    assert file.tensors["blk.0.attn_q.weight"].dtype == "nvfp4"
    assert np.isclose(file.tensors["blk.0.attn_q.scale"].numpy(), 1 / 313).all()
    file.close()
    with graphml.load(packed, backend="reference", kv="f32") as model:
        got = np.asarray(model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True))
    assert (
        nmse(got, logits(write_llama(tmp_path / "floats", example, {}))) < 2e-3
    )  # inputs of products are rounded to 8 bits


def test_a_matrix_of_a_feed_forward_with_a_bias_in_nvfp4_is_floats(tmp_path: Path) -> None:
    """A factor beside blocks would multiply the bias, too."""
    example = EXAMPLES["modelopt-NVFP4"]
    config, tensors, _ = about("starcoder2")
    config |= {"hidden_size": 128, "num_attention_heads": 16, "num_key_value_heads": 8}
    config |= {"intermediate_size": 16}
    rows = {32: 128, 16: 64, 48: 16, 64: 64}
    for kind in ("floats", "packed"):
        held = dict[str, StoredTensor]()
        for name, shape in tensors.items():
            if not name.endswith("c_fc.weight"):
                held[name] = stored(values(name, tuple(rows[extent] for extent in shape)))
            elif kind == "packed":
                held |= {f"{name}{end}": part for end, part in example.parts.items()}
            else:
                held[name] = stored(example.values.astype(np.float32))
        (tmp_path / kind).mkdir()
        fields = {"quantization_config": dict(example.config)} if kind == "packed" else {}
        (tmp_path / kind / "config.json").write_text(json.dumps({**config, **fields}))
        write_safetensors(tmp_path / kind / "model.safetensors", held)
    got = []
    for kind in ("floats", "packed"):
        with graphml.load(tmp_path / kind, backend="reference", kv="f32") as model:
            got.append(np.asarray(model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True)))
            assert "blk.0.ffn_up.scale" not in model.executor.file.tensors
    assert nmse(got[1], got[0]) < 1e-12


def test_an_embedding_in_nvfp4_is_floats(tmp_path: Path) -> None:
    """Rows of an embedding are read, not multiplied: a factor beside them would be lost."""
    example = EXAMPLES["modelopt-NVFP4"]
    packed = write_llama(tmp_path / "packed", example, {"quantization_config": dict(example.config)})
    for tied in (False, True):
        config = json.loads((packed / "config.json").read_text()) | {
            "tie_word_embeddings": tied,
            "vocab_size": 16,
        }
        (packed / "config.json").write_text(json.dumps(config))
        held = {
            name: tensor
            for name, tensor in all_tensors(packed).items()
            if not name.startswith(("lm_head", "model.embed"))
        }
        for name in ("model.embed_tokens",) if tied else ("model.embed_tokens", "lm_head"):
            held |= {f"{name}.weight{end}": part for end, part in example.parts.items()}
        write_safetensors(packed / "model.safetensors", held)
        file = open_path(packed)
        embedding = file.tensors["token_embd.weight"]
        assert embedding.dtype == "f32"
        assert np.array_equal(embedding.numpy(), example.values)
        assert ("output.scale" in file.tensors) is not tied
        file.close()


def all_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder, in memory."""
    file = FileMap(path / "model.safetensors")
    held = {
        name: StoredTensor(name, tensor.dtype, tensor.shape, tensor.data.copy())
        for name, tensor in read_safetensors(file).items()
    }
    file.close()
    return held


def test_a_packed_matrix_is_not_transposed_for_a_class_that_stores_inputs_by_outputs() -> None:
    config = HfConfig(Path("config.json"), {}, {})
    for name in ("gptq-4-order", "gptq-4-middle"):
        matrix = EXAMPLES[name].opened()
        assert transposed(config, "x", matrix) is matrix


def test_columns_of_heads_are_ordered_in_packed_matrices_too() -> None:
    fields = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 32}
    config = HfConfig(Path("config.json"), fields, {})
    example = EXAMPLES["gptq-4-middle"]
    matrix = columns(config, "x", example.opened())
    floats = stored(example.values.astype(np.float32))
    plain_matrix = columns(config, "x", plain(Path("x"), floats))
    assert np.array_equal(matrix.numpy(), plain_matrix.numpy())
    assert not np.array_equal(matrix.numpy(), example.values)


def places(names: dict[str, Any], held: dict[str, Tensor], tied: bool = False) -> dict[str, Tensor]:
    """Tensors as a family with these names has them."""
    config = HfConfig(Path("x/config.json"), {"num_hidden_layers": 1}, {})
    family = Family(model_types=("x",), architecture="x", keys=lambda config: {}, names=names)
    return our_tensors(config, family, held, tied)


def test_blocks_whose_factor_has_no_place_are_floats() -> None:
    """A vector of one row, an embedding that is the output too, and experts with another scale."""
    example = EXAMPLES["modelopt-NVFP4"]
    matrix = example.opened()
    one_row = opened(
        example.config,
        "a.weight",
        {
            "": stored(example.parts[""].data[:64].reshape(1, 64)),
            "_scale": StoredTensor("x", "F8_E4M3", (1, 8), example.parts["_scale"].data[:8]),
            "_scale_2": example.parts["_scale_2"],
        },
    )
    gate = places({"gate": "blk.0.ffn_gate_inp_shexp"}, {"gate.weight": one_row}, tied=True)
    assert gate["blk.0.ffn_gate_inp_shexp.weight"].dtype == "f32"
    assert set(gate) == {"blk.0.ffn_gate_inp_shexp.weight"}
    output = places({"lm_head": "output"}, {"lm_head.weight": matrix}, tied=True)
    assert {name: tensor.dtype for name, tensor in output.items()} == {"token_embd.weight": "f32"}
    assert np.array_equal(output["token_embd.weight"].numpy(), example.values)
    names = {"down.{}": "down_exps", "router": "down_exps.scale"}
    router = plain(Path("x"), stored(np.ones(1, np.float32)))
    both = places(names, {"router": router, "down.0.weight": matrix}, tied=True)
    assert {name: tensor.dtype for name, tensor in both.items()} == {
        "down_exps.scale": "f32",
        "down_exps.weight": "f32",
    }
    assert np.array_equal(both["down_exps.weight"].numpy()[0], example.values)
    names = {"up": "up", "router": "up.scale"}
    with pytest.raises(WeightsError, match=r"'up\.weight' is a second tensor that is up\.scale"):
        places(names, {"router": router, "up.weight": matrix}, tied=True)
