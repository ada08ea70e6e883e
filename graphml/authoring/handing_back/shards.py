"""Writes safetensors files of bounded size, and the index that transformers reads beside them.

Tensors come one after the other and are not kept. Knows the format; nothing of models.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.folder import INDEX, WHOLE

Array = NDArray[Any]
SHARD_BYTES = 5 << 30


class Shards:
    """Files of a folder. largest: bytes of tensors in each; a larger tensor has a file of its own."""

    def __init__(self, folder: Path, largest: int = SHARD_BYTES) -> None:
        self.folder = folder
        self.largest = largest
        self._headers: list[dict[str, Any]] = []
        self._size = 0
        self.names: dict[str, str] = {}  # of tensors -> the format's names of their dtypes

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: Array) -> None:
        """Write a tensor. dtype: the format's name; data: its bytes."""
        if not self._headers or (self._size and self._size + data.nbytes > self.largest):
            self._headers.append({})
            self._size = 0
        offsets = [self._size, self._size + data.nbytes]
        self._headers[-1][name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        self._size += data.nbytes
        self.names[name] = dtype
        with self._body(len(self._headers)).open("ab") as file:
            np.ascontiguousarray(data).view(np.uint8).tofile(file)

    def _body(self, number: int) -> Path:
        return self.folder / f"body-{number}"

    def close(self) -> None:
        """Give the files their headers and names, and write the index where there are several."""
        count, total = len(self._headers), 0
        weight_map: dict[str, str] = {}
        for number, header in enumerate(self._headers, 1):
            name = WHOLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
            text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            body = self._body(number)
            with (self.folder / name).open("wb") as file, body.open("rb") as source:
                file.write(len(text).to_bytes(8, "little") + text)
                shutil.copyfileobj(source, file, 1 << 24)
            total += body.stat().st_size
            body.unlink()
            weight_map |= dict.fromkeys(header, name)
        if count > 1:
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def encoded(values: Array, kinds: tuple[str, ...]) -> tuple[str, Array]:
    """Float32 numbers as the first of these types that holds them all exactly, else as float32."""
    for kind in kinds:
        if kind == "bf16":
            bits = np.ascontiguousarray(values).view(np.uint32)
            if not (bits & 0xFFFF).any():
                return "BF16", (bits >> 16).astype(np.uint16)
        elif kind == "f16":
            with np.errstate(over="ignore"):
                short = values.astype(np.float16)
            if np.array_equal(short.astype(np.float32), values):
                return "F16", short
        elif kind == "f32":
            break
    return "F32", np.ascontiguousarray(values, np.float32)
