"""The whole import: traced by a process that has torch, recognised, written to a folder, proved, reported.

Nothing is written where the caller wants it before the proof holds. Knows the order of the steps.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.description import TracedModule, read_description
from graphml.authoring.importing.importing import import_description
from graphml.authoring.importing.proof import LIMIT, Proof, prove, write_weights
from graphml.authoring.importing.report import Report, report
from graphml.authoring.peer_process import ask
from graphml.errors import ArchitectureError, UsageError
from graphml.loading.huggingface.packed import plain
from graphml.loading.own_ops import load_own_ops
from graphml.weights.filemap import FileMap
from graphml.weights.safetensors import read_safetensors

PROGRAM = "trace_torch.py"


def check_source(source: str) -> Path:
    """The folder or the file of a source; a UsageError for anything else."""
    kind, _, rest = source.partition(":")
    if kind == "hf" and rest:
        folder = Path(rest)
        if not (folder / "config.json").is_file():
            raise UsageError(f"{folder}: wanted a folder with config.json; download the checkpoint first")
        return folder
    file, _, factory = rest.rpartition(":")
    if kind == "module" and file and factory.isidentifier():
        if not Path(file).is_file():
            raise UsageError(f"{file}: no such file")
        return Path(file)
    raise UsageError(f"SOURCE: wanted hf:FOLDER or module:FILE.py:factory; got {source!r}")


def trace(source: str, python: str = sys.executable, trusted: bool = False) -> TracedModule:
    """The description of a source. python: of an environment with torch; trusted: run the folder's code."""
    path = check_source(source)
    kind, _, rest = source.partition(":")
    whole = f"{path.resolve()}" if kind == "hf" else f"{path.resolve()}:{rest.rpartition(':')[2]}"
    with tempfile.TemporaryDirectory() as folder:
        request = {"source": f"{kind}:{whole}", "out": folder, "trusted": trusted}
        ask("import", PROGRAM, python, request)
        return read_description(Path(folder))


Array = NDArray[Any]


@dataclass(frozen=True)
class Done:
    """The text of the file, and what is told of it."""

    text: str
    report: Report


def import_source(
    source: str, name: str, python: str = sys.executable, trusted: bool = False, weights: Path | None = None
) -> Done:
    """Import a source. name: of the file without .py; weights: the GGUF file to write.

    ArchitectureError names what cannot be imported, or what the proof found wrong.
    """
    path = check_source(source)
    load_own_ops()
    description = trace(source, python, trusted)
    folder = path if source.startswith("hf:") else None
    imported = import_description(description, checkpoint(folder))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / f"{name}.py"
        file.write_text(imported.text, encoding="utf-8")
        proof = prove(imported, file, folder)
        if not proof.holds:
            raise ArchitectureError(f"{source}: {_wrong(proof, imported.dependence.description)}")
        if weights is not None:
            stored = Path(directory) / "weights.gguf"
            write_weights(imported, stored, held=checkpoint(folder))
            shutil.copyfile(stored, weights)
    return Done(imported.text, report(imported, proof, source))


def checkpoint(folder: Path | None) -> dict[str, Callable[[], Array]]:
    """Reads of a folder's tensors by name, float32."""
    tensors: dict[str, Callable[[], Array]] = {}
    for path in sorted(folder.glob("*.safetensors")) if folder else ():
        for name, stored in read_safetensors(FileMap(path)).items():
            tensors[name] = lambda path=path, stored=stored: plain(path, stored).numpy().astype(np.float32)  # type: ignore[misc]
    return tensors


def _wrong(proof: Proof, description: TracedModule) -> str:
    """The first thing that disagrees, in one line."""
    for line in proof.lines:
        if line.nmse > LIMIT and line.tokens in description.other_lengths:
            return (
                f"{description.other_lengths[line.tokens]}: the model's Python depends on the length of the "
                f"text: {line.tokens} tokens are computed otherwise than {description.length}"
            )
    for verdict, _ in proof.verdicts:
        if verdict.first is not None:
            return f"the file that was made disagrees with the traced module in {verdict.first.stage.name}"
    worst = max(proof.lines, key=lambda proof_line: proof_line.nmse)
    problem = f"{worst.what}, {worst.tokens} tokens: NMSE {worst.nmse:.1e}, above {LIMIT:g}"
    return f"the file that was made disagrees: {problem}"
