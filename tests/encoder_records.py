"""Records what transformers and sentence-transformers compute for tiny folders of encoders: for developers.

    python -m venv VENV; VENV/bin/pip install torch transformers sentence-transformers
    PYTHONPATH=.:quant:models:backends VENV/bin/python -m tests.encoder_records [NAME ...]

A record holds the files of the folder as texts, names and shapes of the tensors, ids or texts, and the rows;
the weights follow from the names, so that the tests need none of these packages. Made with transformers 5.24
and sentence-transformers 6.2, float32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.folder_records import values

FOLDER = Path(__file__).parent / "data" / "encoders"
TOKENS = np.random.default_rng(5).integers(5, 60, 29)
TEXTS = ["The cat sat on the mat.", "Hello THERE world", "naïve café 東京", "", "what is a cat?", "x" * 9]
QUERY = "what is a cat"
SIZES = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
         "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
PADDED = {**SIZES, "pad_token_id": 1}
T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4}
MODERN = {"local_attention": 8, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
          "num_hidden_layers": 4}  # fmt: skip
EMBEDDING_GEMMA = {**SIZES, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 9,
                   "query_pre_attn_scalar": 20, "use_bidirectional_attention": True,
                   "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}  # fmt: skip
# Name -> class of transformers and its fields: the rows of ids, and scores of a classifier.
ENCODERS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", SIZES),
    "bert-masked": ("BertForMaskedLM", "BertConfig", SIZES),
    "bert-scores": ("BertForSequenceClassification", "BertConfig", {**SIZES, "num_labels": 1}),
    "roberta": ("RobertaModel", "RobertaConfig", PADDED),
    "roberta-masked": ("RobertaForMaskedLM", "RobertaConfig", {**PADDED, "type_vocab_size": 1}),
    "xlm-roberta-scores": ("XLMRobertaForSequenceClassification", "XLMRobertaConfig",
                           {**PADDED, "type_vocab_size": 1, "num_labels": 3}),
    "camembert": ("CamembertModel", "CamembertConfig", PADDED),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig",
                   {"vocab_size": 60, "dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4,
                    "max_position_embeddings": 64}),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", {**SIZES, **MODERN}),
    "modernbert-scores": ("ModernBertForSequenceClassification", "ModernBertConfig",
                          {**SIZES, **MODERN, "num_labels": 2, "classifier_pooling": "mean",
                           "hidden_activation": "silu", "classifier_bias": True}),
    "eurobert": ("EuroBertModel", "EuroBertConfig", {**SIZES, "num_key_value_heads": 2}),
    "eurobert-masked": ("EuroBertForMaskedLM", "EuroBertConfig",
                        {**SIZES, "attention_bias": True, "tie_word_embeddings": True}),
    "gemma3_text": ("Gemma3TextModel", "Gemma3TextConfig", EMBEDDING_GEMMA),
    "nomic_bert": ("NomicBertModel", "NomicBertConfig", SIZES),
    "jina_embeddings_v3": ("JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config", PADDED),
    "jina_embeddings_v3-scores": ("JinaEmbeddingsV3ForSequenceClassification", "JinaEmbeddingsV3Config",
                                  {**PADDED, "num_labels": 1}),
    "t5": ("T5EncoderModel", "T5Config", T5),
    "mt5": ("MT5EncoderModel", "MT5Config", T5),
    "umt5": ("UMT5EncoderModel", "UMT5Config", T5),
}  # fmt: skip


def module(kind: str, path: str = "") -> dict[str, str]:
    """An entry of modules.json, in the style of sentence-transformers 2 to 5."""
    return {"name": path[:1] or "0", "path": path, "type": f"sentence_transformers.models.{kind}"}


def pooling(mode: str, **more: Any) -> dict[str, Any]:
    """A pooling's config, in the style of sentence-transformers 2 to 5."""
    return {"word_embedding_dimension": 32, "pooling_mode_cls_token": mode == "cls",
            "pooling_mode_mean_tokens": mode == "mean", "pooling_mode_max_tokens": False,
            "pooling_mode_lasttoken": mode == "last", **more}  # fmt: skip


