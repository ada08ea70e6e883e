"""What follows a folder's model by `modules.json` of sentence-transformers: pooling, dense layers, prompts.

What they compute becomes GGUF's `pooling_type`, tensors `dense_2`, `dense_3` and so on, and keys that begin
with `sentence_transformers.`; a module, a mode or a field that would be left out is refused by name. Knows
the files; nothing of graphs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphml.errors import ArchitectureError, WeightsError
from graphml.loading.huggingface.json_files import LARGEST_BYTES, read_json
from graphml.loading.huggingface.late_interaction import (
    LINEAR,
    LateFields,
    pylate_fields,
    stanford_fields,
)
from graphml.loading.huggingface.packed import plain
from graphml.loading.huggingface.tensors import renamed
from graphml.loading.huggingface.tokenizer_classes import gives_kinds
from graphml.loading.pooling import KINDS_BY_ID
from graphml.system.read_files import plain_json
from graphml.weights import Tensor
from graphml.weights.filemap import FileMap
from graphml.weights.metadata import StoredValue, stored
from graphml.weights.safetensors import StoredTensor, read_safetensors

MODULES, SETTINGS, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
TOKENIZER, DENSE_WEIGHTS = "tokenizer_config.json", "model.safetensors"
PACKAGE, LATE_PACKAGE = "sentence_transformers.", "pylate."
FIRST_DENSE, MOST_MODULES, MOST_PROMPTS = 2, 16, 256
MODES, SCORED = {"mean": 1, "cls": 2, "lasttoken": 3}, 4
"""GGUF's numbers of the modes that are computed, and of scores."""
FLAGS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # fmt: skip
ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": "identity", "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu", "torch.nn.modules.activation.GELU": "gelu_erf",
    "torch.nn.modules.activation.SiLU": "silu", "torch.nn.modules.activation.Sigmoid": "sigmoid",
}  # fmt: skip
TANH: Mapping[str, Any] = {"activation_function": "torch.nn.modules.activation.Tanh"}
"""What follows a dense layer of sentence-transformers that does not say it."""
# Fields of sentence_bert_config.json that are read, or that say how texts are padded.
SETTINGS_READ = ("max_seq_length", "do_lower_case", "transformer_task", "modality_config",
                 "module_output_name", "unpad_inputs")  # fmt: skip
LOADED_BY = (
    "config_args",
    "model_args",
    "processor_kwargs",
    "config_kwargs",
    "model_kwargs",
    "tokenizer_args",
)
HARMLESS = frozenset((
    "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "padding_side", "torch_dtype",
    "trust_remote_code", "use_fast",
))  # fmt: skip
"""Arguments with which sentence-transformers loads the model, and those that do not change a row."""


