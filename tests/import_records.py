"""Descriptions of traced modules for the tests of `graphml import`: a tool for developers.

    echo '{"source": "hf:FOLDER", "out": "TRACED", "trusted": false}' > request.json
    VENV/bin/python graphml/peers/trace_torch.py < request.json
    PYTHONPATH=.:quant:models python -m tests.import_records NAME=TRACED ...

A record is a description without the values of parameters: tests draw them by name. Those of transformers
were made with torch 2.13.0 and transformers 5.23.0; the plain modules are in data/imports, plain.py and
ideas.py.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from graphml.authoring.importing.description import TracedModule, read_description
from graphml.authoring.importing.evaluation import random_parameter

FOLDER = Path(__file__).parent / "data" / "imports"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))
TIED = "lm_head.weight"
IGNORED = "aten._assert_tensor_metadata"
Array = NDArray[Any]


def record(name: str, traced: Path) -> None:
    """Write a record of what the tracer wrote."""
    found = json.loads((traced / "description.json").read_text())
    found["nodes"] = [one for one in found["nodes"] if not one["op"].startswith(IGNORED)]
    for one in found["nodes"]:
        one["line"] = one["line"].rpartition("/")[2]
    found["source"] = found["source"].partition(":")[0] + ":" + name
    used = {each["name"] for each in found["inputs"].values() if each["kind"] == "constant"}
    with np.load(traced / "values.npz") as held:
        constants = {each: held[each] for each in held.files if each in used}
    found["constants"] = {each: [str(one.dtype), list(one.shape), one.reshape(-1).tolist()]
                          for each, one in constants.items() if one.size <= 4096}  # fmt: skip
    data = json.dumps(found, separators=(",", ":")).encode()
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(data, 9, mtime=0))


def described(
    name: str, folder: Path, change: Callable[[dict[str, Any]], None] | None = None
) -> TracedModule:
    """A record as a description; change: what is done to it first."""
    found = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
    if change is not None:
        change(found)
    values = {
        each: np.array(numbers, kind).reshape(shape)
        for each, (kind, shape, numbers) in found.pop("constants").items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "description.json").write_text(json.dumps(found))
    np.savez(folder / "values.npz", **values)
    made = read_description(folder)
    leaves = {one.name: one for one in made.inputs.values()}
    if (
        made.config.get("tie_word_embeddings") and TIED in leaves
    ):  # which the checkpoint has under another name
        return replace(made, values={**made.values, TIED: random_parameter(leaves[TIED]).astype(np.float32)})
    return made


def stored_values(description: TracedModule) -> dict[str, Array]:
    """The parameters of a record by name; the output of a tied one is stored as its embedding."""
    leaves = {one.name: one for one in description.inputs.values() if one.kind == "parameter"}
    found = {name: np.asarray(random_parameter(one), np.float32) for name, one in leaves.items()}
    if TIED in description.values:
        embedding = next(name for name in found if "embed" in name or "wte" in name)
        found[embedding] = found.pop(TIED)
    return found


def write_folder(description: TracedModule, folder: Path, **fields: Any) -> None:
    """A checkpoint with the record's config.json and parameters. fields: in place of the config's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**description.config, **fields}))
    save_file(stored_values(description), folder / "model.safetensors")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for given in sys.argv[1:]:
        of, _, where = given.partition("=")
        record(of, Path(where))
