"""Granite Switch: which adapter each token has, whatever its caches keep keys and values as."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphml_models import graniteswitch

import graphml
from tests.sample_models import write_model

COUNT, CONTROL = 7, 44
KEYS = {
    "logit_scale": 4.0,
    graniteswitch.COUNT: COUNT,
    graniteswitch.WIDTH: 3,
    graniteswitch.CONTROLS: [*range(70, 70 + COUNT - 2), CONTROL, 79],
    graniteswitch.EMBEDDED: [*range(COUNT)],
}
BEFORE, BEHIND = [1, 2, 3, 4, 5] * 5, [6, 7, 8, 9] * 10


@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_control_token_switches_its_adapter_on(backend: str, kv: str, tmp_path: Path) -> None:
    """For itself and all that follow, also in later steps; heads have a whole block of a cache."""
    model = graniteswitch.switching("graniteswitch", KEYS)
    heads = {f"graniteswitch.attention.head_count{kind}": 2 for kind in ("", "_kv")}
    model = replace(model, metadata={**model.metadata, **heads})
    path = write_model(tmp_path / "model.gguf", "graniteswitch", model)
    adapters = list[int]()
    with graphml.load(path, backend=backend, kv=kv, threads=1) as opened:
        session = opened.session(n_ctx=128, capture="adapter")
        for ids in ([*BEFORE, CONTROL, *BEHIND[:9]], BEHIND[9:-1], BEHIND[-1:]):
            session.eval(ids)
            adapters += np.asarray(session.captured["adapter"]).ravel().tolist()
    assert adapters == [0] * len(BEFORE) + [COUNT - 1] * (1 + len(BEHIND))
