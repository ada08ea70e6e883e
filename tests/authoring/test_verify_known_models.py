"""`graphml verify` on architectures of the package: a mistake in their configuration or parts is named."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from graphml.authoring.verify.runs import RecordRuns
from graphml.authoring.verify.search import verify
from graphml.loading import discovery
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.sample_models import write_model

LIMIT = 1e-8
IDS = tuple(map(int, np.random.default_rng(5).integers(0, 60, 24)))
WRAPPED = """
import importlib.util
from dataclasses import replace

spec = importlib.util.find_spec("graphml_models.{of}")
own = importlib.util.module_from_spec(spec)  # a copy: what is changed in it is nobody else's
spec.loader.exec_module(own)
Config = own.Config


def build(g, config, weights):
    {edit}
    return own.build(g, config, weights)
"""
SCALES = "config = replace(config, scales=replace(config.scales, {}))"
ROUTING = "config = replace(config, routing=replace(config.routing, {}))"
# Architecture, what its author wrote instead, and the mistake.
MISTAKES = [
    ("granite", SCALES.format("residual=1.0"), "residual-scale-forgotten"),
    ("granite", SCALES.format("logit=1 / config.scales.logit"), "logit-scale-inverted"),
    (
        "gemma3",
        "config = replace(config, rope=config.local_rope, local_rope=config.rope)",
        "rope-of-another-layer",
    ),
    (
        "gemma3",
        "config = replace(config, windows=config.windows[::-1])",
        "rope-of-another-layer and window",
    ),
    ("gemma2", "config = replace(config, windows=config.windows[::-1])", "window"),
    ("dots1", ROUTING.format("n_group=1"), "expert-groups"),
    ("glm4moe", ROUTING.format("scale=1.0"), "expert-scale-forgotten"),
    ("glm4moe", ROUTING.format("n_used=config.routing.n_used - 1"), "expert-count"),
    (
        "gemma2",
        "layers = weights.layers; weights.layers = lambda n: layers(list(range(n))[::-1])",
        "layers-in-another-order",
    ),
    ("qwen2moe", "own.shared = lambda g, layer, x_TD: g.scale(x_TD, 0.0)", "shared-expert-forgotten"),
]


@pytest.mark.parametrize(("of", "edit", "mistake"), MISTAKES, ids=[mistake for *_, mistake in MISTAKES])
def test_a_mistake_in_a_known_architecture_is_named(of: str, edit: str, mistake: str, tmp_path: Path) -> None:
    sample = discovery.architecture(of).sample
    assert sample is not None
    model = write_model(tmp_path / "model.gguf", of, max(sample(of), key=lambda each: len(each.metadata)))
    with closing(open_executor(model, LoadOptions("reference", kv="f32", n_batch=32))) as executor:
        record = RecordRuns(executor, IDS).record("right")
        assert verify(executor, record, LIMIT).agrees
    arch = tmp_path / "wrong.py"
    arch.write_text(WRAPPED.format(of=of, edit=edit))
    with closing(open_executor(model, LoadOptions("reference", arch=arch, kv="f32", n_batch=32))) as executor:
        verdict = verify(executor, record, LIMIT)
    assert verdict.first is not None
    assert [cause.mistake.name for cause in verdict.causes][:1] == [mistake], verdict.causes
    assert verdict.mended is not None
    assert verdict.mended.nmse <= LIMIT