@dataclass(frozen=True)
class SentenceModules:
    """pooling: by GGUF's number, 0 where pairs are scored or rows are not pooled. width: of its rows.

    dense: the folder of each dense layer, with its config. longest: ids of a text at most, or infinity.
    prompts: what is put before a text, by name; default_prompt: the name of the one that is put before
    every text, "" for none. lowercase: texts become lower case. late: of a model of late interaction;
    projection: of its rows, where the checkpoint has it.
    """

    pooling: int
    width: int = 0
    dense: Sequence[tuple[Path, Mapping[str, Any]]] = ()
    longest: float = math.inf
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    lowercase: bool = False
    late: LateFields | None = None
    projection: StoredTensor | None = None

    def metadata(self, architecture: str, n_embd: int) -> dict[str, StoredValue]:
        """The keys of pooling, of dense layers and of prompts; ArchitectureError for another width."""
        keys = {}
        if self.longest < 1 << 31:
            keys["sentence_transformers.max_seq_length"] = stored(int(self.longest))
        for number, (folder, config) in enumerate(self.dense, FIRST_DENSE):
            kind = ACTIVATIONS[config["activation_function"]]
            keys[f"{architecture}.dense_{number}.activation"] = stored(kind)
            if number == FIRST_DENSE and config["in_features"] != n_embd:
                got = f"wanted the model's {n_embd}; got {config['in_features']}"
                raise ArchitectureError(f"{folder / 'config.json'}: in_features: {got}")
        if self.pooling:
            keys[f"{architecture}.pooling_type"] = stored(self.pooling)
            if self.width not in (0, n_embd):
                raise ArchitectureError(
                    f"1_Pooling: embedding_dimension: wanted the model's {n_embd}; got {self.width}"
                )
        if self.late is not None:
            keys |= self.late.metadata(architecture)
        if self.prompts:
            keys["sentence_transformers.prompts"] = stored(list(self.prompts))
            keys |= {f"sentence_transformers.prompt.{name}": stored(text)
                     for name, text in self.prompts.items()}  # fmt: skip
        if self.default_prompt:
            keys["sentence_transformers.default_prompt"] = stored(self.default_prompt)
        return keys

    def tensors(self, opened: list[FileMap]) -> dict[str, Tensor]:
        """The matrices and biases of dense layers, by our names; their files are added to `opened`."""
        tensors = {}
        if self.projection is not None and self.late is not None:
            ours = f"dense_{FIRST_DENSE}.weight"
            tensors[ours] = renamed(ours, plain(self.late.path.parent, self.projection))
        for number, (folder, config) in enumerate(self.dense, FIRST_DENSE):
            path = folder / DENSE_WEIGHTS
            if not path.is_file():
                raise WeightsError(f"{path} is not there, which modules.json names; pickles are not read")
            opened.append(FileMap(path))
            held = read_safetensors(opened[-1])
            wide, narrow = config["in_features"], config["out_features"]
            wanted = {"linear.weight": (narrow, wide)} | (
                {"linear.bias": (narrow,)} if config["bias"] else {}
            )
            shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
            if shapes != wanted:
                raise WeightsError(f"{path}: wanted {wanted}; got {dict(list(shapes.items())[:4])}")
            for name, tensor in held.items():
                ours = f"dense_{number}.{name.rpartition('.')[2]}"
                tensors[ours] = renamed(ours, plain(folder, tensor))
        return tensors


def read_modules(folder: Path) -> SentenceModules | None:
    """The modules of a folder; None where it has no modules.json."""
    path = folder / MODULES
    if not path.is_file():
        return None
    modules = plain_json(path, WeightsError, LARGEST_BYTES, "cannot be read as modules.json")
    if not isinstance(modules, list) or not 0 < len(modules) <= MOST_MODULES:
        raise WeightsError(f"{path}: wanted a list of 1 to {MOST_MODULES} modules")
    kinds = [_kind(path, module) for module in modules]
    places = [_place(path, module) for module in modules]
    settings = _optional(folder / SETTINGS)
    _check_settings(folder / SETTINGS, settings)
    if kinds[0] != "Transformer" or places[0] != folder:
        raise ArchitectureError(f"{path}: wanted a Transformer in this folder first; got {kinds[0]}")
    if settings.get("transformer_task") == "sequence-classification":
        if kinds[1:]:
            raise ArchitectureError(f"{path}: {kinds[1]} behind a classifier: wanted none")
        return SentenceModules(0, **_texts(folder, settings))
    rest = list(zip(kinds, places, strict=True))[1:]
    if any(str(module["type"]).startswith(LATE_PACKAGE) for module in modules):
        return _late_modules(folder, rest, settings)
    if [kind for kind, _ in rest].count("Pooling") != 1 or rest[0][0] != "Pooling":
        raise ArchitectureError(f"{path}: wanted one Pooling behind the Transformer; got {kinds}")
    pooling, width = _pooling(rest[0][1] / "config.json")
    dense: list[tuple[Path, Mapping[str, Any]]] = []
    for index, (kind, place) in enumerate(rest[1:], 1):
        if kind == "Dense":
            dense.append((place, _dense(place / "config.json", dense)))
        elif kind == "Normalize" and any(later == "Dense" for later, _ in rest[index:]):
            raise ArchitectureError(f"{path}: Normalize before Dense: wanted it behind")
    return SentenceModules(pooling, width, tuple(dense), **_texts(folder, settings))


