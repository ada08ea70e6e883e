"""Capture and patch: values of named nodes by session, functions that replace them, on both backends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.passes.patch import values
from tests import golden
from tests.stories import STORIES

PROMPT = "Once upon a time there was a little girl"
N_LAYER, D_MODEL = 5, 64


@pytest.fixture(scope="module", params=["reference", "cpu"])
def model(request: pytest.FixtureRequest) -> Iterator[graphml.Model]:
    with graphml.load(STORIES, backend=request.param, n_batch=8) as opened:
        yield opened


@pytest.fixture(scope="module")
def ids(model: graphml.Model) -> list[int]:
    return model.encode(PROMPT)  # 12: two batches


def test_capture_gives_the_values_of_each_evaluation(model: graphml.Model, ids: list[int]) -> None:
    plain = model.session(64)
    session = model.session(64, capture=["layers.*.attention", "logits"], history=True)
    logits = session.eval(ids)
    np.testing.assert_allclose(logits, plain.eval(ids), atol=1e-4)
    names = [f"layers.{i}.attention" for i in range(N_LAYER)]
    assert list(session.captured) == [*names, "logits"]
    assert all(session.captured[name].shape == (len(ids), 8, 8) for name in names)
    np.testing.assert_array_equal(session.captured["logits"][0], logits)
    first = {name: array.copy() for name, array in session.captured.items()}
    session.eval([5])
    assert session.captured[names[0]].shape == (1, 8, 8)
    assert len(session.history) == 2
    np.testing.assert_array_equal(session.history[0][names[2]], first[names[2]])
    assert not plain.captured
    assert not plain.history


def test_a_prompt_in_batches_is_captured_like_single_tokens(model: graphml.Model, ids: list[int]) -> None:
    at_once = model.session(64, capture="layers.2.ffn_residual")
    at_once.eval(ids)
    singly = model.session(64, capture="layers.2.ffn_residual", history=True)
    for one in ids:
        singly.eval([one])
    rows = np.concatenate([step["layers.2.ffn_residual"] for step in singly.history])
    np.testing.assert_allclose(at_once.captured["layers.2.ffn_residual"], rows, rtol=1e-3, atol=1e-3)


def test_captured_while_generating(model: graphml.Model, ids: list[int]) -> None:
    session = model.session(64, capture="logits", history=True)
    tokens = [token.id for token in session.generate(ids, max_tokens=4)]
    chosen = [int(step["logits"][-1].argmax()) for step in session.history]
    assert chosen == tokens


def test_nodes_that_a_fusion_covers_can_be_captured(model: graphml.Model, ids: list[int]) -> None:
    session = model.session(64, capture=["layers.0.silu", "layers.0.gate", "layers.0.attn_out"])
    session.eval(ids)
    gate = session.captured["layers.0.gate"]
    np.testing.assert_allclose(session.captured["layers.0.silu"], gate / (1 + np.exp(-gate)), atol=1e-5)


def test_a_patch_replaces_what_readers_see(model: graphml.Model, ids: list[int]) -> None:
    plain = model.session(64, capture="layers.2.attention")
    before = plain.eval(ids)
    shapes = []

    def silence(array: np.ndarray) -> np.ndarray:
        shapes.append(array.shape)
        array[:, 3] = 0
        return array

    session = model.session(
        64,
        patch={"layers.2.attention": silence},
        capture=["layers.2.attention", "layers.2.attention.unpatched"],
    )
    after = session.eval(ids)
    assert np.abs(after - before).max() > 1e-2
    assert shapes == [(8, 8, 8), (4, 8, 8)]
    assert not session.captured["layers.2.attention"][:, 3].any()
    np.testing.assert_allclose(
        session.captured["layers.2.attention.unpatched"], plain.captured["layers.2.attention"], atol=1e-4
    )
    np.testing.assert_allclose(model.session(64).eval(ids), before, atol=1e-4)  # others are as they were


def test_patching_in_values_of_another_run(model: graphml.Model, ids: list[int]) -> None:
    """Activation patching: the residual stream of one prompt in the other gives the other's logits."""
    donor = model.session(64, capture="layers.*.ffn_residual")
    wanted = donor.eval(ids, all_logits=True)
    others = [*ids[:1], *ids[:0:-1]]
    stream = {name: value for name, value in donor.captured.items() if name.startswith("layers.4")}
    (given,) = stream.values()
    rows = iter([given[:8], given[8:]])
    patched = model.session(64, patch={"layers.4.ffn_residual": lambda array: next(rows)})
    np.testing.assert_allclose(patched.eval(others, all_logits=True), wanted, atol=1e-4)
    assert np.abs(model.session(64).eval(others) - wanted[-1]).max() > 0.1


