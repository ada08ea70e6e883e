"""Conversations as clients send them back: turns, reasoning, system messages, foreign tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml.api.chat_prompt import chat_prompt
from graphml.server.options.server_options import ServerOptions
from graphml.server.protocols.anthropic_messages import Messages, as_chat
from graphml.server.requests.request_fields import converted
from tests import template_corpus, tiny_model
from tests.server.running_server import Running, running

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa=="}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "Rome"}'}}
LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Its template refuses a system message that is not the first, and writes reasoning before an answer."""
    path = tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_ctx=4096)
    template = template_corpus.corpus()["Qwen3.5-4B"]
    with (
        graphml.load(path, backend="reference", kv="f32", template=template) as model,
        running(ServerOptions(parallel=1, n_ctx=4096), model) as server,
    ):
        yield server


def rendered(server: Running, messages: list[Any], **more: Any) -> str:
    answer = server.post("/apply-template", {"messages": messages, **more})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["prompt"])


def n_tokens(server: Running, path: str, body: dict[str, Any]) -> int:
    answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["input_tokens"])


def counts(server: Running, chat: Any, items: Any, blocks: Any, **more: Any) -> list[int]:
    """How many tokens the same conversation has on each protocol."""
    return [
        n_tokens(server, "/v1/chat/completions/input_tokens", {"messages": chat}),
        n_tokens(server, "/v1/responses/input_tokens", {"input": items}),
        n_tokens(server, "/v1/messages/count_tokens", {"messages": blocks, **more}),
    ]


def test_later_system_messages_join_the_first_where_a_template_refuses_them(thinker: Running) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "developer", "content": "Now rhyme."},
    ]
    assert rendered(thinker, messages).startswith(
        "<|im_start|>system\nBe brief.\n\nNow rhyme.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"
    )
    assert "<|im_start|>system\nNow rhyme." in rendered(thinker, messages[1:])
    chat, items, blocks = counts(thinker, messages, messages, messages[1:], system="Be brief.")
    assert chat == items
    # Anthropic's field is a system message like any other.
    assert blocks == items


@pytest.mark.parametrize(
    ("roles", "wanted"),
    [
        ("su", [("user", "s0\n\nu1")]),
        ("us", [("user", "s1\n\nu0")]),
        ("suasu", [("user", "s0\n\ns3\n\nu1"), ("model", "a2"), ("user", "u4")]),
        ("sau", [("user", "s0"), ("model", "a1"), ("user", "u2")]),
        ("s", [("user", "s0")]),
    ],
)
def test_a_users_turn_says_what_systems_say_where_a_template_has_no_such_role(
    roles: str, wanted: list[tuple[str, str]], tmp_path: Path
) -> None:
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [{"role": names[role], "content": f"{role}{index}"} for index, role in enumerate(roles)]
    template = template_corpus.corpus()["google-gemma-2-2b-it"]
    path = tiny_model.write(tmp_path / "tiny.gguf", template=template)
    with graphml.load(path, backend="reference") as model:
        prompt = chat_prompt(model.tokenizer, model.templates, messages).text
    turns = "".join(f"<start_of_turn>{role}\n{text}<end_of_turn>\n" for role, text in wanted)
    assert prompt.removeprefix("<|begin|>") == f"{turns}<start_of_turn>model\n"


def test_reasoning_texts_and_calls_of_responses_are_one_turn(thinker: Running) -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "Rome"}'}
    result = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
    chat = [
        USER,
        {"role": "assistant", "content": "I look", "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    blocks = [
        USER,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "Rome"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sun"}]},
    ]
    same = counts(thinker, chat, [USER, reasoning, said, call, result], blocks)
    assert same[0] == same[1] == same[2]
    for last in ([reasoning, said], [reasoning]):
        begun = {"role": "assistant", "content": "I look" if said in last else "", "reasoning_content": "hm"}
        asked = {"input": [USER, *last], "max_output_tokens": 2}
        answer = thinker.post("/v1/responses", asked)
        assert answer.status_code == 200, answer.text
        chat_tokens = n_tokens(thinker, "/v1/chat/completions/input_tokens", {"messages": [USER, begun]})
        assert answer.json()["usage"]["input_tokens"] == chat_tokens


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "Yes", "reasoning": "because"},
        {"role": "assistant", "content": "Yes", "thinking": "because"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "because"}, "Yes"]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "because"}]},
                {"type": "text", "text": "Yes"},
            ],
        },
        {"role": "assistant", "content": [{"type": "reasoning", "text": "because"}, "Yes"]},
    ],
    ids=range(5),
)  # fmt: skip
def test_reasoning_by_any_name_is_reasoning(thinker: Running, message: dict[str, Any]) -> None:
    wanted = rendered(
        thinker, [USER, {"role": "assistant", "content": "Yes", "reasoning_content": "because"}]
    )
    assert "because" in wanted
    assert rendered(thinker, [USER, message]) == wanted


