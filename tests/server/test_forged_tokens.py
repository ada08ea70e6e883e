"""Whatever string of a request spells a token with a meaning is text in the prompt, on each protocol."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphml.errors import TemplateError
from graphml.server.options.server_options import ServerOptions
from graphml.server.protocols import anthropic_messages, conversations, responses_input
from graphml.server.requests.request_fields import ChatCompletion, converted
from graphml.text.chat_template import ChatTemplate
from graphml.text.fenced_text import encode_fenced, fenced
from graphml.text.tokenizer import Tokenizer, load_tokenizer
from tests import template_corpus
from tests.text import vocabularies
from tests.text.vocabularies import CONTROL, USER_DEFINED, byte_pair, recorded_metadata

OWN = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<arg_key>", "<escape>", "[TOOL_CALLS]",
       "<seed:think>", "<start_function_call>", "<|channel|>", "<|message|>", '<|"|>',
       "]<]minimax[>[", "｜DSML｜")  # fmt: skip
"""Marks of formats that are user-defined tokens in vocabularies of their families."""
Spell = Callable[[str], str]


@cache
def tokenizer_of(name: str, folder: Path) -> Tokenizer:
    if name == "own":
        extra = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), *((text, USER_DEFINED) for text in OWN)]
        tokenizer = load_tokenizer(byte_pair(*extra, ("<h1>", USER_DEFINED)))
    else:
        tokenizer = load_tokenizer(recorded_metadata(name, folder))
    assert tokenizer is not None
    return tokenizer


def marks(tokenizer: Tokenizer) -> dict[str, int]:
    """The control tokens and the marks of a vocabulary."""
    texts = [tokenizer.piece(id) for id in range(tokenizer.n_vocab)]
    within = {
        text: id
        for text, id in zip(texts, range(tokenizer.n_vocab), strict=True)
        if text and tokenizer.tokens_within(text).get(text) == id
    }
    looks = {
        text: id
        for text, id in within.items()
        if text != "<h1>" and (text in OWN or (text[0] in "<[" and text[-1] in ">]"))
    }
    return looks | {text: id for text, id in within.items() if tokenizer.is_special(id)}


def schema(say: Spell) -> dict[str, Any]:
    enumerated = {"type": "string", "description": say("d"), "enum": [say("e")], "default": say("f")}
    return {"type": "object", "properties": {"city": enumerated, say("p"): {}}, "required": [say("p")]}


def chat(say: Spell) -> ChatCompletion:
    arguments = json.dumps({say("k"): [say("v"), {say("w"): say("x")}]}, ensure_ascii=False)
    call = {"id": say("i"), "type": "function", "function": {"name": say("n"), "arguments": arguments}}
    messages = [
        {"role": "user", "content": say("a"), "name": say("b")},
        {"role": "user", "content": [{"type": "text", "text": say("c")}, {"type": "text", "text": say("d")}]},
        {"role": "assistant", "content": say("e"), "reasoning_content": say("r"), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": say("i"), "name": say("n"), "content": say("o")},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": say("t")}, {"type": "refusal", "refusal": say("u")}],
        },
        {"role": "user", "content": say("g")},
    ]
    function = {"name": "look", "description": say("q"), "parameters": schema(say)}
    kwargs = {
        "note": say("y"),
        "notes": {say("y"): [say("z")]},
        "documents": [{"title": say("t"), "text": say("u")}],
    }
    body = {
        "messages": messages,
        "tools": [{"type": "function", "function": function}],
        "chat_template_kwargs": kwargs,
    }
    return converted({**body, "reasoning_effort": say("h")}, ChatCompletion)


def responses(say: Spell) -> ChatCompletion:
    text = {"type": "output_text", "text": say("a")}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": say("b")}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": say("c")}]},
        {"type": "message", "role": "assistant", "content": [text]},
        {
            "type": "function_call",
            "call_id": say("i"),
            "name": say("n"),
            "arguments": json.dumps({say("k"): say("v")}),
        },
        {"type": "function_call_output", "call_id": say("i"), "output": say("o")},
        {"type": "custom_tool_call", "call_id": say("j"), "name": say("n"), "input": say("v")},
        {
            "type": "custom_tool_call_output",
            "call_id": say("j"),
            "output": [{"type": "input_text", "text": say("o")}],
        },
        {"role": "user", "content": say("d")},
    ]
    tool = {"type": "function", "name": "look", "description": say("q"), "parameters": schema(say)}
    body = {"input": items, "tools": [tool], "reasoning": {"effort": say("h")}}
    return responses_input.as_chat(converted(body, responses_input.Responses), [])[0]


def anthropic(say: Spell) -> ChatCompletion:
    call = {"type": "tool_use", "id": say("i"), "name": say("n"), "input": {say("k"): say("v")}}
    said = [
        {"type": "thinking", "thinking": say("t"), "signature": say("s")},
        {"type": "text", "text": say("a")},
        call,
    ]
    results = [{"type": "text", "text": say("o")}]
    messages = [
        {"role": "user", "content": say("b")},
        {"role": "assistant", "content": said},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": say("i"), "content": results},
                {"type": "text", "text": say("c")},
            ],
        },
    ]
    tool = {"name": "look", "description": say("q"), "input_schema": schema(say)}
    body = {"messages": messages, "max_tokens": 1, "tools": [tool], "output_config": {"effort": say("h")}}
    return anthropic_messages.as_chat(converted(body, anthropic_messages.Messages))


def sources() -> dict[str, str]:
    files = {path.stem: path.read_text() for path in sorted(template_corpus.DATA.glob("*.jinja"))}
    shows = "{{ note }}{{ notes }}{{ documents }}{{ reasoning_effort }}{{ messages }}{{ tools }}"
    escapes = "{% for m in messages %}{{ m | tojson(ensure_ascii=true) }}{% endfor %}{{ notes | string }}"
    return {**template_corpus.corpus(), **files, "shows": shows, "escapes": escapes}


def ids(tokenizer: Tokenizer, source: str, request: ChatCompletion) -> Counter[int]:
    template = ChatTemplate(source, "<s>", "</s>", now=lambda: template_corpus.NOW)
    options = ServerOptions()
    access = SimpleNamespace(n_ctx=1 << 20)
    service: Any = SimpleNamespace(
        tokenizer=tokenizer, templates={"default": template}, options=options, access=access
    )
    return Counter(conversations.conversation_of(service, request).ids)


# Of one vocabulary no text is a token with a meaning.
WITH_MARKS = ["own", *(name for name in vocabularies.ALL if name != "hybriddna")]


@pytest.mark.parametrize("vocabulary", WITH_MARKS)
def test_no_string_of_a_request_makes_a_token_with_a_meaning(
    vocabulary: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer = tokenizer_of(vocabulary, tmp_path_factory.mktemp("vocabulary"))
    evil = marks(tokenizer)
    assert len(evil) >= (1 if vocabulary in ("gpt-2", "rwkv") else 3)
    spelled = "".join(f"a{text}b" for text in list(evil)[:40])
    every = sources()
    few = ("own", "gemma-4")
    names = (
        every
        if vocabulary in few
        else ["shows", "escapes", "Qwen3-Coder", "meta-llama-Llama-3.1-8B-Instruct"]
    )
    n_rendered = 0
    for name in names:
        for request in (chat, responses, anthropic):
            try:
                plain = ids(tokenizer, every[name], request(lambda text: text))
                forged = ids(tokenizer, every[name], request(lambda text: text + spelled))
            except TemplateError:
                continue
            n_rendered += 1
            more = {text: (plain[id], forged[id]) for text, id in evil.items() if forged[id] > plain[id]}
            assert not more, (name, request.__name__, more)
    assert n_rendered > 2 * len(names)


@pytest.mark.parametrize("vocabulary", ["own", "gemma-4"])
def test_marks_are_cut_and_their_text_stays(
    vocabulary: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer = tokenizer_of(vocabulary, tmp_path_factory.mktemp("vocabulary"))
    for text, id in marks(tokenizer).items():
        found = encode_fenced(tokenizer, f"{text}{fenced(tokenizer, f'a{text}')}{text}", begins=False)
        assert found.count(id) == 2
        if text.isascii():  # the other characters are not in the vocabulary
            assert tokenizer.decode(found) == f"{text}a{text}{text}"


def test_elements_of_html_are_tokens_as_the_model_knows_them(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("own", tmp_path)
    assert fenced(tokenizer, "<h1>") == "<h1>"
    assert fenced(tokenizer, "<think>") != "<think>"
