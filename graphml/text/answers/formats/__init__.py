"""The formats of answers, one file each, found here: `FORMAT` of a file, or its `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from graphml.errors import UsageError
from graphml.text.answers.answer_format import AnswerFormat, ReasoningMarks

PLAIN = AnswerFormat("plain", found_by=())
"""No tool calls; reasoning where the template has marks for it."""
MARKS = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningMarks("<reasoning>", "</reasoning>"),
    ReasoningMarks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ReasoningMarks("<mm:think>", "</mm:think>"),
)
"""How templates mark reasoning; the first whose two texts occur in a template is its."""


@cache
def formats() -> Mapping[str, AnswerFormat]:
    """All formats by name."""
    every = [PLAIN]
    for info in iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        every += getattr(module, "FORMATS", None) or [module.FORMAT]
    return MappingProxyType({format.name: format for format in every})


def format_of(template: str, name: str | None = None) -> AnswerFormat:
    """The format of a chat template's text: the named one, or the one whose markers are in the text.

    `plain` for a template that knows no tool calls. UsageError for an unknown name.
    """
    every = formats()
    if name is not None:
        if name not in every:
            raise UsageError(f"chat_format: wanted one of {', '.join(sorted(every))}; got {name!r}")
        return every[name]
    fitting = [format for format in every.values() if _fits(format, template)]
    return max(fitting, key=lambda format: format.rank, default=PLAIN)


def format_of_tokens(is_token: Callable[[str], bool]) -> AnswerFormat:
    """The format whose markers are tokens of a vocabulary, `generic` where there is none that can be forced.

    is_token: whether a text is one token.
    """
    markers = {
        text
        for format in formats().values()
        for group in (*format.found_by, format.not_with)
        for text in group
    }
    fitting = format_of("\n".join(sorted(filter(is_token, markers))))
    return formats()["generic"] if fitting.syntax is None else fitting


def marks_of(template: str, format: AnswerFormat) -> ReasoningMarks | None:
    """How a template marks reasoning; None if it does not, or the format reads whole answers."""
    if format.whole is not None:
        return None
    if format.reasoning is not None and (format.reasons or format.reasoning.open in template):
        return format.reasoning
    return next((marks for marks in MARKS if marks.open in template or marks.close in template), None)


def _fits(format: AnswerFormat, template: str) -> bool:
    if any(text in template for text in format.not_with):
        return False
    return any(all(text in template for text in group) for group in format.found_by)
