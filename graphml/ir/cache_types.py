"""Element types that keys and values may be kept in, and how those of a model's layers are written.

`q8_0` means both, `q8_0/q4_0` the keys and the values, `q5_0/q4_0,0-2=q8_0,7=f16/q8_0` others in some layers.
Rows of block formats are kept as their Walsh-Hadamard transforms; `q8_0-plain` are not. Knows names; nothing
of caches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Final, NoReturn

from graphml.errors import UsageError
from graphml.ir.dtype import DType, dtype

_BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
CACHE_DTYPES = ("f16", "f32", "bf16", *_BLOCKS)
"""Those of llama.cpp. Each has an encoder in `graphml_quant`."""
PLAIN = "-plain"
CACHE_NAMES = (*CACHE_DTYPES, *(name + PLAIN for name in _BLOCKS))
"""Those, and those of blocks without a transform."""
_LAYERS: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?=(.*)", re.DOTALL)
_MOST_LAYERS: Final = 10_000


@dataclass(frozen=True)
class KeptAs:
    """How the keys and the values of a layer are kept: two of `CACHE_NAMES`."""

    keys: str
    values: str

    def __str__(self) -> str:
        return self.keys if self.keys == self.values else f"{self.keys}/{self.values}"

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """The types of keys and of values."""
        return dtype(self.keys.removesuffix(PLAIN)), dtype(self.values.removesuffix(PLAIN))

    @property
    def transformed(self) -> tuple[bool, bool]:
        """Whether keys and whether values are kept as their Hadamard transforms."""
        return self.keys in _BLOCKS, self.values in _BLOCKS


@dataclass(frozen=True)
class CacheTypes:
    """How the caches of a model are kept. others: of single layers that are not as `most`."""

    most: KeptAs
    others: Mapping[int, KeptAs]

    def of(self, layer: int) -> KeptAs:
        """How a layer's are kept."""
        return self.others.get(layer, self.most)

    def __str__(self) -> str:
        """The shortest way to write them: the same for the same types."""
        parts = [str(self.most)]
        layers = sorted(layer for layer, kept in self.others.items() if kept != self.most)
        alike = groupby(enumerate(layers), lambda pair: (pair[1] - pair[0], self.others[pair[1]]))
        for (_, kept), pairs in alike:
            run = [layer for _, layer in pairs]
            parts.append(f"{run[0]}-{run[-1]}={kept}" if len(run) > 1 else f"{run[0]}={kept}")
        return ",".join(parts)


def read_cache_types(name: str, value: object) -> str:
    """The shortest way to write `value`, types of the option `name`; UsageError if they are none."""
    if not isinstance(value, str):
        _no_types(name, value, value)
    return str(_parsed(name, value))


def of_all_layers(names: tuple[str, str], keys: str, values: str) -> str:
    """How one type of keys and one of values are written; names: of their options, for the UsageError."""
    for name, kind in zip(names, (keys, values), strict=True):
        if kind not in CACHE_NAMES:
            raise UsageError(f"{name}: wanted one of {', '.join(CACHE_DTYPES)}; got {kind!r:.80}")
    return str(KeptAs(keys, values))


def cache_types(written: str) -> CacheTypes:
    """The types that are written so; UsageError if they are none."""
    return _parsed("kv", written)


def cache_form(written: str) -> str:
    """What is equal for caches that are kept alike, in this and in earlier versions, and for no others."""
    types = cache_types(written)
    return str(CacheTypes(_form(types.most), {layer: _form(kept) for layer, kept in types.others.items()}))


def _form(kept: KeptAs) -> KeptAs:
    """With names that say what is transformed; plain blocks have those that earlier versions wrote."""
    keys, values = (
        f"{name}+hadamard" if name in _BLOCKS else name.removesuffix(PLAIN)
        for name in (kept.keys, kept.values)
    )
    return KeptAs(keys, values)


@lru_cache(256)
def _parsed(name: str, written: str) -> CacheTypes:
    most, *rest = written.split(",")
    others: dict[int, KeptAs] = {}
    for part in rest:
        match = _LAYERS.fullmatch(part)
        if match is None:
            raise UsageError(f"{name}: wanted LAYER=TYPE or FIRST-LAST=TYPE behind a comma; got {part!r:.80}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < _MOST_LAYERS:
            raise UsageError(f"{name}: wanted layers below {_MOST_LAYERS}, the first first; got {part!r:.80}")
        kept = _kept_as(name, match[3], written)
        for layer in range(first, last + 1):
            if layer in others:
                raise UsageError(f"{name}: layer {layer} has types twice in {written!r:.80}: wanted once")
            others[layer] = kept
    return CacheTypes(_kept_as(name, most, written), MappingProxyType(others))


def _kept_as(name: str, part: str, written: str) -> KeptAs:
    keys, slash, values = part.partition("/")
    if keys not in CACHE_NAMES or (slash and values not in CACHE_NAMES):
        _no_types(name, part, written)
    return KeptAs(keys, values or keys)


def _no_types(name: str, part: object, written: object) -> NoReturn:
    plain = f" ({PLAIN} is for {', '.join(_BLOCKS)})" if PLAIN in str(part) else ""
    wanted = f"{', '.join(CACHE_DTYPES)}, or two as KEYS/VALUES"
    raise UsageError(f"{name}: wanted one of {wanted}; got {written!r:.80}{plain}")