POOLED = [module("Transformer"), module("Pooling", "1_Pooling")]
NORMED = [*POOLED, module("Normalize", "2_Normalize")]
TANH, NONE = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
# Name -> encoder, tokenizer, and further files, as objects.
SENTENCES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "mean": ("bert", "wordpiece", {
        "modules.json": NORMED, "1_Pooling/config.json": pooling("mean"),
        "sentence_bert_config.json": {"max_seq_length": 24, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "what is: ", "document": ""},
                                              "default_prompt_name": "query"}}),
    "dense": ("bert", "wordpiece cased", {
        "modules.json": [*POOLED, module("Dense", "2_Dense"), module("Dense", "3_Dense"),
                         module("Normalize", "4_Normalize")],
        "1_Pooling/config.json": {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True},
        "2_Dense/config.json": {"in_features": 32, "out_features": 24, "bias": True,
                                "activation_function": TANH},
        "3_Dense/config.json": {"in_features": 24, "out_features": 16, "bias": False,
                                "activation_function": NONE},
        "sentence_bert_config.json": {"max_seq_length": 40, "do_lower_case": True}}),
    "unigram": ("xlm-roberta", "unigram", {"modules.json": POOLED, "1_Pooling/config.json": pooling("mean")}),
    "bytes": ("roberta", "bytes", {"modules.json": NORMED, "1_Pooling/config.json": pooling("cls")}),
    "gemma": ("gemma3_text", "bytes", {
        "modules.json": [*POOLED, module("Dense", "2_Dense"), module("Dense", "3_Dense"),
                         module("Normalize", "4_Normalize")],
        "1_Pooling/config.json": pooling("mean"),
        "2_Dense/config.json": {"in_features": 32, "out_features": 48, "bias": False,
                                "activation_function": NONE},
        "3_Dense/config.json": {"in_features": 48, "out_features": 32, "bias": False,
                                "activation_function": NONE}}),
    "last": ("qwen3", "bytes", {"modules.json": NORMED, "1_Pooling/config.json": pooling("last")}),
    "pairs": ("bert-scores", "wordpiece", {}),
    "pairs-unigram": ("xlm-roberta-scores", "unigram", {}),
}  # fmt: skip
BASES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    **ENCODERS,
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaConfig", {**PADDED, "type_vocab_size": 1}),
    "qwen3": ("Qwen3Model", "Qwen3Config", {**SIZES, "num_key_value_heads": 2, "head_dim": 16}),
}
ROBERTA = {"tokenizer_class": "RobertaTokenizer"}
# Sentence record -> fields of tokenizer_config.json that its class reads, whatever tokenizer.json says.
VARIANTS: Mapping[str, list[dict[str, Any]]] = {
    "mean": [{}, {"do_lower_case": False}, {"tokenize_chinese_chars": False}, {"strip_accents": False}],
    "unigram": [{}],
    "bytes": [{}, ROBERTA, {**ROBERTA, "add_prefix_space": True}],
}
TEXT = "The cat SAT naïve café 東京 the mat"
CORPUS = [
    "The cat sat on the mat.",
    "hello world, hello there",
    "what is a cat? The cat is a cat.",
    "a naive cafe",
] * 4
OTHER_ROLES = {"bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>",
               "sep_token": "</s>", "unk_token": "<unk>"}  # fmt: skip
ROLES = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"]


def tokenizer(kind: str) -> tuple[Any, dict[str, Any]]:
    """A tokenizer of the `tokenizers` library, and its tokenizer_config.json."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    if kind.startswith("wordpiece"):
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase="cased" not in kind)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=120, special_tokens=names, show_progress=False)
        begin, end, style = "[CLS]", "[SEP]", "BertTokenizer"
    else:
        names = ["<s>", "<pad>", "</s>", "<unk>"]
        begin, end = "<s>", "</s>"
        if kind == "unigram":
            made = Tokenizer(models.Unigram())
            made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
            trainer = trainers.UnigramTrainer(
                vocab_size=60, special_tokens=names, unk_token="<unk>", show_progress=False
            )
            style = "XLMRobertaTokenizer"
        else:
            made = Tokenizer(models.BPE())
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            trainer = trainers.BpeTrainer(
                vocab_size=300, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                show_progress=False,
            )  # fmt: skip
            style = "PreTrainedTokenizerFast"
    made.train_from_iterator(CORPUS, trainer)
    ends = [(token, made.token_to_id(token)) for token in (begin, end)]
    second = f"$B:1 {end}:1" if kind.startswith("wordpiece") else f"{end} $B {end}"
    single = f"{begin} $A {end}"
    made.post_processor = processors.TemplateProcessing(single, f"{single} {second}", ends)
    ours = dict(zip(ROLES, names, strict=False)) if names[0] == "[PAD]" else OTHER_ROLES
    more = {"do_lower_case": False} if "cased" in kind else {}
    return made, {"tokenizer_class": style, "model_max_length": 60, **ours, **more}


def write(path: Path, files: Mapping[str, Any], tensors: Mapping[str, list[int]]) -> Path:
    """A folder with these files and weights by the names of the tensors, float32."""
    (path).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    held = {name: values(name, tuple(shape)) for name, shape in tensors.items() if "/" not in name}
    save_file(held, path / "model.safetensors", metadata={"format": "pt"})
    for folder in {name.partition("/")[0] for name in tensors if "/" in name}:
        dense = {name.partition("/")[2]: values(name, tuple(shape))
                 for name, shape in tensors.items() if name.startswith(f"{folder}/")}  # fmt: skip
        save_file(dense, path / folder / "model.safetensors", metadata={"format": "pt"})
    return path


def about(name: str) -> tuple[dict[str, Any], dict[str, list[int]], dict[str, Any]]:
    """The files, the shapes of the tensors, and the arrays of a record."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        recorded = json.loads(arrays["about"].tobytes())
        return recorded["files"], recorded["tensors"], {key: arrays[key] for key in arrays if key != "about"}