def test_none_leaves_the_value_and_patches_follow_each_other(model: graphml.Model, ids: list[int]) -> None:
    plain = model.session(64).eval(ids)
    unchanged = model.session(64, patch={"layers.*.attention": lambda array: None})
    np.testing.assert_allclose(unchanged.eval(ids), plain, atol=1e-4)
    twice = model.session(64, patch={"layers.1.q": lambda x: x + 1, "layers.*.q": lambda x: x - 1})
    assert np.abs(twice.eval(ids) - plain).max() > 1e-2  # all layers but 1
    both = model.session(64, patch={"layers.1.q": lambda x: x + 1, "layers.1.[q]": lambda x: x - 1})
    np.testing.assert_allclose(both.eval(ids), plain, atol=1e-2)


def test_an_error_in_a_patch_leaves_the_session_as_it_was(model: graphml.Model, ids: list[int]) -> None:
    fail = [True]

    def function(array: np.ndarray) -> None:
        if fail[0]:
            raise ZeroDivisionError("of the user's own")

    session = model.session(64, patch={"layers.1.q": function})
    with pytest.raises(ZeroDivisionError, match="own"):
        session.eval(ids)
    assert session.n_past == 0
    fail[0] = False
    np.testing.assert_allclose(session.eval(ids), model.session(64).eval(ids), atol=1e-4)


def test_wrong_names_and_functions_are_told(model: graphml.Model, ids: list[int]) -> None:
    with pytest.raises(graphml.UsageError, match=r"capture: .*'layers.0.atention'.* mean 'layers.0.att"):
        model.session(64, capture="layers.0.atention")
    with pytest.raises(graphml.UsageError, match=r"patch: no value .*'cache\.\*'"):
        model.session(64, patch={"cache.*": lambda array: array})
    with pytest.raises(graphml.UsageError, match=r"or graphml.PatchRows\(rows\); got 3"):
        model.session(64, patch={"logits": 3})  # type: ignore[dict-item]  # what the test is about
    session = model.session(64, patch={"layers.*.q": lambda array: array[:1]})
    with pytest.raises(graphml.UsageError, match=r"at layers\.0\.q: wanted an array float32\[8, 64\] back"):
        session.eval(ids)


def test_closing_gives_patched_programs_back(model: graphml.Model, ids: list[int]) -> None:
    count = len(model.executor.programs._programs)
    session = model.session(64, patch={"layers.0.q": lambda array: array})
    session.eval(ids)
    assert len(model.executor.programs._programs) > count
    session.close()
    assert len(model.executor.programs._programs) == count


def test_what_is_not_captured_stays_fused(model: graphml.Model) -> None:
    def counts(session: graphml.Session) -> dict[str, int]:
        return model.executor.compiled(1, 1, session._probe.options).fusions.counts

    fused = counts(model.session(64))
    assert counts(model.session(64, capture="layers.*.ffn_residual")) == fused
    one_less = counts(model.session(64, capture="layers.3.silu"))
    assert sum(fused.values()) - sum(one_less.values()) == 1
    patched = counts(model.session(64, patch={"layers.3.attention": lambda array: array}))
    assert patched == fused


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["llama-dense", "llama-moe"])
def test_quantised_models(backend: str, name: str, tmp_path: Path) -> None:
    one = golden.read(name)
    tensors = {tensor: golden.weights(tensor, sizes, one.seed) for tensor, sizes in one.tensors.items()}
    path = golden.write_gguf(tmp_path / "m.gguf", one.architecture, one.metadata, tensors, "q4_1")
    with graphml.load(path, backend=backend, n_batch=8) as model:
        plain = model.session(64).eval(one.tokens)
        session = model.session(64, capture="layers.*", patch={"layers.0.attn_norm": lambda x: x})
        assert golden.nmse(session.eval(one.tokens), plain) < 1e-4  # other sums: what is captured is unfused
        names = {node.name for node in values(model.executor.build(1, 1)) if node.name.startswith("layers.")}
        assert set(session.captured) - {"layers.0.attn_norm.unpatched"} == names


def test_logit_lens(model: graphml.Model, ids: list[int]) -> None:
    """The last layer's stream through the final norm and the output projection gives the logits."""
    session = model.session(64, capture="layers.*.ffn_residual")
    logits = session.eval(ids, all_logits=True)
    tensors = model.executor.file.tensors
    norm, output = tensors["output_norm.weight"].numpy(), tensors["token_embd.weight"].numpy()
    seen = []
    for x in session.captured.values():
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + model.config.norm_eps)
        seen.append((scaled * norm) @ output.T)
    np.testing.assert_allclose(seen[-1], logits, atol=1e-3)
    agree = [(one.argmax(-1) == logits.argmax(-1)).mean() for one in seen]
    assert agree[-1] == 1 > agree[0]
