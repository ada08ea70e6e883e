"""The tensors and keys of an imported model as a GGUF file. Knows names and files; nothing of graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.dependence import Dependence
from graphml.authoring.importing.layers import Layered
from graphml.authoring.importing.naming import Named
from graphml.authoring.importing.places import tensor_name, value_of
from graphml.errors import UsageError

Array = NDArray[Any]
KINDS = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}


def tensors(
    dependence: Dependence, model: Layered, named: Named, parameters: Callable[..., Array], tied: bool
) -> Iterator[tuple[str, Array]]:
    """Every tensor by our name, float32; of a tied model the embedding stands for the output."""
    layers = [(f"blk.{i}.", layer, model.like(i)) for i, layer in enumerate(model.layers)]
    ends = [("", group, group) for group in (model.before, model.after)]
    done: set[str] = set()
    for prefix, expressions, alike in [ends[0], *layers, ends[1]]:
        for expr, like in zip(expressions, alike, strict=True):
            for role, weight in expr.weights.items():
                name = prefix + tensor_name(named[id(like)], role)
                if name in done or (tied and name == "output.weight"):
                    continue
                done.add(name)
                yield name, value_of(dependence, weight, parameters).astype(np.float32)


def write_gguf(
    path: Path, architecture: str, keys: Mapping[str, Any], of: Iterator[tuple[str, Array]]
) -> None:
    """Write the file; a UsageError if it cannot be written. keys: without the architecture's prefix."""
    try:
        with path.open("wb"):
            pass  # checks that the file can be written before the writer opens it
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in keys.items():
            name = f"{architecture}.{key}"
            if isinstance(value, list):
                writer.add_key_value(name, value, gguf.GGUFValueType.ARRAY, sub_type=KINDS[type(value[0])])
            else:
                writer.add_key_value(name, value, KINDS[type(value)])
        writer.add_tokenizer_model("no_vocab")
        for name, array in of:
            writer.add_tensor(name, np.ascontiguousarray(array))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
