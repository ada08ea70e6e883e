"""What classes of tokenizers take from tokenizer_config.json, whatever tokenizer.json says of it.

BERT's and RoBERTa's build their steps anew from these fields, and `fix_mistral_regex` replaces a step, as
`AutoTokenizer` of transformers 5.24 does. Knows fields and steps; nothing of texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OF_TYPES = {"bert": "BertTokenizer", "distilbert": "BertTokenizer", "nomic_bert": "BertTokenizer",
            "roberta": "RobertaTokenizer"}  # fmt: skip
"""The classes of models by `model_type`, where tokenizer_config.json names none."""
BERT, ROBERTA = ("BertTokenizer", "DistilBertTokenizer"), ("RobertaTokenizer",)
MISTRAL, LARGE = (None, "mistral", "mistral3", "voxtral", "ministral", "pixtral"), 100_000
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
WORDS_OF_MISTRAL = rf"{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


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


def words_of_mistral(
    whole: Mapping[str, Any], settings: Mapping[str, Any], config: Mapping[str, Any], n_tokens: int
) -> dict[str, Any]:
    """The pre-tokenizer with other words, where `fix_mistral_regex` asks for them; config: config.json.

    transformers 5 wrote what is right already, so its files stay, and so do small vocabularies.
    """
    step, version = whole.get("pre_tokenizer"), str(config.get("transformers_version") or "0")
    number = re.match(r"(\d+)", version)
    is_new = (
        number is not None and int(number[1]) >= 5 and not re.match(r"5\.0(\.0)?\.?(dev|a|b|rc)", version)
    )
    asked = settings.get("fix_mistral_regex") and n_tokens > LARGE and not is_new
    if not asked or step is None or config.get("model_type") not in MISTRAL:
        return {}
    split = {"type": "Split", "pattern": {"Regex": WORDS_OF_MISTRAL}, "behavior": "Isolated", "invert": False}
    if step["type"] == "Metaspace":
        step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    rest = step["pretokenizers"][1:] if step["type"] == "Sequence" else [step]
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, *rest]}}
