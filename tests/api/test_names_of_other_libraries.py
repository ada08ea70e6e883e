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
    wanted = model.chat("be kind", max_tokens=4).respond("hello")
    for chat in (model.chat(messages, 4), model.chat(messages=messages, max_tokens=4),
                 model.chat("be kind", 4, messages=messages[1:])):  # fmt: skip
        assert (chat.system, chat.history) == ("be kind", messages)
        assert chat.respond() == wanted
    for call, message in (
        (lambda: model.chat("be brief", messages=messages), "system: wanted one system message"),
        (lambda: model.chat(messages, messages=messages), "system: wanted a text beside messages"),
        (lambda: model.chat([{"role": "x"}]), r"messages\[0\].role: wanted"),
        (lambda: model.chat(3), "system: wanted"),
    ):
        with pytest.raises(graphml.UsageError, match=message):
            call()


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
    ("model.layers.1.mlp", "mean 'layers.1.*'"), ("qqqq", "The graph of the pass 'build' has the names"),
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
    "model(text)": (lambda m: m("hello"), r"'Model' object is not callable. Use .*generate"),
    "model.forward": (lambda m: m.forward([1]), r"'forward'. Use logits\(text\), session\(\).eval"),
    "model.eval": (lambda m: m.eval(), "never trained"),
    "model.to": (lambda m: m.to("cuda"), r"Use load\(\.\.\., backend="),
    "model.device": (lambda m: m.device, "opened_by.backend"),
    "model.num_parameters": (lambda m: m.num_parameters(), "Use n_params"),
    "model.load_session": (lambda m: m.load_session("x"), "Use restore"),
    "model.trace": (lambda m: m.trace("x"), r"Use capture\(text, \*patterns\)"),
    "model.tokenize": (lambda m: m.tokenize("x"), "Use encode"),
    "model.agenerate": (lambda m: m.agenerate("x"), r"Use engine\(\), and await engine.submit"),
    "model.astream": (lambda m: m.astream("x"), r"Use engine\(\), and async for token in"),
    "model.respond": (lambda m: m.respond("x"), r"Use chat\(\).respond"),
    "model[...]": (lambda m: m["x"], "'Model' object is not subscriptable$"),
    "tokenizer(text)": (lambda m: m.tokenizer("x"), r"not callable. Use encode\(text\)"),
    "tokenizer.eos_token_id": (lambda m: m.tokenizer.eos_token_id, "Use eos_id"),
    "tokenizer.bos_token_id": (lambda m: m.tokenizer.bos_token_id, "Use bos_id"),
    "chat.messages": (lambda m: m.chat().messages, "Use history"),
    "chat(text)": (lambda m: m.chat()("x"), "Use ask"),
    "session(ids)": (lambda m: m.session()([1]), r"Use eval\(ids\)"),
    "session.stream": (lambda m: m.session().stream("x"), "Use generate"),
    "result['choices']": (lambda m: m.generate("a", max_tokens=1)["choices"], "subscriptable. Use text"),
    "result.finish_reason": (lambda m: m.generate("a", max_tokens=1).finish_reason, "Use stop_reason"),
    "result.usage": (lambda m: m.generate("a", max_tokens=1).usage, "Use n_prompt and n_gen"),
    "token.text": (lambda m: next(m.session().generate("a")).text, "Use piece"),
    "handle.text": (lambda m: m.engine().submit("a", max_tokens=1).text, r"Use result\(\).text"),
    "engine.generate": (lambda m: m.engine().generate("a"), "Use submit"),
    "encode": (lambda m: m.encode("a", add_bos=False), "mean 'add_special'"),
    "decode": (lambda m: m.tokenizer.decode([1], skip_special_tokens=True), "mean 'skip_special'"),
    "n": (lambda m: m.generate("a", n=2), "'n' is an argument of Engine.submit"),
    "stream=": (lambda m: m.generate("a", stream=True), r"Use Model.stream\(\.\.\.\)"),
    "echo=": (lambda m: m.generate("a", echo=True), "prompt_logprobs=0"),
    "verbose=": (lambda m: graphml.load("x", verbose=True), "basicConfig"),
    "max_tokens": (lambda m: graphml.SamplingParams(max_tokens=1), "'max_tokens' is an arg.* Model.generate"),
    "n of params": (lambda m: graphml.SamplingParams(n=2), "'n' is an argument of Engine.submit"),
    "session.prompt": (lambda m: m.session().prompt("a"), r"'prompt'. Use generate\(prompt\); prompt_ids"),
    "apply_chat_template": (
        lambda m: m.tokenizer.apply_chat_template([]), r"Use Model.template.render\(messages\)"
    ),
    "graphml.Llama": (lambda m: graphml.Llama("x"), r"Use graphml.load\(path\)"),
    "graphml.pipeline": (lambda m: graphml.pipeline("x"), "Use .*generate"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSES)
def test_what_another_library_has_names_what_does_it_here(model: graphml.Model, name: str) -> None:
    call, message = MISSES[name]
    with pytest.raises((AttributeError, TypeError), match=message):
        call(model)


def test_an_import_of_another_name_says_where_it_is() -> None:
    with pytest.raises(ImportError, match=r"'GraphBuilder'. Use graphml.ir.language.Builder"):
        exec("from graphml import GraphBuilder")
    with pytest.raises(ImportError, match="cannot import name 'qqq'"):
        exec("from graphml import qqq")
    assert not hasattr(graphml, "GraphBuilder")
    code = "import graphml; from graphml.ir.language import Builder; from graphml import ir, backend"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_backend_that_is_not_there_says_what_there_is() -> None:
    with pytest.raises(BackendError, match=r"'cuda' is installed; installed: .*reference.*docs/gpu.md"):
        discovery.backend("cuda")
