"""Folders of every family as GGUF files in llama.cpp's terms, and which of them are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

import graphml
from graphml.authoring.handing_on import hand_on
from graphml.authoring.llama_cpp import terms
from graphml.authoring.llama_cpp.card import front_matter, size_label
from graphml.authoring.llama_cpp.fitted import architecture_names, reads
from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.loading.open_file import open_path
from graphml.runtime.programs.load_options import LoadOptions
from graphml.weights import open_model
from graphml.weights.deferred import PassingTensor
from tests import llama_cpp_names
from tests.folder_records import BY_KIND, RECORDS, TOKENS, about, write_folder
from tests.golden import nmse

OPTIONS = LoadOptions(backend="reference", kv="f32")
REFUSED = {
    "bitnet": "output.weight: llama.cpp's bitnet has no such tensor",
    "chameleon": "vocab_size = 64",
    "chameleon-behind": "vocab_size = 64",
    "cohere": "block_count = 2",
    "deepseek_ocr2": "attention.head_count_kv = 2",
    "deepseek_v2": "block_count = 2",
    "deepseek_v3-yarn": "block_count = 2",
    "deepseek_v32": "attention.indexer.key_length = 16",
    "deepseek_v32-yarn": "attention.indexer.key_length = 16",
    "deepseek_v4": "attention.compress_ratios = [0, 4, 6]",
    "dots1": "attention.head_count_kv = 2",
    "gemma4-full": "attention.sliding_window_pattern",
    "glm_moe_dsa": "attention.indexer.key_length = 16",
    "minimax_m3_vl": "shared experts have a width of 24",
    "olmoe": "attention.head_count_kv = 2",
    "sarvam_mla": "block_count = 2",
    "sarvam_mla-yarn": "block_count = 2",
    "deepseek_v2-groups": "expert_groups_by_best = True",
    "deepseek_v4-yarn": "rope.scaling.yarn_beta_fast = 16.0",
    "exaone4": "attention.sliding_window = 8",
    "falcon_mamba": "ssm.dt_b_c_rms_epsilon = 1e-06",
    "gemma2": "attention.scale = 0.2236",
    "gemma2-larger": "attention.scale = 0.2236",
    "gemma3": "attention.scale = 0.2236",
    "gemma3-factors": "rope_freqs.weight: llama.cpp's gemma3 has no such tensor",
    "gemma3n": "activation_sparsity_scale",
    "gemma3n-shorter": "activation_sparsity_scale",
    "glm5_next": "ssm_conv1d_k.weight: llama.cpp's glm5-next has no such tensor",
    "glm5_next-free": "ssm_conv1d_k.weight: llama.cpp's glm5-next has no such tensor",
    "gpt_oss": "gpt-oss.rope.scaling.rounded = False",
    "hrm_text": "attn_output.bias: llama.cpp's hrm_text has no such tensor",
    "hy_v3": "expert_shared_count = 2",
    "hy_v4": "attention.latent_norm_rms_epsilon = 1e-06",
    "kimi_linear": "attention.latent_norm_rms_epsilon = 1e-06",
    "laguna": "attention.sliding_window_pattern",
    "lfm2_moe": "expert_weights_scale = 1.5",
    "llama4": " = 8 cannot be said",
    "mellum": "ffn_down.weight: llama.cpp's mellum has no such tensor",
    "mellum-full": "router.normalise = False",
    "mimo_v2_flash": "expert_weights_scale = 1.5",
    "minicpm3-yarn": "attention.scale = 0.374",
    "minimax": "lightning.layer_norm_rms_epsilon = 1e-06",
    "ministral": "attention.windows = [0, 8]",
    "mistral": "attention.sliding_window = 7",
    "nemotron_h": "ssm_in.bias: llama.cpp's nemotron_h has no such tensor",
    "nemotron_h-experts": "ssm.time_step_min = 0.3",
    "olmo3": "rope.freq_base_swa = 1000.0",
    "phi3": "attention.sliding_window = 10",
    "phimoe": "expert_router_jitter",
    "qwen2-windows": "attention.windows = [0, 8]",
    "qwen2_moe-windows": "attention.windows = [8, 0, 8, 0]",
    "qwen3-windows": "attention.windows = [8, 0]",
    "qwen3_moe-unnormalised": "router.normalise = False",
    "qwen3_moe-windows": "attention.windows = [8, 8]",
    "sarvam_moe": "attn_q.bias: llama.cpp's bailingmoe2 has no such tensor",
    "seed_oss": "attn_output.bias: llama.cpp's seed_oss has no such tensor",
    "smollm3-windows": "attention.windows = [0, 0, 0, 8]",
    "starcoder2": "attention.sliding_window = 8",
    "step3p7-yarn": "attn_output.bias: llama.cpp's step35 has no such tensor",
    **dict.fromkeys(("dots3_note", "qwen4_exp", "qwen4_exp-plain"), "wants keys that no folder says"),
}
"""Records of folders that llama.cpp could not be told -> what is said of them."""
Shapes = dict[str, list[int]]


def as_many_heads(tensors: Shapes) -> Shapes:
    """Heads of keys and values for each of the queries."""
    parts = (".k_proj.", ".v_proj.", ".k_norm.")
    return {
        name: [32, *shape[1:]] if any(part in name for part in parts) and shape[0] == 16 else shape
        for name, shape in tensors.items()
    }


def without(*parts: str) -> Callable[[Shapes], Shapes]:
    return lambda tensors: {
        name: shape for name, shape in tensors.items() if not any(part in name for part in parts)
    }


def layers(count: int) -> Callable[[Shapes], Shapes]:
    """So many layers, as the last of two."""

    def change(tensors: Shapes) -> Shapes:
        last = {name: shape for name, shape in tensors.items() if ".layers.1." in name}
        return tensors | {
            name.replace(".layers.1.", f".layers.{layer}."): shape
            for layer in range(2, count) for name, shape in last.items()
        }  # fmt: skip

    return change


def wide_index(tensors: Shapes) -> Shapes:
    """Heads of an index of 64 in place of 16."""
    return {
        name: [64 if size == 16 and "_norm" in name else 1024 if size == 256 else 64 if ".wk." in name and
               at == 0 else size for at, size in enumerate(shape)] if ".indexer." in name else shape
        for name, shape in tensors.items()
    }  # fmt: skip


def as_they_are(tensors: Shapes) -> Shapes:
    return tensors


SAID: dict[str, tuple[dict[str, Any], Callable[[Shapes], Shapes]]] = {
    "cohere": ({"use_qk_norm": False}, without("q_norm", "k_norm")),
    "deepseek_ocr2": ({"num_key_value_heads": 4}, as_many_heads),
    "deepseek_v2": ({"num_hidden_layers": 27}, layers(27)),
    "deepseek_v32": ({"index_head_dim": 64}, wide_index),
    "dots1": ({"num_key_value_heads": 4}, as_many_heads),
    "exaone4": ({"sliding_window": None}, as_they_are),
    "falcon_mamba": ({"mixer_rms_eps": 1e-5}, as_they_are),
    "gemma2": ({"query_pre_attn_scalar": 16}, as_they_are),
    "gemma3": ({"query_pre_attn_scalar": 16}, as_they_are),
    "glm_moe_dsa": ({"index_head_dim": 64}, wide_index),
    "hrm_text": ({"attention_bias": False, "mlp_bias": False}, without(".bias")),
    "hy_v3": ({"num_shared_experts": 1}, as_they_are),
    "hy_v4": ({"rms_norm_eps": 1e-6}, as_they_are),
    "kimi_linear": ({"rms_norm_eps": 1e-6}, as_they_are),
    "lfm2_moe": ({"routed_scaling_factor": 1.0}, as_they_are),
    "mellum-full": ({"norm_topk_prob": True}, as_they_are),
    "mimo_v2_flash": ({"routed_scaling_factor": 1.0}, as_they_are),
    "minimax": ({"rms_norm_eps": 1e-6}, as_they_are),
    "mistral": ({"sliding_window": None}, as_they_are),
    "nemotron_h": ({"use_bias": False, "time_step_min": 0.0}, without("_proj.bias")),
    "nemotron_h-experts": ({"time_step_min": 0.0}, as_they_are),
    "olmo3": (
        {"rope_parameters": {kind: {**of, "rope_theta": 10000.0} for kind, of in BY_KIND.items()}},
        as_they_are,
    ),
    "olmoe": ({"num_key_value_heads": 4}, as_many_heads),
    "phi3": ({"sliding_window": None}, as_they_are),
    "sarvam_moe": ({"attention_bias": False}, without("query_key_value.bias")),
    "sarvam_mla": ({"num_hidden_layers": 27}, layers(27)),
    "seed_oss": ({"attention_out_bias": False}, without("o_proj.bias")),
    "starcoder2": ({"sliding_window": None}, as_they_are),
}
"""Records that are refused, as models that llama.cpp can be told: other fields and shapes."""


def folder(path: Path, name: str, change: Callable[[Shapes], Shapes] = as_they_are, **changed: Any) -> Path:
    config, tensors, _ = about(name)
    inner = config.get("text_config")
    config |= changed if inner is None else {"text_config": inner | changed}
    return write_folder(path / name, config, change(tensors))


def handed(path: Path, name: str) -> Path:
    """The file of a record's folder."""
    with graphml.load(path / name, "reference", kv="f32") as model:
        return hand_on(model, path / f"{name}.gguf", None, OPTIONS).path