def test_the_first_form_of_calls_is_read(thinker: Running) -> None:
    first = [
        {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {"role": "function", "name": "look", "content": "sun"},
    ]
    today = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    assert rendered(thinker, [USER, *first]) == rendered(thinker, [USER, *today])


def test_a_call_that_was_cut_keeps_its_whole_arguments(thinker: Running) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "cut"}
    for text, whole in (
        ('{"at": "Rome", "days": 12', '{"at": "Rome"}'),
        ('{"at": {"city": "Rome"}', '{"at": {"city": "Rome"}}'),
        ("{", "{}"),
        ('{"at": "Rome", "deep": ' + "[" * 5000, '{"at": "Rome"}'),
    ):
        cut, kept = (
            [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
            for call in (
                {**CALL, "function": {"name": "look", "arguments": arguments}} for arguments in (text, whole)
            )
        )
        assert rendered(thinker, cut) == rendered(thinker, kept)
        items = [
            USER,
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": text},
            {"type": "function_call_output", "call_id": "c1", "output": "cut"},
        ]
        asked = {"input": items}, {"messages": kept}
        paths = "/v1/responses/input_tokens", "/v1/chat/completions/input_tokens"
        assert n_tokens(thinker, paths[0], asked[0]) == n_tokens(thinker, paths[1], asked[1])
    for wrong in ("[", "x", "{" * 20000 + "["):
        call = {**CALL, "function": {"name": "look", "arguments": wrong}}
        messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, result]
        answer = thinker.post("/apply-template", {"messages": messages})
        assert answer.status_code == (200 if wrong[0] == "{" else 400)


def test_media_are_refused_wherever_they_are(thinker: Running) -> None:
    url = {"type": "image_url", "image_url": {"url": "data:"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [IMAGE]}
    output = {
        "type": "function_call_output",
        "call_id": "c1",
        "output": [{"type": "input_image", "image_url": "x"}],
    }
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [url]}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
        ("/v1/chat/completions", {"messages": [USER, {"role": "tool", "content": [url]}]}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [IMAGE]}]}),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [result]}]}),
        ("/v1/responses", {"input": [output]}),
    ):
        refused = thinker.post(path, body)
        assert refused.status_code == 400, (path, body)
        assert "not supported" in refused.text


FOREIGN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {"type": "custom", "custom": {"name": "patch"}},
        {"type": "custom", "custom": {"name": "patch"}},
    ),
    ("/v1/responses", {"type": "web_search"}, {"type": "web_search"}),
    ("/v1/responses", {"type": "custom", "name": "patch"}, {"type": "custom", "name": "patch"}),
    ("/v1/responses", {"type": "local_shell"}, {"type": "local_shell"}),
    ("/v1/responses", {"type": "mcp", "server_label": "x"}, {"type": "mcp", "server_label": "x"}),
    (
        "/v1/messages",
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "tool", "name": "web_search"},
    ),
    ("/v1/messages", {"type": "bash_20250124", "name": "bash"}, {"type": "tool", "name": "bash"}),
]


