"""What classes of tokenizers take from tokenizer_config.json, whatever tokenizer.json says of it.

BERT's and RoBERTa's build their steps anew from these fields, as `AutoTokenizer` of transformers 5.24 does.
Knows fields and steps; nothing of texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OF_TYPES = {"bert": "BertTokenizer", "distilbert": "BertTokenizer", "nomic_bert": "BertTokenizer",
            "roberta": "RobertaTokenizer"}  # fmt: skip
"""The classes of models by `model_type`, where tokenizer_config.json names none."""
BERT, ROBERTA = ("BertTokenizer", "DistilBertTokenizer"), ("RobertaTokenizer",)


def class_of(settings: Mapping[str, Any], model_type: Any) -> str:
    """The class of the tokenizer; settings: tokenizer_config.json."""
    return str(settings.get("tokenizer_class") or OF_TYPES.get(str(model_type), "")).removesuffix("Fast")


def gives_kinds(settings: Mapping[str, Any], model_type: Any) -> bool:
    """Whether tokens of the second text of a pair have a kind of their own."""
    names = settings.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return class_of(settings, model_type) == BERT[0]


def steps_of_class(
    whole: Mapping[str, Any], settings: Mapping[str, Any], model_type: Any, lowercase: bool
) -> dict[str, Any]:
    """The steps of tokenizer.json that are others; lowercase: texts become lower case before all else."""
    kind, model = class_of(settings, model_type), whole["model"].get("type")
    normalizer, steps = whole.get("normalizer"), dict[str, Any]()
    if kind in BERT and model == "WordPiece":
        normalizer = {
            "type": "BertNormalizer", "clean_text": True, "strip_accents": settings.get("strip_accents"),
            "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
            "lowercase": settings.get("do_lower_case", True),
        }  # fmt: skip
        steps = {"normalizer": normalizer, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    if kind in ROBERTA and model == "BPE":
        spaced = settings.get("add_prefix_space", False)
        of_bytes = {"type": "ByteLevel", "add_prefix_space": spaced, "trim_offsets": True, "use_regex": True}
        steps = {"normalizer": None, "pre_tokenizer": of_bytes}
        normalizer = None
    inner = (normalizer or {}).get("normalizers") or [normalizer]
    if lowercase and not any(step and step.get("type") == "Lowercase" for step in inner):
        steps["normalizer"] = {
            "type": "Sequence",
            "normalizers": [{"type": "Lowercase"}, *filter(None, inner)],
        }
    return {name: step for name, step in steps.items() if step != whole.get(name)}
