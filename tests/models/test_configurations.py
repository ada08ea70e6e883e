"""Configurations of architectures: values that a file may extend."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from graphml_models import _config, deepseek2
from graphml_models._rope import Rope

from graphml.ir.ops.position import rope_table
from graphml.loading.architecture import Keys as MetadataKeys
from graphml.loading.architecture import SampleModel
from graphml.weights import Metadata as FileMetadata
from graphml.weights.metadata import stored


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


def test_a_rope_has_the_defaults_of_the_op() -> None:
    defaults = vars(Rope(2))
    assert {name: defaults[name] for name in rope_table.attributes} == {
        **dict(rope_table.attributes), "n_rot": 2
    }  # fmt: skip