def _late_modules(
    folder: Path, rest: Sequence[tuple[str, Path]], settings: Mapping[str, Any]
) -> SentenceModules:
    """Of PyLate: dense layers of each token's row, whose length is 1 in the end."""
    dense: list[tuple[Path, Mapping[str, Any]]] = []
    for kind, place in rest:
        if kind != "Dense":
            raise ArchitectureError(
                f"{folder / MODULES}: wanted Dense alone behind a late Transformer; got {kind}"
            )
        assumed = {"activation_function": "torch.nn.modules.linear.Identity"}
        dense.append((place, _dense(place / "config.json", dense, assumed)))
    texts = _texts(folder, settings) | {"longest": math.inf}  # a query's and a document's lengths are said
    if texts["prompts"]:
        raise ArchitectureError(f"{folder / PROMPTS}: prompts: wanted none beside the prefixes of PyLate")
    late = pylate_fields(folder / PROMPTS, _optional(folder / PROMPTS))
    return SentenceModules(0, 0, tuple(dense), late=late, **texts)


def stanford_modules(folder: Path, projection: StoredTensor | None) -> SentenceModules:
    """Of a ColBERT of Stanford's, whose checkpoint has the projection of rows."""
    if projection is None:
        raise WeightsError(f"{folder}: wanted the tensor {LINEAR} of an HF_ColBERT")
    return SentenceModules(0, late=stanford_fields(folder), projection=projection)


def embedding_keys(
    folder: Path,
    modules: SentenceModules | None,
    architecture: str,
    n_embd: int,
    tensors: Mapping[str, Tensor],
    model_type: Any,
) -> dict[str, StoredValue]:
    """The keys of what follows a model: of its modules, else of its classifier, which scores pairs."""
    if modules is not None and (modules.pooling or modules.late is not None):
        return modules.metadata(architecture, n_embd)
    if "cls.output.weight" not in tensors:
        if modules is not None:
            raise ArchitectureError(f"{folder / MODULES}: wanted a classifier, or a Pooling behind the model")
        return {}
    kinds, settings = tensors.get("token_types.weight"), _optional(folder / TOKENIZER)
    by_id = kinds is not None and kinds.shape[0] > 1 and gives_kinds(settings, model_type)
    return {
        f"{architecture}.pooling_type": stored(SCORED),
        f"{architecture}.{KINDS_BY_ID}": stored(by_id),
    }


def _kind(path: Path, module: Any) -> str:
    """The class of a module; those that change nothing of a computed row count as known."""
    stated = module.get("type") if isinstance(module, dict) else None
    kind = str(stated).rpartition(".")[2]
    known = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")
    package = LATE_PACKAGE if kind == "Dense" else PACKAGE
    if not str(stated).startswith((PACKAGE, package)) or kind not in known:
        raise ArchitectureError(
            f"{path}: module {str(stated)[:80]!r}: wanted {', '.join(known)} of sentence-transformers"
        )
    return kind


def _place(path: Path, module: Mapping[str, Any]) -> Path:
    """The folder of a module: this one, or one in it."""
    name = module.get("path", "")
    if not isinstance(name, str) or (name and Path(name).name != name) or name == "..":
        raise WeightsError(f"{path}: path: wanted the name of a folder beside it; got {str(name)[:80]!r}")
    return path.parent / name


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise WeightsError(f"{path} is not there, which {MODULES} names")
    return read_json(path)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _pooling(path: Path) -> tuple[int, int]:
    """GGUF's number of the mode, and the width of rows, 0 where it is not said."""
    config = _config(path)
    flags = [mode for name, mode in FLAGS.items() if config.get(name)]
    stated = config.get("pooling_mode", flags or ["mean"])
    modes = [stated] if isinstance(stated, str) else list(stated) if isinstance(stated, list) else [stated]
    if len(modes) != 1 or modes[0] not in MODES:
        more = ", which are concatenated" if len(modes) > 1 else ""
        raise ArchitectureError(
            f"{path}: pooling_mode {str(modes)[:80]}{more}: wanted one of {', '.join(MODES)}"
        )
    if flags and flags != modes:
        raise ArchitectureError(
            f"{path}: pooling_mode is {modes[0]!r} beside {' and '.join(flags)}: wanted one"
        )
    if config.get("include_prompt", True) is not True:
        raise ArchitectureError(
            f"{path}: include_prompt: wanted true: rows of a prompt's tokens are pooled, too"
        )
    left = set(config) - {*FLAGS, "pooling_mode", "include_prompt", "word_embedding_dimension",
                          "embedding_dimension"}  # fmt: skip
    if left:
        raise ArchitectureError(f"{path}: fields that are not understood: {', '.join(sorted(left))[:120]}")
    width = config.get("embedding_dimension", config.get("word_embedding_dimension", 0))
    if type(width) is not int:
        raise WeightsError(f"{path}: embedding_dimension: wanted a number; got {str(width)[:40]!r}")
    return MODES[modes[0]], width


