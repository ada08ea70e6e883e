"""Methods of `Model` for its text: tokenizer and chat templates, read when they are asked for.

Knows the file's metadata; nothing of weights, sessions or steps.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

from graphml.api.model_templates import ModelTemplates
from graphml.api.model_tokenizer import no_tokenizer, tokenizer_of
from graphml.errors import TokenizerError
from graphml.runtime.programs.executor import Executor
from graphml.text.chat_template import DEFAULT_NAME, ChatTemplate, template_names
from graphml.text.tokenizer import Tokenizer
from graphml.weights import Metadata


class TextMethods:
    """A part of `Model` in a file of its own. pre, template: of `load`, in place of what the file says."""

    executor: Executor
    path: Path

    def __init__(self, pre: str | None, template: str | None) -> None:
        self._pre, self._template_text = pre, template
        self._making = RLock()

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, read when first asked for; None if the file has no vocabulary."""
        with self._making:
            return tokenizer_of(self._metadata, self._pre)

    @property
    def has_template(self) -> bool:
        """Whether a chat template was given or is in the file."""
        return self._template_text is not None or bool(template_names(self._metadata))

    @cached_property
    def templates(self) -> ModelTemplates:
        """The chat templates by name: "default", and those with names of their own, such as "tool_use"."""
        return ModelTemplates(self._metadata, self._needed(), self._template_text)

    @property
    def template(self) -> ChatTemplate:
        """The default chat template; TemplateError if there is none."""
        return self.templates[DEFAULT_NAME]

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Return the ids of a text; see `Tokenizer.encode`. TokenizerError without a vocabulary."""
        return self._needed().encode(text, add_special, parse_special)

    def decode(self, ids: Any, skip_special: bool = False) -> str:
        """Return the text of ids; skip_special leaves control tokens out."""
        return self._needed().decode(ids, skip_special)

    def piece(self, id: int) -> str:
        """Return the text of one token; bytes that make no character become U+FFFD."""
        return self._needed().piece(id)

    @property
    def _metadata(self) -> Metadata:
        """What the file says, read from the map when it is asked for."""
        self.executor.file.check_unchanged()
        return self.executor.file.metadata

    def _needed(self) -> Tokenizer:
        if self.tokenizer is None:
            raise TokenizerError(f"{self.path}: {no_tokenizer(self.executor.file.metadata)}")
        return self.tokenizer
