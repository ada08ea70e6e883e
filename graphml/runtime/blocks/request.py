"""What is asked of an engine: ids to continue, how, and how urgently.

Knows ids and sampling parameters; nothing of text, blocks or steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from graphml.compiler.options import CompileOptions
from graphml.ir.op import Array
from graphml.passes.lora import Adapter
from graphml.passes.patch import Function
from graphml.runtime.blocks.overflow import Overflow
from graphml.runtime.blocks.row_patches import PatchRows
from graphml.sampling import SamplingParams
from graphml.sampling.candidates.moment import SamplerVocabulary


@dataclass(frozen=True)
class AppliedAdapter:
    """An adapter, how much of it, and from which position on."""

    adapter: Adapter
    factor: float
    start: int = 0


def extra_of(
    source: Array, adapters: tuple[AppliedAdapter, ...] | None, salt: bytes, is_long: bool = False
) -> bytes:
    """What besides ids decides about keys and values, and who shares them; others for other arguments.

    is_long: of a prompt whose keys are others than those of a short one; see `ir.long_texts`.
    """
    long = b"long " if is_long else b""
    if not len(source) and adapters is None and not salt:
        return long
    return long + repr((source.tobytes(), adapters, salt)).encode()


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt and how it is continued.

    ids: int32 [n]. max_tokens: most that are generated; None: until the model ends or the context is full.
    key: whose request it is: steps are shared fairly between keys. weight: the share of its key. priority:
    larger ones run first. deadline: the clock's time after which nobody waits for it any more. extra: what
    besides ids decides about keys and values; prefixes are shared among requests of equal `extra` only.
    source: int32 [n], the text that an encoder reads first; it is a part of `extra`. n: how many sequences
    continue the prompt. full: what a full context does to them; begins: whether the prompt begins with a
    begin token, which is kept. vocabulary: whose texts samplers read.
    adapters: those of its rows, a part of `extra`; None: those of the model. pooling: its ids are a text of
    which only rows are wanted, pooled so (`graphml.loading.pooling`); "": it is continued.
    n_unseen: of a text, its last ids that see the others and that no token sees, themselves included.
    options: how programs of its steps are compiled, with captured values, patches, control vectors; None: as
    those of requests without any. patches: by pattern, what they do; steps with them have no other rows.
    """

    ids: Array
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    key: str | None = None
    weight: float = 1.0
    priority: int = 0
    deadline: float | None = None
    extra: bytes = b""
    source: Array = field(default_factory=lambda: np.empty(0, np.int32))
    n: int = 1
    full: Overflow = field(default_factory=Overflow)
    begins: bool = False
    vocabulary: SamplerVocabulary | None = None
    adapters: tuple[AppliedAdapter, ...] | None = None
    pooling: str = ""
    n_unseen: int = 0
    options: CompileOptions | None = None
    patches: Mapping[str, Function | PatchRows] = field(default_factory=dict)

    @property
    def n_prompt(self) -> int:
        """Ids of the prompt."""
        return len(self.ids)
