"""Files of arrays: what the library leaves where it ends in the middle is never left beside a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError

from graphml.weights.tensor_file import TensorFile, write_tensors


def test_what_the_library_leaves_is_gone_and_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    write_tensors(path, {"number": 1}, {"x": np.arange(3, dtype=np.int32)})
    assert [one.name for one in tmp_path.iterdir()] == ["a.bin"]

    def ends(arrays: object, file: Path, *rest: Any) -> None:
        file.with_name(".tmpXYZ").write_bytes(b"half")
        raise SafetensorError("no space left")

    monkeypatch.setattr("safetensors.numpy.save_file", ends)
    with pytest.raises(OSError, match="no space left"):
        write_tensors(path, {"number": 2}, {"x": np.arange(4, dtype=np.int32)})
    assert [one.name for one in tmp_path.iterdir()] == ["a.bin"]
    with TensorFile(path) as file:
        assert file.about == {"number": 1}
