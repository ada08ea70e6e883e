"""Records which fields of config.json the classes of transformers read: a tool for developers.

    python -m venv VENV; VENV/bin/pip install torch 'transformers==5.24.*' -e .
    VENV/bin/python -m tests.class_fields

It writes `graphml/loading/huggingface/class_fields.json`: for each model_type of a family the fields that the
source of its causal model touches, with the class's default where that is one value, or the field of which
it is another name. The source is followed from the class through what it names, into the modules of `SHARED`,
but not into `PreTrainedModel`, whose fields are those of every class; of the config class it is every field
that a method reads or takes.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from graphml.loading import discovery
from graphml.loading.huggingface.rope import PART, PART_OF_ROPE

DATA = Path(__file__).parents[1] / "graphml" / "loading" / "huggingface" / "class_fields.json"
SHARED = {"masking_utils.py", "modeling_rope_utils.py", "cache_utils.py", "modeling_layers.py", "moe.py",
          "activations.py"}  # fmt: skip
WITHOUT_INFLUENCE = ("_init_weights",)
CONFIGS = ("config", "text_config")
MODELS = {
    "step3p5": "Step3p7TextModel",
    "deepseek_ocr2_text": "DeepseekOcr2TextModel",
    "ernie4_5_vl_moe_text": "Ernie4_5_VLMoeTextModel",
    "granite4_vision_text": "Granite4VisionTextModel",
    "granite_docling_text": "GraniteDoclingTextModel",
    "hy_v4_vl_text": "HYV4VLTextModel",
    "paddleocr_vl_text": "PaddleOCRTextModel",
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel",
    "unlimited_ocr_text": "UnlimitedOcrTextModel",
    "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
}
"""Of which the language model alone has no class with logits."""
INNER = {
    "gemma4_assistant": "gemma4_text",
    "gemma4_unified_assistant": "gemma4_unified_text",
}
"""Whose class runs a model of another config, with fields that count."""
PRIVATE = {"_is_quantized", "default_theta"}


NAME = "tie_word_embeddings"


class Source(NamedTuple):
    """What a module defines, by name, and from which files it imports the names of others."""

    defined: dict[str, ast.AST]
    imported: dict[str, tuple[Path, str]]


SOURCES: dict[Path, Source] = {}


def source(path: Path) -> Source:
    """The module at a path, read once."""
    if path not in SOURCES:
        tree = ast.parse(path.read_text())
        defined: dict[str, ast.AST] = {}
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            for name in (*names, *([node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else [])):
                defined[name] = node
        imported = {}
        for part in ast.walk(tree):
            if isinstance(part, ast.ImportFrom) and part.level:
                file = path.parents[part.level - 1].joinpath(*(part.module or "").split("."))
                for alias in part.names:
                    imported[alias.asname or alias.name] = (file.with_suffix(".py"), alias.name)
        SOURCES[path] = Source(defined, imported)
    return SOURCES[path]


def is_config(node: ast.AST) -> bool:
    """Whether it is `config` or `self.config`."""
    return getattr(node, "id", getattr(node, "attr", None)) in CONFIGS


def fields_in(node: ast.AST, owner: Any = is_config) -> Iterator[tuple[str, Any]]:
    """The fields that a piece of source reads, each with the default that it names itself, or None."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load) and owner(part.value):
            yield part.attr, None
        if isinstance(part, ast.Call) and getattr(part.func, "id", "") in ("getattr", "hasattr"):
            target, name, *default = part.args
            if owner(target) and isinstance(name, ast.Constant):
                yield str(name.value), default[0].value if default and hasattr(default[0], "value") else None


def fields_of_model(path: Path, name: str) -> dict[str, Any]:
    """The fields that a class of a module reads, and all that it names."""
    fields: dict[str, Any] = {}
    seen: set[tuple[Path, str]] = set()
    todo = [(path, name)]
    while todo:
        path, name = place = todo.pop()
        if place in seen or name == "PreTrainedModel" or not path.exists():
            continue
        seen.add(place)
        module = source(path)
        if name in module.imported:
            file, original = module.imported[name]
            if file.name in SHARED or file.parent.parent.name == "models":
                todo.append((file, original))
        node = module.defined.get(name)
        if node is None:
            continue
        body = [*node.bases, *node.body] if isinstance(node, ast.ClassDef) else [node]
        for part in body:
            if getattr(part, "name", "") in WITHOUT_INFLUENCE:
                continue
            for field, default in fields_in(part):
                fields[field] = default if fields.get(field) is None else fields[field]
            if path.name not in SHARED and any(getattr(x, "value", "") == PART for x in ast.walk(part)):
                fields[PART_OF_ROPE] = None
            todo += [(path, inner.id) for inner in ast.walk(part) if isinstance(inner, ast.Name)]
    return fields