def _dense(
    path: Path,
    before: Sequence[tuple[Path, Mapping[str, Any]]],
    assumed: Mapping[str, Any] = TANH,
) -> dict[str, Any]:
    """The config of a dense layer, with all fields that it may lack."""
    config = {"bias": True, **assumed, **_config(path)}
    sizes = [config.get(name) for name in ("in_features", "out_features")]
    if any(type(size) is not int or size < 1 for size in sizes) or not isinstance(config["bias"], bool):
        raise WeightsError(f"{path}: in_features, out_features, bias: wanted numbers and true or false")
    if before and before[-1][1]["out_features"] != sizes[0]:
        wanted = before[-1][1]["out_features"]
        raise ArchitectureError(f"{path}: in_features: wanted {wanted} of the layer before; got {sizes[0]}")
    if config["activation_function"] not in ACTIVATIONS:
        known = ", ".join(name.rpartition(".")[2] for name in ACTIVATIONS)
        got = f"got {str(config['activation_function'])[:80]!r}"
        raise ArchitectureError(f"{path}: activation_function: wanted {known} of torch.nn; {got}")
    for name in ("module_input_name", "module_output_name"):
        if config.get(name) not in (None, "sentence_embedding"):
            raise ArchitectureError(f"{path}: {name}: wanted sentence_embedding; got {config[name]!r:.60}")
    if config.get("use_residual"):
        raise ArchitectureError(f"{path}: use_residual: wanted false")
    return config


def _check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    left = {
        name: value for name, value in settings.items() if value is not None and name not in SETTINGS_READ
    }
    for name in LOADED_BY:
        arguments = left.get(name)
        if isinstance(arguments, dict) and set(arguments) <= HARMLESS:
            del left[name]
    modalities = settings.get("modality_config") or {}
    inputs = set(modalities) if isinstance(modalities, dict) else {"?"}
    left |= {"modality_config": modalities} if inputs - {"text"} else {}
    if settings.get("transformer_task") not in (None, "feature-extraction", "sequence-classification"):
        left["transformer_task"] = settings["transformer_task"]
    if left:
        shown = ", ".join(f"{name} = {str(value)[:60]}" for name, value in list(left.items())[:4])
        raise ArchitectureError(f"{path}: fields that are not understood: {shown}")


def _texts(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is done to texts: their length, their case, prompts."""
    longest = settings.get("max_seq_length")
    if longest is None:
        longest = _optional(folder / TOKENIZER).get("model_max_length")
    if longest is not None and (
        isinstance(longest, bool) or not isinstance(longest, int | float) or longest < 1
    ):
        raise WeightsError(f"{folder / SETTINGS}: max_seq_length: wanted a number; got {str(longest)[:40]!r}")
    lowercase = settings.get("do_lower_case", False)
    if not isinstance(lowercase, bool):
        raise WeightsError(f"{folder / SETTINGS}: do_lower_case: wanted true or false; got {lowercase!r:.40}")
    path = folder / PROMPTS
    config = _optional(path)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if isinstance(prompts, dict):
        prompts = {name: text for name, text in prompts.items() if text is not None}
    known = isinstance(prompts, dict) and len(prompts) <= MOST_PROMPTS
    if not known or any(not isinstance(text, str) for text in prompts.values()):
        raise WeightsError(f"{path}: prompts: wanted texts by name, at most {MOST_PROMPTS}")
    if default is not None and default not in prompts:
        raise WeightsError(
            f"{path}: default_prompt_name is {str(default)[:60]!r}: wanted one of {sorted(prompts)}"
        )
    return {"longest": math.inf if longest is None else longest, "prompts": prompts,
            "default_prompt": default or "", "lowercase": lowercase}  # fmt: skip
