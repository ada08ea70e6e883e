"""Compile options: a caller's choices about compilation, as one value."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from graphml import settings
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.passes.control_vectors import ControlVectors
from graphml.passes.lora import Adapter
from graphml.passes.patch import Patch
from graphml.passes.switches import switched


@dataclass(frozen=True)
class CompileOptions:
    """Choices of one compilation.

    fuse: which fusions are on, parsed by `graphml.passes.switches.switched`; "": the value of GRAPHML_FUSE,
    which defaults to all. keep: names of nodes as built, or patterns (`layers.*.q`), whose values the caller
    reads: each becomes an output `value:NAME`, and no fusion may cover it. strict: refuse a node that the
    backend cannot run itself. place: placement rules for several backends, parsed by
    `graphml.passes.placement_rules.parse_rules`. patch: the user's functions, inserted into the built graph;
    `keep` sees their results. pooling: how embeddings are pooled, by `graphml.loading.pooling.POOLINGS`;
    "": the architecture's own outputs, logits for most. adapters, control: what is added to products and to
    layers. factors: of the adapters, an input of each step: not a part of what is compiled. hidden: the
    hidden rows of all tokens, behind the output norm, are an output, too.
    """

    fuse: str = ""
    keep: tuple[str, ...] = ()
    strict: bool = False
    place: str = ""
    patch: tuple[Patch, ...] = ()
    pooling: str = ""
    adapters: tuple[Adapter, ...] = ()
    control: ControlVectors | None = None
    hidden: bool = False
    factors: tuple[float, ...] = field(default=(), compare=False)

    def fusions(self) -> frozenset[str]:
        """The names of the fusions that are on; a `UsageError` for a name that no fusion has."""
        if not isinstance(self.fuse, str):
            raise UsageError(f"fuse: wanted names in one text, got {self.fuse!r}")
        return switched(self.fuse, "fuse") if self.fuse else switched(settings.fuse(), "GRAPHML_FUSE")

    def without(self, names: Collection[str]) -> CompileOptions:
        """The same with some fusions off, and those that need them."""
        if not names:
            return self
        switches = [self.fuse or settings.fuse(), *(f"-{name}" for name in sorted(names))]
        return replace(self, fuse=",".join(filter(None, switches)))

    def arrays(self) -> dict[str, Array]:
        """Name -> array of the weights of adapters and control vectors."""
        arrays = {} if self.control is None else self.control.arrays()
        for adapter in self.adapters:
            arrays |= adapter.arrays()
        return arrays

    def computes_as(self, other: CompileOptions) -> bool:
        """Whether the values of a step are the same: those of one program, fed with the same factors."""
        return self == other and self.factors == other.factors

    @property
    def added(self) -> list[str]:
        """What is added to the model's own computation, as text: keys and values depend on it."""
        named = zip(self.adapters, self.factors, strict=True)
        added = [f"adapter {adapter.fingerprint} times {factor!r}" for adapter, factor in named]
        return added if self.control is None else [*added, f"control vectors {self.control.fingerprint}"]


DEFAULT = CompileOptions()
