"""Answers of diffusion models: llama.cpp's tokens, and the same ones whoever asks and whatever is beside."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import graphml
from graphml.errors import ContextFullError, UsageError, WeightsError
from graphml.loading.discovery import architecture
from graphml.sampling import SamplingParams
from graphml.sampling.denoiser import Denoiser
from tests import golden, tiny_model
from tests.adapter_files import random_pairs, write_adapter, write_vectors

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "diffusion.json").read_text())
"""Answers of llama.cpp's example to random prompts with random settings, of the goldens' weights.

At temperature 0 its sampler takes the most likely token here, as its page says, not a random one.
"""
MASK = 5


def written(folder: Path, name: str, shifts: bool | None = True, mask: int | None = MASK) -> Path:
    """A golden as a diffusion model whose file says what denoising needs."""
    spec = golden.read(name)
    metadata = dict(spec.metadata)
    if shifts is not None:
        metadata["diffusion.shift_logits"] = "BOOL", shifts
    if mask is not None:
        metadata["tokenizer.ggml.mask_token_id"] = "UINT32", mask
    tensors = {
        tensor: golden.weights(tensor, sizes, spec.seed)
        for tensor, sizes in spec.tensors.items()
        if not (name.startswith("llada") and tensor.endswith(".bias")) and tensor != "output.bias"
    }
    return golden.write_gguf(folder / f"{name}.gguf", spec.architecture, metadata, tensors)


def test_a_model_that_drafts_for_it_is_refused(tmp_path: Path) -> None:
    path, draft = written(tmp_path, "llada-moe-moe"), tiny_model.write(tmp_path / "draft.gguf")
    with pytest.raises(UsageError, match=r"draft_model: wanted a model that continues a text.*is of"):
        graphml.load(path, "reference", draft_model=draft)


@pytest.mark.parametrize("name", sorted({case["model"] for case in RECORDED}))
def test_the_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    cases = [case for case in RECORDED if case["model"] == name]
    assert len(cases) == 18
    path = written(tmp_path, name, shifts=not name.startswith("llada"))
    with graphml.load(path, "cpu", threads=1, kv="f32") as model, model.engine() as engine:
        handles = [
            engine.submit(
                case["prompt"], SamplingParams(**case["settings"], rng="llama.cpp"), len(case["answer"]),
                case["seed"],
            )
            for case in cases
        ]  # fmt: skip
        for case, handle in zip(cases, handles, strict=True):
            assert handle.result().tokens == case["answer"], case
        case = cases[-1]
        session = model.session(seed=case["seed"])
        params = SamplingParams(**case["settings"], rng="llama.cpp")
        ids = [token.id for token in session.generate(case["prompt"], params, len(case["answer"]))]
        assert ids == case["answer"]
        assert session.tokens == [*case["prompt"], *ids]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = tiny_model.write(tmp_path_factory.mktemp("diffusion") / "tiny.gguf", denoises=True)
    with graphml.load(path, "reference", kv="f32", n_batch=96) as model:
        yield model


SAMPLED = {"temperature": 0.9, "top_k": 30, "diffusion_steps": 12, "diffusion_block_length": 5}
PROMPTS = ["hello", "hello world", "a", "world world world"]


def test_a_session_an_engine_and_a_stream_answer_alike(tiny: graphml.Model) -> None:
    answer = tiny.generate("hello", max_tokens=13, seed=3, **SAMPLED)
    assert (len(answer.tokens), answer.stop_reason, answer.n_cached) == (13, "length", 0)
    session = tiny.session(seed=3)
    tokens = list(session.generate("hello", max_tokens=13, **SAMPLED))
    assert [token.id for token in tokens] == answer.tokens
    assert (
        "".join(map(str, tokens))
        == answer.text
        == "".join(tiny.generate("hello", max_tokens=13, seed=3, stream=True, **SAMPLED))
    )
    assert (session.stop_reason, session.stats.n_prompt, session.stats.n_gen) == (
        "length",
        answer.n_prompt,
        13,
    )
    assert asyncio.run(tiny.agenerate("hello", max_tokens=13, seed=3, **SAMPLED)) == answer
    assert tiny.generate("hello", max_tokens=13, seed=4, **SAMPLED).tokens != answer.tokens


def test_requests_together_answer_as_each_alone(tiny: graphml.Model) -> None:
    alone = [tiny.generate(prompt, max_tokens=11, seed=5, **SAMPLED) for prompt in PROMPTS]
    with tiny.engine(max_sequences=4) as engine:
        handles = [engine.submit(prompt, max_tokens=11, seed=5, **SAMPLED) for prompt in PROMPTS]
        assert [handle.result() for handle in handles] == alone
        assert engine.stats().n_steps < 12 * len(PROMPTS)
        assert engine.stats().rows_per_step > 11
        several = engine.submit("hello", max_tokens=11, seed=5, n=3, **SAMPLED).results()
        assert several[0] == alone[0]
        assert len({tuple(result.tokens) for result in several}) == 3
        with pytest.raises(UsageError, match="embed_ids: wanted a model on one device, no diffusion model"):
            engine.embed_ids([[1, 2]], "last")
        handle = engine.submit("hello", max_tokens=11, seed=5, **SAMPLED)
        assert tiny.embed("hello", "last").shape == (32,)
        assert handle.result() == alone[0]


def test_threads_change_no_token(tmp_path: Path) -> None:
    path = written(tmp_path, "llada-moe-moe", shifts=False)
    answers = []
    for threads in (1, 2):
        with graphml.load(path, "cpu", threads=threads, kv="f32") as model:
            answers.append(model.generate([9, 8, 7], max_tokens=40, seed=1, temperature=0.7).tokens)
    assert answers[0] == answers[1]


def test_tokens_come_as_soon_as_nothing_before_them_is_open(tiny: graphml.Model) -> None:
    session = tiny.session()
    settled: list[int] = []
    session.on_denoised = lambda answer: settled.append(answer.n_settled)
    settings: dict[str, Any] = {"diffusion_block_length": 4, "diffusion_steps": 6}
    bias = {tiny_model.END: -math.inf}
    after = [len(settled) for _ in session.generate("hello", max_tokens=12, logit_bias=bias, **settings)]
    assert settled[1::2] == [4, 8, 12]
    assert [after[3] <= 2, after[7] <= 4, after[11] <= 6] == [True, True, True]


def ends_at(model: graphml.Model, **settings: Any) -> tuple[list[int], list[int]]:
    whole = model.generate("hello", max_tokens=20, diffusion_block_length=5, diffusion_steps=20).tokens
    session = model.session()
    cut = [
        token.id
        for token in session.generate(
            "hello", max_tokens=20, diffusion_block_length=5, diffusion_steps=20, **settings
        )
    ]
    assert session.stop_reason == "stop"
    steps = model.generate("hello", max_tokens=20, diffusion_block_length=5, diffusion_steps=20, **settings)
    assert steps.stop_reason == "stop"
    assert session.generated == steps.tokens
    return whole, cut


def test_a_stop_token_ends_an_answer(tiny: graphml.Model) -> None:
    whole = tiny.generate("hello", max_tokens=20, diffusion_block_length=5, diffusion_steps=20).tokens
    last = next(id for id in whole[3:] if id not in whole[:3])
    ids, cut = ends_at(tiny, stop_tokens={last})
    assert cut == ids[: ids.index(last)]


def test_a_stop_string_ends_an_answer(tiny: graphml.Model) -> None:
    whole = tiny.generate("hello", max_tokens=20, diffusion_block_length=5, diffusion_steps=20)
    letter = next(letter for letter in whole.text[2:] if letter.isascii())
    result = tiny.generate(
        "hello", max_tokens=20, diffusion_block_length=5, diffusion_steps=20, stop=(letter,)
    )
    assert (result.text, result.stop_reason) == (whole.text[: whole.text.index(letter)], "stop")


def test_an_end_token_ends_an_answer_before_its_later_blocks(tiny: graphml.Model) -> None:
    bias = {tiny_model.END: 100.0}
    settings: dict[str, Any] = {"diffusion_block_length": 4, "diffusion_steps": 20, "logit_bias": bias}
    session = tiny.session()
    steps: list[int] = []
    session.on_denoised = lambda answer: steps.append(answer.n_steps)
    assert list(session.generate("hello", max_tokens=20, **settings)) == []
    assert session.stop_reason == "end"
    assert steps[-1] <= 4
    with tiny.engine() as engine:
        result = engine.submit("hello", max_tokens=20, **settings).result()
        assert (result.tokens, result.stop_reason) == ([], "end")
        assert engine.stats().n_steps <= 4


def test_how_long_an_answer_is(tiny: graphml.Model) -> None:
    n_prompt = len(tiny.encode("hello"))
    assert tiny.generate("hello", max_tokens=0).tokens == []
    assert list(tiny.session().generate("hello", max_tokens=0)) == []
    few = tiny.generate("hello", diffusion_steps=2, diffusion_eps=0.1)
    assert (len(few.tokens), few.stop_reason) == (96 - n_prompt, "context")  # no more than a step takes
    assert len(list(tiny.session().generate("hello", diffusion_steps=2, diffusion_eps=0.1))) == 96 - n_prompt
    short = tiny.session(n_ctx=20)
    assert len(list(short.generate("hello", max_tokens=50))) == 20 - n_prompt
    assert short.stop_reason == "context"
    with tiny.engine(n_ctx=20) as engine:
        result = engine.submit("hello", max_tokens=50).result()
        assert (len(result.tokens), result.stop_reason) == (20 - n_prompt, "context")
        with pytest.raises(ContextFullError, match="a prompt of at most 19 tokens"):
            engine.submit([3] * 20)
        with pytest.raises(ContextFullError):
            engine.submit("hello", max_tokens=50, overflow="error").result()
    with pytest.raises(ContextFullError, match="a prompt of at most 19 tokens"):
        tiny.session(n_ctx=20).generate([3] * 20)
    with pytest.raises(UsageError, match=r"n_ctx: wanted 1 to 96, n_batch \(--batch\): .*; got 97"):
        tiny.session(n_ctx=97)
    with pytest.raises(ContextFullError):
        tiny.session().generate("hello", overflow="error")
    with pytest.raises(ContextFullError):
        tiny.session(n_ctx=20).generate("hello", max_tokens=50, overflow="error")


def test_a_session_goes_on_behind_an_answer(tiny: graphml.Model) -> None:
    session = tiny.session(seed=2)
    first = [token.id for token in session.generate("hello", max_tokens=6, **SAMPLED)]
    begin = session.tokens
    assert begin == [*tiny.encode("hello"), *first]
    second = [token.id for token in session.generate([9], max_tokens=6, diffusion_steps=6)]
    assert second == tiny.generate([*begin, 9], max_tokens=6, diffusion_steps=6).tokens
    assert session.tokens == [*begin, 9, *second]
    np.testing.assert_allclose(session.logits, tiny.session().eval(session.tokens), rtol=1e-4, atol=1e-5)
    session.rewind(0)
    assert session.tokens == []


def test_a_session_that_is_left_or_cancelled_holds_what_it_gave(tiny: graphml.Model) -> None:
    session = tiny.session()
    tokens = session.generate("hello", max_tokens=12, diffusion_block_length=3, diffusion_steps=12)
    given = [next(tokens).id]
    tokens.close()  # type: ignore[attr-defined]
    assert session.tokens == [*tiny.encode("hello"), *given]
    tokens = session.generate([], max_tokens=12, diffusion_block_length=3, diffusion_steps=12)
    given = [next(tokens).id]
    session.cancel()
    rest = [token.id for token in tokens]
    assert session.stop_reason == "cancel"
    assert len(rest) < 11
    tokens = session.generate([], max_tokens=12, diffusion_block_length=3, diffusion_steps=12)
    next(tokens)
    session.rewind(0)
    with pytest.raises(UsageError, match="used for something else"):
        list(tokens)
    assert session.tokens == []


def test_a_request_is_cancelled_and_ends_at_its_deadline(tiny: graphml.Model) -> None:
    with tiny.engine() as engine:
        with tiny.executor.lock:  # no step runs meanwhile
            handle = engine.submit("hello", max_tokens=80, diffusion_block_length=1, diffusion_steps=80)
            handle.cancel()
        assert handle.result().stop_reason == "cancel"
        late = engine.submit(
            "hello", max_tokens=80, diffusion_block_length=1, diffusion_steps=80, deadline=1e-9
        )
        assert late.result().stop_reason == "deadline"
        assert engine.stats().running == engine.stats().waiting == engine.stats().blocks_used == 0


def test_a_chat_answers(tiny: graphml.Model) -> None:
    chat = tiny.chat("hello", max_tokens=8, seed=1, diffusion_steps=8)
    assert chat.history[-1]["role"] == "assistant"
    assert chat.session.stop_reason in ("length", "end")
    prompt = chat.session.prompt_ids
    assert chat.session.generated == tiny.generate(prompt, max_tokens=8, diffusion_steps=8).tokens
    chat.respond("again", diffusion_steps=8)
    assert len(chat.history) == 4
    assert chat.session.prompt_ids[: len(prompt)] == prompt
    assert "".join(chat.regenerate(diffusion_steps=8)) == chat.text
    with pytest.raises(UsageError, match="a diffusion model"):
        chat.respond("hello", tools=[print_nothing], tool_choice="required")
    assert len(chat.history) == 4


def print_nothing(text: str) -> str:
    """Return nothing."""
    return ""


def test_a_saved_session_goes_on(tiny: graphml.Model, tmp_path: Path) -> None:
    session = tiny.session(seed=4)
    list(session.generate("hello", max_tokens=5, **SAMPLED))
    session.save(tmp_path / "saved")
    restored = tiny.restore(tmp_path / "saved")
    assert isinstance(restored, graphml.Session)
    assert restored.tokens == session.tokens
    assert [token.id for token in restored.generate([7], max_tokens=5, **SAMPLED)] == [
        token.id for token in session.generate([7], max_tokens=5, **SAMPLED)
    ]


def test_what_is_captured_is_of_each_step(tiny: graphml.Model) -> None:
    session = tiny.session(capture="logits", history=True)
    list(session.generate("hello", max_tokens=4, diffusion_block_length=2, diffusion_steps=4))
    assert len(session.history) == 4
    assert all(captured["logits"].shape[0] == len(tiny.encode("hello")) + 4 for captured in session.history)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"grammar": 'root ::= "a"'}, "grammar: a diffusion model"),
        ({"guidance_scale": 2.0}, "guidance_scale: wanted 1 and diffusion_cfg_scale"),
        ({"lora": []}, "lora: wanted None"),
        ({"capture": "logits"}, "capture, patch, control_vectors"),
        ({"overflow": "shift"}, "overflow: in llada tokens see those after them"),
        ({"spec_type": "ngram"}, "spec_type: a diffusion model"),
        ({"logprobs": 2}, "logprobs: a diffusion model"),
        ({"diffusion_block_length": 1, "diffusion_steps": 2}, "diffusion_steps: wanted at least 20"),
    ],
)
def test_what_an_engine_refuses(tiny: graphml.Model, wrong: dict[str, Any], match: str) -> None:
    with tiny.engine() as engine:
        with pytest.raises(UsageError, match=match):
            engine.submit("hello", max_tokens=20, **wrong)
        assert engine.stats().waiting == 0


def test_what_a_diffusion_model_has_not(tiny: graphml.Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="store: wanted None"):
        tiny.engine(store=tmp_path)
    with tiny.engine() as engine, pytest.raises(UsageError, match="prefixes: an engine of a diffusion model"):
        engine.prefix_files()
    for call in (
        lambda: tiny.beam_search("hello", 2, 4),
        lambda: list(tiny.batch(2).generate([[1], [2]])),
    ):
        with pytest.raises(UsageError, match="it is a diffusion model, of which sessions, chats and engines"):
            call()
    with pytest.raises(UsageError, match="logprobs: a diffusion model"):
        tiny.best_of("hello", 2, max_tokens=4, temperature=1.0)
    with pytest.raises(UsageError, match="perplexity: in llada tokens see those after them: wanted a model"):
        tiny.perplexity("hello world " * 9)
    healed = tiny.heal("a hell")
    with pytest.raises(UsageError, match="begins_with: a diffusion model"):
        tiny.generate(healed.ids, healed.params)


def test_other_models_refuse_the_settings(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "llama.gguf")
    with graphml.load(path, "reference", kv="f32") as model:
        for call in (model.generate, model.session().generate):
            with pytest.raises(UsageError, match="diffusion_steps: wanted a diffusion model"):
                call("hello", diffusion_steps=4)


def test_a_file_without_a_mask_token_evaluates_and_does_not_answer(tmp_path: Path) -> None:
    for mask in (None, 128):
        with graphml.load(written(tmp_path, "dream-dense", mask=mask), "reference", kv="f32") as model:
            assert model.session().eval([1, 2]).shape == (128,)
            for call in (model.generate, model.session().generate):
                with pytest.raises(
                    WeightsError, match=r"mask_token_id: wanted the id, below 128, .*(none|128)"
                ):
                    call([1, 2])


def test_logits_that_are_no_numbers_are_an_error_of_their_request(tmp_path: Path) -> None:
    path = written(tmp_path, "dream-dense")
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight").data[7] = np.nan
    del reader
    with graphml.load(path, "reference", kv="f32") as model, model.engine() as engine:
        bad, good = (engine.submit([id, 3], max_tokens=4, diffusion_steps=4) for id in (7, 8))
        with pytest.raises(WeightsError, match="the model's logits are no numbers"):
            bad.result()
        assert len(good.result().tokens) == 4
        with pytest.raises(WeightsError, match="the model's logits are no numbers"):
            list(model.session().generate([7, 3], max_tokens=4))


def test_the_file_says_whether_logits_are_shifted(tmp_path: Path) -> None:
    path = written(tmp_path, "dream-dense", shifts=None)
    answers = []
    for shifts in (None, True, False):
        override: dict[str, Any] = (
            {} if shifts is None else {"override_kv": {"diffusion.shift_logits": shifts}}
        )
        with graphml.load(path, "reference", kv="f32", **override) as model:
            answers.append(model.generate([1, 2, 3], max_tokens=8, diffusion_steps=8).tokens)
    assert answers[0] == answers[1] != answers[2]


def test_each_step_can_be_seen(tiny: graphml.Model) -> None:
    session = tiny.session()
    seen: list[tuple[int, int]] = []

    def look(answer: Denoiser) -> None:
        seen.append((answer.n_steps, int((answer.answer == answer.mask).sum())))

    session.on_denoised = look
    list(session.generate("hello", max_tokens=8, diffusion_block_length=8, diffusion_steps=4))
    assert seen == [(1, 6), (2, 4), (3, 2), (4, 0)]
    seen.clear()
    guided = {"diffusion_block_length": 8, "diffusion_steps": 2, "diffusion_cfg_scale": 0.5}
    list(session.generate("hello", max_tokens=8, **guided))
    assert seen == [(1, 4), (2, 0)]


def test_generations_of_one_session_do_not_mix(tiny: graphml.Model) -> None:
    session, settings = tiny.session(), {"max_tokens": 8, "diffusion_block_length": 8, "diffusion_steps": 2}
    alone = [token.id for token in tiny.session().generate("world", **settings)]
    begun = session.generate("hello", **settings)
    with pytest.raises(UsageError, match="the generation before was not read"):
        session.generate("world", **settings)
    session.rewind(0)
    later = session.generate("world", **settings)
    assert [token.id for token in later] == alone
    with pytest.raises(UsageError, match="used for something else"):
        list(begun)
    assert session.tokens == [*tiny.encode("world"), *alone]
    with pytest.raises(UsageError, match="diffusion_steps: wanted at least 2"):
        session.generate("hello", max_tokens=8, diffusion_block_length=4, diffusion_steps=1)


def test_a_cancelled_answer_gives_no_further_token(tiny: graphml.Model) -> None:
    session = tiny.session()
    answer = session.generate("hello", max_tokens=8, diffusion_block_length=8, diffusion_steps=2)
    assert next(answer)
    session.cancel()
    assert (list(answer), session.stop_reason) == ([], "cancel")


def test_a_chat_goes_on_beyond_one_step(tiny: graphml.Model) -> None:
    chat = tiny.chat(max_tokens=30)
    for _ in range(5):
        chat.respond("hello hello hello", diffusion_steps=4, diffusion_eps=0.1)
    assert chat.dropped


def test_the_speed_is_of_all_tokens(tiny: graphml.Model) -> None:
    session = tiny.session()
    list(session.generate("hello", max_tokens=8, diffusion_steps=1))
    assert session.stats.gen_tps > 0  # though all came at once
    timings = tiny.generate("hello", max_tokens=8, diffusion_steps=1).timings
    assert timings.gen_tps == pytest.approx(8 / timings.total_s)


def test_blocks_by_default_are_the_architectures() -> None:
    lengths = {
        name: architecture(name).diffusion for name in ("dream", "rnd1", "llada", "llada-moe", "llama")
    }
    assert lengths == {"dream": 0, "rnd1": 0, "llada": 32, "llada-moe": 32, "llama": None}


def test_adapters_and_control_vectors_of_load_count(tiny: graphml.Model, tmp_path: Path) -> None:
    matrix, width = "blk.0.ffn_down.weight", tiny_model.WIDTH
    parts = random_pairs({matrix: (width, tiny_model.HIDDEN)}, 2, 3)
    adapter = write_adapter(tmp_path / "adapter.gguf", parts, "llada")
    vector = write_vectors(tmp_path / "vector.gguf", {1: np.linspace(-9, 9, width, dtype=np.float32)})
    plain = tiny.generate("hello", max_tokens=9).tokens
    for changed in ({"lora": [(adapter, 3.0)]}, {"control_vectors": [(vector, 1.0)]}):
        with graphml.load(tiny.path, "reference", kv="f32", n_batch=96, **changed) as model:
            answer = model.generate("hello", max_tokens=9).tokens
            assert answer == [token.id for token in model.session().generate("hello", max_tokens=9)]
            assert answer != plain
        session = tiny.session(**changed)
        assert [token.id for token in session.generate("hello", max_tokens=9)] == answer
    activated = write_adapter(tmp_path / "activated.gguf", parts, "llada", invocation=[1, 2])
    with graphml.load(tiny.path, "reference", kv="f32", n_batch=96, lora=[(activated, 1.0)]) as model:
        for call in (model.generate, model.session().generate):
            with pytest.raises(UsageError, match=r"lora: a diffusion model .*; activated\.gguf does"):
                call("hello")
