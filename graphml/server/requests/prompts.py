"""Prompts of requests as token ids: a text, ids, both mixed, an object, or a list of these.

Knows a tokenizer and the forms of prompts; nothing of sampling or of steps.
"""

from __future__ import annotations

from typing import Any

from graphml.errors import UsageError, json_type
from graphml.server.access.text_limits import check_fits
from graphml.server.responses.api_errors import ApiError, wrong_field
from graphml.text.messages import parts_of
from graphml.text.tokenizer import Tokenizer

Ids = list[int]
MEDIA = "<__media__>"


def prompts_of(
    prompt: Any, tokenizer: Tokenizer, most: int, n_ctx: int, name: str = "prompt"
) -> tuple[list[Ids], bool]:
    """The ids of each prompt, and whether they were given as a list of several.

    A list of texts and ids is one prompt where it has ids of its own; ApiError 400 for other values, for more
    than `most` prompts, and for texts that are too long for n_ctx tokens.
    """
    if isinstance(prompt, list) and not _is_mixed(prompt):
        if not prompt:
            raise wrong_field(name, "wanted a text or token ids, got an empty list")
        if len(prompt) > most:
            raise wrong_field(name, f"at most {most} prompts are wanted, got {len(prompt)}")
        return [ids_of(element, tokenizer, n_ctx, name) for element in prompt], True
    return [ids_of(prompt, tokenizer, n_ctx, name)], False


def ids_of(prompt: Any, tokenizer: Tokenizer, n_ctx: int, name: str, parse_special: bool = True) -> Ids:
    """The ids of one prompt."""
    if isinstance(prompt, dict):
        prompt = _text_of(prompt, name)
    if isinstance(prompt, str):
        check_fits([prompt], tokenizer, n_ctx)
        return tokenizer.encode(prompt, parse_special=parse_special)
    if not isinstance(prompt, list) or not prompt:
        raise wrong_field(name, f"wanted a text or token ids, got {json_type(prompt)}")
    check_fits([part for part in prompt if isinstance(part, str)], tokenizer, n_ctx)
    ids: Ids = []
    for index, part in enumerate(prompt):
        if isinstance(part, str):
            ids += tokenizer.encode(part, add_special=index == 0, parse_special=parse_special)
        elif isinstance(part, int) and not isinstance(part, bool):
            if not 0 <= part < tokenizer.n_vocab:
                raise wrong_field(name, f"wanted ids from 0 to {tokenizer.n_vocab - 1}, got {part}")
            ids.append(part)
        else:
            raise wrong_field(name, f"wanted texts and ids in a list, got {json_type(part)}")
    return ids


def begins_with_text(prompt: Any, number: int) -> bool:
    """Whether a prompt, by its number, was given as a text, or as a list that begins with one."""
    if isinstance(prompt, list) and not _is_mixed(prompt):
        prompt = prompt[number]
    return isinstance(prompt[0] if isinstance(prompt, list) else prompt, str | dict)


def _is_mixed(prompt: list[Any]) -> bool:
    return any(isinstance(part, int) and not isinstance(part, bool) for part in prompt)


def _text_of(prompt: dict[str, Any], name: str) -> str:
    if prompt.get("multimodal_data"):
        raise ApiError(400, "this model reads no images or sounds")
    text = prompt.get("prompt_string")
    if isinstance(text, str):
        return text
    parts = prompt.get("content")
    if isinstance(parts, list):
        try:
            return parts_of(f"{name}.content", parts, "user")[0]
        except UsageError as error:
            raise wrong_field(name, str(error)) from None
    raise wrong_field(name, "wanted an object with prompt_string, or with content as a list of parts")