def fields_of_config(config_class: Any, base: type) -> dict[str, Any]:
    """The fields that the methods of a config class read, or take from what is given to it."""
    fields: dict[str, Any] = {}
    for parent in config_class.__mro__:
        if parent is base or not issubclass(parent, base):
            continue
        body = source(Path(inspect.getsourcefile(parent) or "")).defined[parent.__name__]
        fields |= dict(fields_in(body, lambda node: getattr(node, "id", "") == "self"))
        fields = dict.fromkeys(taken_in(body)) | fields
    if "rope_parameters" in {field.name for field in dataclasses.fields(config_class)}:
        convert = textwrap.dedent(inspect.getsource(config_class.convert_rope_params_to_dict))
        fields = dict.fromkeys(taken_in(ast.parse(convert))) | fields
    return fields


def taken_in(node: ast.AST) -> Iterator[str]:
    """The fields that a piece of source takes from `kwargs`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.args:
            taken = part.func.attr in ("pop", "get") and getattr(part.func.value, "id", "") == "kwargs"
            if taken and isinstance(part.args[0], ast.Constant):
                yield str(part.args[0].value)


def record(kind: str) -> dict[str, Any]:
    """The fields of a model_type -> the value that is as good as none."""
    library = importlib.import_module("transformers")
    base = library.PretrainedConfig
    config_class = library.CONFIG_MAPPING[kind]
    if kind in MODELS:
        model = getattr(library, MODELS[kind])
    else:
        causal = library.MODEL_FOR_CAUSAL_LM_MAPPING.get(config_class, None)
        model = causal or library.MODEL_MAPPING[config_class]
    reads = fields_of_model(Path(inspect.getsourcefile(model) or ""), model.__name__)
    reads = fields_of_config(config_class, base) | reads
    named = {*reads, *(config_class.attribute_map.get(name, name) for name in reads)}
    synonyms = {ours: theirs for ours, theirs in config_class.attribute_map.items() if theirs in named}
    reads = (
        dict.fromkeys([*synonyms, *(config_class.attribute_map.get(name, name) for name in reads)]) | reads
    )
    declared = {field.name: field.default for field in dataclasses.fields(config_class)}
    generic = {field.name for field in dataclasses.fields(base)} | PRIVATE
    methods = {name for name in dir(config_class) if name not in declared and name not in synonyms}
    kept: dict[str, Any] = {}
    for field in sorted(reads.keys() - generic - methods):
        default = declared.get(field, reads[field])
        kept[field] = default if isinstance(default, bool | int | float | str) else None
        if field in synonyms:
            kept[field] = {"same_as": synonyms[field]}
    return record(INNER[kind]) | kept if kind in INNER else kept


def tied(library: Any) -> tuple[list[str], ...]:
    """The larger models, with a `text_config`, whose class ties the output matrix to the embedding.

    By default, and where their `text_config` says it though they say the contrary.
    """
    classes = {kind: library.CONFIG_MAPPING[kind] for kind in sorted(library.CONFIG_MAPPING.keys())}
    whole = {kind for kind, family in discovery.families().items() if family.whole}
    larger = {
        kind: of
        for kind, of in classes.items()
        if kind not in whole and "text_config" in (of.sub_configs or {})
    }
    configs = {kind: of() for kind, of in larger.items()}
    by_text = {
        kind: larger[kind](**{NAME: False, "text_config": {**config.text_config.to_dict(), NAME: True}})
        for kind, config in configs.items()
        if getattr(config, "text_config", None) is not None
    }
    return tuple([kind for kind in of if getattr(of[kind], NAME, None)] for of in (configs, by_text))


def main() -> None:
    """Write the records of all families that transformers has."""
    library = importlib.import_module("transformers")
    kinds = sorted(kind for kind in discovery.families() if kind in library.CONFIG_MAPPING)
    rows = ",\n".join(f"{json.dumps(kind)}: {json.dumps(record(kind))}" for kind in kinds)
    always, by_text = map(json.dumps, tied(library))
    about = f'"transformers": "{library.__version__}",\n"tied": {always},\n"tied_by_text": {by_text}'
    DATA.write_text(f'{{{about},\n"model_types": {{\n{rows}\n}}}}\n')


if __name__ == "__main__":
    main()
