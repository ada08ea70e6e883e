"""States of an architecture's own: in whatever steps a text is read, its logits are those of a plain loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.authoring.verify.runs import RecordRuns
from graphml.errors import ArchitectureError, UsageError
from graphml.inspect.compare.observe import observe
from graphml.sampling import SamplingParams
from tests import golden
from tests.golden import Floats, nmse
from tests.one_text import OneText

WIDTH, N_VOCAB, N_CTX = 16, 40, 128
CLOSE = 1e-10
IDS = np.random.default_rng(3).integers(0, N_VOCAB, 60).tolist()
GREEDY = SamplingParams(temperature=0)

FILE = '''"""A leaky sum of a text's rows, in a state of its own, and attention to all of them."""
from dataclasses import dataclass

from graphml.ir.dtype import F32
from graphml.ir.ops.index import get_rows, set_rows


@dataclass(frozen=True)
class Config:
    n_ctx: int
    n_vocab: int
    width: int

    @classmethod
    def read(cls, keys):
        return cls(keys.integer("context_length"), keys.n_vocab(), keys.integer("embedding_length"))


def build(g, config, weights):
    x = g.embed(weights["token_embd"], g.tokens)
    memory = g.state("memory", F32, (g.n_sequences, config.width))
    before = g.rows(memory, g.sequences)
    g.call(set_rows, memory, g.add(x, g.scale(before, 0.7)), g.sequences)
    x = g.add(x, g.tanh(before))
    heads = g.heads(x, 1)
    x = g.add(x, g.flatten(g.attend(heads, heads, heads, 0, 0.25)))
    return weights.logits(x)
