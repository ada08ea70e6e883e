"""Multi-token prediction: the layer against its formula, and texts that stay the same with its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest

import graphml
from graphml.api.engine_memory import n_blocks_for
from graphml.compiler.options import CompileOptions
from graphml.errors import BackendError, UsageError
from graphml.runtime.blocks.drafting import StepTimes
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.memory_needed import state_bytes
from graphml.runtime.programs.model_graphs import HIDDEN
from graphml.runtime.sessions.pinned import Room
from graphml.runtime.sessions.prediction_head import HEAD_CELLS, head_cell_bytes, prediction_head
from graphml.sampling import SamplingParams
from tests import tiny_model
from tests.one_text import OneText
from tests.sample_models import MODELS, write_model
from tests.tiny_model import HEADS, KV_HEADS, LAYERS, WIDTH

FILE = '''"""Llama, and a layer for multi-token prediction behind it."""
from graphml_models import _ahead
from graphml_models._config import Config as Config
from graphml_models.llama import build as build
ahead = _ahead.build
'''
EPS = 1e-5
KINDS = [
    {},
    {"temperature": 1.2, "top_p": 0.95, "repeat_penalty": 1.1, "dry_multiplier": 0.5},
    {"temperature": 1.0, "mirostat": 2},
    {"temperature": 0.9, "top_k": 20, "rng": "llama.cpp"},
    {"temperature": 0.8, "regex": "[ -~]{30}"},
]
NAMES = ["greedy", "sampled", "mirostat", "llama.cpp", "grammar"]
AHEAD = sorted(name for name in MODELS if name.endswith("-ahead"))


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of drafts do not depend on what else the machine does, and unlikely ids are drafted, too."""
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.05 * n_rows)
    monkeypatch.setattr("graphml.runtime.blocks.drafting.LEAST_PROBABILITY", 0.0)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """random: as it is written. right: a text depends on its last id alone, and the head knows how."""
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "llama.py").write_text(FILE)
    random = tiny_model.write(folder / "random.gguf", ahead=True)
    right = folder / "right.gguf"
    right.write_bytes(random.read_bytes())
    reader = gguf.GGUFReader(right, "r+")
    for tensor in reader.tensors:
        if tensor.name.endswith(("attn_output.weight", "ffn_down.weight")):
            tensor.data[:] = 0
        elif tensor.name.endswith("eh_proj.weight"):
            tensor.data[:] = np.hstack([np.eye(WIDTH), np.zeros((WIDTH, WIDTH))]).astype(np.float32)
    return {"random": random, "right": right, "arch": folder / "llama.py"}


@pytest.fixture(scope="module", params=["random", "right"])
def named(request: pytest.FixtureRequest, paths: dict[str, Path]) -> Iterator[tuple[str, graphml.Model]]:
    with graphml.load(paths[request.param], "cpu", arch=paths["arch"], threads=1, n_batch=32) as model:
        yield request.param, model


def norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w


