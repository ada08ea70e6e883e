"""Folders of every family as GGUF files in llama.cpp's terms, and which of them are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

import graphml
from graphml.authoring.handing_on import WrittenAs, hand_on
from graphml.authoring.llama_cpp import terms
from graphml.authoring.llama_cpp.card import front_matter, size_label
from graphml.authoring.llama_cpp.fitted import architecture_names, reads
from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.weights import open_model
from tests import llama_cpp_names
from tests.folder_records import RECORDS, TOKENS, about, write_folder
from tests.golden import nmse

OPTIONS = LoadOptions(backend="reference", kv="f32")
REFUSED = {
    "bitnet": "output.weight: llama.cpp's bitnet has no such tensor",
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
    "gpt_oss": "rope_freqs.weight: llama.cpp's gpt-oss has no such tensor",
    "hrm_text": "attn_output.bias: llama.cpp's hrm_text has no such tensor",
    "hy_v3": "expert_shared_count = 2",
    "hy_v4": "attention.latent_norm_rms_epsilon = 1e-06",
    "kimi_linear": "attention.latent_norm_rms_epsilon = 1e-06",
    "laguna": "attention.sliding_window_pattern",
    "lfm2_moe": "expert_weights_scale = 1.5",
    "llama4": "attention.temperature_length = 8",
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
SAID = {
    "gemma2": {"query_pre_attn_scalar": 16}, "gemma3": {"query_pre_attn_scalar": 16},
    "mistral": {"sliding_window": None}, "phi3": {"sliding_window": None},
    "starcoder2": {"sliding_window": None}, "lfm2_moe": {"routed_scaling_factor": 1.0},
    "falcon_mamba": {"mixer_rms_eps": 1e-5},
}  # fmt: skip
"""Records with fields that llama.cpp can be told, in place of those that are refused."""


def folder(path: Path, name: str, **changed: Any) -> Path:
    config, tensors, _ = about(name)
    return write_folder(path / name, config | changed, tensors)


def handed(path: Path, name: str, writing: WrittenAs | None = None, **changed: Any) -> Path:
    """The file of a record's folder."""
    with graphml.load(folder(path, name, **changed), "reference", kv="f32") as model:
        return hand_on(model, path / f"{name}.gguf", None, OPTIONS, writing).path


def logits(path: Path) -> Any:
    with graphml.load(path, "reference", kv="f32") as model:
        return model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True)


@pytest.mark.parametrize("name", [name for name in RECORDS if name not in REFUSED])
def test_a_folders_file_has_its_logits(name: str, tmp_path: Path) -> None:
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
    with pytest.raises(UsageError, match="convert") as raised:
        handed(tmp_path, name)
    assert REFUSED[name] in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing is left behind


@pytest.mark.parametrize("name", SAID)
def test_what_it_can_be_told_is_written(name: str, tmp_path: Path) -> None:
    path = handed(tmp_path, name, **SAID[name])
    assert nmse(logits(path), logits(tmp_path / name)) < 1e-11


def test_every_architecture_of_the_recorded_llama_cpp_is_in_the_list() -> None:
    _, names = llama_cpp_names.recorded()
    assert set(names["architecture"]) <= {*architecture_names()}
    assert all(keys >= {"block_count"} and tensors for keys, tensors in map(reads, architecture_names()))


def test_values_have_the_types_that_llama_cpp_reads(tmp_path: Path) -> None:
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
    parts = sorted(path.name for path in tmp_path.glob("*.gguf"))
    assert len(parts) > 2
    assert parts == [f"out-{number + 1:05d}-of-{len(parts):05d}.gguf" for number in range(len(parts))]
    assert nmse(logits(tmp_path / parts[1]), logits(source)) < 1e-11
    again = command(source, "-o", output, "--split-max-size", "16K")
    assert again.exit_code == 2
    assert "--force" in again.output
    small = command(source, "-o", output, "--split-max-size", "100", "--force")
    assert small.exit_code == 2
    assert "parts of at least" in small.output
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
    path = handed(tmp_path, "qwen3_vl")
    config = json.loads((tmp_path / "qwen3_vl" / "config.json").read_text())
    section = config["text_config"]["rope_parameters"]["mrope_section"]
    with open_model(path) as file:
        assert file.metadata.integers("qwen3vl.rope.dimension_sections") == [*section, 0]
