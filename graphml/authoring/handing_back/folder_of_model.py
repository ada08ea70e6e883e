"""A folder of transformers from an open model: weights under the class's names, the other files as they are.

The folder that says how is one of the same class. What is written is opened again and compared before it has
its name. Knows files of folders and the order of the steps.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from graphml.api.load_model import load_model
from graphml.api.model import Model
from graphml.authoring.handing_back.checks import (
    against_transformers,
    check_graphs,
    check_logits,
    check_tensors,
)
from graphml.authoring.handing_back.inverse import Inverse, rebuilt
from graphml.authoring.handing_back.shards import SHARD_BYTES, Shards, encoded
from graphml.authoring.handing_on import FURTHEST, FURTHEST_PLAIN, check_convertible, merged_tensors
from graphml.backend import no_progress
from graphml.errors import UsageError
from graphml.loading import discovery
from graphml.loading.huggingface.folder import (
    CONFIG,
    INDEX,
    PICKLED,
    TEXT_CONFIGS,
    FamilyCheckpoint,
    is_folder_of_model,
    read_checkpoint,
)
from graphml.loading.huggingface.packed import BESIDE, PLAIN
from graphml.loading.huggingface.tensors import OUTPUT, our_tensors
from graphml.runtime.programs.load_options import LoadOptions
from graphml.system.read_files import reason
from graphml.system.replaced_file import replacing_folder
from graphml.weights import Tensor
from graphml.weights.filemap import FileMap
from graphml.workshop.quantized_file import UNQUANTISED

OF_WEIGHTS = (".safetensors", ".gguf", ".h5", ".msgpack", ".onnx", ".pte", *PICKLED)
LARGEST_FILE = 256 << 20  # of those that are copied: tokenizers and templates
TEMPLATES = "additional_chat_templates"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class HandedBack:
    """n_written: tensors with numbers of the model that the folder `like` has not; n_copied: others.

    n_dequantised: packed tensors of the model, as floats. nmse: the logits of the written folder against the
    model's. by: the transformers that opened it, with the NMSE of its logits; empty without.
    """

    n_written: int
    n_copied: int
    n_dequantised: int
    n_merged: int
    nmse: float
    by: str = ""
    nmse_by: float = 0.0


def hand_back(
    model: Model,
    output: Path,
    like: Path,
    definition: Path | None,
    options: LoadOptions,
    python: str | None = None,
    largest: int = SHARD_BYTES,
) -> HandedBack:
    """Write a model as a folder of transformers.

    like: a folder of the class, whose config.json, tokenizer and templates it has. definition: the Python
    file of the model's architecture, whose `FAMILY` reads folders; None for a built-in one. python: with
    torch and transformers, which open the folder, too; None: they do not. largest: bytes of a file.
    UsageError for what the class cannot hold, with the tensor; GraphmlError where the folder, opened again,
    is another model.
    """
    check_convertible(model)
    if not is_folder_of_model(like):
        raise UsageError(f"{like}: convert: wanted a folder of transformers, with config.json and weights")
    if output.exists() and output.resolve() in (like.resolve(), model.path.resolve()):
        raise UsageError(f"{output}: convert: is the model itself; wanted another name")
    merged = merged_tensors(model, packed="f32")
    tensors = {**model.executor.file.tensors, **{name: each.tensor for name, each in merged.items()}}
    try:
        with replacing_folder(output) as partial:
            written = _write(tensors, partial, like, definition, largest)
            most = FURTHEST if any(each.is_rounded for each in merged.values()) else FURTHEST_PLAIN
            done = _checked(model, tensors, partial, definition, options, python, most)
    except OSError as error:
        raise UsageError(f"{output}: cannot be written: {reason(error)}") from None
    return replace(done, n_written=written[0], n_copied=written[1], n_merged=len(merged))


def _write(
    tensors: Mapping[str, Tensor], folder: Path, like: Path, definition: Path | None, largest: int
) -> tuple[int, int]:
    """The folder's files; returns how many tensors were rebuilt, and copied."""
    opened: list[FileMap] = []
    family = None if definition is None else discovery.family_from_file(definition)
    if definition is not None and family is None:
        raise UsageError(
            "convert: the model's definition has no FAMILY, as of a plain module: no class of transformers "
            "is known of it; a GGUF file holds it"
        )
    try:
        read = read_checkpoint(like, discovery.families(), family, discovery.refused_folders(), opened)
        inverse = Inverse(read, OUTPUT in tensors)
        _check_names(tensors, inverse)
        edited = _edited(tensors, read, inverse)
        shards, done = Shards(folder, largest), set(inverse.left_out)
        is_packed = read.config.get("quantization_config") is not None
        for name, values, kinds in rebuilt(inverse, tensors, edited):
            stored = read.stored.get(name)
            own = PLAIN.get(stored.dtype, "") if stored is not None else ""
            dtype, data = encoded(values, (own, *kinds))
            shards.add(name, dtype, values.shape, data)
            done.add(name)
        n_written = len(done) - len(inverse.left_out)
        if is_packed:
            for name, tensor in read.tensors.items():
                if name not in done:
                    dtype, data = encoded(np.asarray(tensor.numpy(), np.float32), (tensor.dtype,))
                    shards.add(name, dtype, tensor.shape, data)
        else:
            for name, stored in read.stored.items():
                if name not in done:
                    shards.add(name, stored.dtype, stored.shape, stored.data)
        shards.close()
        _write_config(folder, read, shards, is_packed)
        _copy_files(folder, like, set(BESIDE) if is_packed else set())
    finally:
        for each in opened:
            each.close()
    return n_written, len(shards.names) - n_written