@pytest.mark.parametrize(("path", "foreign", "choice"), FOREIGN, ids=range(len(FOREIGN)))
@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_are_no_functions_are_left_out(
    thinker: Running, path: str, foreign: dict[str, Any], choice: dict[str, Any], stream: bool
) -> None:
    body: dict[str, Any] = {"max_tokens": 2, "stream": stream}
    body |= {"input": "Hi", "max_output_tokens": 2} if "responses" in path else {"messages": [USER]}
    own: dict[str, Any] = {"type": "function", "function": LOOK}
    if "responses" in path:
        own = {"type": "function", **LOOK}
    elif "messages" in path:
        own = {"type": "custom", "name": "look", "description": "Look.", "input_schema": LOOK["parameters"]}
    for others in ([], [own]):
        with thinker.http.stream("POST", path, json={**body, "tools": [*others, foreign]}) as answer:
            answer.read()
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-graphml-ignored-tools"] == foreign["type"]
        if not stream:
            n_prompt = answer.json()["usage"]
            alone = thinker.post(path, {**body, "tools": others})
            assert "x-graphml-ignored-tools" not in alone.headers
            counted = [
                sum(
                    usage.get(name, 0)
                    for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens")
                )
                for usage in (n_prompt, alone.json()["usage"])
            ]
            assert counted[0] == counted[1]
        refused = thinker.post(path, {**body, "tools": [*others, foreign], "tool_choice": choice})
        assert refused.status_code == 400, refused.text
        assert "tool_choice" in refused.text


def test_a_type_of_a_tool_forges_no_header(thinker: Running) -> None:
    body = {"messages": [USER], "max_tokens": 1, "tools": [{"type": "a\r\nX-Evil: 1"}, {"type": "é" * 999}]}
    answer = thinker.post("/v1/chat/completions", body)
    assert answer.headers["x-graphml-ignored-tools"] == f"a??X-Evil??1,{'?' * 64}"
    assert "x-evil" not in answer.headers


def test_histories_of_others_tools_are_read(thinker: Running) -> None:
    items = [
        USER,
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"query": "x"}},
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
        {"type": "local_shell_call", "call_id": "c2", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c2", "output": "a.txt"},
        {"type": "mcp_call", "id": "m", "name": "ask", "arguments": '{"q": "why"}', "output": "so"},
    ]
    n = n_tokens(thinker, "/v1/responses/input_tokens", {"input": items})
    assert n > 0
    for kind in ("tool_search_call", "tool_search_output", "image_generation_call", "mcp_approval_request"):
        asked = {"input": [*items, {"type": kind, "id": "i"}]}
        assert n_tokens(thinker, "/v1/responses/input_tokens", asked) == n, kind
    ran = {"type": "code_interpreter_call", "id": "ci", "code": "print(6 * 7)"}
    without = n_tokens(thinker, "/v1/responses/input_tokens", {"input": [*items, ran]})
    ran["outputs"] = [{"type": "logs", "logs": "42, as was expected"}]
    assert n_tokens(thinker, "/v1/responses/input_tokens", {"input": [*items, ran]}) > without > n
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
    for item in (
        {"type": "item_reference", "id": "x"},
        {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}},
        {"type": "computer_call_output", "call_id": "c", "output": shot},
    ):
        refused = thinker.post("/v1/responses", {"input": [*items, item]})
        assert refused.status_code == 400
        assert repr(item["type"]) in refused.text


def test_a_summary_of_earlier_turns_is_text(thinker: Running) -> None:
    def n_of(*parts: dict[str, Any]) -> int:
        turns = [USER, {"role": "assistant", "content": [*parts, {"type": "text", "text": "Yes."}]}, USER]
        return n_tokens(thinker, "/v1/messages/count_tokens", {"messages": turns})

    summary = {"type": "compaction", "content": "They spoke of Rome."}
    assert n_of(summary) == n_of({"type": "text", "text": "They spoke of Rome."}) > n_of()
    assert n_of({"type": "compaction", "content": None}) == n_of()


def test_a_file_in_a_container_is_told_as_its_id(thinker: Running) -> None:
    def n_of(part: dict[str, Any]) -> int:
        turns = [{"role": "user", "content": [part, {"type": "text", "text": "Sum it up."}]}]
        return n_tokens(thinker, "/v1/messages/count_tokens", {"messages": turns})

    upload = {"type": "container_upload", "file_id": "file_011"}
    assert n_of(upload) == n_of({"type": "text", "text": json.dumps(upload)})


