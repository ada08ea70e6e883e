"""Opens a folder of Hugging Face transformers as a model file: metadata and tensors as GGUF names them.

Weights are views of the mapped safetensors files; what must be permuted, transposed or unpacked is computed
when it is first read. Pickled weights are refused: reading them runs code. Knows the files of a folder;
nothing of single families.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.errors import ArchitectureError, WeightsError, did_you_mean
from graphml.loading.huggingface.config import HfConfig, Value, class_fields, is_tied
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.generation_settings import sampling_metadata
from graphml.loading.huggingface.json_files import read_json
from graphml.loading.huggingface.late_interaction import ARTIFACT, LINEAR, is_stanford
from graphml.loading.huggingface.packed import (
    MOST_IN_BYTE,
    MOST_IN_ONE,
    read_packing,
    stated_quantization,
    unpacked,
)
from graphml.loading.huggingface.sentence_modules import (
    MODULES,
    SentenceModules,
    embedding_keys,
    read_modules,
    stanford_modules,
)
from graphml.loading.huggingface.tensors import OUTPUT, looked_up, our_tensors, take_lists, take_numbers
from graphml.loading.huggingface.tokenizer_files import NO_TOKENIZER, tokenizer_metadata
from graphml.loading.pooling import NO_OUTPUT
from graphml.system.read_files import guarded
from graphml.weights import Metadata, ModelFile, Tensor
from graphml.weights.filemap import FileMap
from graphml.weights.metadata import StoredValue, stored
from graphml.weights.safetensors import StoredTensor, read_safetensors

CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LARGEST_INDEX = 64 << 20
MAX_SHARDS = 4096
EMPTY: Mapping[str, str] = {}
TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
"""Fields of a larger model that hold the config of its language model, as classes name them."""
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
MISFIT = "does not fit the family, or the tensors"


def is_folder_of_model(path: Path) -> bool:
    """Whether it is a folder with a config.json."""
    return path.is_dir() and (path / CONFIG).is_file()


def has_weights(path: Path) -> bool:
    """Whether a folder with a config.json has all files with weights."""
    try:
        return is_folder_of_model(path) and bool(_weight_files(path))
    except WeightsError:
        return False


@dataclass(frozen=True, eq=False)
class FamilyCheckpoint:
    """A folder as its family reads it.

    fields: of config.json, those of the language model; kind: its model_type. keys: of the config; tied:
    the output matrix is the embedding. stored: its tensors as the files have them; tensors: packed ones as
    matrices. wrapped: it is a part of a larger model.
    """

    path: Path
    family: Family
    fields: Mapping[str, Any]
    kind: Any
    modules: SentenceModules | None
    config: HfConfig
    keys: Mapping[str, Value]
    tied: bool
    stored: Mapping[str, StoredTensor]
    tensors: Mapping[str, Tensor]
    wrapped: bool


def open_folder(
    path: Path,
    families: Mapping[str, Family],
    stated_family: Family | None = None,
    refused: Mapping[str, str] = EMPTY,
) -> ModelFile:
    """The model of a folder.

    families: by model_type; stated_family: one that is used whatever the model_type is; refused: why others
    are not read. Raises ArchitectureError for a model_type or a field that is not known, WeightsError for
    missing, damaged or pickled files.
    """
    opened: list[FileMap] = []
    try:
        read = read_checkpoint(path, families, stated_family, refused, opened)
        family, config, keys, modules = read.family, read.config, read.keys, read.modules
        with guarded(path / CONFIG, ArchitectureError, MISFIT):
            embeds = modules is not None
            tensors = our_tensors(config, family, read.tensors, read.tied or embeds, read.wrapped)
            own = {f"{family.architecture}.{key}": stored(value) for key, value in keys.items()}
            own |= {key: stored(value) for key, value in take_numbers(config, family, tensors).items()}
            lists = take_lists(config, family, tensors)
            own |= {f"{family.architecture}.{key}": stored(value) for key, value in lists.items()}
            n_embd = int(str(keys["embedding_length"]))
            own |= embedding_keys(path, modules, family.architecture, n_embd, tensors, read.kind)
            tensors |= {} if modules is None else modules.tensors(opened)
            if embeds and family.logits and not read.tied and OUTPUT not in tensors:
                own[NO_OUTPUT] = stored(True)
        values: dict[str, StoredValue] = {
            "general.architecture": stored(family.architecture),
            "general.name": stored(_name(path)),
            **sampling_metadata(path),
            **own,
        }
        lowercase = modules is not None and modules.lowercase
        values |= tokenizer_metadata(path, read.fields, int(str(keys.get("vocab_size", 0))), lowercase)
        return ModelFile(path, Metadata(path, values, {"tokenizer.": NO_TOKENIZER}), tensors, opened)
    except BaseException:
        for one_map in opened:
            one_map.close()
        raise


def read_checkpoint(
    path: Path,
    families: Mapping[str, Family],
    stated_family: Family | None,
    refused: Mapping[str, str],
    opened: list[FileMap],
) -> FamilyCheckpoint:
    """The config and the tensors of a folder; opened: where its files are noted, for the caller to close."""
    whole = read_json(path / CONFIG)
    fields = language_model(whole, families)
    kind = model_type(fields, families)
    family = stated_family or _family(path / CONFIG, kind, families, refused)
    kind = family.older.get(str(kind), kind)
    with guarded(path / MODULES, WeightsError):
        modules = read_modules(path)
    stored_tensors: dict[str, StoredTensor] = {}
    projection: StoredTensor | None
    for shard, wanted in _weight_files(path).items():
        opened.append(FileMap(path / shard))
        held = read_safetensors(opened[-1])
        _check_shard(path / shard, held, wanted, stored_tensors)
        stored_tensors |= held
    if modules is None and is_stanford(whole):
        with guarded(path / ARTIFACT, WeightsError):
            projection = stored_tensors.pop(LINEAR, None)
            modules = stanford_modules(path, projection)
    with guarded(path / CONFIG, ArchitectureError, MISFIT):
        reads = class_fields().get(str(kind))
        config = HfConfig(path / CONFIG, fields, family.defaults, _largest(stored_tensors), reads)
        stated = stated_quantization(path, config.get("quantization_config"), stored_tensors)
        layout = read_packing(*stated)
        keys, tied = metadata_keys(config, family)
        useful = {name: of for name, of in stored_tensors.items() if looked_up(family, name)[0] != ()}
        held_tensors = unpacked(path, layout, useful)
    wrapped = not family.whole and (fields is not whole or kind != whole.get("model_type"))
    return FamilyCheckpoint(
        path, family, fields, kind, modules, config, keys, tied, stored_tensors, held_tensors, wrapped
    )


def metadata_keys(config: HfConfig, family: Family) -> tuple[dict[str, Value], bool]:
    """The keys of a config as its family has them, and whether the output matrix is the embedding."""
    if family.logits:
        config.only("is_encoder_decoder", False)
    tied = config.flag("tie_word_embeddings", False)
    keys = dict(family.keys(config))
    config.check_all_read(family.ignored)
    return keys, tied


def _largest(held: Mapping[str, StoredTensor]) -> int:
    """The most that a size of these tensors can be: of packed ones the shapes are smaller."""

    def largest(tensor: StoredTensor) -> int:
        in_one = MOST_IN_ONE if tensor.dtype in ("I32", "I64", "U32") else MOST_IN_BYTE
        return in_one * max(tensor.shape, default=0)

    return max(map(largest, held.values()), default=0)


def _name(path: Path) -> str:
    """The model's name: the folder's, or the repository's of a snapshot in the hub's cache."""
    path = path.resolve()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.rpartition("--")[2]
    return path.name or "model"


def language_model(whole: dict[str, Any], families: Mapping[str, Family] | None = None) -> dict[str, Any]:
    """The fields of the language model; of a larger model's own fields, those that are about it.

    The larger one has the output matrix, so it says whether that is the embedding. families: by model_type,
    of which some count the larger one's fields, see `Family.whole`.
    """
    for part in ("thinker_config", "transformer_layer_config"):  # of a model that speaks, of a drafter
        if isinstance(whole.get(part), dict):
            whole = {**whole, **whole[part]}
    inner = next((whole[name] for name in TEXT_CONFIGS if whole.get(name)), None)
    if not isinstance(inner, dict):
        return whole
    outer = (families or {}).get(str(whole.get("model_type")))
    if outer is not None and outer.whole:
        return {**inner, **{name: value for name, value in whole.items() if value is not inner}}
    shared: tuple[str, ...] = ("quantization_config", "eos_token_id", "bos_token_id")
    tied = "tie_word_embeddings"
    is_embedding = is_tied(str(whole.get("model_type")), whole.get(tied), inner.get(tied))
    own = {} if is_embedding is None else {tied: is_embedding}
    if whole.get("language_config"):
        shared = (*shared, "sliding_window")  # of Unlimited-OCR
    nulls = {name for name in shared if inner.get(name) is None}
    of_inner = {name: value for name, value in inner.items() if name not in nulls}
    return {**{name: whole[name] for name in shared if name in whole}, **of_inner, **own}


def model_type(fields: Mapping[str, Any], families: Mapping[str, Family]) -> Any:
    """The model_type, or what a family takes the config for."""
    claiming = {id(family): family.claims for family in families.values() if family.claims is not None}
    claimed = (claims(fields) for claims in claiming.values())
    return next((kind for kind in claimed if kind is not None), fields.get("model_type"))


def _family(path: Path, kind: Any, families: Mapping[str, Family], refused: Mapping[str, str]) -> Family:
    if isinstance(kind, str) and kind in refused:
        raise ArchitectureError(f"{path}: model_type {kind!r} is not read: {refused[kind]}")
    if not isinstance(kind, str) or kind not in families:
        hint = did_you_mean(str(kind)[:64], families, 1)
        raise ArchitectureError(
            f"{path}: model_type {str(kind)[:64]!r} is not known.{hint} {len(families)} are, which "
            "docs/folders.md lists; it says how to add a family. A GGUF file of the model may be known"
        )
    return families[kind]


def _weight_files(path: Path) -> dict[str, set[str] | None]:
    """The names of the files with weights, and the tensors that the index expects in each.

    Where there is a whole file beside an index, transformers reads the former: what a merge has saved into
    the folder of its base model.
    """
    if (path / WHOLE).is_file():
        return {WHOLE: None}
    index = path / INDEX
    if index.is_file():
        files = read_index(index)
        with guarded(index, WeightsError):
            missing = sorted(file for file in files if not index.with_name(file).is_file())
        if missing:
            raise WeightsError(
                f"{index}: {missing[0]} is not there: {len(missing)} of {len(files)} files are missing"
            )
        return files
    refuse_pickles(path, WHOLE)
    raise WeightsError(f"{path}: wanted {WHOLE} or {INDEX}; the folder has neither")


def refuse_pickles(path: Path, wanted: str) -> None:
    """WeightsError for a folder with pickled weights, where the file that is wanted is not there."""
    pickled = sorted(file.name for file in path.iterdir() if file.suffix in PICKLED)
    if pickled:
        raise WeightsError(
            f"{path}: {pickled[0]} is a pickle: reading it runs whatever code is in it, so graphml does not. "
            f"Wanted {wanted}: `model.save_pretrained(folder)` of transformers or PEFT writes it, and the "
            "hub has it for nearly every model"
        )


def read_index(index: Path) -> dict[str, set[str] | None]:
    """The names of the files that an index names, beside it, and the tensors that it expects in each."""
    weight_map = read_json(index, LARGEST_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index}: weight_map: wanted an object of tensors and files")
    files: dict[str, set[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise WeightsError(
                f"{index}: weight_map: wanted names of safetensors files beside it; got {str(file)[:80]!r}"
            )
        expected = files.setdefault(file, set())
        if expected is not None:
            expected.add(name)
    if len(files) > MAX_SHARDS:
        raise WeightsError(f"{index}: weight_map: {len(files)} files, at most {MAX_SHARDS} are allowed")
    return files


def _check_shard(
    path: Path, held: Mapping[str, StoredTensor], wanted: set[str] | None, before: Mapping[str, StoredTensor]
) -> None:
    twice = held.keys() & before.keys()
    if twice:
        raise WeightsError(f"{path}: tensor {min(twice)[:200]!r} is also in another file of the model")
    missing = set() if wanted is None else wanted - held.keys()
    if missing:
        raise WeightsError(f"{path}: tensor {min(missing)[:200]!r} is missing, which {INDEX} expects here")
    if any(math.prod(tensor.shape) == 0 for tensor in held.values()):
        empty = next(name for name, tensor in held.items() if math.prod(tensor.shape) == 0)
        raise WeightsError(f"{path}: tensor {empty[:200]!r} has no elements")
