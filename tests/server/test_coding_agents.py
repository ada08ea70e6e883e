"""Sessions of coding agents by the packages that they use: Claude Code, Codex CLI, an agent over chats.

Each request is made whole and as a stream, and both must become what the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.agent_turns import FORMATS, MARKERS, Agent, Turn, agent_of

if TYPE_CHECKING:  # it takes longer to import than all else that a process collects
    import anthropic
    import openai

DRAFT = "https://json-schema.org/draft/2020-12/schema"
STATUS = {"type": "string", "enum": ["pending", "in_progress", "completed"]}
BASH = {
    "$schema": DRAFT, "type": "object", "additionalProperties": False, "required": ["command"],
    "properties": {
        "command": {"type": "string", "description": "What to run"},
        "timeout": {"type": "number", "maximum": 600000},
        "background": {"type": "boolean", "default": False},
    },
}  # fmt: skip
EDIT = {
    "$schema": DRAFT, "type": "object", "additionalProperties": False, "required": ["path", "old", "new"],
    "properties": {
        "path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"},
        "all": {"default": False, "type": "boolean"},
    },
}  # fmt: skip
PLAN = {
    "$schema": DRAFT, "type": "object", "additionalProperties": False, "required": ["steps"],
    "properties": {
        "steps": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/step"}},
        "notes": {
            "type": "object", "propertyNames": {"type": "string", "minLength": 1},
            "additionalProperties": {"type": "string"},
        },
    },
    "$defs": {
        "step": {
            "type": "object", "required": ["step", "status"], "additionalProperties": False,
            "properties": {"step": {"type": "string", "minLength": 1}, "status": {"$ref": "#/$defs/status"}},
        },
        "status": STATUS,
    },
}  # fmt: skip
SCHEMAS = {"Bash": BASH, "Edit": EDIT, "Plan": PLAN}

LOOK = Turn(
    "Two looks, at once.", "Let me look.",
    (("Bash", {"command": 'grep -n "π < 4" *.py | head'}), ("Bash", {"command": "ls\n\tpwd", "timeout": 5})),
)  # fmt: skip
MEND = Turn(
    "The sign is wrong.", "",
    (("Edit", {"path": "/a.py", "old": 'if a < b:\n    "x"', "new": "if a > b:\n\n    {}", "all": True}),),
)  # fmt: skip
NOTE = Turn(
    "Note it.", "",
    (("Plan", {"steps": [{"step": "mend", "status": "completed"}], "notes": {"why": "é"}}),),
)  # fmt: skip
END = Turn("Nothing is left.", "Done: `a > b`.")
CUT = "a > b:"
"""Where the arguments of MEND's call are cut."""
SESSION = (LOOK, MEND, NOTE, END)


@pytest.fixture(scope="module", params=FORMATS)
def agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with agent_of(request.param, tmp_path_factory.mktemp("agent")) as agent:
        yield agent


def plain(text: str | None) -> str:
    """A text as it is shown, which has no markup of formats."""
    assert not any(marker in (text or "") for marker in MARKERS), text
    return (text or "").strip()


def assert_cut(arguments: str) -> None:
    """These are the begin of MEND's arguments, up to CUT or a little further."""
    begun, behind = json.dumps(MEND.calls[0][1], ensure_ascii=False).split(CUT)
    assert arguments.startswith(begun + CUT)
    assert behind.startswith(arguments.removeprefix(begun + CUT))
    assert len(arguments) < len(begun + CUT) + 4


# Claude Code


@pytest.fixture
def claude(agent: Agent) -> Iterator[anthropic.Anthropic]:
    import anthropic

    with anthropic.Anthropic(
        api_key="none",
        base_url=agent.server.address,
        max_retries=0,
        _strict_response_validation=True,
        timeout=60,
    ) as client:
        yield client


CACHED = {"cache_control": {"type": "ephemeral"}}
CLAUDE_CODE: dict[str, Any] = {
    "model": "local", "max_tokens": 32000,
    "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"},
        {"type": "text", "text": "You are Claude Code.", **CACHED},
        {"type": "text", "text": "# Environment\ncwd: /work", **CACHED},
    ],
    "tools": [
        *({"name": name, "description": f"{name} it.", "input_schema": schema, "eager_input_streaming": True}
          for name, schema in SCHEMAS.items()),
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 31999},
    "metadata": {"user_id": "user_1_account__session_2"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "extra_body": {"temperature": 1},
}  # fmt: skip


