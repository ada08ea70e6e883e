"""References to models of the hub: "user/repo", "user/repo:QUANT" or "user/repo:FILE.gguf"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from graphml.errors import UsageError

REFERENCE = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<wanted>.+))?", re.ASCII)


_ADDRESS = re.compile(
    r"(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/(?P<repo>\w[\w.-]*/\w[\w.-]*)"
    r"(?:/(?:resolve|blob)/(?P<revision>[^/?#]+)/(?P<file>[^?#]+)|/tree/[^/?#]+/?|/)?"
    r"(?::(?P<quant>[^?#]+))?(?:[?#].*)?",
    re.ASCII,
)


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


def reference_of_address(text: str) -> str | None:
    """The reference of a page or a file at huggingface.co or hf.co; None for any other text.

    Two are "hf.co/user/repo:Q4_K_M" and "https://huggingface.co/user/repo/resolve/main/model.gguf".
    UsageError for a file of another revision than main, which references cannot say.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    if match["revision"] not in (None, "main"):
        raise UsageError(f"model {text!r}: wanted a file of the revision main, not of {match['revision']!r}")
    wanted = match["file"] or match["quant"]
    return f"{match['repo']}:{unquote(wanted)}" if wanted else match["repo"]
