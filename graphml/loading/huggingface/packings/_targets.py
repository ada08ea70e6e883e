"""Which group of a compressed-tensors config a module is in: by its name, a pattern or its class.

Knows names; nothing of what a group says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from graphml.loading.huggingface.module_patterns import NamePatterns, Pattern
from graphml.loading.huggingface.packings._layout import PackingFields

PATTERN = "re:"
CLASSES = ("Linear", "LinearBase", "Embedding")
"""Classes of modules that have a matrix; which of them one is no checkpoint says."""
Group = TypeVar("Group")


class Targets(Generic[Group]):
    """Targets with what they stand for; names before patterns, in alphabetical order, before classes."""

    def __init__(self, fields: PackingFields, targets: Mapping[str, Group], ignored: Iterable[str]) -> None:
        patterns = NamePatterns(fields.path)
        self._names = {name: group for name, group in targets.items() if not name.startswith(PATTERN)}
        self._patterns = [
            (_pattern(fields, "config_groups", patterns, text), targets[text])
            for text in sorted(targets)
            if text.startswith(PATTERN)
        ]
        ignored = list(ignored)
        self._ignored = {name for name in ignored if not name.startswith(PATTERN)}
        self._ignored_patterns = [
            _pattern(fields, "ignore", patterns, text) for text in ignored if text.startswith(PATTERN)
        ]

    def ignores(self, module: str) -> bool:
        """Whether a module is left as it is."""
        return module in self._ignored or any(pattern.matches(module) for pattern in self._ignored_patterns)

    def of(self, module: str) -> Group | None:
        """What a module is a target of; None if it is not certain."""
        if module in self._names:
            return self._names[module]
        for pattern, group in self._patterns:
            if pattern.matches(module):
                return group
        is_embedding = module.rpartition(".")[2].startswith(("embed", "wte", "word_embed"))
        classes = (CLASSES[-1], *CLASSES) if is_embedding else CLASSES
        return next((self._names[name] for name in classes if name in self._names), None)


def _pattern(fields: PackingFields, name: str, patterns: NamePatterns, text: str) -> Pattern:
    """A pattern of the beginning of a name, as `re.match`; name: of the field."""
    try:
        return patterns.beginning(text.removeprefix(PATTERN))
    except ValueError as error:
        raise fields.error(f"{name}: wanted a regular expression; got {error}") from error
