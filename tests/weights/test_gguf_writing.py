"""Files of arrays have the bytes that the library gguf writes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from graphml.weights.gguf_writing import write_arrays
from graphml.weights.metadata import stored


def test_arrays_and_keys_have_the_bytes_of_the_library(tmp_path: Path) -> None:
    kinds = ("f4", "f2", "f8", "i1", "i2", "i4", "i8")
    arrays = [(kind, np.arange(15, dtype=kind).reshape(3, 5).T) for kind in kinds]
    values = {
        "general.architecture": stored("novel"), "a.count": stored(7, "u32"), "a.alpha": stored(0.1, "f32"),
        "a.is_so": stored(True), "a.texts": stored(["ä", ""]), "a.ids": stored([3, 1 << 31], "u32"),
    }  # fmt: skip
    write_arrays(tmp_path / "own.gguf", values, arrays)

    writer = gguf.GGUFWriter(tmp_path / "library.gguf", "novel")
    writer.add_uint32("a.count", 7)
    writer.add_float32("a.alpha", 0.1)
    writer.add_bool("a.is_so", True)
    writer.add_array("a.texts", ["ä", ""])
    of = gguf.GGUFValueType
    writer.add_key_value("a.ids", [3, 1 << 31], of.ARRAY, sub_type=of.UINT32)
    for name, array in arrays:
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert (tmp_path / "own.gguf").read_bytes() == (tmp_path / "library.gguf").read_bytes()
