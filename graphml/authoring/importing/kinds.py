"""Branches of the loop over layers of several kinds: what distinguishes the kinds, and the lines of each.

They are distinguished by, in this order: tensors that one kind alone has, windows, a list in config.json, a
period. Knows text and fields; nothing of ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from graphml.authoring.importing.numbers import Fields

Lines = list[str]


@dataclass(frozen=True, eq=False)
class Kinds:
    """of: the kind of each layer; stems: the tensors of each kind; windows: of each layer, 0 for none."""

    of: Sequence[int]
    stems: Sequence[frozenset[str]]
    windows: Sequence[int]
    fields: Fields

    def lines(self, bodies: Sequence[Lines]) -> Lines:
        """The lines of the loop, where those of each kind are given; what is common stands once."""
        anchors = reduce(_common, bodies)
        parts = [_split(body, anchors) for body in bodies]
        merged: Lines = []
        for i in range(len(anchors) + 1):
            merged += self._branches([part[i] for part in parts])
            merged += anchors[i : i + 1]
        return merged

    def _branches(self, bodies: Sequence[tuple[str, ...]]) -> Lines:
        """The lines that differ, those of each kind given, under their conditions."""
        texts = sorted(dict.fromkeys(bodies), key=lambda text: not text)
        if len(texts) == 1:
            return list(texts[0])
        branches, left = [], list(range(len(texts)))
        of_kind = [texts.index(body) for body in bodies]
        for i, text in enumerate(texts):
            left.remove(i)
            branch = f"{'elif' if i else 'if'} {self._condition(of_kind, i, left)}:" if left else "else:"
            if text:
                branches += [branch, *(f"    {line}" for line in text)]
        return branches

    def _condition(self, of_kind: Sequence[int], this: int, others: Sequence[int]) -> str:
        """What is true in the layers with this text and false in those of the others."""
        own = [self.stems[kind] for kind, text in enumerate(of_kind) if text == this]
        rest = [self.stems[kind] for kind, text in enumerate(of_kind) if text in others]
        for stem in sorted(frozenset.intersection(*own) - frozenset.union(*rest), key=_plainest):
            return f'layer.get("{stem}")'
        for stem in sorted(frozenset.intersection(*rest) - frozenset.union(*own), key=_plainest):
            return f'not layer.get("{stem}")'
        is_this = [of_kind[kind] == this for kind in self.of]
        matters = [of_kind[kind] == this or of_kind[kind] in others for kind in self.of]
        wanted = [
            (bool(w), matches)
            for w, matches, counts in zip(self.windows, is_this, matters, strict=True)
            if counts
        ]
        if all(a == b for a, b in wanted):
            return "config.windows[layer.index]"
        if all(a != b for a, b in wanted):
            return "not config.windows[layer.index]"
        return self._listed(is_this)

    def _listed(self, is_this: Sequence[bool]) -> str:
        """A field of the configuration with a number for each layer, 1 where the condition holds."""
        values = list(map(int, is_this))
        for name, listed in self.fields.config.items():
            words = _words(listed, values)
            if words is not None:
                texts = ", ".join(f"{word!r}: {bool(value)}" for word, value in words.items())
                source = f'config.layered("{name}", {{{texts}}}, config.size("block_count")) or []'
                return f"{self._field(name, values, source)}[layer.index]"
        source = repr(list(map(bool, values)))
        step = next((i for i in range(2, len(values)) if _repeats(values, i)), 0)
        if step and len(values) >= 2 * step:
            parts = [f"i % {step} == {i}" for i, holds in enumerate(values[:step]) if holds]
            source = f'[{" or ".join(parts)} for i in range(config.size("block_count"))]'
        return f"{self._field('layer_kinds', values, source)}[layer.index]"

    def _field(self, name: str, values: list[int], source: str) -> str:
        key, i = name, 2
        while self.fields.values.get(key, values) != values:
            key, i = f"{name}_{i}", i + 1
        read = f'_config.by_layer(keys, "{key}", known.n_layer)'
        flags = list(map(bool, values))
        return self.fields.add(key, "tuple[int, ...]", read, key, source.replace("'", '"'), flags)


def _plainest(stem: str) -> tuple[bool, bool, str]:
    """Matrices before biases, routers before all."""
    return stem.endswith(".bias"), stem != "ffn_gate_inp", stem


def _common(a: Sequence[str], b: Sequence[str]) -> Lines:
    """The longest sequence of lines that both have, in order."""
    before: list[Lines] = [[]] * (len(b) + 1)
    for line in a:
        row: list[Lines] = [[]]
        for j, other in enumerate(b):
            row.append([*before[j], line] if line == other else max(before[j + 1], row[j], key=len))
        before = row
    return before[-1]


def _split(lines: Sequence[str], anchors: Sequence[str]) -> list[tuple[str, ...]]:
    """The lines before, between and after the anchors."""
    parts, start = [], 0
    for anchor in anchors:
        at = list(lines).index(anchor, start)
        parts.append(tuple(lines[start:at]))
        start = at + 1
    return [*parts, tuple(lines[start:])]


def _words(listed: Any, values: Sequence[int]) -> Mapping[Any, int] | None:
    """What each word of a list in config.json stands for; None if the list does not say it."""
    if not isinstance(listed, list) or len(listed) != len(values):
        return None
    if not all(isinstance(value, str | int) for value in listed):
        return None
    by_value = dict(zip(listed, values, strict=True))
    return by_value if [by_value[value] for value in listed] == list(values) else None


def _repeats(values: Sequence[int], step: int) -> bool:
    return all(value == values[i % step] for i, value in enumerate(values))
