"""Constants and positions as values in a model: every backend, several at once, and the tools agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from tests import tiny_model
from tests.adapter_files import random_pairs, write_adapter

ARCHITECTURE = '''
"""llama whose feed-forward layers lose what is above a limit, other rows from position 3 on."""

import numpy as np

from graphml_models import llama
from graphml_models.llama import *


def feed_forward(g, config, layer, x_TD):
    y_TD = llama.feed_forward(g, config, layer, x_TD)
    table_D = g.constant(np.linspace(0.25, 4.0, y_TD.shape[-1]), name="table")
    position_T1 = g.reshape(g.cast(g.positions, "f32"), 1)
    early_TD = g.mul(y_TD, table_D)
    late_TD = g.minimum(y_TD, g.max_rows(g.scale(y_TD, 0.5)))
    return g.where(g.less(position_T1, g.constant(3.0)), early_TD, late_TD, name="masked")


def build(g, config, weights):
    return llama.build(g, config, weights, feed_forward=feed_forward)
'''
PROMPT = "hello world hello world"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("model")
    architecture = folder / "masked_llama.py"
    architecture.write_text(ARCHITECTURE)
    return tiny_model.write(folder / "tiny.gguf"), architecture


def logits(paths: tuple[Path, Path], step: int = 2, **options: Any) -> np.ndarray:
    """Of the prompt's last token, evaluated in steps of so many tokens."""
    path, architecture = paths
    with graphml.load(path, arch=str(architecture), **options) as model:
        ids = model.tokenizer.encode(PROMPT)
        assert len(ids) > 3
        session = model.session()
        return [np.array(session.eval(ids[i : i + step])) for i in range(0, len(ids), step)][-1]


@pytest.mark.parametrize(
    "options",
    [
        {"backend": "cpu"},
        {"backend": "numba"},
        {"backend": "cpu", "fuse": "none"},
        {"backend": "cpu,reference", "place": "reference:layers.1"},
        {"backend": "reference,cpu", "place": "cpu:minimum"},
    ],
    ids=str,
)
def test_every_backend_says_the_same(paths: tuple[Path, Path], options: dict[str, str]) -> None:
    wanted = logits(paths, backend="reference")
    np.testing.assert_allclose(logits(paths, **options), wanted, rtol=1e-3, atol=1e-4)


def test_positions_go_on_from_step_to_step(paths: tuple[Path, Path]) -> None:
    wanted = logits(paths, step=100, backend="reference")
    for backend in ("reference", "cpu"):
        np.testing.assert_allclose(logits(paths, step=1, backend=backend), wanted, rtol=1e-3, atol=1e-4)


def test_an_adapter_beside_them_counts(paths: tuple[Path, Path], tmp_path: Path) -> None:
    shape = {"blk.1.ffn_down.weight": (tiny_model.WIDTH, tiny_model.HIDDEN)}
    lora = [(write_adapter(tmp_path / "adapter.gguf", random_pairs(shape, 4, 0)), 1.0)]
    wanted, without = logits(paths, backend="reference", lora=lora), logits(paths, backend="reference")
    assert np.abs(wanted - without).max() > 0.01
    np.testing.assert_allclose(logits(paths, backend="cpu", lora=lora), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "command",
    [
        ["graph", "--format", "text"],
        ["graph", "--format", "json"],
        ["bisect", "-p", PROMPT],
        ["explain", "--node", "layers.1.table"],
        ["plan"],
    ],
    ids=" ".join,
)
def test_tools_know_them(paths: tuple[Path, Path], command: list[str]) -> None:
    path, architecture = paths
    name, *rest = command
    found = CliRunner().invoke(app, [name, str(path), "--arch", str(architecture), *rest])
    assert found.exit_code == 0, (found.output, found.exception)
    assert "no kernel for constant" not in found.output
