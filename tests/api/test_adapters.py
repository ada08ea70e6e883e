"""LoRA adapters and control vectors: the logits are those of a model whose weights have them merged in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.errors import UsageError, WeightsError
from graphml.loading.adapter_files import read_adapter
from graphml.runtime.plans import request_adapters
from graphml.runtime.programs import adapter_options
from tests import golden
from tests.adapter_files import Pairs, pairs_of, write_adapter, write_model, write_vectors

BETWEEN = 1e-9  # NMSE of two ways to add up the same
RANK, ALPHA = 4, 6.0
OTHER_RANK = 3


@pytest.fixture(scope="module")
def made() -> golden.Golden:
    return golden.read("llama-moe")  # experts, a router, scales of products, an output matrix


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def pairs(made: golden.Golden) -> Pairs:
    matrices = [name for name, sizes in made.tensors.items() if len(sizes) > 1 and "norm" not in name]
    used = [name for name in matrices if name.endswith(".weight") and "rope" not in name]
    return pairs_of(made, [name for name in used if not name.startswith("cls")], RANK, seed=1)


@pytest.fixture(scope="module")
def adapter(folder: Path, pairs: Pairs) -> Path:
    return write_adapter(folder / "all.gguf", pairs, alpha=ALPHA)


@pytest.fixture(scope="module")
def other(folder: Path, made: golden.Golden) -> Path:
    targets = ["blk.0.attn_q.weight", "blk.1.ffn_down_exps.weight"]
    return write_adapter(folder / "other.gguf", pairs_of(made, targets, OTHER_RANK, seed=2))


@pytest.fixture(scope="module", params=["reference", "cpu"])
def model(request: pytest.FixtureRequest, folder: Path, made: golden.Golden) -> Iterator[graphml.Model]:
    path = write_model(folder / "model.gguf", made)
    with graphml.load(path, backend=request.param, n_batch=8, kv="f32") as opened:
        yield opened


@pytest.fixture(scope="module")
def merged(folder: Path, made: golden.Golden, pairs: Pairs) -> Callable[[float], golden.Floats]:
    """Logits of a model with the adapter in its matrices, by the reference."""

    def logits(scale: float) -> golden.Floats:
        path = write_model(folder / f"merged{scale}.gguf", made, pairs, scale * ALPHA / RANK)
        with graphml.load(path, backend="reference", kv="f32") as opened:
            return opened.session(64).eval(made.tokens, all_logits=True)

    return logits


def nmse(got: golden.Floats, wanted: golden.Floats) -> float:
    return float(((got - wanted) ** 2).sum() / (wanted**2).sum())


@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_an_adapter_gives_the_logits_of_merged_weights(
    model: graphml.Model,
    made: golden.Golden,
    adapter: Path,
    merged: Callable[[float], golden.Floats],
    scale: float,
) -> None:
    wanted = merged(scale)
    session = model.session(64, lora=[(adapter, scale)])
    assert nmse(session.eval(made.tokens, all_logits=True), wanted) < BETWEEN
    assert nmse(model.session(64).eval(made.tokens, all_logits=True), wanted) > 1e-3
    steps = model.session(64, lora=[(adapter, scale)])
    assert nmse(np.stack([steps.eval([token]) for token in made.tokens]), wanted) < BETWEEN


def test_the_scale_of_a_feed_forward_scales_what_is_added(tmp_path: Path) -> None:
    made = golden.read("qwen3-dense")
    targets = ["blk.0.ffn_down.weight", "blk.1.ffn_gate.weight", "blk.1.attn_output.weight"]
    pairs = pairs_of(made, targets, RANK, seed=4)
    lora = [(write_adapter(tmp_path / "a.gguf", pairs, "qwen3"), 2.0)]
    plain, merged = write_model(tmp_path / "plain.gguf", made), tmp_path / "merged.gguf"
    with (
        graphml.load(plain, "reference", kv="f32", lora=lora) as model,
        graphml.load(write_model(merged, made, pairs, 2.0), "reference", kv="f32") as wanted,
    ):
        assert nmse(model.session(64).eval(made.tokens), wanted.session(64).eval(made.tokens)) < BETWEEN


def test_sessions_and_requests_read_a_file_once_while_it_stays_as_it_is(
    model: graphml.Model, adapter: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "own.gguf", []
    path.write_bytes(adapter.read_bytes())
    monkeypatch.setattr(
        adapter_options, "read_adapter", lambda *given: read.append(given) or read_adapter(*given)
    )
    file, options = model.executor.file, model.executor.options
    (applied,) = adapter_options.applied_adapters(file, [(path, 1.0)], np.arange(3)) or ()
    for scale in (1.0, 2.0):
        made = adapter_options.with_adapters(options, file, [(path, scale)])
        assert (made.adapters[0] is applied.adapter, made.factors) == (True, (scale,))
    assert len(read) == 1
    path.write_bytes(other.read_bytes())
    changed = adapter_options.with_adapters(options, file, [(path, 1.0)]).adapters[0]
    assert changed != applied.adapter
    assert len(read) == 2


def test_adapters_are_set_from_the_next_token_on(
    model: graphml.Model, made: golden.Golden, adapter: Path, other: Path
) -> None:
    ids = made.tokens
    session = model.session(64, lora=[(adapter, 1.0), (other, 2.0)])
    first = session.eval(ids[:4])
    session.set_lora([(other, -1.0)])
    second = session.eval(ids[4:7])
    session.set_lora([])
    plain = session.eval(ids[7:9])
    again = model.session(64)
    again.set_lora([(adapter, 1.0), (other, 2.0)])
    np.testing.assert_array_equal(first, again.eval(ids[:4]))
    fork = again.fork()  # which has them, too
    assert nmse(fork.eval(ids[4:7]), second) > 1e-3
    again.set_lora([(other, -1.0)])
    np.testing.assert_array_equal(second, again.eval(ids[4:7]))
    again.set_lora([])
    np.testing.assert_array_equal(plain, again.eval(ids[7:9]))
    assert nmse(plain, model.session(64).eval(ids[:9])) > 1e-3  # the cache is what it was


def test_adapters_add_up(model: graphml.Model, made: golden.Golden, adapter: Path, other: Path) -> None:
    halves = model.session(64, lora=[(adapter, 0.25), (other, 1.0), (adapter, 0.75)])
    whole = model.session(64, lora=[(adapter, 1.0), (other, 1.0)])
    assert nmse(halves.eval(made.tokens), whole.eval(made.tokens)) < BETWEEN
    off = model.session(64, lora=[(adapter, 0.0)])
    np.testing.assert_array_equal(off.eval(made.tokens), model.session(64).eval(made.tokens))


def test_what_is_given_to_load_holds_for_all_of_the_model(
    folder: Path, made: golden.Golden, adapter: Path, merged: Callable[[float], golden.Floats]
) -> None:
    path = write_model(folder / "loaded.gguf", made)
    with graphml.load(path, n_batch=8, kv="f32", lora=[(adapter, 1.0)]) as model:
        wanted = merged(1.0)
        assert nmse(model.session(64).eval(made.tokens, all_logits=True), wanted) < BETWEEN
        session, follows = model.session(64), []
        session.eval(made.tokens)
        for _ in range(6):
            follows.append(int(session.logits.argmax()))
            session.eval(follows[-1:])
        with model.engine(max_sequences=2, n_ctx=64) as engine:
            assert engine.submit(made.tokens, max_tokens=6).result().tokens == follows
        plain = model.session(64, lora=[])
        assert nmse(plain.eval(made.tokens, all_logits=True), wanted) > 1e-3


def greedy(session: graphml.Session, ids: list[int], count: int = 6) -> list[int]:
    return [token.id for token in session.generate(ids, max_tokens=count)]


def test_requests_of_an_engine_have_adapters_of_their_own(
    model: graphml.Model, made: golden.Golden, adapter: Path, other: Path
) -> None:
    ids = [*made.tokens, *made.tokens[::-1], *made.tokens][:40]  # more than a block
    each = [None, [(adapter, 1.0)], [(other, 4.0)], [(adapter, -0.5), (other, 2.0)], []]
    wanted = [greedy(model.session(64, lora=lora), ids) for lora in each]
    assert len({tuple(tokens) for tokens in wanted}) >= 3
    with model.engine(max_sequences=3, n_ctx=64) as engine:
        handles = [engine.submit(ids, max_tokens=6, lora=lora) for lora in each]
        assert [handle.result().tokens for handle in handles] == wanted
        for lora, tokens in zip(each[1:4], wanted[1:4], strict=True):  # each finds its own blocks
            first, again = (engine.submit(ids, max_tokens=6, lora=lora).result() for _ in range(2))
            assert (first.tokens, again.tokens, again.n_cached) == (tokens, tokens, 39)
        assert engine.submit(ids, max_tokens=6, lora=[(adapter, 2.0)]).result().n_cached == 0
        with pytest.raises(UsageError, match=r"lora: wanted a GGUF file or .*; there is none at 'no\.gguf'"):
            engine.submit(ids, lora=["no.gguf"])


def test_a_request_has_the_same_bits_beside_other_adapters(
    folder: Path, made: golden.Golden, adapter: Path, other: Path, tmp_path: Path
) -> None:
    """Experts' pairs, too; and the order in which adapters of a request add up is not that of arrival."""
    path, ids = write_model(folder / "ordered.gguf", made), [*made.tokens]
    names = ["blk.0.attn_q.weight", "blk.1.attn_output.weight", "blk.0.ffn_down_exps.weight"]
    third = write_adapter(tmp_path / "third.gguf", pairs_of(made, names, 7, seed=3))
    params = graphml.SamplingParams(logprobs=2)
    loras = [[(adapter, 0.5), (other, 1.5), (third, 1.0)], [(other, 1.0)], None, [(third, 2.0)], []]
    with graphml.load(path, kv="f32", n_batch=8, deterministic=True, threads=2) as model:
        for first, *others in (loras, loras[::-1], [loras[3], loras[0], loras[1]]):
            with model.engine(max_sequences=5, n_ctx=64) as engine:
                beside = [engine.submit(ids, params, max_tokens=4, lora=lora) for lora in (first, *others)]
                found = [[one.logprob for one in handle.result().logprobs or ()] for handle in beside]
            for lora, logprobs in zip((first, *others), found, strict=True):
                with model.engine(max_sequences=1, n_ctx=64) as engine:
                    alone = engine.submit(ids, params, max_tokens=4, lora=lora).result()
                assert [one.logprob for one in alone.logprobs or ()] == logprobs


