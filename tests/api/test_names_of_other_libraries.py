"""Code written for other libraries: the same works, else an error names what does it here."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.api.token_stream import Timings
from graphml.errors import BackendError
from graphml.loading import discovery
from tests import tiny_model


def test_a_model_streams_the_text_that_it_generates(model: graphml.Model) -> None:
    wanted = model.generate("hello", max_tokens=6, stop=["zzz"]).text
    pieces = list(model.stream("hello", max_tokens=6, stop=["zzz"]))
    assert "".join(pieces) == wanted
    assert all(pieces)
    with pytest.raises(graphml.UsageError, match="top_p: wanted"):
        model.stream("hello", top_p=2)  # before the first piece is asked for


def test_a_stream_that_is_left_ends_its_engine(model: graphml.Model) -> None:
    before = threading.active_count()
    for _ in model.stream("hello", max_tokens=100):
        break
    gc.collect()
    for thread in threading.enumerate()[before:]:
        thread.join(20)
    assert threading.active_count() <= before


def test_tokens_are_their_text_wherever_they_are_read(model: graphml.Model) -> None:
    wanted = model.generate("hello", max_tokens=6).text
    assert "".join(map(str, model.session().generate("hello", max_tokens=6))) == wanted

    async def read() -> list[graphml.Token]:
        return [token async for token in handle]

    with model.engine() as engine:
        handle = engine.submit("hello", max_tokens=6)
        assert "".join(map(str, handle)) == wanted
        assert asyncio.run(read()) == list(handle)


def test_a_context_of_load_is_that_of_all_that_names_none(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    with graphml.load(path, "reference", n_ctx=48) as model:
        assert (model.n_ctx, model.default_n_ctx) == (160, 48)
        assert [model.session().n_ctx, model.chat().session.n_ctx, model.session(64).n_ctx] == [48, 48, 64]
        with model.engine() as engine:
            assert engine.n_ctx == 48
    with pytest.raises(graphml.UsageError, match=r"n_ctx: wanted 1 to 160, .*; got 161"):
        graphml.load(path, "reference", n_ctx=161)


def test_tools_of_a_chat_are_those_of_its_answers(model: graphml.Model) -> None:
    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    def offered(chat: graphml.Chat, **how: Any) -> list[str]:
        settings: list[Any] = []
        chat._answer = lambda params, asked, limit: iter(settings.append(asked) or ())  # type: ignore
        assert not list(chat.events("hello", **how))
        return [tool.name for tool in settings[0].tools]

    assert offered(model.chat(tools=[weather])) == offered(model.chat(), tools=[weather]) == ["weather"]
    assert offered(model.chat(tools=[weather]), tools=[]) == offered(model.chat()) == []
    with pytest.raises(graphml.UsageError, match="tool"):
        model.chat(tools=[3])


def test_settings_of_a_chat_are_those_of_answers_that_say_nothing_else(model: graphml.Model) -> None:
    warm = {"temperature": 1.5, "top_k": 20}
    other = graphml.SamplingParams(temperature=0.7)
    chats = [model.chat(max_tokens=5, seed=3, **warm), model.chat(max_tokens=5, seed=3)]
    assert chats[0].respond("hello") == chats[1].respond("hello", **warm)
    assert chats[0].session.chooses == chats[1].session.chooses == graphml.SamplingParams(**warm)
    chats[0].respond("more", other)
    assert chats[0].session.chooses == other
    chats[0].respond("more", top_k=3)
    assert chats[0].session.chooses == graphml.SamplingParams(temperature=1.5, top_k=3)
    assert model.chat(params=other, top_k=4).params == graphml.SamplingParams(temperature=0.7, top_k=4)
    with pytest.raises(graphml.UsageError, match="top_p: wanted"):
        model.chat(top_p=2)


def test_a_conversation_begins_with_messages(model: graphml.Model) -> None:
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    chat = model.chat(system="be kind", max_tokens=4)
    assert (str(chat), chat.text) == (repr(chat), "")
    wanted = chat.respond("hello")
    for chat in (model.chat(messages, 4), model.chat(messages=messages, max_tokens=4),
                 model.chat("hello", 4, system="be kind"), model.chat("hello", 4, messages=messages[:1]),
                 model.chat(messages[1:], 4, system="be kind")):  # fmt: skip
        assert (chat.system, chat.history[:2], len(chat.history)) == ("be kind", messages, 3)
        assert str(chat) == chat.text == chat.content == wanted
        assert chat.respond("more") == chat.text
    assert model.chat([*messages, {"role": "assistant", "content": "yes"}]).session.n_past == 0
    for call, message in (
        (lambda: model.chat("a", system="be brief", messages=messages), "system: wanted one system message"),
        (lambda: model.chat([{"role": "x"}]), r"messages\[0\].role: wanted"),
        (lambda: model.chat(3), "messages: wanted a list of messages, got a number"),
    ):
        with pytest.raises(graphml.UsageError, match=message):
            call()


def test_a_conversation_that_cannot_be_answered_is_closed(
    model: graphml.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[graphml.Session] = []
    monkeypatch.setattr(graphml.Session, "close", lambda session: closed.append(session))
    with pytest.raises(graphml.ContextFullError, match="the context holds 64"):
        model.chat("hello " * 200, n_ctx=64)
    assert len(closed) == 1


def test_logits_captured_and_patched_values_of_a_text(model: graphml.Model) -> None:
    name, ids = "layers.1.attention", model.encode("hello world")
    session = model.session(capture=[name])
    wanted = session.eval(ids, all_logits=True)
    rows = model.logits("hello world")
    assert (rows.dtype, rows.shape) == (np.float32, (len(ids), model.n_vocab))
    np.testing.assert_allclose(rows, wanted, rtol=1e-4, atol=1e-5)
    found = model.capture("hello world", name, "layers.0.q*")
    assert name in found
    assert len(found) > 1
    np.testing.assert_allclose(found[name], session.captured[name], rtol=1e-4, atol=1e-5)
    changed = model.patch(ids, {name: lambda x: 0 * x})
    assert changed.shape == rows.shape
    assert not np.allclose(changed, rows)
    np.testing.assert_allclose(model.patch(ids, {name: lambda x: x}), rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("pattern", "said"), [
    ("blk.1", "mean 'layers.1.*'"), ("blk.0.attn_q.weight", "mean 'layers.0.*'"), ("blk.*.x", "'layers.*.*'"),
    ("layers.1", "layers.1."), ("layers.1.atention", "mean 'layers.1.attention'"),
    ("model.layers.1.mlp", "mean 'layers.1.*'"), ("qqqq", "`graphml explain MODEL` lists"),
])  # fmt: skip
def test_a_value_that_is_not_there_names_the_nearest(model: graphml.Model, pattern: str, said: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: model.capture("hello", pattern), lambda: model.patch("hello", {pattern: lambda x: x})
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(graphml.UsageError, match=re.escape(said)):
            call()
    with pytest.raises(graphml.UsageError, match="capture: wanted names or patterns"):
        model.capture("hello")
    with pytest.raises(graphml.UsageError, match="PatchRows"):
        model.patch("hello", {"layers.1.attention": np.zeros(3)})  # type: ignore[dict-item]


def test_sizes_of_a_tokenizer(model: graphml.Model) -> None:
    tokenizer = model.tokenizer
    assert tokenizer is not None
    assert tokenizer.n_vocab == tokenizer.vocab_size == len(tokenizer) > 0


MISSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "model.eval": (lambda m: m.eval(), "never trained"),
    "model.to": (lambda m: m.to("cuda"), r"Use load\(\.\.\., backend="),
    "model.set_seed": (lambda m: m.set_seed(1), "Use seed= of what generates"),
    "min_tokens=": (lambda m: m.generate("a", min_tokens=2), "logit_bias="),
    "tfs_z=": (lambda m: m.generate("a", tfs_z=1.0), "Tail-free sampling"),
    "options=": (lambda m: m.generate("a", options={}), "a keyword of its own"),
    "eos_token_id=": (lambda m: m.generate("a", eos_token_id=2), "mean 'stop_tokens'"),
    "type_k=": (lambda m: graphml.load("x", type_k=8), "mean 'kv'"),
    "guided_json=": (lambda m: graphml.SamplingParams(guided_json={}), "mean 'json_schema'"),
    "result.elapsed": (lambda m: m.generate("a", max_tokens=1).elapsed, "Use timings.total_s"),
    "result.n_tokens": (lambda m: m.generate("a", max_tokens=1).n_tokens, "Use n_gen, or n_prompt"),
    "engine.step": (lambda m: m.engine().step(), "its thread runs the steps"),
    "session.undo": (lambda m: m.session().undo(), r"Use rewind\(n_past\)"),
    "model.state_dict": (lambda m: m.state_dict(), r"Use tensors.items\(\)"),
    "model.tensor": (lambda m: m.tensor("x"), r"Use tensors\[name\]"),
    "logprobs['token']": (
        lambda m: m.generate("a", max_tokens=1, logprobs=1).logprobs[0]["token"], "subscriptable. Use its"
    ),
    "logprobs.prob": (
        lambda m: m.generate("a", max_tokens=1, logprobs=1).logprobs[0].prob, "Use math.exp"
    ),
    "logprobs.logprb": (
        lambda m: m.generate("a", max_tokens=1, logprobs=1).logprobs[0].top[0].logprb, "mean 'logprob'"
    ),
    "chat['message']": (lambda m: m.chat("a", max_tokens=1)["message"], "subscriptable. Use .*text for"),
    "model.num_parameters": (lambda m: m.num_parameters(), "Use n_params"),
    "model.trace": (lambda m: m.trace("x"), r"Use capture\(text, \*patterns\)"),
    "model[...]": (lambda m: m["x"], "'Model' object is not subscriptable$"),
    "chat.copy": (lambda m: m.chat().copy(), r"Use fork\(\)"),
    "chat.turns": (lambda m: m.chat().turns, "Use history"),
    "session.begin": (lambda m: m.session().begin("a"), r"Use generate\(prompt\), or eval\(prompt\)"),
    "session.restore": (lambda m: m.session().restore("x"), r"Use Model.restore\(path\)"),
    "session.clone": (lambda m: m.session().clone(), r"Use fork\(\)"),
    "session.rewnd": (lambda m: m.session().rewnd(0), r"'rewnd'. Did you mean 'rewind'\?"),
    "result['choices']": (lambda m: m.generate("a", max_tokens=1)["choices"], "subscriptable. Use text"),
    "chat.stream": (lambda m: m.chat(stream=True), "chat: wanted a message to answer"),
    "result.parsed": (lambda m: m.generate("a", max_tokens=1).parsed, r"Use json.loads\(result.text\)"),
    "result.tps": (lambda m: m.generate("a", max_tokens=1).tps, "Use timings.gen_tps"),
    "length_penalty": (lambda m: m.generate("a", length_penalty=2.0), "argument of Model.beam_search"),
    "ignore_eos": (lambda m: m.generate("a", ignore_eos=True), "logit_bias="),
    "result.usage": (lambda m: m.generate("a", max_tokens=1).usage, "Use n_prompt and n_gen"),
    "handle.text": (lambda m: m.engine().submit("a", max_tokens=1).text, r"Use result\(\).text"),
    "compare(x=)": (lambda m: graphml.compare(m, x=1), "'x'. There are a, b, backends, prompt"),
    "compare(3)": (lambda m: graphml.compare(3), "a: wanted a model, or its path or name; got int"),
    "compare(backends=)": (lambda m: graphml.compare(m, backends="cpu"), "backends: wanted two names"),
    "graphml.profile": (lambda m: graphml.profile(None), "model: wanted a model, or its path or name"),
    "graphml.Model(path)": (lambda m: graphml.Model("x"), r"Model: made by graphml.load\(path\); got 'x'"),
    "graphml.Session(path)": (lambda m: graphml.Session("x"), r"graphml.load\(path\).session\(\)"),
    "graphml.Engine(path)": (lambda m: graphml.Engine("x"), r"made by graphml.load\(path\).engine"),
    "graphml.Tokenizer(path)": (lambda m: graphml.Tokenizer("x"), r"made by graphml.load_tokenizer"),
    "graph.save": (lambda m: m.graph.save("x.png"), "path: wanted one that ends with .html"),
    "graphml.set_log_level": (lambda m: graphml.set_log_level("debug"), "GRAPHML_LOG=debug"),
    "graphml.tokenize": (lambda m: graphml.tokenize("x"), r"Use graphml.load\(path\).encode\(text\)"),
    "graphml.pull": (lambda m: graphml.pull("x"), "Use graphml.load"),
    "encode": (lambda m: m.encode("a", add_bos=False), "mean 'add_special'"),
    "n": (lambda m: m.generate("a", n=2), "'n' is an argument of Engine.submit"),
    "stream=": (lambda m: m.engine().submit("a", stream=True), r"Use Model.stream\(\.\.\.\)"),
    "echo=": (lambda m: m.generate("a", echo=True), "prompt_logprobs=0"),
    "verbose=": (lambda m: graphml.load("x", verbose=True), "basicConfig"),
    "max_tokens": (lambda m: graphml.SamplingParams(max_tokens=1), "'max_tokens' is an arg.* Model.generate"),
    "n of params": (lambda m: graphml.SamplingParams(n=2), "'n' is an argument of Engine.submit"),
    "session.prompt": (lambda m: m.session().prompt("a"), r"'prompt'. Use generate\(prompt\); prompt_ids"),
    "apply_chat_template": (
        lambda m: m.tokenizer.apply_chat_template([]), r"Use Model.template.render\(messages\)"
    ),
    "graphml.Llama": (lambda m: graphml.Llama("x"), r"Use graphml.load\(path\)"),
    "graphml.LLM": (lambda m: graphml.LLM("x"), r"Use graphml.load\(path\): its generate\(.*engine\(\)"),
    "graphml.pipeline": (lambda m: graphml.pipeline("x"), "Use .*generate"),
}  # fmt: skip


def test_python_suggests_no_private_attribute(
    model: graphml.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = model.chat()
    for owner, name in ((chat, "seen"), (chat, "tokenizer"), (chat.session, "held")):
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        sys.__excepthook__(AttributeError, caught.value, None)  # which adds the suggestion
        said = capsys.readouterr().err
        assert f"has no attribute '{name}'" in said
        assert "'_" not in said


def test_the_messages_of_a_chat_are_its_history(model: graphml.Model) -> None:
    chat = model.chat(system="Be brief.")
    assert chat.messages == chat.history == [{"role": "system", "content": "Be brief."}]
    chat.messages = [MESSAGE]
    assert (chat.history, chat.system) == ([MESSAGE], "")


SAME: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "model(text)": lambda m: (m("hello", max_new_tokens=3), m.generate("hello", max_tokens=3)),
    "model(messages)": lambda m: (m([MESSAGE], max_tokens=3), m.generate([MESSAGE], max_tokens=3)),
    "model([text])": lambda m: (m(["hello"], max_tokens=3), m.generate(["hello"], max_tokens=3)),
    "model(ids)": lambda m: (m([5, 6]).tolist(), m.logits([5, 6]).tolist()),
    "model(array)": lambda m: (m(np.array([5, 6])).shape, (2, m.n_vocab)),
    "model.forward": lambda m: (m.forward([5]).tolist(), m.logits([5]).tolist()),
    "model.tokenize": lambda m: (m.detokenize(m.tokenize("hello")), m.decode(m.encode("hello"))),
    "model.complete": lambda m: (m.complete("hello", max_tokens=3), m.generate("hello", max_tokens=3)),
    "model.n_layers": lambda m: (m.n_layers, m.config.n_layer),
    "model.device": lambda m: (m.device, m.executor.backend.name),
    "model.nodes": lambda m: ([x.name for x in m.nodes], [x.name for x in m.graph().nodes]),
    "model.eos_token_id": lambda m: (m.eos_token_id, m.tokenizer.eos_token_id),
    "model.embeddings": lambda m: (m.embeddings(["hello"]).tolist(), m.embed(["hello"]).tolist()),
    "model.ask": lambda m: (m.ask("hello", 3).text, m.chat(max_tokens=3).ask("hello")),
    "model.agenerate": lambda m: (asyncio.run(m.agenerate("hello", max_tokens=3)), m("hello", max_tokens=3)),
    "model.astream": lambda m: (asyncio.run(_listed(m)), list(m.stream("hello", max_tokens=3))),
    "stream=": lambda m: (list(m.generate("hello", max_tokens=3, stream=True)),
                          list(m.stream("hello", max_tokens=3))),
    "tokenizer.bos_token_id": lambda m: (m.tokenizer.bos_token_id, m.tokenizer.bos_id),
    "decode": lambda m: (m.decode([1], skip_special_tokens=True), m.decode([1], skip_special=True)),
    "encode": lambda m: (m.encode("hi", add_special_tokens=False), m.encode("hi", add_special=False)),
    "chat(text)": lambda m: (m.chat(max_tokens=3)("hello"), m.chat("hello", 3).text),
    "session(ids)": lambda m: (m.session()([5]).tolist(), m.session().eval([5]).tolist()),
    "result.strip": lambda m: (m("a", max_tokens=4).strip(), m("a", max_tokens=4).text.strip()),
    "result + text": lambda m: ("a" + m("a", max_tokens=4) + "b", f"a{m('a', max_tokens=4)}b"),
    "text in result": lambda m: (m("a", max_tokens=4).text[1:] in m("a", max_tokens=4), True),
    "no text in result": lambda m: ("zzz" in m("a", max_tokens=4), False),
    "chat.stream": lambda m: ("".join(m.chat("hello", 3, stream=True)), m.chat("hello", 3).text),
    "chat.close": lambda m: (m.chat("hello", 3).close(), None),
    "result.token_ids": lambda m: (m("a", max_tokens=2).token_ids, m("a", max_tokens=2).tokens),
    "result.finish_reason": lambda m: (m("a", max_tokens=2).finish_reason, m("a", max_tokens=2).stop_reason),
    "token.text": lambda m: (next(m.session().stream("a")).text, next(m.session().generate("a")).piece),
    "tokenizer(text)": lambda m: (m.tokenizer("hello"), m.tokenizer.encode("hello")),
    "tokenizer(text)[]": lambda m: (m.tokenizer("hello")["input_ids"], m.tokenizer("hello").input_ids),
    "tokenizer.batch_decode": lambda m: (m.tokenizer.batch_decode([[5], [6, 7]]),
                                         [m.decode([5]), m.decode([6, 7])]),
    "tokenizer.token_to_id": lambda m: (m.tokenizer.token_to_id(m.tokenizer.eos_token), m.tokenizer.eos_id),
    "tokenizer.token_to_id of several": lambda m: (m.tokenizer.token_to_id("hello world"), None),
    "model.count_tokens": lambda m: (m.count_tokens("hello"), len(m.encode("hello"))),
    "chat.reply": lambda m: (m.chat("hello", 3).reply, m.chat("hello", 3).text),
    "graph[name]": lambda m: (m.graph["logits"].name, "logits"),
    "tokenizer([text])": lambda m: (m.tokenizer(["hello", "a"]), [m.encode("hello"), m.encode("a")]),
    "tokenizer.eos_token": lambda m: (m.tokenizer.eos_token, m.tokenizer.piece(m.tokenizer.eos_id)),
    "session.feed": lambda m: (m.session().feed("hello").tolist(),
                               m.session().eval(m.encode("hello")).tolist()),
    "session.append": lambda m: (m.session().append([5]).tolist(), m.session().eval([5]).tolist()),
    "session.eval": lambda m: (m.session().eval([MESSAGE]).tolist(),
                               m.session().eval(m.prompt_ids([MESSAGE])).tolist()),
    "engine.generate": lambda m: (m.engine().generate("a", max_tokens=3), m("a", max_tokens=3)),
    "engine([])": lambda m: (m.engine().generate(["a", "hello"], max_tokens=3),
                             m.generate(["a", "hello"], max_tokens=3)),
    "engine.chat": lambda m: (m.engine().chat([MESSAGE], max_tokens=3), m([MESSAGE], max_tokens=3)),
    "engine()": lambda m: (m.engine()("a", max_tokens=3).result(), m("a", max_tokens=3)),
    "engine.stream": lambda m: (list(m.engine().stream("hello", max_tokens=3)),
                                list(m.stream("hello", max_tokens=3))),
    "engine.astream": lambda m: (asyncio.run(_of_engine(m)), list(m.stream("hello", max_tokens=3))),
    "graphml.perplexity": lambda m: (graphml.perplexity(m.path, "hello " * 20, 8, 1).n_ctx, 8),
    "graphml.explain": lambda m: (graphml.explain(m, "layers.1.q"), m.explain("layers.1.q")),
    "graphml.profile": lambda m: (graphml.profile(m, 8, rounds=1).n_prompt, 8),
    "compare(path)": lambda m: (str(graphml.compare(m.path, backends=["reference", "cpu"]).rows),
                                str(graphml.compare(graphml.load(m.path, "reference"), "cpu").rows)),
    "handle.wait": lambda m: (m.engine().submit("a", max_tokens=2).wait(), m("a", max_tokens=2)),
}  # fmt: skip
MESSAGE = {"role": "user", "content": "hello"}


async def _of_engine(model: graphml.Model) -> list[str]:
    async with model.engine() as engine:
        assert (await engine.agenerate("hello", max_tokens=3)).text
        return [piece async for piece in engine.astream("hello", max_tokens=3)]


async def _listed(model: graphml.Model) -> list[str]:
    return [piece async for piece in model.astream("hello", max_tokens=3)]


@pytest.mark.parametrize("name", SAME)
def test_what_another_library_calls_otherwise_is_the_same_here(model: graphml.Model, name: str) -> None:
    by_their_name, by_ours = SAME[name](model)
    assert by_their_name == by_ours


@pytest.mark.parametrize("name", ["max_batch_size", "max_batch", "n_parallel", "parallel", "n_slots"])
def test_the_most_sequences_of_an_engine_by_other_names(model: graphml.Model, name: str) -> None:
    with pytest.raises(graphml.UsageError, match="max_sequences: wanted"):
        model.engine(**{name: 0})


def test_graphs_are_written_by_the_ending_of_a_file(model: graphml.Model, tmp_path: Path) -> None:
    for ending, begin in ((".html", "<!doctype html>"), (".dot", "digraph"), (".txt", "output")):
        model.graph.save(tmp_path / f"x{ending}")
        assert (tmp_path / f"x{ending}").read_text().lower().lstrip("/# ").startswith(begin), ending
    model.viewer().save(tmp_path / "y.html")
    pages = [(tmp_path / name).read_text() for name in ("x.html", "y.html")]
    assert pages[0][:10_000] == pages[1][:10_000]  # of the same graphs; times of passes differ
    with pytest.raises(graphml.UsageError, match="cannot be written"):
        model.viewer().save(tmp_path / "no" / "y.html")


def test_the_reason_of_an_end_in_openais_words() -> None:
    reasons = ["end", "stop", "length", "context", "cancel", "deadline"]
    theirs = [graphml.Result([], "", reason, 1, 0, 0, Timings()).finish_reason for reason in reasons]
    assert theirs == ["stop", "stop", "length", "length", "cancel", "deadline"]


def test_several_prompts_are_not_streamed(model: graphml.Model) -> None:
    with pytest.raises(graphml.UsageError, match="stream: wanted one prompt; got several"):
        model.generate(["hello", "a"], max_tokens=3, stream=True)


@pytest.mark.parametrize("name", MISSES)
def test_what_another_library_has_names_what_does_it_here(model: graphml.Model, name: str) -> None:
    call, message = MISSES[name]
    with pytest.raises((AttributeError, TypeError, graphml.UsageError), match=message):
        call(model)


def test_an_import_of_another_name_says_where_it_is() -> None:
    with pytest.raises(ImportError, match=r"'GraphBuilder'. Use g = graphml.Builder\(\)"):
        exec("from graphml import GraphBuilder")
    with pytest.raises(ImportError, match="cannot import name 'qqq'"):
        exec("from graphml import qqq")
    assert not hasattr(graphml, "GraphBuilder")
    code = "import graphml; from graphml.ir.language import Builder; from graphml import ir, backend"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_backend_that_is_not_there_says_what_there_is() -> None:
    with pytest.raises(BackendError, match=r"'cuda' is installed; installed: .*reference.*docs/gpu.md"):
        discovery.backend("cuda")


def test_minus_one_is_no_limit_where_other_libraries_have_it_so(model: graphml.Model) -> None:
    wanted = model.generate("hello", max_tokens=None)
    for name in ("n_predict", "num_predict"):
        found: Any = model.generate("hello", **{name: -1})  # type: ignore[call-overload]
        assert (found.text, found.stop_reason) == (wanted.text, wanted.stop_reason)
    with graphml.load(model.path, "reference", n_gpu_layers=-1) as every:  # type: ignore[call-arg]
        assert every.executor.backend.name == "reference"


def test_results_and_engines_have_other_libraries_names(model: graphml.Model) -> None:
    result: Any = model.generate("hello", max_tokens=2)
    assert result.generated_text == result.output == result.text
    assert (result.eval_count, result.prompt_eval_count) == (result.n_gen, result.n_prompt)
    assert (result.sequences, result.done_reason) == (result.tokens, result.finish_reason)
    engine: Any = model.engine()
    assert engine.metrics().n_steps == 0
    engine.shutdown()
    session: Any = model.session()
    assert session.position == session.n_past == 0