'''


def weights() -> dict[str, Floats]:
    numbers = np.random.default_rng(1)
    shape = N_VOCAB, WIDTH
    return {
        name: numbers.normal(size=shape).astype(np.float32) for name in ("token_embd.weight", "output.weight")
    }


def expected(ids: list[int]) -> Floats:
    """The logits behind each id, float64 [len(ids), N_VOCAB], token by token."""
    embedding, output = (array.astype(np.float64) for array in weights().values())
    memory, rows, found = np.zeros(WIDTH), [], []
    for token in ids:
        x = embedding[token] + np.tanh(memory)
        memory = embedding[token] + 0.7 * memory
        rows.append(x)
        seen = np.array(rows)
        scores = np.exp(0.25 * (seen @ x) - (0.25 * (seen @ x)).max())
        found.append(output @ (x + scores / scores.sum() @ seen))
    return np.array(found)


def write(folder: Path, text: str = FILE) -> tuple[Path, Path]:
    """The model's file and its architecture's."""
    (arch := folder / "leaky.py").write_text(text)
    metadata: Any = {
        f"leaky.{key}": ("UINT32", value)
        for key, value in (("context_length", N_CTX), ("embedding_length", WIDTH), ("vocab_size", N_VOCAB))
    }
    return golden.write_gguf(folder / "model.gguf", "leaky", metadata, weights()), arch


def opened(folder: Path, backend: str, text: str = FILE, **more: Any) -> graphml.Model:
    path, arch = write(folder, text)
    return graphml.load(path, backend, arch=arch, threads=2, n_batch=16, kv="f32", **more)


@pytest.fixture(scope="module", params=["reference", "cpu"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[graphml.Model]:
    with opened(tmp_path_factory.mktemp("leaky"), request.param) as made:
        yield made


def greedy(ids: list[int], count: int) -> list[int]:
    """The ids that follow."""
    text = list(ids)
    for _ in range(count):
        text.append(int(expected(text)[-1].argmax()))
    return text[len(ids) :]


def logprobs(ids: list[int]) -> Floats:
    """Of each id but the first."""
    rows = expected(ids[:-1])
    found: Floats = (rows - np.log(np.exp(rows).sum(1, keepdims=True)))[np.arange(len(rows)), ids[1:]]
    return found


@pytest.mark.parametrize("cuts", [[], list(range(1, 40)), [1, 4, 23, 24], [16, 32], [39]])
def test_steps_do_not_matter(model: graphml.Model, cuts: list[int]) -> None:
    with model.session() as session:
        rows = [session.eval(part, all_logits=True) for part in map(list, np.split(IDS[:40], cuts))]
    assert nmse(np.concatenate(rows), expected(IDS[:40])) < CLOSE


def test_what_was_before_is_forgotten(model: graphml.Model) -> None:
    """By a rewind to a beginning or into a text, and by another session; also what is no number."""
    session = model.session()
    session.eval(IDS[20:40])
    session.rewind(0)
    assert nmse(session.eval(IDS[:9]), expected(IDS[:9])[-1]) < CLOSE
    session.eval(IDS[9:12])
    session.rewind(5)
    assert nmse(session.eval(IDS[30:33]), expected([*IDS[:5], *IDS[30:33]])[-1]) < CLOSE
    session.rewind(0)
    session.sequence().room.runner.state.array("memory")[:] = np.nan
    assert nmse(session.eval(IDS[:3], all_logits=True), expected(IDS[:3])) < CLOSE
    session.close()
    with model.session() as other:
        assert nmse(other.eval(IDS[7:8]), expected(IDS[7:8])[-1]) < CLOSE


def test_saved_forked_and_in_a_batch(model: graphml.Model, tmp_path: Path) -> None:
    session = model.session()
    session.eval(IDS[:10])
    session.save(tmp_path / "s.safetensors")
    restored = model.restore(tmp_path / "s.safetensors")
    assert isinstance(restored, graphml.Session)
    for made in (session, session.fork(), restored):
        assert nmse(made.eval(IDS[10:15], all_logits=True), expected(IDS[:15])[10:]) < CLOSE
    texts = [IDS[:5], IDS[10:31], IDS[40:41]]
    rows = model.batch(3).eval(texts)
    for row, ids in zip(rows, texts, strict=True):
        assert nmse(row, expected(ids)[-1]) < CLOSE


@pytest.mark.parametrize("backend", ["numba", "opencl", "wgpu", "opencl,reference"])
def test_other_backends_give_the_same(tmp_path: Path, backend: str) -> None:
    more: dict[str, Any] = {"gpu_layers": 0} if "," in backend else {}
    with opened(tmp_path, backend, **more) as model:
        session = model.session(n_ctx=64)
        session.eval(IDS[20:25])
        session.rewind(0)
        rows = [session.eval(part, all_logits=True) for part in (IDS[:4], IDS[4:5], IDS[5:11])]
        assert nmse(np.concatenate(rows), expected(IDS[:11])) < CLOSE
        prompts = [IDS[:9], IDS[30:33]]
        with model.engine(max_sequences=2, n_ctx=64) as engine:
            handles = [engine.submit(ids, GREEDY, max_tokens=3) for ids in prompts]
            assert [list(one.result(60).tokens) for one in handles] == [greedy(ids, 3) for ids in prompts]


@pytest.mark.parametrize("max_sequences", [1, 3])
def test_an_engine_with_requests_beside(model: graphml.Model, max_sequences: int) -> None:
    """Prompts of unlike lengths at a time, a prefix found again, the same after others."""
    prompts = [IDS[:40], IDS[3:8], IDS[20:21], [*IDS[:35], *IDS[50:54]], IDS[:40]]
    with model.engine(max_sequences=max_sequences, n_ctx=N_CTX) as engine:
        for _ in range(2):
            handles = [engine.submit(ids, GREEDY, max_tokens=6) for ids in prompts]
            assert [list(one.result(60).tokens) for one in handles] == [greedy(ids, 6) for ids in prompts]
        assert engine.stats().hit_tokens > 0


def test_beams_and_log_probabilities_of_a_prompt(model: graphml.Model) -> None:
    with model.engine(max_sequences=2, n_ctx=N_CTX) as engine:
        wanted = SamplingParams(temperature=0, prompt_logprobs=1)
        scores = engine.submit(IDS[:12], wanted, max_tokens=1).result(60).prompt_logprobs
    assert scores is not None
    found = [one.logprob for one in scores[1:] if one is not None]
    np.testing.assert_allclose(found, logprobs(IDS[:12]), atol=1e-5)
    for beam in model.beam_search(IDS[:12], 3, 5):
        assert beam.logprob == pytest.approx(logprobs([*IDS[:12], *beam.tokens])[-5:].sum(), abs=1e-5)


def test_drafts_embeddings_shifts_and_long_steps_are_refused(model: graphml.Model) -> None:
    executor = model.executor
    with model.session() as session:
        with pytest.raises(UsageError, match=r"spec_type: leaky has states of its own.*wanted none"):
            next(iter(session.generate(IDS[:3], SamplingParams(spec_type="ngram"), 3)))
        session.eval(IDS[:9])
        with pytest.raises(UsageError, match="shift: leaky has no context shift: memory is a state"):
            session.shift(1, 4)
    with pytest.raises(UsageError, match=r"leaky has states of its own.*to embed it"):
        model.embed_ids([IDS[:3]], pooling="mean")
    text = OneText(executor, 32)
    with pytest.raises(UsageError, match=r"leaky has states of its own.*wanted 1 token of each text; got 2"):
        text.step(IDS[:2], False)


def test_observed_runs_take_a_token_at_a_time_too(model: graphml.Model) -> None:
    run = observe(model.executor, IDS[:5])
    assert [step.name for step in run.steps] == [*(f"prefill {i}" for i in range(4)), "decode"]
    rows = [step.values[step.graph.outputs["logits"].name][0] for step in run.steps]
    assert nmse(np.array(rows), expected(IDS[:5])) < CLOSE
    with pytest.raises(UsageError, match=r"leaky has states of its own.*wanted a record of one token"):
        RecordRuns(model.executor, tuple(IDS[:5]))


def test_a_warning_names_the_state_and_the_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path, "reference") as model, model.session(), model.session():
        pass
    (told,) = [one.getMessage() for one in caplog.records if "token by token" in one.getMessage()]
    assert re.search(r"get_rows.*leaky\.py:22\) uses the state 'memory'.*what=\.\.\.", told)


MISUSES = {
    "g.rows(memory, g.tokens)": r"'memory' has a row for each text; wanted g\.sequences.*got %tokens",
    "g.call(get_rows, memory, g.sequences)": r"state of an earlier text.*|is that of an earlier text",
    'g.rows(g.state("m", F32, (8, 16)), g.sequences)': r"'m', f32\[8, 16\], belongs to no text",
    'g.rows(g.state("m", F32, (g.n_cells, 16)), g.cells)': r"cells of the state 'm' are those of other texts",
}


@pytest.mark.parametrize("read", MISUSES)
def test_what_another_text_would_see_is_refused(tmp_path: Path, read: str) -> None:
    text = FILE.replace("g.rows(memory, g.sequences)", read)
    with opened(tmp_path, "reference", text) as model, pytest.raises(ArchitectureError) as told:
        model.session()
    assert re.search(rf"get_rows.*leaky\.py:22\).*{MISUSES[read]}", str(told.value))


def test_a_text_that_is_read_at_once_has_no_such_state(tmp_path: Path) -> None:
    told = r"uses the state 'memory'.*read at once has several"
    text = FILE.replace("\n\n@dataclass", "\n\nCAUSAL = False\n\n@dataclass")
    with opened(tmp_path, "reference", text) as model, pytest.raises(ArchitectureError, match=told):
        model.session()
