"""The definition that a GGUF file carries: Python source of its architecture, run only where it is trusted.

`graphml import --weights` writes it. A person looks at it (`graphml info FILE --definition`) and says so, or
names its hash before. Knows the keys, hashes and where such code is kept; nothing of what it says.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from graphml import settings
from graphml.errors import ArchitectureError, WeightsError
from graphml.loading.discovery import DEFINITION
from graphml.system import cache_access
from graphml.system.replaced_file import replacing
from graphml.weights import ModelFile

SOURCE = "graphml.definition.source"
FOLDER = "definitions"
LARGEST = 1 << 20


@dataclass(frozen=True)
class CarriedDefinition:
    """text: Python source. digest: its SHA-256, hexadecimal."""

    text: str
    digest: str


def carried_definition(file: ModelFile) -> CarriedDefinition | None:
    """What a file carries; None without. WeightsError where it is too long or not what its hash says."""
    text = file.metadata.text(SOURCE, None)
    if text is None:
        return None
    if len(text) > LARGEST:
        raise WeightsError(f"{file.path}: {SOURCE}: wanted at most {LARGEST:,} characters; got {len(text):,}")
    digest = hashlib.sha256(text.encode()).hexdigest()
    if file.metadata.text(DEFINITION, None) != digest:
        raise WeightsError(f"{file.path}: {SOURCE}: wanted what has the hash in {DEFINITION}; got {digest}")
    return CarriedDefinition(text, digest)


def trusted_definition(file: ModelFile, trusted: bool) -> Path | None:
    """The carried definition as a Python file; None where the file carries none.

    trusted: the caller trusts this file's; else `GRAPHML_TRUSTED_ARCHS` must have its hash. ArchitectureError
    says how to look at it and to run it.
    """
    own = carried_definition(file)
    if own is None:
        return None
    if not trusted and own.digest not in settings.trusted_archs():
        raise ArchitectureError(
            f"{file.path}: its architecture is Python code in the file, {own.text.count(chr(10))} lines of "
            f"SHA-256 {own.digest}: look at it with `graphml info {file.path} --definition`, then run it "
            "with --trust-arch (trust_arch=True), or name the hash in GRAPHML_TRUSTED_ARCHS"
        )
    folder = settings.cache_folder() / FOLDER / own.digest
    if not cache_access.is_private(folder, "definitions of architectures"):
        raise ArchitectureError(f"{folder}: wanted a folder that nobody else can write, for code that is run")
    cache_access.make_private(folder)
    name = file.metadata.text("general.architecture").replace("-", "_")
    path = folder / f"{''.join(c if c.isalnum() else '_' for c in name)}.py"
    if not path.is_file() or cache_access.read_private(path) != own.text.encode():
        with replacing(path) as partial:
            partial.write_text(own.text, encoding="utf-8", newline="\n")
    return path
