"""Compile options: a caller's choices about compilation, as one value."""

from __future__ import annotations

from dataclasses import dataclass

from graphml import settings
from graphml.errors import UsageError
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
    "": the architecture's own outputs, logits for most.
    """

    fuse: str = ""
    keep: tuple[str, ...] = ()
    strict: bool = False
    place: str = ""
    patch: tuple[Patch, ...] = ()
    pooling: str = ""

    def fusions(self) -> frozenset[str]:
        """The names of the fusions that are on; a `UsageError` for a name that no fusion has."""
        if not isinstance(self.fuse, str):
            raise UsageError(f"fuse: wanted names in one text, got {self.fuse!r}")
        return switched(self.fuse, "fuse") if self.fuse else switched(settings.fuse(), "GRAPHML_FUSE")


DEFAULT = CompileOptions()