def rotated(x: np.ndarray) -> np.ndarray:
    """Llama's rope of [T, heads, H]: neighbours are pairs."""
    at, half = np.arange(len(x)), x.shape[-1] // 2
    angle = at[:, None, None] * 10000.0 ** (-np.arange(half) / half)
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack(
        [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1
    ).reshape(x.shape)


def head_in_numpy(path: Path, ids: list[int], hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and hidden rows of DeepSeek-V3's formulas (21) to (23), with a layer of llama."""
    weights = {one.name: np.array(one.data, np.float64) for one in gguf.GGUFReader(path).tensors}
    w = {key.removeprefix(f"blk.{LAYERS}.").removesuffix(".weight"): value for key, value in weights.items()}
    e = norm(w["token_embd"][ids], w["nextn.enorm"])
    x = np.concatenate([e, norm(hidden.astype(np.float64), w["nextn.hnorm"])], -1) @ w["nextn.eh_proj"].T
    n, width = len(ids), WIDTH // HEADS
    a = norm(x, w["attn_norm"])
    q, k, v = (
        (a @ w[f"attn_{one}"].T).reshape(n, heads, width)
        for one, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    )
    k, v = (np.repeat(one, HEADS // KV_HEADS, axis=1) for one in (rotated(k), v))
    scores = np.einsum("qhd,khd->hqk", rotated(q), k) * width**-0.5 + np.triu(np.full((n, n), -np.inf), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    x = x + np.einsum("hqk,khd->qhd", shares, v).reshape(n, WIDTH) @ w["attn_output"].T
    a = norm(x, w["ffn_norm"])
    gate = a @ w["ffn_gate"].T
    x = x + (gate / (1 + np.exp(-gate)) * (a @ w["ffn_up"].T)) @ w["ffn_down"].T
    x = norm(x, w["nextn.shared_head_norm"])
    return x @ w["output"].T, x


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_head_is_its_formula(paths: dict[str, Path], backend: str) -> None:
    generator = np.random.default_rng(3)
    ids, hidden = [5, 90, 17, 200, 5, 61, 33], generator.standard_normal((7, WIDTH)).astype(np.float32)
    wanted, rows = head_in_numpy(paths["random"], ids, hidden)
    with graphml.load(paths["random"], backend, arch=paths["arch"], n_batch=4, kv="f32") as model:
        head = prediction_head(model.executor)
        text = OneText(head.executor, 16).sequence
        head.step(text, ids[:4], hidden[:4])
        for end in (5, 6, 7):  # one by one behind a chunk
            logits, row = head.step(text, ids[end - 1 : end], hidden[end - 1 : end])
            np.testing.assert_allclose(logits, wanted[end - 1], rtol=2e-4, atol=2e-4)
            np.testing.assert_allclose(row, rows[end - 1], rtol=2e-4, atol=2e-4)


def test_hidden_rows_leave_logits_as_they_are(named: tuple[str, graphml.Model]) -> None:
    """The bits of a step's logits do not depend on whether the rows of all its tokens are outputs."""
    from dataclasses import replace

    _, model = named
    executor, ids = model.executor, np.arange(3, 33, dtype=np.int32)
    found = []
    for hidden in (False, True):
        options = replace(executor.options, hidden=hidden)
        for count in (30, 1):
            outputs = OneText(executor, options=options).outputs(ids[:count], all_logits=False)
            found.append(outputs["logits"][0].tobytes())
        if hidden:
            assert outputs[HIDDEN].shape == (1, WIDTH)
    assert found[:2] == found[2:]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_texts_are_the_same_with_multi_token_prediction(
    named: tuple[str, graphml.Model], kind: dict[str, object]
) -> None:
    name, model = named
    prompts = [model.encode(one) for one in ("hello world hello", "a", "x" * 70)]
    found = []
    for spec_type in ("none", "mtp"):
        params = SamplingParams(spec_type=spec_type, **kind)  # type: ignore[arg-type]
        with model.session(seed=5) as session:
            for prompt in prompts[:2]:
                found.append([token.id for token in session.generate(prompt, params, 30)])
            found.append(list(session.logits))
            stats = session.stats
        with model.engine(max_sequences=4, n_ctx=128) as engine:
            handles = [
                engine.submit(one, params, 40, seed=i, n=1 + (i == 2)) for i, one in enumerate(prompts)
            ]
            results = [one for handle in handles for one in handle.results(60)]
            found.append([one.tokens for one in results])
            rest = engine.stats()
            assert (rest.running, rest.waiting, rest.blocks_used) == (0, 0, 0)
    assert found[:4] == found[4:]
    assert stats.n_drafted > 0
    assert sum(one.n_drafted for one in results) > 0 or "regex" in kind  # which may allow none
    if name == "right" and not kind:
        assert stats.n_accepted == stats.n_drafted
        assert sum(one.n_accepted for one in results) > 30


def test_a_generation_that_takes_the_place_of_another_keeps_its_drafts(paths: dict[str, Path]) -> None:
    """The former one ends behind the begin of the next, as where one variable names both."""
    params = SamplingParams(spec_type="mtp")
    with graphml.load(paths["right"], "cpu", arch=paths["arch"], threads=1) as model:
        session = model.session()
        tokens = session.generate([5, 9, 7], params, 20)
        next(tokens)
        tokens = session.generate([5, 9, 7], params, 20)
        assert len(list(tokens)) == 20
        assert session.stats.n_accepted > 0
        assert session._probe.watch is None


@pytest.mark.parametrize("name", AHEAD)
def test_families_draft_by_their_own_layers(name: str, tmp_path: Path) -> None:
    with graphml.load(write_model(tmp_path / "model.gguf", *MODELS[name]), "cpu", n_batch=32) as model:
        found = []
        for spec_type in ("none", "mtp"):
            with model.session() as session:
                params = SamplingParams(spec_type=spec_type)
                found.append([token.id for token in session.generate([1, 5, 9, 3], params, 40)])
        assert found[0] == found[1]
        assert session.stats.n_drafted > 0


def test_families_with_a_layer_ahead_are_these() -> None:
    families = {name.removesuffix("-ahead") for name in AHEAD}
    assert families == {
        "bailingmoe2", "deepseek2", "deepseek32", "glm-dsa", "glm4moe", "hy-v3", "mimo2", "mistral4", "qwen2",
        "qwen35", "qwen35moe", "qwen3next",
    }  # fmt: skip


def test_a_model_without_the_layer_is_refused(tmp_path: Path, paths: dict[str, Path]) -> None:
    params = SamplingParams(spec_type="mtp")
    path = tiny_model.write(tmp_path / "tiny.gguf")
    unknown = "a layer for multi-token prediction that graphml reads, which llama is not"
    for arch, why in ((None, unknown), (paths["arch"], "nextn")):
        with graphml.load(path, "cpu", arch=arch, threads=1) as model, model.session() as session:
            with pytest.raises(UsageError, match=f"spec_type: mtp wants .*{why}"):
                session.generate([1], params)
            with model.engine() as engine, pytest.raises(UsageError, match=f"spec_type: mtp wants .*{why}"):
                engine.submit([1], params)


def test_a_head_on_several_devices_is_refused(paths: dict[str, Path]) -> None:
    params, split = SamplingParams(spec_type="mtp"), "cpu,reference"
    with graphml.load(paths["right"], split, arch=paths["arch"]) as model:
        session = model.session()
        with pytest.raises(UsageError, match="on one backend"):
            session.generate([1], params)


def test_a_closed_model_closes_its_head(paths: dict[str, Path]) -> None:
    """Though somebody who drafts with it is still there."""
    with graphml.load(paths["right"], "cpu", arch=paths["arch"], threads=1) as model:
        head = prediction_head(model.executor)
        drafter = head.drafter(64, model.n_vocab)
        head.prepare()
    assert not head.executor.weights
    drafter.saw(0, np.zeros((1, WIDTH), np.float32))
    with pytest.raises(UsageError, match="closed"):
        drafter.propose([1, 2], 3)


def test_a_text_that_changed_is_read_anew(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewinds, other texts and gaps cost drafts, never wrong pairs."""
    with graphml.load(paths["right"], "cpu", arch=paths["arch"], threads=1, n_batch=32) as model:
        drafter = prediction_head(model.executor).drafter(64, model.n_vocab)
        rows = np.random.default_rng(1).standard_normal((40, WIDTH)).astype(np.float32)
        ids = list(range(3, 43))
        assert drafter.propose(ids[:5], 3).ids == []  # nothing was seen
        drafter.saw(0, rows[:9])
        first = drafter.propose(ids[:10], 3).ids
        assert len(first) == 3
        assert drafter.propose(ids[:10], 3).ids == []  # nothing new
        drafter.saw(9, rows[9:12])  # of which the last two were drafts that are wrong
        assert drafter.propose(ids[:11], 3).ids
        drafter.saw(20, rows[20:25])  # a gap
        assert len(drafter.propose(ids[:26], 2).ids) == 2
        other = [*ids[:24], 99, 98, 97]
        drafter.saw(25, rows[25:26])
        assert drafter.propose(other, 2).ids == []
        drafter.saw(0, rows[:9])
        drafter.close()
        drafter.saw(0, rows[:9])
        assert drafter.propose(ids[:10], 3).ids == first
        monkeypatch.setattr("graphml.runtime.blocks.drafting.LEAST_PROBABILITY", 1.1)
        drafter.saw(9, rows[9:10])
        assert drafter.propose(ids[:11], 3).ids == []  # not likely enough


def test_the_cells_of_the_layer_are_a_part_of_an_engines_memory(paths: dict[str, Path]) -> None:
    sizes = []
    for arch in (paths["arch"], None):
        with graphml.load(paths["random"], "cpu", arch=arch, threads=1, n_batch=32) as model:
            executor = model.executor
            one = state_bytes(executor, {"S": 1, "C": 32}) - state_bytes(executor, {"S": 1, "C": 0})
            sizes.append((head_cell_bytes(executor), n_blocks_for(executor, 12 * one, 4, 4096)))
            layer = one // 32 // LAYERS
    room = 12 * LAYERS - 4  # in blocks of a layer: without those at the ends of four sequences
    assert sizes == [(layer, int(room / (LAYERS + HEAD_CELLS / 4))), (0, 12)]


def test_without_memory_for_more_cells_the_layer_forgets_the_text(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(executor: Executor, options: CompileOptions, n_ctx: int) -> Room:
        if n_ctx > 64:
            raise BackendError("no memory")
        return Room(executor, options, n_ctx)

    monkeypatch.setattr("graphml.runtime.sessions.prediction_head.Room", refused)
    with graphml.load(paths["right"], "cpu", arch=paths["arch"], threads=1, n_batch=32) as model:
        params = SamplingParams(spec_type="mtp")
        with model.session(n_ctx=160) as session:
            wanted = [token.id for token in session.generate([1, 5, 9], None, 140)]
            session.rewind(0)
            assert [token.id for token in session.generate([1, 5, 9], params, 140)] == wanted
            assert session.stats.n_accepted > 80  # those behind the first 64, too


@pytest.mark.parametrize("spec_type", ["ngram", "mtp"])
def test_a_later_request_with_drafts_waits_for_no_step(paths: dict[str, Path], spec_type: str) -> None:
    with graphml.load(paths["right"], "cpu", arch=paths["arch"], threads=1, n_batch=32) as model:
        asked, params = [1, 5, 9], SamplingParams(spec_type=spec_type)
        with model.engine(max_sequences=2, n_ctx=64) as engine, ThreadPoolExecutor(1) as threads:
            wanted = engine.submit(asked, params, 9).result(60)
            with model.executor.lock:  # as a step holds it
                later = threads.submit(engine.submit, asked, params, 9).result(10)
            assert later.result(60).tokens == wanted.tokens


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_cells_of_the_layer_grow_with_the_text(paths: dict[str, Path], backend: str) -> None:
    """A device allocates them whole, so those of a long context are not made before they are needed."""
    with graphml.load(paths["random"], backend, arch=paths["arch"], n_batch=32) as model:
        head, rows = prediction_head(model.executor), np.random.default_rng(1)
        one = head_cell_bytes(model.executor)
        grown, whole = head.drafter(400, model.n_vocab), head.drafter(400, model.n_vocab)
        whole._cells = whole._cells_for(400)
        ids, sizes = rows.integers(0, 200, 400).tolist(), set()
        hidden = rows.standard_normal((400, WIDTH), np.float32)
        for end in (20, 21, 60, 200, 201, 395):
            for one_of in (grown, whole):
                one_of.saw(one_of._next, hidden[one_of._next : end])
            assert grown.propose(ids[: end + 1], 3).ids == whole.propose(ids[: end + 1], 3).ids != []
            assert grown._cells is not None
            sizes.add(grown._cells.room.runner.state.n_bytes)
            assert (
                (end + 2) * one
                <= grown._cells.room.runner.state.n_bytes
                <= one * min(416, 32 + (end + 3) * 5 // 4)
            )
        assert len(sizes) == 4
