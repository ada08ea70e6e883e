"""Configurations of architectures: values that a file may extend."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from graphml_models import _config, deepseek2, glm_dsa
from graphml_models._rope import Rope

from graphml.errors import GraphmlError
from graphml.ir.ops.position import rope_table
from graphml.loading import discovery
from graphml.loading.architecture import BY_LAYER, SampleModel
from graphml.loading.architecture import Keys as MetadataKeys
from graphml.weights import Metadata as FileMetadata
from graphml.weights.metadata import stored
from tests.sample_models import MODELS


def read(model: SampleModel, name: str) -> MetadataKeys:
    return MetadataKeys(
        FileMetadata(Path(model.name), {key: stored(value) for key, value in model.metadata.items()}), name
    )


def test_a_field_that_is_left_out_is_an_error_when_the_model_is_read() -> None:
    model = deepseek2.sample("deepseek2")[0]
    known = _config.read(read(model, "deepseek2"))
    with pytest.raises(TypeError, match=r"missing 1 required .*argument: 'temperature_step'"):
        deepseek2.Config(**vars(known), routing=deepseek2.Config.read(read(model, "deepseek2")).routing,
                         temperature=1.0)  # fmt: skip


def test_deepseek_reads_a_rope_of_its_own_and_leaves_the_shared_one() -> None:
    model = next(one for one in deepseek2.sample("deepseek2") if one.name == "v2")
    keys = read(model, "deepseek2")
    known, own = _config.read(keys), deepseek2.Config.read(keys)
    stretch = np.log(4.0)
    assert own.rope == replace(known.rope, attn_factor=known.rope.attn_factor / (1 + 0.1 * stretch))
    assert own.scale == pytest.approx((1 + 0.07 * stretch) ** 2 * 20**-0.5)
    assert {field.name for field in fields(_config.Config)} <= {field.name for field in fields(own)}
    assert _config.read(keys) == known != own


def test_long_glm_dsa_files_without_a_list_have_an_index_in_the_layers_of_glm_5_2() -> None:
    model = glm_dsa.sample("glm-dsa")[0]
    unlisted = {"glm-dsa.context_length": 1 << 20, "glm-dsa.block_count": 11}
    metadata = {**model.metadata, **unlisted}
    del metadata["glm-dsa.attention.indexer.types"]
    config = glm_dsa.Config.read(read(replace(model, metadata=metadata), "glm-dsa"))
    assert [i for i, kind in enumerate(config.indexed) if kind] == [0, 1, 2, 6, 10]
    metadata["glm-dsa.context_length"] = (1 << 20) - 1
    assert all(glm_dsa.Config.read(read(replace(model, metadata=metadata), "glm-dsa")).indexed)


def test_a_rope_has_the_defaults_of_the_op() -> None:
    defaults = vars(Rope(2))
    assert {name: defaults[name] for name in rope_table.attributes} == {
        **dict(rope_table.attributes), "n_rot": 2
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_number_may_be_there_once_for_each_layer(name: str) -> None:
    """As llama.cpp reads these keys in every architecture."""
    of, model = MODELS[name]
    config = discovery.architecture(of).read(read(model, of))
    for key in (f"{of}.{key}" for key in sorted(BY_LAYER)):
        value, n_layer = model.metadata.get(key), model.metadata.get(f"{of}.block_count")
        if not isinstance(value, int) or not isinstance(n_layer, int):
            continue
        repeated = replace(model, metadata={**model.metadata, key: [value] * n_layer})
        assert discovery.architecture(of).read(read(repeated, of)) == config, key


@pytest.mark.parametrize(("values", "wanted"), [
    ([4, 2], "the same number in every layer; got \\[4, 2\\]"), ([4], "2 integers, got an array of 1"),
    ([4, 4, 4], "2 integers, got an array of 3"), ([4.0, 4.0], "2 integers, got an array of 2 x f64"),
])  # fmt: skip
@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "expert_used_count"])
def test_numbers_that_differ_by_layer_are_refused_where_there_is_one_for_all(
    key: str, values: list[int], wanted: str
) -> None:
    _, model = MODELS["llama-experts"]
    mixed = replace(model, metadata={**model.metadata, f"llama.{key}": values})
    with pytest.raises(GraphmlError, match=rf"key '?llama\.{key}'?: wanted {wanted}"):
        discovery.architecture("llama").read(read(mixed, "llama"))


@pytest.mark.parametrize(("name", "key"), [
    ("gemma2-plain", "final_logit_softcapping"), ("granite-plain", "logit_scale"),
    ("llama-tied", "rope.scaling.factor"),
])  # fmt: skip
@pytest.mark.parametrize("value", [1e-300, -1e-39])
def test_numbers_whose_quotients_leave_float32_are_refused(name: str, key: str, value: float) -> None:
    of, model = MODELS[name]
    tiny = replace(model, metadata={**model.metadata, f"{of}.{key}": value})
    with pytest.raises(GraphmlError, match=rf"key {of}\.{key}: wanted 0, or a number of at least 1e-30"):
        discovery.architecture(of).read(read(tiny, of))
