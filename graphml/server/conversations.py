"""Messages of a request as a prompt: checked, rendered by the model's template, and encoded.

What a user's or the model's message spells of control tokens stays text, so that nobody forges a turn. Knows
messages and templates; nothing of protocols or of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphml.server.api_errors import ApiError, wrong_field
from graphml.server.prompts import text_of_parts
from graphml.server.request_fields import ChatCompletion
from graphml.server.service import Service
from graphml.text.fenced_text import encode_fenced, fenced, without_fences

TRUSTED = ("system", "developer")
ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Conversation:
    """A prompt of messages: its text and ids, and the text that the answer goes on from, if one was begun."""

    text: str
    ids: list[int]
    begun: str = ""


def conversation_of(service: Service, given: ChatCompletion) -> Conversation:
    """The prompt that messages become; ApiError 400 naming what is wrong."""
    if given.tools and given.tool_choice != "none":
        raise ApiError(501, "Field 'tools': this server calls no tools yet", param="tools")
    messages = checked(given.messages, service.options.limits.messages)
    begun = _begun(service, given, messages)
    if begun is not None:
        messages = messages[:-1]
    tokenizer = service.tokenizer
    shown = [
        one if one["role"] in TRUSTED else {**one, "content": fenced(tokenizer, one["content"])}
        for one in messages
    ]
    variables = {**service.options.template_variables, **(given.chat_template_kwargs or {})}
    if given.reasoning_effort is not None:
        variables["reasoning_effort"] = given.reasoning_effort
    begins = begun is not None or given.add_generation_prompt is not False
    text = service.template.render(shown, tools=None, add_generation_prompt=begins, **variables)
    if begun is not None:
        text += fenced(tokenizer, begun)
    return Conversation(without_fences(text), encode_fenced(tokenizer, text, begins=True), begun or "")


def _begun(service: Service, given: ChatCompletion, messages: list[dict[str, Any]]) -> str | None:
    """The answer that a request has begun itself, as its last message."""
    if given.continue_final_message and given.add_generation_prompt:
        raise wrong_field("continue_final_message", "it excludes add_generation_prompt")
    wanted = given.continue_final_message or (
        service.options.prefill_assistant and given.continue_final_message is None
        and given.add_generation_prompt is not False
    )  # fmt: skip
    if not messages or messages[-1]["role"] != "assistant":
        return None
    if len(messages) > 1 and messages[-2]["role"] == "assistant":
        raise wrong_field("messages", "wanted one message of the assistant at the end, got several")
    if not wanted:
        return None
    content = given.messages[-1].get("content")
    # llama-server joins the parts of a begun answer by an empty line.
    return (
        text_of_parts(content, "messages", "\n\n") if isinstance(content, list) else messages[-1]["content"]
    )


def checked(messages: list[Any], most: int) -> list[dict[str, Any]]:
    """The messages, each with a role and its content as text."""
    if len(messages) > most:
        raise wrong_field("messages", f"at most {most} are wanted, got {len(messages)}")
    return [_checked(index, one) for index, one in enumerate(messages)]


def _checked(index: int, message: Any) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise wrong_field("messages", f"{where}: wanted an object, got {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong_field("messages", f"{where}.role: wanted one of {', '.join(ROLES)}; got {role!r:.40}")
    if isinstance(content, list):
        content = text_of_parts(content, "messages", "\n")
    if content is None and (role == "assistant" or "tool_calls" in message):
        content = ""
    if not isinstance(content, str):
        kind = "nothing" if content is None else type(content).__name__
        raise wrong_field("messages", f"{where}.content: wanted a text or a list of parts, got {kind}")
    return {**message, "content": content}
