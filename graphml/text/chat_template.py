"""Chat templates: render a conversation to the model's prompt format, by the template in the model file.

Templates are untrusted programs: they run in a process of their own (`template_process`), on a copy of the
conversation. There is no built-in template as a fallback: a wrong one makes a good model look bad. Knows
messages and GGUF's template keys; knows nothing of tokens or sessions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from graphml.errors import TemplateError, UsageError
from graphml.options.argument_checks import path_of
from graphml.system.read_files import plain_text
from graphml.text.template_process import PROCESSES, RenderingError, TemplateLimits

__all__ = ["ChatTemplate", "TemplateLimits", "template_names", "template_source", "template_text"]

KEY = "tokenizer.chat_template"
NAMES_KEY = "tokenizer.chat_templates"
DEFAULT_NAME = "default"
LARGEST_SOURCE = 64 * 1024
LARGEST_FILE_BYTES = 1 << 20
DEEPEST_DATA = 64
LONGEST_LIST = 2000  # of names in an error


class OverLimitsError(TemplateError):
    """A template that takes too long, or too much memory: it does so with other messages, too."""


class ChatTemplate:
    """One compiled chat template.

    source: Jinja text. bos_token, eos_token: variables of the template; `special_tokens` adds others by the
    name that templates use ("unk_token", "pad_token", ...). None makes a token undefined in the template.
    `variables` are the names that it reads, its own among them.
    now: returns the time, for strftime_now and others. Several threads may render with one template.

    Raises TemplateError with the line for a template that does not compile or is too long.
    """

    def __init__(
        self,
        source: str,
        bos_token: str | None = None,
        eos_token: str | None = None,
        *,
        special_tokens: Mapping[str, str] | None = None,
        name: str = DEFAULT_NAME,
        limits: TemplateLimits = TemplateLimits(),  # noqa: B008 - a frozen value
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if not isinstance(source, str):
            raise UsageError(f"source: wanted the template's text, got {type(source).__name__}")
        if len(source) > LARGEST_SOURCE:
            raise TemplateError(
                f"chat template {name!r} is too long: {len(source):,} characters, limit {LARGEST_SOURCE:,}"
            )
        self.source = source
        self.name, self.now = name, now
        self._limits = limits
        tokens = {**(special_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._special_tokens = {key: text for key, text in tokens.items() if text is not None}
        self.variables = frozenset(self._answer(None).splitlines())

    def __repr__(self) -> str:
        return f"ChatTemplate({self.name!r}, {len(self.source):,} characters)"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """Return the conversation in the model's prompt format.

        messages: mappings with "role", "content" and other keys that the template reads; `tools` and
        `documents` in Hugging Face's form; further keywords become the template's variables
        (`enable_thinking=False`). All of it is plain data: text, numbers, lists, mappings. The template gets
        a copy.

        Raises UsageError for data of another kind, TemplateError with the template's line when it fails,
        raises an exception of its own, or goes over its limits.
        """
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
            raise UsageError(
                f"messages: wanted a list of mappings with role and content, got {messages!r:.80}"
            )
        for index, message in enumerate(messages):
            if not isinstance(message, Mapping):
                raise UsageError(
                    f"messages[{index}]: wanted a mapping with role and content, got {message!r:.80}"
                )
        variables = {
            **self._special_tokens,
            "messages": messages,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        return self._answer({key: _copy(value, key) for key, value in variables.items()})

    def _answer(self, variables: dict[str, Any] | None) -> str:
        try:
            return PROCESSES.answer(self.source, variables, self.now().isoformat(), self._limits)
        except RenderingError as error:
            line = f", line {error.line}" if error.line else ""
            kind = OverLimitsError if error.over else TemplateError
            raise kind(f"chat template {self.name!r}{line}: {error}") from None


def template_names(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a GGUF file's chat templates: "default", the unnamed one, is the first."""
    names = [DEFAULT_NAME] if KEY in metadata else []
    listed = metadata.get(NAMES_KEY, [])
    if not isinstance(listed, Sequence) or isinstance(listed, (str, bytes)):
        raise TemplateError(f"{NAMES_KEY}: wanted a list of names, got {type(listed).__name__}")
    named = [key[len(KEY) + 1 :] for key in metadata if key.startswith(KEY + ".")]
    return tuple(dict.fromkeys(names + [name for name in (*listed, *named) if f"{KEY}.{name}" in metadata]))


def template_source(metadata: Mapping[str, Any], name: str | None = None) -> str:
    """Return the text of a GGUF file's chat template: the unnamed one, or the variant of this name.

    Raises TemplateError when the file has none, or none of this name.
    """
    wanted = name or DEFAULT_NAME
    names = template_names(metadata)
    if not names:
        raise TemplateError(
            f"the model has no chat template ({KEY} is missing). Give one as template=Path(FILE) (on "
            "the command line --template FILE), a Jinja file such as the chat_template.jinja beside the "
            "original model, or complete text without a chat"
        )
    if wanted not in names:
        had = ", ".join(names)[:LONGEST_LIST]
        raise TemplateError(f"the model has no chat template named {wanted!r}; it has: {had}")
    named = f"{KEY}.{wanted}"
    source = metadata[named if named in metadata else KEY]
    if not isinstance(source, str):
        raise TemplateError(f"{KEY}: wanted text, got {type(source).__name__}")
    return source


def check_nesting(where: str, value: Any) -> None:
    """UsageError, which begins with `where`, for lists and mappings nested deeper than templates take."""
    level = [value]
    for _ in range(DEEPEST_DATA + 1):
        held = [part.values() if isinstance(part, Mapping) else part
                for part in level if isinstance(part, Mapping | list | tuple)]  # fmt: skip
        if not held:
            return
        level = [part for parts in held for part in parts]
    raise UsageError(f"{where}: wanted data nested less than {DEEPEST_DATA} deep")


def _copy(value: Any, where: str, depth: int = 0) -> Any:
    """Return plain data as a copy of built-in types; UsageError names the place of anything else."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    if depth >= DEEPEST_DATA:
        raise UsageError(f"{where[:80]}: wanted data nested less than {DEEPEST_DATA} deep")
    if isinstance(value, Mapping):
        return {
            _copy(key, f"{where} key", DEEPEST_DATA): _copy(part, f"{where}.{key}", depth + 1)
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        parts = [_copy(part, f"{where}[{index}]", depth + 1) for index, part in enumerate(value)]
        return tuple(parts) if isinstance(value, tuple) else parts
    raise UsageError(f"{where[:80]}: wanted text, numbers, lists or mappings, got {type(value).__name__}")


def template_text(template: str | os.PathLike[str] | None) -> str | None:
    """Return the text of a template; a path is read, TemplateError if it cannot be."""
    if template is None or isinstance(template, str):
        return template
    path = Path(path_of("template", template))
    return plain_text(path, TemplateError, LARGEST_FILE_BYTES, "cannot be read as a chat template")