def test_python_takes_system_messages_anywhere(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf", n_ctx=512)
    with graphml.load(path, backend="reference") as model:
        chat = model.chat(system="Be kind.")
        messages = [*chat.history, USER, {"role": "system", "content": "Now rhyme."}]
        chat.history = messages
        assert (chat.history, chat.system) == (messages, "Be kind.")
        chat.system = "Be brief."
        assert chat.history == [{"role": "system", "content": "Be brief."}, *messages[1:]]


@pytest.fixture(scope="module")
def answering(thinker: Running) -> dict[str, Any]:
    """Fields of a request whose answer reasons for a while and then says something."""
    return {"temperature": 0, "grammar": 'root ::= "so it is </think> héllo <b"', "max_tokens": 60}


def test_tokens_of_reasoning_are_counted_and_have_no_scores(
    thinker: Running, answering: dict[str, Any]
) -> None:
    asked = {**answering, "messages": [USER], "logprobs": True}
    plain = thinker.post("/v1/chat/completions", asked).json()
    message, usage = plain["choices"][0]["message"], plain["usage"]
    assert (message["reasoning_content"].strip(), message["content"]) == ("so it is", "héllo <b")
    scored = plain["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in scored).decode().strip() == "héllo <b"
    n_reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert len("so it is") <= n_reasoning < usage["completion_tokens"] - len(scored) + 2
    events = list(
        thinker.events("/v1/chat/completions", {**asked, "stream_options": {"include_usage": True}})
    )
    parts = [event["choices"][0] for event in events if event["choices"]]
    streamed = [entry["id"] for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
    assert streamed == [entry["id"] for entry in scored]
    assert events[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == n_reasoning
    fields = {name: value for name, value in answering.items() if name != "max_tokens"}
    responses = {
        **fields,
        "input": "Hi",
        "max_output_tokens": 60,
        "include": ["message.output_text.logprobs"],
    }
    answer = thinker.post("/v1/responses", responses).json()
    assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == n_reasoning
    (part,) = answer["output"][-1]["content"]
    assert [entry["id"] for entry in part["logprobs"]] == streamed
    cut = thinker.post("/v1/messages", {"messages": [USER], "max_tokens": 5, "temperature": 0}).json()[
        "usage"
    ]
    assert cut["output_tokens_details"]["thinking_tokens"] <= cut["output_tokens"] == 5


def test_a_message_follows_its_output_format(thinker: Running) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "schema": schema}
    off = {"messages": [USER], "max_tokens": 40, "temperature": 0, "thinking": {"type": "disabled"}}
    for field in ({"output_format": form}, {"output_config": {"format": form}}):
        content = thinker.post("/v1/messages", {**off, **field}).json()["content"]
        assert [json.loads(block["text"]) for block in content] == [{"a": 1}]
    wrong = thinker.post("/v1/messages", {**off, "output_format": {"type": "xml"}})
    assert wrong.status_code == 400


def test_blocks_of_anthropic_servers_and_documents_are_read(thinker: Running) -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "weather"}}
    page = {"type": "web_search_result", "title": "Weather", "url": "https://weather.example"}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [page]}
    document = {"type": "document", "title": "Note", "source": {"type": "text", "data": "buy milk"}}
    passage = {
        "type": "search_result",
        "source": "x",
        "title": "Shop",
        "content": [{"type": "text", "text": "open"}],
    }
    own = {"type": "tool_result", "tool_use_id": "c1", "content": [passage, {"type": "text", "text": "done"}]}
    messages = [
        {"role": "user", "content": [document, {"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": [search, found, {"type": "text", "text": "Sunny."}]},
        {"role": "user", "content": [own, {"type": "text", "text": "And?"}]},
    ]
    chat = as_chat(converted({"messages": messages}, Messages)).messages
    assert [message["role"] for message in chat] == ["user", "assistant", "tool", "assistant", "tool", "user"]
    text = rendered(thinker, chat)
    for part in ("Note\nbuy milk\nHi", "weather.example", "Sunny.", "Shop\nopen\ndone", "And?"):
        assert part in text
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aa=="}}
    refused = thinker.post(
        "/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [pdf]}]}
    )
    assert refused.status_code == 400
