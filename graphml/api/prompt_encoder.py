"""Prompts as callers have them, a text, the messages of a conversation or ids, made into ids.

Knows a tokenizer and chat templates; nothing of sessions, engines or models.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from graphml.api.chat_prompt import chat_prompt
from graphml.api.tokens import Ids
from graphml.errors import ControlTokenWarning, TokenizerError, UsageError
from graphml.options.argument_checks import whole_number
from graphml.sampling import SamplingParams
from graphml.text.chat_template import ChatTemplate
from graphml.text.fenced_text import encode_fenced
from graphml.text.tokenizer import Tokenizer

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Prompt: TypeAlias = "str | Messages | Ids"
"""A text; messages, each {"role": ..., "content": ...}; or token ids."""

WANTED: Final = "a text, messages, ids, or a list of them"


class PromptEncoder:
    """Prompts to ids by one model's vocabulary and chat templates; both may be missing.

    tokenizer: None for a model without a vocabulary. templates: returns the chat templates by name.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        templates: Callable[[], Mapping[str, ChatTemplate]] = dict[str, ChatTemplate],
    ) -> None:
        self.tokenizer, self._templates = tokenizer, templates
        self._warned = False

    def ids(self, prompt: Prompt, begins: bool = True) -> Ids:
        """The ids of a prompt, as of `read`."""
        return self.read(prompt, SamplingParams(), begins)[0]

    def read(self, prompt: Prompt, params: SamplingParams, begins: bool = True) -> tuple[Ids, SamplingParams]:
        """The ids of a prompt, ids as they are, and the settings by which it is continued.

        begins: it is the begin of a sequence, which gets the vocabulary's begin token. Messages are rendered
        by the chat template, with the begin of an answer; one of the assistant at the end is continued. What
        the settings force counts behind its reasoning, as in a `Chat`. A text is plain: control tokens that
        it spells are not found, of which a `ControlTokenWarning` tells once. TokenizerError without a
        vocabulary, TemplateError without a template, UsageError for messages that are none.
        """
        if isinstance(prompt, str):
            tokenizer = self._needed("a text")
            self.warn_of_controls(prompt)
            return tokenizer.encode(prompt, add_special=begins, parse_special=False), params
        if _is_conversation(prompt):
            tokenizer = self._needed("messages")
            rendered = chat_prompt(tokenizer, self._templates(), prompt, params)
            return encode_fenced(tokenizer, rendered.fenced, begins), rendered.params
        if isinstance(prompt, Mapping):
            raise UsageError("prompt: wanted a list of messages; got one message, which is no list")
        return prompt, params  # type: ignore[return-value] # neither a text nor messages; callers check ids

    def warn_of_controls(self, text: str) -> None:
        """Warn, once, of a text that spells control tokens and is encoded as plain text."""
        if self._warned or self.tokenizer is None:
            return
        spelled = self.tokenizer.spelled_controls(text)
        if spelled:
            self._warned = True
            warnings.warn(
                f"the text spells the control token {min(spelled)!r}, which is encoded as plain text. For a "
                'conversation give messages, such as [{"role": "user", "content": "Hi"}], to generate or '
                "submit; for a text with control tokens give model.encode(text, parse_special=True)",
                ControlTokenWarning,
                stacklevel=_callers_level(),
            )

    def _needed(self, what: str) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(f"prompt: the model has no tokenizer; wanted ids, got {what}")
        return self.tokenizer


def _callers_level() -> int:
    """The `stacklevel` of the nearest caller outside graphml, for who calls this."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "graphml":
        level, frame = level + 1, frame.f_back
    return level


def is_single(prompts: object) -> bool:
    """Whether it is one prompt, and not several: a text, messages, or ids."""
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1 and prompts.dtype.kind in "iu"
    if isinstance(prompts, str | Mapping) or _is_conversation(prompts):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and whole_number(prompts[0]) is not None


def spelled(prompt: object) -> bool:
    """Whether a prompt, or each of several, is a text or messages, and not ids."""
    first = prompt[0] if isinstance(prompt, list | tuple) and prompt else prompt
    return isinstance(first, str | Mapping) or _is_conversation(first)


def _is_conversation(prompt: object) -> bool:
    return isinstance(prompt, list | tuple) and bool(prompt) and isinstance(prompt[0], Mapping)