def logits(path: Path) -> Any:
    with graphml.load(path, "reference", kv="f32") as model:
        return model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True)


@pytest.mark.parametrize("name", [name for name in RECORDS if name not in REFUSED])
def test_a_folders_file_has_its_logits(name: str, tmp_path: Path) -> None:
    folder(tmp_path, name)
    path = handed(tmp_path, name)
    assert nmse(logits(path), logits(tmp_path / name)) < 1e-11  # some sums are of other parts of a tensor
    with open_model(path) as file:
        arch = file.metadata.text("general.architecture")
        keys, tensors = reads(arch)
        for key in file.metadata:
            short = key.removeprefix(f"{arch}.")
            assert short in keys or short in terms.UNREAD or key.startswith(("general.", "tokenizer.")), key
        for tensor in file.tensors.values():
            assert ".".join("#" if part.isdecimal() else part for part in tensor.name.split(".")) in tensors
            assert tensor.dtype == "f32" or len(tensor.shape) > 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_cannot_be_told_is_refused(name: str, tmp_path: Path) -> None:
    folder(tmp_path, name)
    with pytest.raises(UsageError, match="convert") as raised:
        handed(tmp_path, name)
    assert REFUSED[name] in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing is left behind


@pytest.mark.parametrize("name", SAID)
def test_what_it_can_be_told_is_written(name: str, tmp_path: Path) -> None:
    fields, change = SAID[name]
    folder(tmp_path, name, change, **fields)
    path = handed(tmp_path, name)
    assert nmse(logits(path), logits(tmp_path / name)) < 1e-11