def claude_says(agent: Agent, client: Any, messages: list[Any], turn: Turn, **more: Any) -> list[Any]:
    """The content of a whole answer as the history has it, the same as a stream's, and the turn's."""
    asked = {**CLAUDE_CODE, "messages": messages, **more}
    whole = client.beta.messages.create(**asked)
    with client.beta.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    n_prompt = client.beta.messages.count_tokens(
        **{name: asked[name] for name in ("model", "system", "tools", "tool_choice", "thinking", "messages")}
    ).input_tokens
    contents = []
    for message in (whole, streamed):
        content = [block.model_dump(exclude_unset=True) for block in message.content]
        by_kind = {
            kind: [block for block in content if block["type"] == kind]
            for kind in ("thinking", "text", "tool_use")
        }
        assert [plain(block["thinking"]) for block in by_kind["thinking"]] == [turn.reasoning] * bool(
            turn.reasoning
        )
        assert [plain(block["text"]) for block in by_kind["text"]] == [turn.text] * bool(turn.text)
        assert [(block["name"], block["input"]) for block in by_kind["tool_use"]] == list(turn.calls)
        assert content == [block for blocks in by_kind.values() for block in blocks]
        assert message.stop_reason == ("tool_use" if turn.calls else "end_turn")
        usage = message.usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == n_prompt
        assert agent.counted(turn, usage.output_tokens)
        assert usage.output_tokens_details.thinking_tokens == agent.n_reasoning(turn)
        assert [block.pop("id")[:4] for block in by_kind["tool_use"]] == ["call"] * len(turn.calls)
        contents.append(content)
    assert contents[0] == contents[1]
    history = [block.model_dump(exclude_unset=True) for block in whole.content]
    return [block | {"signature": "EqQB"} if block["type"] == "thinking" else block for block in history]


def results(content: list[Any], *outputs: Any) -> dict[str, Any]:
    """The user's message with the results of an answer's calls."""
    ids = [block["id"] for block in content if block["type"] == "tool_use"]
    blocks = [
        {"type": "tool_result", "tool_use_id": id, **output} for id, output in zip(ids, outputs, strict=True)
    ]
    return {"role": "user", "content": blocks}


def test_claude_code_plays_a_session(agent: Agent, claude: anthropic.Anthropic) -> None:
    look, mend, note, end = map(agent.formed, SESSION)
    agent.play(look, mend, note, end)
    messages: list[Any] = [
        {"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>\nBe terse.\n</system-reminder>"},
            {"type": "text", "text": "Mend the loop.", **CACHED},
        ]},
    ]  # fmt: skip
    content = claude_says(agent, claude, messages, look)
    assert "billing" not in agent.prompts[-1]
    failed = {"content": [{"type": "text", "text": "Exit code 1"}, {"type": "text", "text": "no such file"}]}
    messages += [
        {"role": "assistant", "content": content},
        results(content, {**failed, "is_error": True}, {"content": "a.py\nb.py", **CACHED}),
    ]
    asked = {**CLAUDE_CODE, "messages": messages}
    cut = {**asked, "max_tokens": agent.n_written(mend, CUT)}
    with claude.beta.messages.stream(**cut) as stream:
        cut_ones = (stream.get_final_message(), claude.beta.messages.create(**cut))
    assert agent.continues(look)
    for message in cut_ones:
        call = message.content[-1]
        assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", cut["max_tokens"])
        assert [block.type for block in message.content] == ["thinking", "tool_use"][not mend.reasoning :]
        assert call.type == "tool_use"
        assert (call.name, call.input) == ("Edit", {"path": "/a.py", "old": MEND.calls[0][1]["old"]})
    with claude.beta.messages.create(**asked, stream=True) as events:
        for event in events:
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                break
    assert agent.server.at_rest()
    content = claude_says(agent, claude, messages, mend)
    messages += [
        {"role": "assistant", "content": content},
        results(content, {"content": [{"type": "text", "text": "ok"}]}),
        {"role": "system", "content": [{"type": "text", "text": "The plan is empty.", **CACHED}]},
    ]
    forced = {"type": "tool", "name": "Plan", "disable_parallel_tool_use": True}
    content = claude_says(agent, claude, messages, note, tool_choice=forced)
    assert agent.prompts[-1].count("The plan is empty.") == 1
    messages += [{"role": "assistant", "content": content}, results(content, {"content": ""})]
    claude_says(agent, claude, messages, end)
    assert agent.prompts[-1].count("Exit code 1\nno such file") == 1


# Codex CLI


