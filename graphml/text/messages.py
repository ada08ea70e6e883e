"""Messages of a conversation in OpenAI's form: the check of messages from a caller or a file.

Knows roles, texts and tool calls; nothing of templates, sessions or files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from graphml.errors import UsageError

Message: TypeAlias = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool")
ALIASES: Final = {"developer": "system", "function": "tool", "ipython": "tool"}
MEDIA: Final = {
    "image_url": "images", "image": "images", "input_image": "images", "input_audio": "audio",
    "audio": "audio", "audio_url": "audio", "video_url": "video", "video": "video", "file": "files",
    "input_file": "files",
}  # fmt: skip
TEXT_PARTS: Final = ("text", "input_text", "output_text", "refusal")
_PLAIN_KEYS: Final = ("name", "tool_call_id", "reasoning_content")


def checked_messages(value: object, system_anywhere: bool = False) -> list[Message]:
    """Return the messages with the keys that are known; the UsageError names the first invalid one.

    The role is "user", "assistant" or "tool", of the first message also "system" (system_anywhere: of any);
    "developer" is another name of it. The content is a text or a list of text parts, which are joined; an
    assistant's may be None beside `tool_calls`, whose arguments are JSON text. Also kept are `tool_call_id`,
    `reasoning_content` and a tool's `name`, texts all.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise UsageError(f"messages: wanted a list of messages, got {type(value).__name__}")
    return [_checked(index, message, system_anywhere or index == 0) for index, message in enumerate(value)]


def _checked(index: int, message: object, system: bool) -> Message:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise UsageError(f"{where}: wanted role and content, got {type(message).__name__}")
    role, content = message.get("role"), message.get("content")
    if isinstance(role, str):
        role = ALIASES.get(role, role)
    roles = ROLES if system else ROLES[1:]
    if not isinstance(role, str) or role not in roles:
        only_first = " (system is the role of the first message alone)" if role == "system" else ""
        raise UsageError(f"{where}.role: wanted {' or '.join(roles)}, got {role!r:.80}{only_first}")
    calls = message.get("tool_calls") if role == "assistant" else None
    without = role == "assistant" and bool(calls or message.get("reasoning_content"))
    checked: Message = {"role": role, "content": _text(f"{where}.content", content, without)}
    for key in _PLAIN_KEYS:
        value = message.get(key)
        if value is None or (key == "name" and role != "tool"):
            continue
        if not isinstance(value, str):
            raise UsageError(f"{where}.{key}: wanted text, got {type(value).__name__}")
        checked[key] = value
    if calls:
        checked["tool_calls"] = _calls(f"{where}.tool_calls", calls)
    return checked


def _text(where: str, content: object, may_be_none: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_be_none:
        return ""
    if isinstance(content, (list, tuple)):
        return "".join(_part(f"{where}[{index}]", part) for index, part in enumerate(content))
    raise UsageError(f"{where}: wanted text, got {type(content).__name__}")


def _part(where: str, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise UsageError(f"{where}: wanted a part with type and text, got {type(part).__name__}")
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIA:
        raise UsageError(f"{where}: {MEDIA[kind]} are not supported, only text; got a part of type {kind!r}")
    text = part.get("refusal" if kind == "refusal" else "text")
    if kind not in TEXT_PARTS or not isinstance(text, str):
        raise UsageError(f"{where}: wanted a part of type 'text' with its text, got {part!r:.80}")
    return text


def _calls(where: str, calls: object) -> list[dict[str, Any]]:
    if not isinstance(calls, (list, tuple)):
        raise UsageError(f"{where}: wanted a list of calls, got {type(calls).__name__}")
    return [_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _call(where: str, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise UsageError(f"{where}: wanted an id and a function with name and arguments, got {call!r:.80}")
    name, arguments, id = function.get("name"), function.get("arguments", "{}"), call.get("id", "")
    if not isinstance(name, str) or not name or not isinstance(id or "", str):
        raise UsageError(f"{where}: wanted texts as id and as the function's name, got {call!r:.80}")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    try:
        value = json.loads(arguments or "{}")
    except (TypeError, ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UsageError(f"{where}.function.arguments: wanted a JSON object as text, got {arguments!r:.80}")
    return {"id": id or "", "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}