def _check_names(tensors: Mapping[str, Tensor], inverse: Inverse) -> None:
    """UsageError for a tensor that the model or the folder's class has alone."""
    more = [name for name in tensors if name not in inverse.names and name not in inverse.others]
    less = [name for name in inverse.names if name not in tensors]
    if more:
        raise UsageError(
            f"{more[0]}: convert: the class of {inverse.read.path} has no place for this tensor of the model"
        )
    if less:
        raise UsageError(
            f"{less[0]}: convert: the class of {inverse.read.path} has the tensor, and the model has not"
        )


def _edited(tensors: Mapping[str, Tensor], read: FamilyCheckpoint, inverse: Inverse) -> set[str]:
    """The names of our tensors whose numbers are not those of the folder."""
    held = {name: of for name, of in read.tensors.items() if name not in inverse.left_out}
    own = our_tensors(read.config, read.family, held, OUTPUT not in tensors, read.wrapped)
    edited = set()
    for name in inverse.names:
        ours, theirs = tensors[name], own.pop(name)
        if (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape) and np.array_equal(
            ours.data, theirs.data
        ):
            continue
        if ours.shape != theirs.shape:
            raise UsageError(
                f"{name}: convert: wanted {list(theirs.shape)}, as {read.path} has it; got {list(ours.shape)}"
            )
        edited.add(name)
    return edited


def _write_config(folder: Path, read: FamilyCheckpoint, shards: Shards, is_packed: bool) -> None:
    """The folder's config.json with the type that its weights have now; transformers rounds to that one."""
    config: dict[str, Any] = json.loads((read.path / CONFIG).read_text(encoding="utf-8"))
    inner = [config[name] for name in TEXT_CONFIGS if isinstance(config.get(name), dict)]
    if is_packed:
        for part in (config, *inner):
            part.pop("quantization_config", None)
    changed = {
        DTYPES[dtype]
        for name, dtype in shards.names.items()
        if dtype in DTYPES and (name not in read.stored or read.stored[name].dtype != dtype)
    }
    stated = {part[key] for part in (config, *inner) for key in ("dtype", "torch_dtype") if part.get(key)}
    every = changed | stated
    if changed and (len(every) > 1 or not stated):
        wide = every.pop() if len(every) == 1 else DTYPES["F32"]
        for part in (config, *inner):
            for key in ("dtype", "torch_dtype"):
                if key in part or (part is config and key == "dtype" and "torch_dtype" not in config):
                    part[key] = wide
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def _copy_files(folder: Path, like: Path, without: set[str]) -> None:
    """Tokenizer, templates, settings of generation and the class's own code; without: names of files."""
    for path in sorted(like.iterdir()):
        if path.is_dir() and path.name == TEMPLATES:
            shutil.copytree(path, folder / path.name)
        is_kept = (
            path.is_file() and not path.name.startswith(".") and path.name not in {CONFIG, INDEX, *without}
        )
        if not is_kept or path.suffix.lower() in OF_WEIGHTS or path.name.endswith(".index.json"):
            continue
        if path.stat().st_size <= LARGEST_FILE:
            shutil.copyfile(path, folder / path.name)


def _checked(
    model: Model,
    tensors: Mapping[str, Tensor],
    folder: Path,
    definition: Path | None,
    options: LoadOptions,
    python: str | None,
    most: float,
) -> HandedBack:
    """The folder opened again: its tensors, its graph and its logits. most: the NMSE of these."""
    packed = sum(each.dtype not in UNQUANTISED for each in tensors.values())
    arch = None if definition is None else str(definition)
    kv = model.executor.cache_dtype  # that of the model, whatever the types of the folder's weights
    same = LoadOptions(backend=options.backend, threads=options.threads, kv=kv, arch=arch)
    with load_model(folder, same, no_progress) as other:
        settings = {name for name in tensors if name.startswith("rope_")}
        check_tensors(tensors, other.executor.file.tensors, settings)
        others = other.executor.file.tensors
        if any(others[name].dtype != each.dtype for name, each in tensors.items()):
            most = FURTHEST  # backends round activations as the type of weights asks for
        check_graphs(model.executor.build(4, 4), other.executor.build(4, 4))
        far = check_logits(model, other, most, "folder")
    by, far_by = ("", 0.0) if python is None else against_transformers(folder, arch, options.backend, python)
    return HandedBack(0, 0, packed, 0, far, by, far_by)
