"""No published model is refused for a field without influence; none that the class reads is passed over."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from graphml.errors import ArchitectureError, WeightsError
from graphml.loading import discovery
from graphml.loading.huggingface.config import HfConfig, class_fields
from graphml.loading.huggingface.config_names import SIZES
from graphml.loading.huggingface.folder import metadata_keys
from graphml.loading.huggingface.packed import read_packing, stated_quantization
from tests.config_mutations import foreign_fields
from tests.folder_records import RECORDS, about
from tests.published_configs import PACKING, published

MODELS = {model.model: model for model in published()}
PACKED = [name for name, model in MODELS.items() if PACKING in model.config]
# Models that are refused, and the text: for a field that changes what is computed.
REFUSED = {
    # an activation that transformers' class does not have, in layers that it does not have
    "moonshotai/Kimi-K3": "hidden_act is 'situ'",
    # transformers 4 rotates by rope_theta, 5 by the factors of llama3 and another base
    "swiss-ai/Apertus-8B at 8192 tokens": "rope_parameters: wanted the model's own",
}
REFUSED_PACKINGS = {
    # floats that the class makes ternary whenever it computes
    "microsoft/bitnet-b1.58-2B-4T-bf16": "quantization_mode: wanted offline",
}
# Fields that trainers, exporters and transformers 3 and 4 wrote into any model's config.
WRITTEN = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"a": "b"},
           "torchscript": False, "pruned_heads": {}, "chunk_size_feed_forward": 0, "temperature": 1.0,
           "_attn_implementation": "eager", "use_bfloat16": False, "unsloth_version": "2025.1"}  # fmt: skip


def read(fields: dict[str, Any]) -> HfConfig:
    """The config after its family has read it."""
    config, _ = read_keys(fields)
    return config


def read_keys(fields: dict[str, Any]) -> tuple[HfConfig, dict[str, Any]]:
    """And the metadata that its family makes of it."""
    family = discovery.families()[fields["model_type"]]
    kind = family.older.get(fields["model_type"], fields["model_type"])
    config = HfConfig(Path("config.json"), fields, family.defaults, reads=class_fields().get(kind))
    keys, _ = metadata_keys(config, family)
    return config, dict(keys)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in REFUSED])
def test_a_published_config_is_understood(name: str) -> None:
    read(MODELS[name].plain)


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_published_config_is_refused_for_a_field_that_counts(name: str) -> None:
    with pytest.raises(ArchitectureError, match=re.escape(REFUSED[name])):
        read(MODELS[name].plain)


@pytest.mark.parametrize("name", PACKED)
def test_a_published_quantisation_is_understood_or_refused_by_its_field(name: str) -> None:
    stated = stated_quantization(Path("model"), MODELS[name].config[PACKING], {})
    if name in REFUSED_PACKINGS:
        with pytest.raises(WeightsError, match=re.escape(REFUSED_PACKINGS[name])):
            read_packing(*stated)
    else:
        assert read_packing(*stated) is not None


@pytest.mark.parametrize("kind", sorted({str(about(name)[0]["model_type"]) for name in RECORDS}))
def test_fields_that_the_class_never_reads_pass(kind: str) -> None:
    name = next(name for name in RECORDS if about(name)[0].get("model_type") == kind)
    config = about(name)[0]
    read({**config, **WRITTEN, **config.get("text_config", {})})


STRICT = {"position_embedding_type", "scoring_func", "topk_method", "hidden_act", "attn_logit_softcapping",
          "sliding_window", "shared_intermediate_size"}  # fmt: skip
"""Fields that only authors' own code reads in some families, which refuse what that code would compute."""
SAID = {"original_max_position_embeddings", "partial_rotary_factor", *SIZES["context_length"]}
"""Fields that count in every class, though its source does not name them."""


def metadata_of(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Keys and tensors that follow from a config."""
    config, keys = read_keys(fields)
    return keys, {name: values.tolist() for name, values in config.tensors.items()}


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_fields_of_other_families_change_nothing(name: str) -> None:
    config = about(name)[0]
    config = config.get("text_config", config)
    if config["model_type"] not in class_fields():
        pytest.skip("a class that transformers lacks: every field counts")
    plain = metadata_of(config)
    _, unread = foreign_fields(str(config["model_type"]), config)
    assert len(unread) > 100
    assert metadata_of({**config, **{f: v for f, v in unread.items() if f not in STRICT | SAID}}) == plain
    for field in STRICT & unread.keys():
        with suppress(ArchitectureError):
            assert metadata_of({**config, field: unread[field]}) == plain, field


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("qwen2", "is_causal", False), ("gemma3n", "use_bidirectional_attention", True),
     ("llama", "kv_sharing_modes", ["reuse"]), ("olmoe", "sliding_window", 8),
     ("gpt2", "layer_types", ["sliding_attention"] * 2)],
)  # fmt: skip
def test_fields_that_the_class_reads_are_refused_by_name_and_value(
    name: str, field: str, value: object
) -> None:
    config = about(name)[0]
    with pytest.raises(ArchitectureError, match=rf"not understood .*: {field} = "):
        read({**config.get("text_config", config), field: value})
    read({**config, "is_causal": True})  # as the class has it where nothing is said


def test_two_names_of_a_field_say_one_value() -> None:
    config = about("hunyuan_v1_moe")[0]
    read({**config, "num_local_experts": config["num_experts"]})
    with pytest.raises(ArchitectureError, match=r"num_local_experts and num_experts are names of one field"):
        read({**config, "num_local_experts": 3})
    with pytest.raises(ArchitectureError, match=r"activation_function and hidden_act are names of one field"):
        read({**about("exaone")[0], "activation_function": "gelu_new"})


def test_families_that_transformers_lacks_refuse_what_they_do_not_know() -> None:
    config = about("falcon")[0] | {"model_type": "RefinedWeb"}
    assert "RefinedWeb" not in class_fields()
    read(config)
    with pytest.raises(ArchitectureError, match=r"not understood .*: a_new_field = 3"):
        read(config | {"a_new_field": 3})


def test_of_several_names_of_a_fact_the_one_that_the_class_reads_counts() -> None:
    config = about("qwen2")[0]
    assert read({**config, "kv_channels": 2}).size("attention.key_length", 8) == 8
    own = {name: value for name, value in config.items() if name != "max_position_embeddings"}
    assert read({**own, "seq_length": 99}).size("context_length", 2048) == 32768  # as the class has it


def test_what_is_ignored_is_read_by_the_class_and_defaults_are_its_own() -> None:
    wrong = []
    fields = class_fields()
    for kind, reads in fields.items():
        family = discovery.families()[kind]
        unread = [
            name
            for name in family.ignored
            if not any(name in fields.get(of, ()) for of in family.model_types)
        ]
        wrong += [f"{kind}: {name} is not read" for name in unread]
        for name, value in family.defaults.items():
            if reads.get(name) is not None and reads[name] != value:
                wrong.append(f"{kind}: {name} is {value}, not {reads[name]}")
    assert not wrong
