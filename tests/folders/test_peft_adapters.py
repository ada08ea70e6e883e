"""Adapters of PEFT, as folders, against what PEFT computes; and what is refused of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import graphml
from graphml.errors import GraphmlError, UsageError, WeightsError
from graphml.loading import discovery
from graphml.loading.adapter_files import read_adapter
from graphml.loading.huggingface.family import To, calculated
from graphml.loading.huggingface.peft_folder import PeftFolder
from graphml.loading.huggingface.peft_modules import config_of
from graphml.loading.open_file import open_path
from graphml.weights import Tensor
from tests import golden
from tests.folder_records import TOKENS, about, write_folder
from tests.golden import Floats, nmse
from tests.peft_records import ADAPTERS, FOLDER, about_peft, tensor, write_peft

LIMIT = 1e-8


def model_of(path: Path, name: str) -> Path:
    """The folder of the model of a record."""
    config, tensors, _ = about(ADAPTERS[name][0])
    return write_folder(path / "model", config, tensors)


def adapter_of(path: Path, name: str, **changed: Any) -> Path:
    """The folder of PEFT of a record, with other fields."""
    config, tensors, _ = about_peft(name)
    return write_peft(path / "adapter", {**config, **changed}, tensors)


def as_gguf(path: Path, folder: Path) -> Path:
    """The same model as a file."""
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING"}
    metadata = {}
    with open_path(folder) as file:
        for key in file.metadata:
            value = file.metadata[key]
            listed = isinstance(value, list)
            metadata[key] = "ARRAY " * listed + kinds[type(value[0] if listed else value)], value
        tensors = {key: tensor.numpy().astype(np.float32) for key, tensor in file.tensors.items()}
        architecture = file.metadata.text("general.architecture")
    return golden.write_gguf(path / "model.gguf", architecture, metadata, tensors)


def logits(model: Path, adapter: Path, scale: float = 1.0, backend: str = "reference") -> Floats:
    with graphml.load(
        model, backend=backend, kv="f32", quant="fp32" if model.is_dir() else None, lora=[(adapter, scale)]
    ) as opened:
        return np.asarray(opened.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True))


def test_every_record_has_an_adapter() -> None:
    assert sorted(ADAPTERS) == sorted(path.stem for path in FOLDER.glob("*.npz"))


@pytest.mark.parametrize("name", ADAPTERS)
def test_it_is_what_peft_computes(name: str, tmp_path: Path) -> None:
    model, adapter = model_of(tmp_path, name), adapter_of(tmp_path, name)
    assert nmse(logits(model, adapter), about_peft(name)[2]) <= LIMIT
    assert nmse(logits(model, adapter, 0.0), about(ADAPTERS[name][0])[2]) <= LIMIT


@pytest.mark.parametrize(
    "name",
    [
        "llama",
        "llama-biases",
        "llama-tied",
        "gpt2",
        "gpt_neox",
        "phi3",
        "qwen2",
        "granitemoehybrid",
        "hrm_text",
        "nemotron_h",
        "sarvam_moe",
    ],
)
def test_the_model_may_be_a_gguf_file(name: str, tmp_path: Path) -> None:
    model = as_gguf(tmp_path, model_of(tmp_path, name))
    assert nmse(logits(model, adapter_of(tmp_path, name)), about_peft(name)[2]) <= LIMIT


def test_of_a_file_a_change_that_needs_more_than_its_metadata_is_refused(tmp_path: Path) -> None:
    model = as_gguf(tmp_path, model_of(tmp_path, "falcon"))
    with pytest.raises(GraphmlError, match=r"model\.gguf: .*need multi_query, which its metadata lack"):
        logits(model, adapter_of(tmp_path, "falcon"))


@pytest.mark.parametrize("name", ["llama-ranks", "gpt2-biases"])
def test_it_is_on_the_cpu_and_in_requests_of_an_engine(name: str, tmp_path: Path) -> None:
    model, adapter = model_of(tmp_path, name), adapter_of(tmp_path, name)
    assert nmse(logits(model, adapter, backend="cpu"), about_peft(name)[2]) <= LIMIT
    wanted = {}
    for scale in (0.0, 1.0):
        with (
            graphml.load(model, kv="f32", quant="fp32", lora=[(adapter, scale)]) as opened,
            opened.engine(max_sequences=1) as engine,
        ):
            wanted[scale] = engine.submit(TOKENS.tolist(), max_tokens=6, temperature=0).result().tokens
    assert wanted[0.0] != wanted[1.0]
    with graphml.load(model, kv="f32", quant="fp32") as opened, opened.engine(max_sequences=2) as engine:
        requests = {
            scale: engine.submit(TOKENS.tolist(), max_tokens=6, temperature=0, lora=[(adapter, scale)])
            for scale in wanted
        }
        assert {scale: request.result().tokens for scale, request in requests.items()} == wanted


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [("peft_type", "LOHA", "peft_type: wanted 'LORA'; got 'LOHA'"), ("use_dora", True, "use_dora = True"),
     ("modules_to_save", ["lm_head"], "modules_to_save"), ("trainable_token_indices", [1], "trainable_token"),
     ("target_parameters", ["w"], "target_parameters"), ("layer_replication", [[0, 1]], "layer_replication"),
     ("use_qalora", True, "use_qalora"), ("a_new_one", {"x": 1}, "a_new_one"), ("r", 5, r"wanted \[5, 32\]"),
     ("init_lora_weights", "pissa", "init_lora_weights: wanted"), ("r", 0, "r: wanted a number from 1"),
     ("lora_alpha", "8", "lora_alpha: wanted a number"), ("bias", "some", "bias: wanted 'none'"),
     ("target_modules", ["q_proj"], r"\w: target_modules of adapter_config.json do not name it"),
     ("target_modules", "all-linear", "target_modules: wanted names or a pattern"),
     ("target_modules", "(a", r"target_modules: '\(a': missing"),
     ("target_modules", [], "target_modules"),
     ("rank_pattern", {"q_proj": 3}, r"q_proj: .lora_A.weight: wanted \[3, 32\]; got \[4, 32\]"),
     ("rank_pattern", {"q_proj": 0}, "rank_pattern: q_proj: wanted"),
     ("alpha_pattern", {"q_(proj": 1}, r"alpha_pattern: 'q_\(proj': missing"),
     ("layers_pattern", "a.*", "layers_pattern"),
     ("layers_to_transform", [7], "target_modules of .* do not name it"),
     ("fan_in_fan_out", "x", "fan_in_fan_out"),
     ("lora_bias", True, r"wanted .*lora_B\.bias.*; got"), ("use_rslora", 1, "use_rslora: wanted true or")],
)  # fmt: skip
def test_configs_that_are_refused(field: str, value: object, wanted: str, tmp_path: Path) -> None:
    adapter = adapter_of(tmp_path, "llama", **{field: value})
    with open_path(model_of(tmp_path, "llama")) as model, pytest.raises(WeightsError, match=wanted) as caught:
        read_adapter(adapter, model)
    assert str(adapter) in str(caught.value)


def changed_tensors(path: Path, name: str, changed: Mapping[str, Floats | None]) -> Path:
    """An adapter with other tensors; None leaves one out."""
    adapter = adapter_of(path, name)
    weights = adapter / "adapter_model.safetensors"
    tensors = {key: array for key, array in (load_file(weights) | dict(changed)).items() if array is not None}
    save_file(tensors, weights)
    return adapter


Q = "base_model.model.model.layers.0.self_attn.q_proj"
ONES = np.ones((4, 32), np.float32)


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [({f"{Q}.lora_A.weight": ONES[:, 1:]}, r"q_proj: .lora_A.weight: wanted \[4, 32\]; got \[4, 31\]"),
     ({f"{Q}.lora_A.weight": None}, "q_proj: wanted .lora_A.weight, .lora_B.weight; got .lora_B.weight"),
     ({f"{Q}.lora_A.weight": ONES * np.float32("nan")}, "q_proj.lora_A.weight: wanted finite numbers"),
     ({f"{Q}.lora_magnitude_vector": ONES[0]}, "q_proj.lora_magnitude_vector': wanted base_model.model.MOD"),
     ({"model.norm.weight": ONES[0]}, "'model.norm.weight': wanted base_model.model.MODULE"),
     ({"base_model.model.model.norm.weight": ONES[0]}, "norm.weight: has other numbers than output_norm.wei"),
     ({"base_model.model.model.layers.7.mlp.up_proj.lora_A.weight": ONES,
       "base_model.model.model.layers.7.mlp.up_proj.lora_B.weight": np.ones((48, 4), np.float32)},
      "layers.7.mlp.up_proj: the model has no tensor blk.7.ffn_up.weight"),
     ({"base_model.model.visual.up_proj.lora_A.weight": ONES,
       "base_model.model.visual.up_proj.lora_B.weight": ONES}, "visual.up_proj.weight: the model has no"),
     ({f"{Q}.lora_A.weight": ONES.astype(np.int32)}, "wanted floating-point numbers; got i32")],
)  # fmt: skip
def test_tensors_that_are_refused(changed: Any, wanted: str, tmp_path: Path) -> None:
    adapter = changed_tensors(tmp_path, "llama", changed)
    with open_path(model_of(tmp_path, "llama")) as model, pytest.raises(WeightsError, match=wanted) as caught:
        read_adapter(adapter, model)
    assert str(adapter) in str(caught.value)


def test_an_output_matrix_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    head = "base_model.model.lm_head.lora_"
    pair = {f"{head}A.weight": ONES, f"{head}B.weight": np.ones((64, 4), np.float32)}
    adapter = changed_tensors(tmp_path, "llama-tied", pair)
    fields = about_peft("llama-tied")[0] | {"target_modules": ["embed_tokens", "k_proj", "lm_head"]}
    (adapter / "adapter_config.json").write_text(json.dumps(fields))
    wanted = r"lm_head: the model has no tensor output\.weight: its output is the embedding table"
    with open_path(model_of(tmp_path, "llama-tied")) as model, pytest.raises(WeightsError, match=wanted):
        read_adapter(adapter, model)


def test_a_change_that_is_not_of_rows_is_refused(tmp_path: Path) -> None:
    model = model_of(tmp_path, "llama")
    doubled = To("blk.{}.attn_q", lambda config, name, tensor: calculated(tensor, name, lambda x: x + x))
    family = discovery.families()["llama"]
    other = replace(family, names={**family.names, "layers.{}.self_attn.q_proj": doubled})
    with (
        open_path(model) as file,
        pytest.raises(WeightsError, match=r"attn_q is not made of the weight's rows"),
    ):
        PeftFolder(adapter_of(tmp_path, "llama"), file, [other])
    with open_path(model) as file, pytest.raises(WeightsError, match=r"q_proj\.weight: families .* differ"):
        PeftFolder(adapter_of(tmp_path, "llama"), file, [family, other])
    with open_path(model) as file, pytest.raises(WeightsError, match=r"no family has .* llama's tensors"):
        PeftFolder(adapter_of(tmp_path, "llama"), file, [])


def test_experts_have_a_pair_each_and_zeros_without(tmp_path: Path) -> None:
    config, tensors, _ = about("qwen3_moe")
    fields = about_peft("llama")[0] | {"target_modules": ["up_proj"], "r": 2, "lora_alpha": 2}
    start = "base_model.model.model.layers.0.mlp.experts"
    shapes = {
        f"{start}.{expert}.up_proj.lora_{half}.weight": shape
        for expert in (0, 4)
        for half, shape in (("A", [2, 32]), ("B", [16, 2]))
    }
    adapter = write_peft(tmp_path / "adapter", fields, shapes)
    with open_path(write_folder(tmp_path / "model", config, tensors)) as model:
        split = {key: value for key, value in model.tensors.items() if "ffn_gate_up_exps" not in key}
        shape = (6, 16, 32)
        data = np.zeros(6 * 16 * 32 * 4, np.uint8)
        name = "blk.0.ffn_up_exps.weight"
        a, b = read_adapter(
            adapter, model.with_tensors({**split, name: Tensor(name, "f32", shape, data)})
        ).pairs[name]
    for expert in range(6):
        for half, stacked in (("A", a), ("B", b)):
            key = f"{start}.{expert}.up_proj.lora_{half}.weight"
            wanted = tensor(key, shapes[key]) if key in shapes else np.zeros_like(stacked[expert])
            np.testing.assert_array_equal(stacked[expert], wanted)


def test_folders_that_are_none(tmp_path: Path) -> None:
    model, adapter = model_of(tmp_path, "llama"), adapter_of(tmp_path, "llama")
    weights = adapter / "adapter_model.safetensors"
    weights.rename(adapter / "adapter_model.bin")
    with pytest.raises(WeightsError, match=r"adapter_model\.bin is a pickle: .*Wanted adapter_"):
        logits(model, adapter)
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(WeightsError, match=r"adapter: wanted .* PEFT saves them; got no adapter_model\."):
        logits(model, adapter)
    with pytest.raises(UsageError, match=r"lora: wanted a GGUF file or a folder of PEFT; there is none at"):
        logits(model, tmp_path / "none")
    with pytest.raises(UsageError, match=r"control_vectors: wanted a GGUF file; there is none at"):
        graphml.load(model, control_vectors=[(adapter, 1.0)])


def test_a_folder_that_has_changed_is_read_anew(tmp_path: Path) -> None:
    adapter = adapter_of(tmp_path, "llama")
    with graphml.load(model_of(tmp_path, "llama"), backend="reference", kv="f32", quant="fp32") as model:
        found_logits = []
        for alpha in (6, 6, 12):
            fields = about_peft("llama")[0] | {"lora_alpha": alpha}
            (adapter / "adapter_config.json").write_text(json.dumps(fields))
            session = model.session(n_ctx=48, lora=[(adapter, 6 / alpha if alpha == 6 else 1.0)])
            found_logits.append(session.eval(TOKENS.tolist()))
    np.testing.assert_array_equal(found_logits[0], found_logits[1])
    assert nmse(found_logits[0], found_logits[2]) > 1e-4


def test_an_activated_adapter_has_its_invocation_tokens(tmp_path: Path) -> None:
    adapter = adapter_of(tmp_path, "llama", alora_invocation_tokens=[5, 9])
    with open_path(model_of(tmp_path, "llama")) as model:
        assert read_adapter(adapter, model).invocation == (5, 9)


@pytest.mark.parametrize(
    ("record", "fields"),
    [("deepseek_v3", {"model_type": "kimi_k2"}), ("qwen2", {"model_type": "minicpmv", "version": "2.6"})],
)
def test_an_adapter_of_a_model_under_another_name_reads_its_config(
    record: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    config, tensors, _ = about(record)
    family = discovery.families()[config["model_type"]]
    every = {id(of): of for of in discovery.families().values()}.values()
    others = [of for of in every if of.architecture == family.architecture]
    with open_path(write_folder(tmp_path / "model", {**config, **fields}, tensors)) as model:
        read, left = config_of(model, others)
        assert read.is_known
        assert left == [family]
