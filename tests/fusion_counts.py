"""How often each fusion is found in each golden and each sample model: golden data of the tests.

`python -m tests.fusion_counts` writes `tests/data/fusions/counts.json` anew after a wanted change.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from graphml.ir.graph import Graph
from graphml.ir.verify import verify
from graphml.passes.fusion import fuse, fusions
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor

FILE = Path(__file__).parent / "data" / "fusions" / "counts.json"
HOW = "if this is meant, run: python -m tests.fusion_counts"


def recorded() -> dict[str, dict[str, int]]:
    """Model -> fusion -> how often, as written down."""
    found: dict[str, dict[str, int]] = json.loads(FILE.read_text())
    return found


def counts(graph: Graph) -> dict[str, int]:
    """How often each fusion is found with all of them on, whatever a backend has kernels for."""
    ops = {fusion.replace for fusion in fusions().values()}
    fused, log = fuse(graph, ops)
    fused, more = fuse(verify(fused), ops, last=True)
    verify(fused)
    return dict(sorted((log + more).counts.items()))


def _write() -> None:
    from tests import golden
    from tests.sample_models import MODELS, write_model

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        for name in [*golden.names(), *MODELS]:
            if name in MODELS:
                write_model(path, *MODELS[name])
            else:
                golden.build(golden.read(name), path)
            executor = open_executor(path, LoadOptions("reference"))
            found[name] = counts(executor.build(1, 1))
            executor.close()
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
    FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    _write()
