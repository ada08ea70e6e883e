"""The table of architectures in docs/architectures.md: what each is, and how near its goldens are.

`python -m tests.architecture_table` runs every golden on every backend and writes the table anew.
"""

from __future__ import annotations

import importlib
import logging
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from graphml.loading import discovery
from tests import golden
from tests.backend_pairs import BACKENDS

PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
HOW = "write the table anew: python -m tests.architecture_table"
HEADER = "| architecture | what it is | NMSE against llama.cpp |\n|---|---|---|\n"


def first_line(name: str) -> str:
    """What the architecture's file says of itself."""
    module = importlib.import_module(f"graphml_models.{name.replace('-', '_')}")
    return (module.__doc__ or "").splitlines()[0]


def goldens(name: str) -> list[str]:
    """The goldens of the architecture."""
    return [one for one in golden.names() if golden.read(one).architecture.replace("_", "-") == name]


def measured(name: str, folder: Path, backends: Sequence[str]) -> float:
    """The largest NMSE of a golden: in one batch and step by step, on some backends."""
    from tests.test_goldens import evaluate, opened, ways

    one, errors = golden.read(name), list[float]()
    path = golden.build(one, folder / "golden.gguf")
    for backend in backends:
        with opened(path, backend) as executor:
            found = [evaluate(executor, pieces) for pieces in ways(one, executor)]
        errors += [golden.nmse(logits, one.logits) for logits in found]
    return max(errors)


def others(name: str) -> list[str]:
    """Who says what an architecture without goldens must give: transformers, or float64 NumPy."""
    from tests.models.test_encoders import PAPERS
    from tests.transformers_records import RECORDS

    return ["transformers"] if name in RECORDS else ["NumPy"] if name in {one for one, *_ in PAPERS} else []


def measured_otherwise(name: str, folder: Path, backends: Sequence[str]) -> float:
    """The largest NMSE of an architecture without goldens on some backends."""
    from tests.models.test_encoders import ON_CPUS, PAPERS, error
    from tests.test_transformers_records import rows
    from tests.transformers_records import RECORDS, TOKENS, architecture, read

    path = folder / "other.gguf"
    if name in RECORDS:
        records = [one for one in RECORDS if architecture(one) == name]
        return max(golden.nmse(rows(r, b, path, len(TOKENS)), read(r)) for r in records for b in backends)
    on = [backend for backend in backends if backend in ON_CPUS]
    return max(error(*paper, backend, path) for paper in PAPERS if paper[0] == name for backend in on)


def _write() -> None:
    logging.disable(logging.WARNING)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in discovery.architecture_names():
            found = [f"{one} {measured(one, Path(folder), BACKENDS):.0e}" for one in goldens(name)]
            if not found:
                found = [
                    f"{one} {measured_otherwise(name, Path(folder), BACKENDS):.0e}" for one in others(name)
                ]
            rows.append(f"| `{name}` | {first_line(name)} | {', '.join(found)} |\n")
    text = PAGE.read_text(encoding="utf-8")
    table = re.compile(r"\| architecture \|(.*\n)+?(?=\n)")
    PAGE.write_text(table.sub(lambda _: HEADER + "".join(rows), text, count=1), encoding="utf-8")


if __name__ == "__main__":
    _write()