def test_an_activated_adapter_works_from_its_invocation_on(
    model: graphml.Model, made: golden.Golden, pairs: Pairs, tmp_path: Path
) -> None:
    ids = list(made.tokens)
    invoked = write_adapter(tmp_path / "a.gguf", pairs, alpha=ALPHA, invocation=ids[5:7])
    never = write_adapter(tmp_path / "b.gguf", pairs, alpha=ALPHA, invocation=[ids[0]] * 9)
    session = model.session(64)
    session.eval(ids[:5])
    session.set_lora([(invoked, 1.0)])
    with model.engine(max_sequences=2, n_ctx=64) as engine:
        assert engine.submit(ids, max_tokens=6, lora=[invoked]).result().tokens == greedy(session, ids[5:])
        plain = greedy(model.session(64), ids)
        assert engine.submit(ids, max_tokens=6, lora=[never]).result().tokens == plain


def test_adapters_of_requests_that_have_ended_make_room(
    model: graphml.Model, made: golden.Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_adapters, "MOST_ADAPTERS", 2)
    targets = ["blk.0.attn_q.weight"]
    files = [write_adapter(tmp_path / f"{i}.gguf", pairs_of(made, targets, 2, seed=i)) for i in range(4)]
    with model.engine(max_sequences=2, n_ctx=64) as engine:
        for file in files:
            wanted = greedy(model.session(64, lora=[file]), made.tokens, 2)
            assert engine.submit(made.tokens, max_tokens=2, lora=[file]).result().tokens == wanted
        for file in files:  # refused requests hold none
            with pytest.raises(UsageError, match="prompt: wanted"):
                engine.submit([1] * 64, lora=[file])
        with pytest.raises(UsageError, match="lora: wanted at most 2 different adapters"):
            engine.submit(made.tokens, max_tokens=2, lora=files[:3])
        assert engine.submit(made.tokens, max_tokens=2).result().n_gen == 2


