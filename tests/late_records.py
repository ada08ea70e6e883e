"""Records what PyLate computes for tiny folders of late-interaction models: for developers.

    python -m venv VENV; VENV/bin/pip install pylate
    PYTHONPATH=.:quant:models:backends VENV/bin/python -m tests.late_records [NAME ...]

A record holds files, names and shapes of tensors, rows of a query and of documents, and scores; the weights
follow from the names, so that the tests need none of these packages. Made with PyLate 1.6, transformers 5.3
and sentence-transformers 5.3, float32.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.encoder_records import MODERN, SIZES, tokenizer, write

FOLDER = Path(__file__).parent / "data" / "late_interaction"
QUERY = "what is a cat"
DOCUMENTS = [
    "The cat sat on the mat.",
    "hello world, hello there",
    "naïve café 東京!",
    "",
    "what is a cat? a cat",
]
CUT_QUERY, CUT = "what is a cat, what is the mat, what is there", " ".join(DOCUMENTS[:2] * 3)
WIDE = {**SIZES, **MODERN, "local_attention": 64}
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
           {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"}]  # fmt: skip
DENSE = {"in_features": 32, "out_features": 16, "bias": False, "use_residual": False,
         "activation_function": "torch.nn.modules.linear.Identity"}  # fmt: skip
PREFIXES = {"query_prefix": "[Q] ", "document_prefix": "[D] "}
BERT, MODERNBERT = ("BertModel", "BertConfig", SIZES), ("ModernBertModel", "ModernBertConfig", WIDE)
Record = tuple[tuple[str, str, Mapping[str, Any]], str, Mapping[str, Any]]
# Name -> encoder, tokenizer, fields of config_sentence_transformers.json, or of artifact.metadata.
PYLATE: Mapping[str, Record] = {
    "expanded": (BERT, "wordpiece", {**PREFIXES, "query_length": 14, "document_length": 24,
                                     "skiplist_words": [".", ",", "?"], "do_query_expansion": True,
                                     "attend_to_expansion_tokens": False}),
    "attended": (BERT, "wordpiece", {**PREFIXES, "query_length": 14, "document_length": 24,
                                     "attend_to_expansion_tokens": True}),
    "short": (MODERNBERT, "bytes", {**PREFIXES, "query_length": 14, "document_length": 24,
                                    "skiplist_words": [], "do_query_expansion": False}),
    "modern": (MODERNBERT, "wordpiece", {**PREFIXES, "query_length": 20, "document_length": 24,
                                         "skiplist_words": [".", "!"]}),
    "unprefixed": (BERT, "wordpiece", {"query_prefix": "", "document_prefix": "", "query_length": 14,
                                       "document_length": 24}),
}  # fmt: skip
STANFORD: Mapping[str, Record] = {
    "stanford": (BERT, "wordpiece", {"query_token_id": "[unused0]", "doc_token_id": "[unused1]",
                                     "query_maxlen": 14, "doc_maxlen": 24, "dim": 16, "similarity": "cosine",
                                     "mask_punctuation": True, "attend_to_mask_tokens": False}),
}  # fmt: skip
RECORDS = {**PYLATE, **STANFORD}


def about(name: str) -> tuple[dict[str, Any], dict[str, list[int]], dict[str, Any]]:
    """The files, the shapes of the tensors, and the arrays of a record."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        recorded = json.loads(arrays["about"].tobytes())
        return recorded["files"], recorded["tensors"], {key: arrays[key] for key in arrays if key != "about"}


def record(name: str) -> None:
    """Write a record."""
    (of_class, of_config, sizes), kind, fields = RECORDS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        files, tensors = _model(path, of_class, of_config, sizes, kind, fields)
        if name in STANFORD:
            files["config.json"]["architectures"] = ["HF_ColBERT"]
            files["artifact.metadata"] = json.dumps(fields)
            tensors = {f"bert.{tensor}": shape for tensor, shape in tensors.items()}
            tensors["linear.weight"] = [16, 32]
        else:
            files |= {"modules.json": MODULES, "1_Dense/config.json": DENSE,
                      "sentence_bert_config.json": {"max_seq_length": 23, "do_lower_case": False},
                      "config_sentence_transformers.json": fields}  # fmt: skip
            tensors["1_Dense/linear.weight"] = [16, 32]
        write(path, files, tensors)
        arrays = _computed(path)
    text = json.dumps({"files": files, "tensors": tensors}, sort_keys=True)
    np.savez_compressed(FOLDER / f"{name}.npz", about=np.frombuffer(text.encode(), np.uint8), **arrays)


def _model(
    path: Path, of_class: str, of_config: str, sizes: Mapping[str, Any], kind: str, fields: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, list[int]]]:
    import transformers
    from safetensors import safe_open

    made, settings = tokenizer(kind)
    prefixes = [text for key, text in fields.items() if key.endswith(("_prefix", "_token_id")) and text]
    made.add_tokens(prefixes)
    config = getattr(transformers, of_config)(**{**sizes, "vocab_size": made.get_vocab_size()})
    getattr(transformers, of_class)(config).save_pretrained(path)
    files = {"tokenizer.json": made.to_str(), "tokenizer_config.json": settings,
             "config.json": json.loads((path / "config.json").read_text())}  # fmt: skip
    with safe_open(path / "model.safetensors", "np") as file:
        return files, {tensor: list(file.get_slice(tensor).get_shape()) for tensor in sorted(file.keys())}


def _computed(path: Path) -> dict[str, Any]:
    """Rows and scores of the texts, and of those that are cut."""
    import torch
    from pylate import models, scores

    model = models.ColBERT(str(path), device="cpu")
    arrays: dict[str, Any] = {}
    for key, query, documents in (("", QUERY, DOCUMENTS), ("cut_", CUT_QUERY, [CUT])):
        asked = model.encode([query], is_query=True)[0]
        answers = model.encode(documents, is_query=False)
        sums = [
            scores.colbert_scores(torch.tensor(asked)[None], torch.tensor(answer)[None]) for answer in answers
        ]
        arrays |= {
            f"{key}query": asked,
            f"{key}counts": np.array([len(answer) for answer in answers]),
            f"{key}documents": np.concatenate(answers),
            f"{key}scores": np.array([float(each) for each in sums]),
        }
    return arrays


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in sys.argv[1:] or RECORDS:
        record(one)
        print(one)
