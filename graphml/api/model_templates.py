"""The chat templates of a model: those of its file by name, or one that was given in their place.

Knows metadata and templates; nothing of conversations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphml.errors import TemplateError
from graphml.text.chat_template import DEFAULT_NAME, ChatTemplate, template_names, template_source
from graphml.text.tokenizer import Tokenizer
from graphml.weights import Metadata


class ModelTemplates(Mapping[str, ChatTemplate]):
    """The templates by name, compiled when they are asked for; the unnamed one is "default".

    template: the text of a template that is used in place of them all, or the name of the one that is the
    default. TemplateError for a name that there is none of.
    """

    def __init__(self, metadata: Metadata, tokenizer: Tokenizer, template: str | None = None) -> None:
        self._metadata, self._tokenizer = metadata, tokenizer
        named = template_names(metadata)
        self._default = template if template in named else DEFAULT_NAME
        self._given = None if template in named else template
        if self._given and not any(char in "{ \n" for char in self._given):  # as a misspelt name is
            raise TemplateError(
                f"template: wanted Jinja text, or a name that the model has for one of its own "
                f"({', '.join(named) or 'it has none'}); got {self._given!r:.80}"
            )
        others = () if self._given is not None or self._default != DEFAULT_NAME else named
        self._names = tuple(dict.fromkeys((DEFAULT_NAME, *others)))
        self._compiled: dict[str, ChatTemplate] = {}

    def __getitem__(self, name: str) -> ChatTemplate:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._compiled:
            self._compiled[name] = self._compile(name)
        return self._compiled[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _compile(self, name: str) -> ChatTemplate:
        tokenizer, source = self._tokenizer, self._given
        if source is None:
            source = template_source(self._metadata, self._default if name == DEFAULT_NAME else name)
        bos, eos = (None if id is None else tokenizer.piece(id) for id in (tokenizer.bos, tokenizer.eos))
        return ChatTemplate(source, bos, eos, name=name)
