"""Messages of a conversation in OpenAI's form: the check of messages from a caller or a file.

Knows roles, texts and tool calls; nothing of templates, sessions or files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from graphml.errors import UsageError, json_type
from graphml.text.chat_template import check_nesting

Message: TypeAlias = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool")
ALIASES: Final = {"developer": "system", "function": "tool", "ipython": "tool"}
MEDIA: Final = {
    "image_url": "images", "image": "images", "input_image": "images", "input_audio": "audio",
    "audio": "audio", "audio_url": "audio", "video_url": "video", "video": "video", "input_video": "video",
    "file": "files", "input_file": "files", "document": "files",
}  # fmt: skip
TEXT_PARTS: Final = ("text", "input_text", "output_text", "refusal")
THOUGHT_PARTS: Final = ("thinking", "reasoning", "reasoning_text", "redacted_thinking")
"""Parts of an assistant's content that are reasoning; a redacted one has no text that a model reads."""
THOUGHT_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
"""Names of an assistant's reasoning: llama-server's, OpenRouter's and ollama's."""
_PLAIN_KEYS: Final = ("name", "tool_call_id")


def checked_messages(value: object) -> list[Message]:
    """Return the messages with the keys that are known; the UsageError names the first invalid one.

    The role is "system", "user", "assistant" or "tool"; "developer" and "function" are other names. The
    content is a text or a list of text parts, which are joined; an assistant's may be None beside
    `tool_calls`, whose arguments are JSON text. Also kept are `tool_call_id`, a tool's `name`, and as
    `reasoning_content` an assistant's reasoning, by that name, as `reasoning`, `thinking` or parts of the
    content.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise UsageError(f"messages: wanted a list of messages, got {json_type(value)}")
    return [_checked(f"messages[{index}]", message) for index, message in enumerate(value)]


def _checked(where: str, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise UsageError(f"{where}: wanted role and content, got {json_type(message)}")
    role = role_of(where, message)
    content, reasoning = message.get("content"), ""
    calls = message.get("tool_calls") if role == "assistant" else None
    if role == "assistant":
        reasoning = _reasoning(where, message)
        if calls is None and isinstance(message.get("function_call"), Mapping):
            calls = [{"function": message["function_call"]}]  # of OpenAI's first form of calls
    if isinstance(content, (list, tuple)):
        content, thoughts = parts_of(f"{where}.content", content, role)
        reasoning += thoughts
    elif content is None and (calls or reasoning or role == "tool"):
        content = ""
    if not isinstance(content, str):
        raise UsageError(f"{where}.content: wanted text, got {json_type(content)}")
    checked: Message = {"role": role, "content": content}
    for key in _PLAIN_KEYS:
        value = message.get(key)
        if value is None or (key == "name" and role != "tool"):
            continue
        if not isinstance(value, str):
            raise UsageError(f"{where}.{key}: wanted text, got {json_type(value)}")
        checked[key] = value
    if reasoning:
        checked["reasoning_content"] = reasoning
    if calls:
        checked["tool_calls"] = _calls(f"{where}.tool_calls", calls)
    return checked


def role_of(where: str, message: Mapping[str, Any]) -> str:
    """The role of a message, by its own name; UsageError for what is none."""
    role = message.get("role")
    role = ALIASES.get(role, role) if isinstance(role, str) else role
    if not isinstance(role, str) or role not in ROLES:
        raise UsageError(f"{where}.role: wanted {' or '.join(ROLES)}, got {role!r:.80}")
    return role


def parts_of(
    where: str, parts: Sequence[object], role: str = "assistant", between: str = ""
) -> tuple[str, str]:
    """The text of content parts and, of an assistant, the reasoning among them; UsageError for others."""
    texts: list[str] = []
    reasoning: list[str] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, Mapping) and kind in THOUGHT_PARTS and role == "assistant":
            reasoning.append(_thought(f"{where}[{index}]", part))
        else:
            texts.append(_part(f"{where}[{index}]", part))
    return between.join(texts), "".join(reasoning)


def _part(where: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise UsageError(f"{where}: wanted a part with type and text, got {json_type(part)}")
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIA:
        raise UsageError(f"{where}: {MEDIA[kind]} are not supported, only text; got a part of type {kind!r}")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind not in TEXT_PARTS or not isinstance(text, str):
        raise UsageError(f"{where}: wanted a part of type 'text' with its text, got {part!r:.80}")
    return text


def _thought(where: str, part: Mapping[str, Any]) -> str:
    """The text of a part of reasoning: a text, or a list of parts with texts."""
    if part["type"] == "redacted_thinking":
        return ""
    names = (part["type"], "text", "content", "summary")
    value = next((part[name] for name in names if part.get(name) is not None), "")
    parts = value if isinstance(value, (list, tuple)) else [value]
    values = [item.get("text") if isinstance(item, Mapping) else item for item in parts]
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) < len(values):
        raise UsageError(f"{where}: wanted reasoning as text, got {part!r:.80}")
    return "".join(texts)


def _reasoning(where: str, message: Mapping[str, Any]) -> str:
    name = next((name for name in THOUGHT_KEYS if message.get(name)), None)
    value = "" if name is None else message[name]
    if not isinstance(value, str):
        raise UsageError(f"{where}.{name}: wanted text, got {json_type(value)}")
    return value


def _calls(where: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        raise UsageError(f"{where}: wanted a list of calls, got {json_type(calls)}")
    return [_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise UsageError(f"{where}: wanted an id and a function with name and arguments, got {call!r:.80}")
    name, arguments, id = function.get("name"), function.get("arguments", "{}"), call.get("id", "")
    if not isinstance(name, str) or not name or not isinstance(id or "", str):
        raise UsageError(f"{where}: wanted texts as id and as the function's name, got {call!r:.80}")
    if isinstance(arguments, Mapping):
        check_nesting(f"{where}.function.arguments", arguments)
        arguments = json.dumps(arguments, ensure_ascii=False)
    try:
        value = json.loads(arguments or "{}")
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{where}.function.arguments: wanted a JSON object as text, got {arguments!r:.80}")
    check_nesting(f"{where}.function.arguments", value)
    return {"id": id or "", "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}
