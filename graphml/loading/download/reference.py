"""References to models of the hub: "user/repo", "user/repo:QUANT" or "user/repo:FILE.gguf"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from graphml.errors import UsageError

REFERENCE = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<wanted>.+))?", re.ASCII)


@dataclass(frozen=True)
class RepoReference:
    """A repository, and the quantisation or the file in it, if any is named."""

    text: str
    repo: str
    wanted: str | None

    @property
    def called(self) -> str:
        """The reference's text in errors."""
        return f"hub model {self.text!r}"


def read_reference(text: str) -> RepoReference:
    """Parse a reference; UsageError for any other text."""
    match = REFERENCE.fullmatch(text)
    if match is None:
        raise UsageError(f"hub model {text!r}: wanted user/repo or user/repo:QUANT")
    return RepoReference(text, match["repo"], match["wanted"])
