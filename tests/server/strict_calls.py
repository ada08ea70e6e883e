"""Calls of OpenAI's and Anthropic's packages, each a function of a client that returns what must be true."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any, Final, Literal

import anthropic
import openai
import pydantic

Call = Callable[[Any], Any]
MESSAGES: Final[list[Any]] = [{"role": "user", "content": "Once upon a time"}]
CHAT: Final[dict[str, Any]] = {"model": "any", "messages": MESSAGES, "max_tokens": 8, "seed": 1}
SUN: Final = {
    "type": "object", "properties": {"at": {"enum": ["sun"]}}, "required": ["at"],
    "additionalProperties": False,
}  # fmt: skip
CALLED: Final = {"id": "1", "type": "function", "function": {"name": "Look", "arguments": '{"at": "sun"}'}}
TOOL: Final = {"type": "function", "function": {"name": "Look", "parameters": SUN, "strict": True}}
FORM: Final = {"type": "json_schema", "json_schema": {"name": "a", "schema": SUN, "strict": True}}
OBJECT: Final = {"type": "json_object", "schema": SUN}


class Look(pydantic.BaseModel):
    """Look at something."""

    at: Literal["sun"]


FORCED: Final = {**CHAT, "max_tokens": 150, "tools": [TOOL], "tool_choice": "required",
                 "parallel_tool_calls": False}  # fmt: skip
PARSED: Final = {**FORCED, "tools": [openai.pydantic_function_tool(Look)]}
WHOLE: Final = {**CHAT, "max_tokens": 400, "response_format": Look}
ENDED: Final = {**WHOLE, "response_format": FORM}
TEXT: Final[dict[str, Any]] = {"model": "any", "prompt": "Once upon a time", "max_tokens": 6, "seed": 1}
ASKED: Final[dict[str, Any]] = {"model": "any", "input": "Once upon a time", "max_output_tokens": 8,
                               "temperature": 0}  # fmt: skip
AT: Final = {"type": "function", "name": "Look", "parameters": SUN, "strict": True}
USING: Final = {**ASKED, "max_output_tokens": 150, "tools": [AT], "tool_choice": "required",
                "parallel_tool_calls": False}  # fmt: skip
FORMED: Final = {"format": {"type": "json_schema", "name": "a", "schema": SUN, "strict": True}}
PARTS: Final = [{"role": "user", "content": [{"type": "input_text", "text": "Once"}]},
                {"role": "assistant", "content": "upon"}, {"role": "user", "content": "a time"}]  # fmt: skip
SAID: Final[dict[str, Any]] = {
    "model": "any", "messages": MESSAGES, "max_tokens": 8, "extra_body": {"temperature": 0},
}  # fmt: skip
ONE: Final = {"type": "any", "disable_parallel_tool_use": True}
TOOLS: Final = {**SAID, "max_tokens": 150, "tools": [{"name": "Look", "input_schema": SUN}],
                "tool_choice": ONE}  # fmt: skip
USED: Final = [
    *MESSAGES, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "t1", "name": "Look", "input": {"at": "sun"}}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "bright"}]}]},
]  # fmt: skip
RUN: Final = {**SAID, "max_tokens": 150, "tool_choice": ONE, "max_iterations": 2}


@anthropic.beta_tool
def looked(at: Literal["sun"]) -> str:
    """Look at something."""
    return f"a bright {at}"


def _last(manager: Any) -> Any:
    """What a stream of a helper becomes."""
    with manager as stream:
        final = getattr(stream, "get_final_completion", None) or getattr(stream, "get_final_response", None)
        return (final or stream.get_final_message)()


def _kinds(manager: Any) -> list[str]:
    with manager as stream:
        return [one.type for one in stream]


def _refused(status: int, call: Call) -> Call:
    """A call that is answered with an error of this status."""

    def refused(client: Any) -> bool:
        with contextlib.suppress(openai.APIStatusError, anthropic.APIStatusError):
            call(client)
            return False
        try:
            call(client)
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            return error.status_code == status
        return False

    return refused


def _behind(client: Any, **more: Any) -> Any:
    """A response that goes on from one with a call of a tool."""
    first = client.responses.create(**USING)
    (call,) = [one for one in first.output if one.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "bright"}
    return client.responses.create(**{**ASKED, "input": [result]}, previous_response_id=first.id, **more)


def _kept(client: Any) -> str:
    found: str = client.responses.create(**ASKED).id
    return found


OPENAI: Final[dict[str, Call]] = {
    "chat": lambda o: o.chat.completions.create(**CHAT).choices[0].message.content,
    "chat streamed": lambda o: len(list(o.chat.completions.create(**CHAT, stream=True))) > 3,
    "chat streamed with usage": lambda o: list(
        o.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))[-1].usage,
    "chat with logprobs": lambda o: o.chat.completions.create(
        **CHAT, logprobs=True, top_logprobs=3).choices[0].logprobs.content,
    "chat streamed with logprobs": lambda o: [
        one for one in o.chat.completions.create(**CHAT, logprobs=True, top_logprobs=3, stream=True)
        if one.choices[0].logprobs],
    "chats": lambda o: len(o.chat.completions.create(**CHAT, n=2).choices) == 2,
    "chats streamed": lambda o: {
        one.choices[0].index for one in o.chat.completions.create(**CHAT, n=2, stream=True)} == {0, 1},
    "chat with roles and parts": lambda o: o.chat.completions.create(
        model="any", max_completion_tokens=4, store=False, service_tier="auto", metadata={"a": "b"}, user="u",
        messages=[{"role": "developer", "content": "d"},
                  {"role": "user", "name": "x", "content": [{"type": "text", "text": "hi"}]}]).id,
    "a tool": lambda o: o.chat.completions.create(**FORCED).choices[0].message.tool_calls,
    "a named tool": lambda o: o.chat.completions.create(**{
        **FORCED, "tool_choice": {"type": "function", "function": {"name": "Look"}}}
        ).choices[0].message.tool_calls,
    "a tool streamed": lambda o: [
        one for one in o.chat.completions.create(**FORCED, stream=True) if one.choices[0].delta.tool_calls],
    "results of a tool": lambda o: o.chat.completions.create(
        model="any", max_tokens=4, tools=[TOOL], messages=[
            *MESSAGES, {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "1", "content": "bright"}]).id,
    "a schema": lambda o: json.loads(o.chat.completions.create(**ENDED).choices[0].message.content),
    "a schema streamed": lambda o: json.loads("".join(
        one.choices[0].delta.content or "" for one in o.chat.completions.create(**ENDED, stream=True))),
    "a JSON object": lambda o: json.loads(o.chat.completions.create(
        **{**ENDED, "response_format": OBJECT}).choices[0].message.content),
    "parse": lambda o: o.chat.completions.parse(**WHOLE).choices[0].message.parsed,
    "parse a tool": lambda o: o.chat.completions.parse(
        **PARSED).choices[0].message.tool_calls[0].function.parsed_arguments,
    "stream helper": lambda o: "content.done" in _kinds(o.chat.completions.stream(**ENDED)),
    "stream helper with usage": lambda o: _last(o.chat.completions.stream(
        **ENDED, stream_options={"include_usage": True})).usage,
    "stream helper with logprobs": lambda o: "logprobs.content.delta" in _kinds(
        o.chat.completions.stream(**ENDED, logprobs=True, top_logprobs=2)),
    "stream helper that parses": lambda o: _last(
        o.chat.completions.stream(**WHOLE)).choices[0].message.parsed,
    "stream helper with a tool": lambda o: _last(
        o.chat.completions.stream(**PARSED)).choices[0].message.tool_calls[0].function.parsed_arguments,
    "raw chat": lambda o: o.chat.completions.with_raw_response.create(**CHAT).request_id,
    "completion": lambda o: o.completions.create(**TEXT).choices[0].text,
    "completion streamed": lambda o: list(o.completions.create(**TEXT, stream=True)),
    "completion streamed with usage": lambda o: list(o.completions.create(
        **TEXT, stream=True, stream_options={"include_usage": True}))[-1].usage,
    "completion with logprobs": lambda o: o.completions.create(**TEXT, logprobs=2).choices[0].logprobs.tokens,
    "completion with its prompt": lambda o: o.completions.create(
        **TEXT, echo=True).choices[0].text.startswith(TEXT["prompt"]),
    "completion with its prompt's logprobs": lambda o: o.completions.create(
        **{**TEXT, "prompt": [403, 407]}, echo=True, logprobs=1).choices[0].logprobs.tokens,
    "completions": lambda o: len(o.completions.create(
        **{**TEXT, "prompt": ["Once", "The"]}, n=2, best_of=2).choices) == 4,
    "completion of ids": lambda o: o.completions.create(**{**TEXT, "prompt": [1, 403]}).choices[0].text,
    "embeddings as floats": lambda o: o.embeddings.create(
        model="any", input=["a", "b"], encoding_format="float", dimensions=8).data,
    "embeddings of ids": lambda o: o.embeddings.create(
        model="any", input=[5, 6], encoding_format="float").data,
    "embeddings": lambda o: o.embeddings.create(model="any", input="a").data,
    "embeddings as base64": lambda o: o.embeddings.create(
        model="any", input="a", encoding_format="base64").data,
    "models": lambda o: len(list(o.models.list())) == 1,
    "a model": lambda o: o.models.retrieve(o.models.list().data[0].id).owned_by,
    "no model": _refused(404, lambda o: o.models.retrieve("other/x")),
    "response": lambda o: o.responses.create(**ASKED).output_text,
    "response streamed": lambda o: len(list(o.responses.create(**ASKED, stream=True))) > 8,
    "response of parts": lambda o: o.responses.create(
        **{**ASKED, "input": PARTS}, instructions="Be brief.").output_text,
    "response with fields": lambda o: o.responses.create(
        **{**ASKED, "temperature": 0.5}, reasoning={"effort": "low"}, truncation="auto",
        include=["reasoning.encrypted_content"], metadata={"a": "b"}, store=False, user="u").output_text,
    "response with logprobs": lambda o: o.responses.create(
        **ASKED, include=["message.output_text.logprobs"], top_logprobs=2).output[0].content[0].logprobs,
    "response streamed with logprobs": lambda o: [
        one for one in o.responses.create(
            **ASKED, include=["message.output_text.logprobs"], top_logprobs=2, stream=True)
        if one.type == "response.output_text.delta" and one.logprobs[0].top_logprobs],
    "response behind another": lambda o: o.responses.create(
        **ASKED, previous_response_id=_kept(o)).usage.input_tokens > 20,
    "a kept response": lambda o: o.responses.retrieve(_kept(o)).output_text,
    "a kept response streamed": lambda o: list(
        o.responses.retrieve(_kept(o), stream=True))[-1].response.output_text,
    "no kept response": _refused(404, lambda o: o.responses.retrieve("resp_x")),
    "delete": lambda o: o.responses.delete(_kept(o)) is None,
    "cancel": _refused(400, lambda o: o.responses.cancel(_kept(o))),
    "background": _refused(400, lambda o: o.responses.create(**ASKED, background=True)),
    "items": lambda o: o.responses.input_items.list(_kept(o)).data[0].content[0].text == ASKED["input"],
    "items of parts": lambda o: len(list(o.responses.input_items.list(
        o.responses.create(**{**ASKED, "input": PARTS}).id, limit=2))) == 3,
    "items behind a tool": lambda o: [
        one.type for one in o.responses.input_items.list(_behind(o).id, order="asc")
    ] == ["message", "function_call", "function_call_output"],
    "tokens of a response": lambda o: o.responses.input_tokens.count(model="any", input="a").input_tokens,
    "response with a tool": lambda o: o.responses.create(**USING).output[0].arguments,
    "response with a tool streamed": lambda o: [
        one for one in o.responses.create(**USING, stream=True)
        if one.type == "response.function_call_arguments.done"],
    "response behind a tool": lambda o: _behind(o).id,
    "response with a schema": lambda o: json.loads(o.responses.create(
        **{**ASKED, "max_output_tokens": 400}, text=FORMED).output_text),
    "response that is parsed": lambda o: o.responses.parse(
        **{**ASKED, "max_output_tokens": 400}, text_format=Look).output_parsed,
    "response helper": lambda o: _last(o.responses.stream(
        **{**ASKED, "max_output_tokens": 400}, text=FORMED)).output_text,
    "response helper that parses": lambda o: _last(o.responses.stream(
        **{**ASKED, "max_output_tokens": 400}, text_format=Look)).output_parsed,
    "response helper with a tool": lambda o: _last(o.responses.stream(
        **{**USING, "tools": PARSED["tools"]})).output[0].parsed_arguments,
    "beta response": lambda o: o.beta.responses.retrieve(o.beta.responses.create(**ASKED).id).id,
    "beta response streamed": lambda o: list(o.beta.responses.create(**ASKED, stream=True)),
    "beta items": lambda o: o.beta.responses.input_items.list(_kept(o)).data,
    "a wrong field": _refused(400, lambda o: o.chat.completions.create(**CHAT, temperature=-1)),
}  # fmt: skip

ANTHROPIC: Final[dict[str, Call]] = {
    "message": lambda a: a.messages.create(**SAID).content[0].text,
    "message streamed": lambda a: len(list(a.messages.create(**SAID, stream=True))) > 5,
    "message with fields": lambda a: a.messages.create(
        **SAID, system=[{"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral"}}],
        metadata={"user_id": "a"}, service_tier="auto", stop_sequences=["zz"]).id,
    "a stop sequence": lambda a: a.messages.create(
        **{**SAID, "max_tokens": 80}, stop_sequences=["a"]).stop_sequence == "a",
    "a tool": lambda a: a.messages.create(**TOOLS).stop_reason == "tool_use",
    "a tool streamed": lambda a: _last(a.messages.stream(
        **{**TOOLS, "tool_choice": {**ONE, "type": "tool", "name": "Look"}})).content[0].input["at"],
    "results of a tool": lambda a: a.messages.create(
        **{**TOOLS, "messages": USED, "max_tokens": 4, "tool_choice": {"type": "none"}}).id,
    "thinking": lambda a: a.messages.create(
        **{**SAID, "max_tokens": 1030}, thinking={"type": "enabled", "budget_tokens": 1024}).content,
    "adaptive thinking streamed": lambda a: list(a.messages.create(
        **{**SAID, "max_tokens": 40}, thinking={"type": "adaptive"}, stream=True)),
    "stream helper": lambda a: _last(a.messages.stream(**SAID)).content[0].text,
    "parse": lambda a: a.messages.parse(**{**SAID, "max_tokens": 400}, output_format=Look).parsed_output,
    "stream helper that parses": lambda a: _last(a.messages.stream(
        **{**SAID, "max_tokens": 400}, output_format=Look)).parsed_output,
    "tokens": lambda a: a.messages.count_tokens(model="any", messages=MESSAGES).input_tokens,
    "tokens of tools": lambda a: a.messages.count_tokens(
        model="any", messages=MESSAGES, tools=TOOLS["tools"], system="x").input_tokens,
    "models": lambda a: len(list(a.models.list())) == 1,
    "a model": lambda a: a.models.retrieve(next(iter(a.models.list())).id).display_name,
    "raw message": lambda a: a.messages.with_raw_response.create(**SAID).request_id,
    "beta message": lambda a: a.beta.messages.create(**SAID).content,
    "beta stream helper": lambda a: _last(a.beta.messages.stream(**SAID)).content,
    "beta parse": lambda a: a.beta.messages.parse(
        **{**SAID, "max_tokens": 400}, output_format=Look).parsed_output,
    "beta tokens": lambda a: a.beta.messages.count_tokens(model="any", messages=MESSAGES).input_tokens,
    "beta models": lambda a: len(list(a.beta.models.list())) == 1,
    "a runner of tools": lambda a: len(list(a.beta.messages.tool_runner(**RUN, tools=[looked]))) == 2,
    "a runner of tools that streams": lambda a: [
        one.get_final_message().stop_reason == "tool_use"
        for one in a.beta.messages.tool_runner(**RUN, tools=[looked], stream=True)] == [True, False],
    "a wrong field": _refused(400, lambda a: a.messages.create(
        **{**SAID, "extra_body": {"temperature": -1}})),
}  # fmt: skip
