"""Configurations of architectures: values that a file may extend; files written for a former way of that."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from graphml_models import _config, deepseek2
from graphml_models._rope import Rope
from graphml_models._samples import Keys, Metadata

from graphml.authoring.draft.known_architecture import sample_graph
from graphml.ir.ops.position import rope_table
from graphml.ir.text import write
from graphml.loading import discovery
from graphml.loading.architecture import Keys as MetadataKeys
from graphml.loading.architecture import SampleModel
from graphml.weights import Metadata as FileMetadata
from graphml.weights.metadata import stored

# As `graphml new-arch` wrote it up to version 0.1.
FORMER = """
from dataclasses import dataclass
from typing import Self

from graphml.loading.architecture import Keys
from graphml_models import _config, _windows
from graphml_models._samples import Keys as SampleKeys
from graphml_models._windows import read_local_rope, read_windows
from graphml_models.olmo2 import build, sample


@dataclass(frozen=True)
class Config(_windows.Config):
    @classmethod
    def read(cls, keys: Keys) -> Self:
        known = _config.shared(keys)
        return cls(
            **known,
            windows=read_windows(keys, known["n_layer"], period=4, size=0),
            local_rope=read_local_rope(keys, known["rope"], scaled=False),
        )
"""


def read(model: SampleModel, name: str) -> MetadataKeys:
    return MetadataKeys(
        FileMetadata(Path(model.name), {key: stored(value) for key, value in model.metadata.items()}), name
    )


def test_a_draft_of_a_former_version_builds_the_same_graph_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "olmo2.py"
    file.write_text(FORMER)
    mine, known = discovery.architecture_from_file(file), discovery.architecture("olmo2")
    assert known.sample is not None
    model = known.sample("olmo2")[0]
    with pytest.warns(DeprecationWarning, match=r"_config\.shared\(keys\) is vars\(_config\.read\(keys\)\)"):
        graph = sample_graph(mine, model, "olmo2")
    plain = [line.rsplit(" at ", 1)[0] for line in write(graph).splitlines()]
    assert plain == [
        line.rsplit(" at ", 1)[0] for line in write(sample_graph(known, model, "olmo2")).splitlines()
    ]


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


def test_the_former_name_of_the_samples_metadata_stays() -> None:
    assert Keys is Metadata