def test_every_architecture_of_the_recorded_llama_cpp_is_in_the_list() -> None:
    _, names = llama_cpp_names.recorded()
    assert set(names["architecture"]) <= {*architecture_names()}
    assert all(keys >= {"block_count"} and tensors for keys, tensors in map(reads, architecture_names()))


def test_values_have_the_types_that_llama_cpp_reads(tmp_path: Path) -> None:
    folder(tmp_path, "llama-larger")
    reader = gguf.GGUFReader(handed(tmp_path, "llama-larger"))
    kinds = {key: field.types for key, field in reader.fields.items()}
    assert kinds["llama.block_count"] == [gguf.GGUFValueType.UINT32]
    assert kinds["llama.rope.freq_base"] == [gguf.GGUFValueType.FLOAT32]
    assert kinds["general.file_type"] == [gguf.GGUFValueType.UINT32]
    assert reader.fields["tokenizer.ggml.model"].contents() == "no_vocab"
    assert "llama.rope.scaling.by_text" not in kinds


def command(*arguments: object) -> Result:
    words = ["convert", *arguments, "--backend", "reference", "--kv", "f32"]
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_a_folder_in_another_type(kind: str, tmp_path: Path) -> None:
    source, output = folder(tmp_path, "gpt2"), tmp_path / "out.gguf"
    done = command(source, "-o", output, "--type", kind)
    assert done.exit_code == 0, done.output
    with open_model(output) as file:
        assert file.tensors["blk.0.ffn_down.weight"].dtype == kind
        assert file.tensors["blk.0.attn_norm.weight"].dtype == "f32"
        assert file.metadata.integer("general.file_type") == gguf.LlamaFileType[
            "ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"
        ]  # fmt: skip


def test_float16_stays_and_vectors_are_float32(tmp_path: Path) -> None:
    source = folder(tmp_path, "llama")
    halves = {name: of.astype(np.float16) for name, of in load_file(source / "model.safetensors").items()}
    save_file(halves, source / "model.safetensors", metadata={"format": "pt"})
    assert command(source, "-o", tmp_path / "out.gguf").exit_code == 0
    with open_model(tmp_path / "out.gguf") as file:
        assert {of.dtype for of in file.tensors.values() if len(of.shape) > 1} == {"f16"}
        assert {of.dtype for of in file.tensors.values() if len(of.shape) == 1} == {"f32"}
        assert file.metadata.integer("general.file_type") == 1