def record(name: str) -> None:
    """Write a record."""
    base, kind, more = SENTENCES.get(name, (name, "", {}))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        files, tensors = _model(path, base, kind)
        files |= more
        for place, content in more.items():
            if "Dense" in place and isinstance(content, dict):
                dense, wide, narrow = place.partition("/")[0], content["in_features"], content["out_features"]
                tensors[f"{dense}/linear.weight"] = [narrow, wide]
                tensors |= {f"{dense}/linear.bias": [narrow]} if content["bias"] else {}
        write(path, files, tensors)
        arrays = _computed(path, base) if not kind else _embedded(path, files)
        for number, settings in enumerate(VARIANTS.get(name, [])):
            arrays[f"ids-{number}"] = _ids(path, files["tokenizer_config.json"] | settings)
    text = json.dumps({"files": files, "tensors": tensors}, sort_keys=True)
    np.savez_compressed(FOLDER / f"{name}.npz", about=np.frombuffer(text.encode(), np.uint8), **arrays)


def _model(path: Path, base: str, kind: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The files of a model with a tokenizer, and the shapes of its tensors."""
    import transformers
    from safetensors import safe_open

    of_class, of_config, fields = BASES[base]
    files: dict[str, Any] = {}
    if kind:
        made, settings = tokenizer(kind)
        files = {"tokenizer.json": made.to_str(), "tokenizer_config.json": settings}
        fields = {**fields, "vocab_size": made.get_vocab_size()}
    config = getattr(transformers, of_config)(**fields)
    getattr(transformers, of_class)(config).save_pretrained(path)
    files["config.json"] = json.loads((path / "config.json").read_text())
    with safe_open(path / "model.safetensors", "np") as file:
        return files, {one: list(file.get_slice(one).get_shape()) for one in sorted(file.keys())}


def _computed(path: Path, base: str) -> dict[str, Any]:
    """The rows of the ids, and the scores of a classifier."""
    import torch
    import transformers

    model = getattr(transformers, BASES[base][0]).from_pretrained(path, dtype=torch.float32).eval()
    inner = model if base.endswith("t5") else model.base_model
    ids = torch.tensor(TOKENS)[None]
    with torch.no_grad():
        rows = inner(input_ids=ids).last_hidden_state[0].numpy()
        scores = model(input_ids=ids).logits[0].numpy() if "scores" in base else None
    return {"rows": rows} | ({} if scores is None else {"scores": scores})


def _embedded(path: Path, files: Mapping[str, Any]) -> dict[str, Any]:
    """What sentence-transformers computes for the texts: rows, or scores of pairs."""
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer

    if "modules.json" not in files:
        classifier = CrossEncoder(str(path), device="cpu")
        pairs = [(QUERY, text) for text in TEXTS]
        return {
            "scores": classifier.predict(pairs, activation_fn=torch.nn.Identity()).reshape(len(TEXTS), -1)
        }
    model = SentenceTransformer(str(path), device="cpu")
    arrays = {"embeddings": model.encode(TEXTS)}
    if model.prompts.get("query"):
        arrays["documents"] = model.encode(TEXTS, prompt_name="document")
    return arrays


def _ids(path: Path, settings: Mapping[str, Any]) -> Any:
    """The ids of `TEXT` by the class that the settings name."""
    from transformers import AutoTokenizer

    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return np.asarray(AutoTokenizer.from_pretrained(path)(TEXT)["input_ids"])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in sys.argv[1:] or [*ENCODERS, *SENTENCES]:
        record(one)
        print(one)
