"""Messages of a request as a prompt: checked, rendered by the model's template, and encoded.

What a user's or the model's message spells of control tokens stays text, so that nobody forges a turn. Knows
messages and templates; nothing of protocols or of steps.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from graphml.api.chat_prompt import REASONING_FORMATS, ChatPrompt, chat_prompt
from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.server.access.text_limits import check_fits, check_json_chars
from graphml.server.engine.service import Service
from graphml.server.requests.request_fields import ChatCompletion
from graphml.server.requests.sampling_settings import budget_of, reasoning_limits
from graphml.server.responses.api_errors import wrong_field
from graphml.text.answers import ToolCall
from graphml.text.messages import Message, checked_messages, parts_of, role_of

LEGACY = "deepseek-legacy"
FUNCTION = "function"
RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})
"""Variables of templates that requests have fields for."""
SWITCHED: Final = ("enable_thinking", "thinking")


def conversation_of(
    service: Service, chat: ChatCompletion, params: SamplingParams | None = None, **more: Any
) -> ChatPrompt:
    """The prompt that messages become; ApiError 400 naming what is wrong.

    params: how the answer is sampled; the prompt's own may follow a grammar besides. more: variables.
    """
    limits = service.options.limits
    if not chat.messages:
        raise wrong_field("messages", "wanted at least one message; got an empty list")
    check_json_chars(chat.tools, limits.tool_chars, "tools")
    check_json_chars(chat.chat_template_kwargs, limits.tool_chars, "chat_template_kwargs")
    messages = checked(chat.messages, limits.messages, limits.tool_chars)
    check_fits([message["content"] for message in messages], service.tokenizer, service.access.n_ctx)
    _check_begun(chat, messages)
    variables = {**_variables(service, chat), **more}
    params = replace(params or SamplingParams(), **reasoning_limits(chat, service.options))
    form = chat.reasoning_format or service.options.reasoning_format
    form = "deepseek" if form == LEGACY else form
    if form not in REASONING_FORMATS:
        raise wrong_field("reasoning_format", f"wanted one of {', '.join(REASONING_FORMATS)}")
    tools, choice = _offered(chat)
    try:
        return chat_prompt(
            service.tokenizer, service.templates, messages, params, tools=tools, tool_choice=choice,
            parallel_tool_calls=chat.parallel_tool_calls, variables=variables,
            reasoning_format=form,
        )  # fmt: skip
    except UsageError as error:
        name = str(error).split(":")[0].split("[")[0].split(".")[0]
        raise wrong_field(
            name if name in ChatCompletion.__struct_fields__ else "messages", str(error)
        ) from None


def ignored_tools(chat: ChatCompletion) -> list[str]:
    """The types of a request's tools that are no functions: the model is not told of them."""
    kinds = [tool.get("type") for tool in chat.tools or []]
    return sorted({kind for kind in kinds if isinstance(kind, str) and kind != FUNCTION})


def _offered(chat: ChatCompletion) -> tuple[list[dict[str, Any]] | None, Any]:
    """The functions, and what is said of their use; of `allowed_tools` those that may be called."""
    ignored = ignored_tools(chat)
    tools, choice = [tool for tool in chat.tools or [] if tool.get("type") not in ignored], chat.tool_choice
    if choice is None or not chat.tools:
        return tools, "auto"
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    allowed = choice.get("allowed_tools")
    mode, listed = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(listed, list):
        raise wrong_field("tool_choice", "wanted allowed_tools with the mode auto or required, and tools")
    known = {_tool_name(tool): tool for tool in tools}
    names = [_tool_name(tool) for tool in listed]
    if wrong := [name for name in names if name is None or name not in known]:
        raise wrong_field(
            "tool_choice", f"wanted functions of the request in allowed_tools; got {wrong[0]!r:.40}"
        )
    return [known[name] for name in dict.fromkeys(names)], mode


def _tool_name(tool: Any) -> str | None:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def prompt_text(service: Service, chat: ChatCompletion) -> str:
    """The text that messages become, without the begin of an answer where that is not wanted."""
    if chat.add_generation_prompt is not False or chat.continue_final_message:
        return conversation_of(service, chat).text
    return conversation_of(service, chat, add_generation_prompt=False).text


def _variables(service: Service, chat: ChatCompletion) -> dict[str, Any]:
    """What the template is given besides messages: dates by llama.cpp's names among it."""
    now = datetime.now()
    dates = {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}
    asked = chat.chat_template_kwargs or {}
    if wrong := sorted(RESERVED.intersection(asked)):
        raise wrong_field("chat_template_kwargs", f"{wrong[0]} is a field of the request")
    # Some clients send a switch as a text, which a template takes for on.
    texts = {name: value for name, value in asked.items() if name in SWITCHED and value in ("true", "false")}
    asked = {**asked, **{name: value == "true" for name, value in texts.items()}}
    variables = {**dates, **service.options.template_variables, **asked}
    # "auto" is on, as in llama-server.
    variables.setdefault("enable_thinking", service.options.reasoning != "off")
    if chat.reasoning_effort == "none" or budget_of(chat) == 0:
        variables["enable_thinking"] = False
    elif chat.reasoning_effort is not None:
        variables["reasoning_effort"] = chat.reasoning_effort
    return variables


def _check_begun(chat: ChatCompletion, messages: list[Message]) -> None:
    if chat.continue_final_message and chat.add_generation_prompt:
        raise wrong_field("continue_final_message", "it excludes add_generation_prompt")
    if [message["role"] for message in messages[-2:]] == ["assistant", "assistant"]:
        raise wrong_field("messages", "wanted one message of the assistant at the end, got several")


def checked(messages: list[Any], most: int, most_chars: int) -> list[Message]:
    """The messages, each with a role and its content as text. most_chars: of the arguments of a call."""
    if len(messages) > most:
        raise wrong_field("messages", f"at most {most} are wanted, got {len(messages)}")
    last = len(messages) - 1
    for message in messages:
        _check_arguments(message, most_chars)
    try:
        return checked_messages(_joined(i, message, i == last) for i, message in enumerate(messages))
    except UsageError as error:
        raise wrong_field("messages", str(error)) from None


def _check_arguments(message: Any, most: int) -> None:
    """ApiError 400 for a call whose arguments are very long: reading them would hold up others."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            check_json_chars(function.get("arguments"), most, "messages")


def _with_whole_members(call: Any) -> Any:
    """A call; one that was cut, as answers have them at their limit, with the arguments that are whole."""
    function = call.get("function") if isinstance(call, dict) else None
    text = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(text, str) or not text.lstrip().startswith("{"):
        return call
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        values = ToolCall("", "", text, whole=False).values()
        return {**call, "function": {**function, "arguments": values}}
    return call


def _joined(index: int, message: Any, last: bool) -> Any:
    """The message with its text parts joined as llama-server does: of a begun answer by an empty line."""
    if not isinstance(message, dict):
        return message
    if isinstance(message.get("tool_calls"), list):
        message = {**message, "tool_calls": [_with_whole_members(call) for call in message["tool_calls"]]}
    where, content = f"messages[{index}]", message.get("content")
    role = role_of(where, message)
    if isinstance(content, list):
        between = "\n\n" if last and role == "assistant" else "\n"
        text, reasoning = parts_of(f"{where}.content", content, role, between)
        message = {**message, "content": text}
        return {**message, "reasoning_content": reasoning} if reasoning else message
    return {**message, "content": ""} if content is None and role == "assistant" else message