def test_parts_are_named_as_gguf_split_names_them(tmp_path: Path) -> None:
    source, output = folder(tmp_path, "llama"), tmp_path / "out.gguf"
    done = command(source, "-o", output, "--split-max-size", "16K")
    assert done.exit_code == 0, done.output
    said = "has no vocabulary, nor has the file" in " ".join(done.stderr.split())
    assert said is not (source / "tokenizer.json").exists()
    parts = sorted(path.name for path in tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    assert parts == [f"out-{number + 1:05d}-of-{len(parts):05d}.gguf" for number in range(len(parts))]
    assert nmse(logits(tmp_path / parts[1]), logits(source)) < 1e-11
    again = command(source, "-o", output, "--split-max-size", "16K")
    assert again.exit_code == 2
    assert "--force" in again.output
    small = command(source, "-o", output, "--split-max-size", "100", "--force")
    assert small.exit_code == 2
    assert "--split-max-size: wanted at least 8192 bytes, as output.weight has" in small.output
    assert sorted(path.name for path in tmp_path.glob("*.gguf")) == parts  # as they were


def test_the_readme_becomes_keys(tmp_path: Path) -> None:
    source = folder(tmp_path, "llama")
    (source / "README.md").write_text(
        "---\nlicense: other\nlicense_name: mine\nlicense_link: https://a.b/c#d\nlanguage: [en, 'de']\n"
        'tags:\n- small\n  - "test"\npipeline_tag: text-generation # what it does\nbase_model:\n- ab/c-1\n'
        "model-index:\n- name: x\n  results:\n  - task:\n      type: y\n---\n# A model\nlicense: no\n"
    )
    assert command(source, "-o", tmp_path / "out.gguf").exit_code == 0
    with open_model(tmp_path / "out.gguf") as file:
        said = {key: file.metadata[key] for key in file.metadata if key.startswith("general.")}
    assert said["general.license"] == "other"
    assert said["general.license.name"] == "mine"
    assert said["general.license.link"] == "https://a.b/c#d"
    assert said["general.languages"] == ["en", "de"]
    assert said["general.tags"] == ["small", "test", "text-generation"]
    assert said["general.base_model.count"] == 1
    assert said["general.base_model.0.organization"] == "ab"
    assert said["general.base_model.0.repo_url"] == "https://huggingface.co/ab/c-1"
    assert "model-index" not in front_matter(source / "README.md")


@pytest.mark.parametrize(("count", "label"), [(999, "1.0K"), (135_000_000, "135M"), (8_030_000_000, "8.0B")])
def test_sizes_have_labels(count: int, label: str) -> None:
    assert size_label(count) == label


def test_a_type_and_parts_are_of_files(tmp_path: Path) -> None:
    source = folder(tmp_path, "llama")
    for option in (("--type", "q8_0"), ("--split-max-size", "1G")):
        done = command(source, "-o", tmp_path / "merged", *option)
        assert done.exit_code == 2
        assert option[0] in done.output
    assert "Q4_K_M" in command(source, "-o", tmp_path / "x.gguf", "--type", "q9").output


def test_another_value_is_stated_by_an_override(tmp_path: Path) -> None:
    source, output = folder(tmp_path, "starcoder2"), tmp_path / "out.gguf"
    assert "--override-kv" in command(source, "-o", output).output
    done = command(source, "-o", output, "--override-kv", "starcoder2.attention.sliding_window=int:0")
    assert done.exit_code == 0, done.output


def test_the_axes_of_positions_are_the_configs(tmp_path: Path) -> None:
    folder(tmp_path, "qwen3_vl")
    path = handed(tmp_path, "qwen3_vl")
    config = json.loads((tmp_path / "qwen3_vl" / "config.json").read_text())
    section = config["text_config"]["rope_parameters"]["mrope_section"]
    with open_model(path) as file:
        assert file.metadata.integers("qwen3vl.rope.dimension_sections") == [*section, 0]


def test_what_was_joined_or_split_is_not_kept(tmp_path: Path) -> None:
    with open_path(folder(tmp_path, "granitemoe")) as file:
        tensors = terms.in_its_terms(file)[1]
    (half,) = [tensor for name, tensor in tensors.items() if name == "blk.0.ffn_gate_exps.weight"]
    assert isinstance(half, PassingTensor)
    first = half.data.copy()
    half.forget()
    assert not half.is_computed
    assert np.array_equal(half.data, first)