def test_a_session_is_restored_with_its_adapters_alone(
    model: graphml.Model, made: golden.Golden, adapter: Path, tmp_path: Path
) -> None:
    session = model.session(64, lora=[(adapter, 1.0)])
    session.eval(made.tokens)
    session.save(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"saved: was saved with another model.*adapters"):
        model.restore(tmp_path / "saved")
    with graphml.load(model.path, model.executor.backend.name, kv="f32", lora=[(adapter, 1.0)]) as again:
        restored = again.restore(tmp_path / "saved")
        np.testing.assert_allclose(restored.eval([3]), session.eval([3]), rtol=1e-4, atol=1e-4)


def test_control_vectors_are_added_to_what_layers_give(
    model: graphml.Model, made: golden.Golden, folder: Path
) -> None:
    width = made.tensors["token_embd.weight"][0]
    one, two = np.random.default_rng(3).standard_normal((2, width), np.float32)
    first = write_vectors(folder / "first.gguf", {1: one})
    second = write_vectors(folder / "second.gguf", {1: two, 2: two})
    wanted = model.session(64, patch={"layers.1.ffn_residual": lambda x: x + one - 2 * two})
    session = model.session(64, control_vectors=[(first, 1.0), (second, -2.0)])
    assert nmse(session.eval(made.tokens), wanted.eval(made.tokens)) < BETWEEN
    out_of_range = model.session(64, control_vectors=[(first, 1.0)], control_layers=(2, 3))
    np.testing.assert_array_equal(out_of_range.eval(made.tokens), model.session(64).eval(made.tokens))
    with pytest.raises(UsageError, match=r"control_vectors: wanted a layer 2 that gives one value of"):
        model.session(64, control_vectors=[second], control_layers=(2, 2)).eval(made.tokens)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"architecture": "qwen2"}, "general.architecture: wanted 'llama', got 'qwen2'"),
        ({"kind": "dora"}, "adapter.type: wanted 'lora', got 'dora'"),
        ({"pairs": {"blk.9.attn_q.weight": ((4, 256), (256, 4))}}, "the model has no such tensor"),
        (
            {"pairs": {"blk.0.attn_q.weight": ((4, 255), (256, 4))}},
            r"blk.0.attn_q.weight is \[256, 256\]: wanted",
        ),
        ({"pairs": {"blk.0.attn_q.weight": ((4, 256), (256, 5))}}, r"wanted .lora_a \[5, 256\]"),
        ({"pairs": {}}, "there are none"),
    ],
)
def test_files_that_fit_no_model_are_refused(
    model: graphml.Model, tmp_path: Path, change: dict[str, object], told: str
) -> None:
    shapes = change.get("pairs", {"blk.0.attn_q.weight": ((4, 256), (256, 4))})
    assert isinstance(shapes, dict)
    pairs = {name: tuple(np.ones(shape, np.float32) for shape in both) for name, both in shapes.items()}
    path = write_adapter(tmp_path / "wrong.gguf", **{**change, "pairs": pairs})  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match=r"wrong\.gguf: .*" + told):
        model.session(64, lora=[(path, 1.0)])


def test_pairs_of_what_is_no_matrix_are_refused(
    model: graphml.Model, made: golden.Golden, tmp_path: Path
) -> None:
    gates = {"blk.0.ffn_gate_inp.weight": (np.ones((2, 256), np.float32), np.ones((8, 2), np.float32))}
    session = model.session(64, lora=[write_adapter(tmp_path / "gates.gguf", gates)])
    session.eval(made.tokens)  # a router is one
    with pytest.raises(UsageError, match=r"lora: scale of .*: wanted a finite number"):
        model.session(64, lora=[(tmp_path / "gates.gguf", float("nan"))])
    with pytest.raises(WeightsError, match=r"model\.gguf: general\.type"):
        model.session(64, lora=[(model.path, 1.0)])
    with pytest.raises(UsageError, match="control_layers: wanted control_vectors, too"):
        model.session(64, control_layers=(1, 2))
