"""The table of architectures in docs/architectures.md: what each is, and how near its goldens are.

`python -m tests.architecture_table` runs every golden on every backend and writes the table anew.
"""

from __future__ import annotations

import importlib
import logging
import re
import tempfile
from pathlib import Path

from graphml.loading import discovery
from tests import golden

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


def measured(name: str, folder: Path) -> float:
    """The largest NMSE of a golden: in one batch and step by step, on every backend."""
    from tests.test_goldens import BACKENDS, errors

    path = golden.build(golden.read(name), folder / "golden.gguf")
    return max(error for backend in BACKENDS for error in errors(name, path, backend))


def others(name: str) -> list[str]:
    """Who says what an architecture without goldens must give: transformers, or float64 NumPy."""
    from tests.models.test_encoders import PAPERS
    from tests.transformers_records import RECORDS

    return ["transformers"] if name in RECORDS else ["NumPy"] if name in {one for one, *_ in PAPERS} else []


def measured_otherwise(name: str, folder: Path) -> float:
    """The largest NMSE of an architecture without goldens."""
    from tests.golden import nmse
    from tests.models.test_encoders import ON_CPUS, PAPERS, error
    from tests.test_transformers_records import BACKENDS, rows
    from tests.transformers_records import RECORDS, TOKENS, architecture, read

    path = folder / "other.gguf"
    if name in RECORDS:
        records = [one for one in RECORDS if architecture(one) == name]
        return max(nmse(rows(r, b, path, len(TOKENS)), read(r)) for r in records for b in BACKENDS)
    return max(error(*paper, backend, path) for paper in PAPERS if paper[0] == name for backend in ON_CPUS)


def _write() -> None:
    logging.disable(logging.WARNING)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in discovery.architecture_names():
            found = [f"{one} {measured(one, Path(folder)):.0e}" for one in goldens(name)]
            found += [
                f"{one} {measured_otherwise(name, Path(folder)):.0e}" for one in others(name) if not found
            ]
            rows.append(f"| `{name}` | {first_line(name)} | {', '.join(found)} |\n")
    text = PAGE.read_text(encoding="utf-8")
    table = re.compile(r"\| architecture \|(.*\n)+?(?=\n)")
    PAGE.write_text(table.sub(lambda _: HEADER + "".join(rows), text, count=1), encoding="utf-8")


if __name__ == "__main__":
    _write()
