"""Sessions of a model whose tokens see later ones: all of a text at once, or an error that says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from tests import tiny_model
from tests.sample_models import MODELS, write_model

IDS = [3, 14, 15, 9, 2, 6]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = write_model(tmp_path_factory.mktemp("dream") / "dream.gguf", *MODELS["dream-plain"])
    with graphml.load(path, "reference", kv="f32", n_batch=8) as model:
        yield model


def test_a_text_is_evaluated_at_once(model: graphml.Model) -> None:
    session = model.session()
    rows = session.eval(IDS, all_logits=True)
    session.rewind(0)
    np.testing.assert_allclose(session.eval(IDS), rows[-1], rtol=1e-5, atol=1e-6)
    session.rewind(0)
    other = session.eval([*IDS[:-1], 7], all_logits=True)
    assert abs(other[0] - rows[0]).max() > 1e-3  # the first token sees the last


def test_a_second_piece_is_refused_and_changes_nothing(model: graphml.Model) -> None:
    session = model.session()
    session.eval(IDS)
    with pytest.raises(graphml.UsageError, match=r"all of a text .* got 1, where 6 are held"):
        session.eval([1])
    assert session.tokens == IDS
    with pytest.raises(graphml.ContextFullError, match="at most n_ctx = 8 tokens"):
        model.session().eval(list(range(9)))


def test_it_does_not_continue_a_text(tmp_path: Path) -> None:
    path, both_ways = tiny_model.write(tmp_path / "model.gguf"), {"llama.attention.causal": False}
    with graphml.load(path, "reference", override_kv=both_ways) as model:
        for call in (model.session().generate, model.beam_search):
            with pytest.raises(graphml.UsageError, match="llama does not continue a text token by token"):
                call(IDS)