@pytest.fixture
def gpt(agent: Agent) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(
        api_key="none", base_url=f"{agent.server.address}/v1", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


PATCH = 'start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?\nhunk: /.+/ LF\n%import common.LF'
CODEX: dict[str, Any] = {
    "model": "gpt-5.2-codex", "instructions": "You are Codex, a coding agent.",
    "tools": [
        *({"type": "function", "name": name, "description": f"{name} it.", "strict": False,
           "parameters": schema} for name, schema in SCHEMAS.items()),
        {"type": "custom", "name": "apply_patch", "description": "Patch files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}},
        {"type": "local_shell"}, {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto", "parallel_tool_calls": True, "store": False,
    "reasoning": {"effort": "high", "summary": "auto"}, "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "019a-b", "text": {"verbosity": "low"},
}  # fmt: skip


def codex_says(
    agent: Agent, client: Any, items: list[Any], turn: Turn, cut: bool = False, **more: Any
) -> list[Any]:
    """The items of a stream as the history has them, the same as the whole answer's, and the turn's.

    cut: whether the answer ends within the arguments of its last call.
    """
    asked = {**CODEX, "input": items, **more}
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    done = [event.item for event in events if event.type == "response.output_item.done"]
    deltas = [""] * len(done)
    for event in events:
        if event.type.endswith("_text.delta") or event.type == "response.function_call_arguments.delta":
            deltas[event.output_index] += event.delta
    status = "incomplete" if cut else "completed"
    assert events[-1].type == f"response.{status}"
    assert done == events[-1].response.output
    read = []
    for response in (events[-1].response, client.responses.create(**asked)):
        assert response.status == status
        texts, calls = {"reasoning": [""], "message": [""]}, []
        for index, item in enumerate(response.output):
            if item.type == "function_call":
                calls.append((item.name, item.arguments, item.status))
                texts.setdefault(item.type, []).append(item.arguments)
            else:
                texts[item.type].append(item.content[0].text)
            if response is events[-1].response:
                assert texts[item.type][-1] == deltas[index]
        assert ["".join(map(plain, texts[kind])) for kind in ("reasoning", "message")] == [
            turn.reasoning,
            turn.text,
        ]
        whole = [(name, json.loads(arguments)) for name, arguments, end in calls if end == "completed"]
        assert whole == list(turn.calls[:-1] if cut else turn.calls)
        if cut:
            assert calls[-1][2] == status
            assert_cut(calls[-1][1])
            assert response.incomplete_details.reason == "max_output_tokens"
            assert response.usage.output_tokens == asked["max_output_tokens"]
        else:
            assert agent.counted(turn, response.usage.output_tokens)
        details = response.usage.output_tokens_details
        assert details.reasoning_tokens == agent.n_reasoning(turn)
        read.append((texts, calls, response.usage.input_tokens, response.usage.output_tokens))
    assert read[0] == read[1]
    return [item.model_dump(exclude_unset=True, exclude={"status"}) for item in done]


def outputs(items: list[Any], *texts: Any) -> list[Any]:
    """Items with the results of an answer's calls."""
    ids = [item["call_id"] for item in items if item["type"] == "function_call"]
    return [
        {"type": "function_call_output", "call_id": id, "output": text}
        for id, text in zip(ids, texts, strict=True)
    ]


def said(role: str, *texts: str) -> dict[str, Any]:
    """An item of a message with these texts."""
    return {
        "type": "message",
        "role": role,
        "content": [{"type": "input_text", "text": text} for text in texts],
    }


def test_codex_plays_a_session(agent: Agent, gpt: openai.OpenAI) -> None:
    look, mend, note, end = map(agent.formed, SESSION)
    agent.play(look, mend, note, end)
    items: list[Any] = [
        said("developer", "<permissions>read-only</permissions>"),
        said("user", "# AGENTS.md\nBe terse.", "<environment_context>\n  /work\n</environment_context>"),
        said("user", "Mend the loop."),
    ]  # fmt: skip
    answer = codex_says(agent, gpt, items, look)
    items += [*answer, *outputs(answer, "Exit code: 1", [{"type": "input_text", "text": "a.py\nb.py"}])]
    sealed = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": None,
        "encrypted_content": "gAAAA=",
    }
    codex_says(agent, gpt, items, mend, cut=True, max_output_tokens=agent.n_written(mend, CUT))
    assert agent.continues(look)
    answer = codex_says(agent, gpt, items, mend)
    patch = "*** Begin Patch\n*** End Patch"
    items += [
        *answer, *outputs(answer, "ok"), sealed,
        {"type": "custom_tool_call", "id": "ctc_1", "status": "completed", "call_id": "call_p",
         "name": "apply_patch", "input": patch},
        {"type": "custom_tool_call_output", "call_id": "call_p", "output": '{"output":"Success"}'},
        {"type": "local_shell_call", "call_id": "call_l", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": 5, "user": None}},
        {"type": "function_call_output", "call_id": "call_l", "output": "a.py"},
    ]  # fmt: skip
    forced = {"type": "function", "name": "Plan"}
    answer = codex_says(agent, gpt, items, note, tool_choice=forced, parallel_tool_calls=False)
    items += [*answer, *outputs(answer, "Plan updated")]
    codex_says(agent, gpt, items, end)
    for shown in ("<permissions>", "Exit code: 1", "*** Begin Patch", "Success", "Plan updated"):
        assert agent.prompts[-1].count(shown) == 1


# An agent over chats


FILES = {"type": "array", "items": {"type": "string"}}
REPORT = {
    "type": "object", "required": ["mended", "files"], "additionalProperties": False,
    "properties": {"mended": {"type": "boolean"}, "files": FILES},
}  # fmt: skip
CHAT: dict[str, Any] = {
    "model": "local", "max_completion_tokens": 16000, "reasoning_effort": "high", "parallel_tool_calls": True,
    "tools": [
        {"type": "function", "function": {
            "name": name, "description": f"{name} it.", "parameters": schema, "strict": True}}
        for name, schema in SCHEMAS.items()
    ],
    "response_format": {
        "type": "json_schema", "json_schema": {"name": "report", "schema": REPORT, "strict": True}
    },
}  # fmt: skip
CHAT_SESSION = (
    replace(LOOK, text=""), MEND, NOTE, Turn("Nothing is left.", '{"mended": true, "files": ["a.py"]}')
)  # fmt: skip


def streamed_message(chunks: list[Any]) -> tuple[dict[str, Any], str | None]:
    """The message that a stream's deltas are, and why it ended."""
    message: dict[str, Any] = {"role": None, "content": "", "reasoning_content": "", "tool_calls": []}
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert not any(ends[:-1])
    for delta in (chunk.choices[0].delta for chunk in chunks if chunk.choices):
        message["role"] = delta.role or message["role"]
        message["content"] += delta.content or ""
        message["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
        for part in delta.tool_calls or ():
            if part.id:
                assert part.index == len(message["tool_calls"])
                function = {"name": part.function.name, "arguments": ""}
                message["tool_calls"].append({"id": part.id, "type": part.type, "function": function})
            message["tool_calls"][part.index]["function"]["arguments"] += part.function.arguments or ""
    return message, ends[-1]


def chat_says(
    agent: Agent, client: Any, messages: list[Any], turn: Turn, cut: bool = False, **more: Any
) -> dict[str, Any]:
    """The message of a stream as the history has it, the same as the whole answer's, and the turn's.

    cut: whether the answer ends within the arguments of its last call.
    """
    asked = {**CHAT, "messages": messages, **more}
    options = {"stream_options": {"include_usage": True}, "stream": True}
    chunks = list(client.chat.completions.create(**asked, **options))
    message, end = streamed_message(chunks)
    completion = client.chat.completions.create(**asked)
    whole = completion.choices[0].message.model_dump(exclude_none=True)
    read = []
    for answer, reason, usage in (
        (message, end, chunks[-1].usage),
        (whole, completion.choices[0].finish_reason, completion.usage),
    ):
        texts = plain(answer.get("reasoning_content")), plain(answer["content"])
        assert texts == (turn.reasoning, turn.text)
        functions = [call["function"] for call in answer.get("tool_calls", ())]
        if cut:
            assert_cut(functions[-1]["arguments"])
            assert (reason, usage.completion_tokens) == ("length", asked["max_completion_tokens"])
        else:
            calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
            assert calls == list(turn.calls)
            assert reason == ("tool_calls" if turn.calls else "stop")
            assert agent.counted(turn, usage.completion_tokens)
        assert usage.completion_tokens_details.reasoning_tokens == agent.n_reasoning(turn)
        read.append((texts, functions, usage.prompt_tokens, usage.completion_tokens))
    assert read[0] == read[1]
    return message


def test_an_agent_over_chats_plays_a_session(agent: Agent, gpt: openai.OpenAI) -> None:
    look, mend, note, report = map(agent.formed, CHAT_SESSION)
    agent.play(look, mend, note, report)
    messages: list[Any] = [
        {"role": "developer", "content": [{"type": "text", "text": "You are an agent."}]},
        {"role": "user", "content": "Mend the loop."},
    ]

    def add(answer: dict[str, Any], *contents: Any) -> None:
        messages.append(answer)
        for call, content in zip(answer["tool_calls"], contents, strict=True):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    add(chat_says(agent, gpt, messages, look), "Exit code: 1", [{"type": "text", "text": "a.py\nb.py"}])
    chat_says(agent, gpt, messages, mend, cut=True, max_completion_tokens=agent.n_written(mend, CUT))
    assert agent.continues(look)
    add(chat_says(agent, gpt, messages, mend), "ok")
    forced = {"type": "function", "function": {"name": "Plan"}}
    add(chat_says(agent, gpt, messages, note, tool_choice=forced, parallel_tool_calls=False), "Plan updated")
    chat_says(agent, gpt, messages, report)
    for shown in ("You are an agent.", "Exit code: 1", "a.py\nb.py", "Plan updated"):
        assert agent.prompts[-1].count(shown) == 1
