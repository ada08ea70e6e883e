"""Model files as named arrays: metadata by key, tensors as views on the mapped file.

`open_model` is the entry point; the kind of a file is detected by its content, never by its name. Knows
files; nothing of graphs, architectures or tokenizers.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from graphml.errors import WeightsError
from graphml.system.read_files import guarded
from graphml.weights import gguf, llama2c
from graphml.weights.filemap import FileMap
from graphml.weights.metadata import Metadata, ValueSummary
from graphml.weights.model_file import ModelFile
from graphml.weights.split import open_gguf
from graphml.weights.tensor import Tensor

__all__ = ["Metadata", "ModelFile", "Tensor", "ValueSummary", "open_model"]

# First bytes of other kinds of files, for a helpful error.
STRANGERS = (
    (b"PK\x03\x04", "a zip archive, perhaps a PyTorch checkpoint: convert it to GGUF"),
    (
        b"version https://git-lfs",
        "a Git LFS pointer, not the file it stands for: `git lfs pull` fetches that",
    ),
    (b"24ka", "a llama2.c checkpoint of a later version: export it with `--version 0`"),
    (b"tjgg", "a GGML file from before GGUF: convert it to GGUF"),
    (b"fmgg", "a GGML file from before GGUF: convert it to GGUF"),
    (b"lmgg", "a GGML file from before GGUF: convert it to GGUF"),
    (b"algg", "a GGML adapter from before GGUF: convert it to GGUF"),
    (b"<", "a web page or XML"),
)


def open_model(path: str | PathLike[str]) -> ModelFile:
    """Open a model file: GGUF (any part of a split one opens all) or a llama2.c checkpoint.

    Reads the header only; weights and long metadata are read from the map when they are used. Raises
    WeightsError if the file cannot be opened, is of an unknown kind, truncated, damaged or hostile.
    """
    opened = [FileMap(Path(path))]
    try:
        with guarded(Path(path), WeightsError):
            return _opened(opened)
    except BaseException:
        for file in opened:
            file.close()
        raise


def _opened(opened: list[FileMap]) -> ModelFile:
    """The model of the first of these files; further parts of it are added."""
    file = opened[0]
    head = bytes(file.data[:64])
    if head.startswith(gguf.MAGIC):
        return open_gguf(file, opened)
    if not head.startswith(b"24ka") and llama2c.read_header(head) is not None:
        return llama2c.open_llama2c(file, opened)
    raise _unknown_kind(file.path, head)


def _unknown_kind(path: Path, head: bytes) -> WeightsError:
    guess = next((f"; it looks like {what}" for start, what in STRANGERS if head.startswith(start)), "")
    if head[8:9] == b"{":
        guess = "; it looks like safetensors: give the folder that it is in, with its config.json"
    return WeightsError(
        f"{path}: unknown kind of model file. Known are GGUF (begins with {gguf.MAGIC!r}) and "
        f"llama2.c checkpoints (begin with seven sizes); this one begins with {head[:16]!r}{guess}"
    )
