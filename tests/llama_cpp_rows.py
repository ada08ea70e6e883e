"""Records what llama.cpp computes for the files of tiny folders of encoders: for developers.

    python -m tests.llama_cpp_rows LLAMA_EMBEDDING [NAME ...]

LLAMA_EMBEDDING is llama.cpp's program of that name. Each case is a folder of `tests.encoder_records` with a
tokenizer and a pooling, written by `graphml convert`; its record holds the rows of `TEXTS`, or the scores of
`PAIRS`, without a norm.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import graphml
from graphml.authoring.handing_on import hand_on
from graphml.runtime.programs.load_options import LoadOptions
from tests.encoder_records import POOLED, about, module, pooling, write
from tests.folders.test_encoders_of_authors import KINDS as AUTHORS
from tests.text.vocabularies import recorded_metadata

RECORD = Path(__file__).parent / "data" / "encoders_by_llama_cpp.npz"
OPTIONS = LoadOptions(backend="reference", kv="f32")
TEXTS = ["The cat sat on the mat.", "Hello THERE world", "what is a cat?", "a naive cafe, hello the cat sat"]
PAIRS = [("what is a cat", text) for text in TEXTS]
SEPARATOR = "<#next#>"
TABLES = ("word_embeddings.weight", "tok_embeddings.weight", "embed_tokens.weight", "shared.weight",
          "model.encoder.weight")  # fmt: skip
Files = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """base: the record of the model; words: that of the tokenizer. mode: of the pooling, "" for a classifier.

    fields: of config.json; more: further files, as objects; without: parts of names of tensors left out.
    """

    base: str
    words: str
    mode: str = "mean"
    fields: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


SPACED = [{"type": "WhitespaceSplit"},
          {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
           "split": True}]  # fmt: skip
AS_XLM_R = {"tokenizer.json": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": SPACED}}}
"""Beside the normaliser, which is added by `folder`."""
ONE_KIND = {"tokenizer_config.json": {"model_input_names": ["input_ids", "attention_mask"]}}
CASES: Mapping[str, Case] = {
    "bert": Case("bert", "mean"),
    "bert-cased": Case("bert", "dense", "cls", more={"sentence_bert_config.json": {"do_lower_case": True}}),
    "bert-scores": Case("bert-scores", "mean", "", more=ONE_KIND),
    "distilbert": Case("distilbert", "mean"),
    "nomic_bert": Case("nomic_bert", "mean"),
    "roberta": Case("roberta", "bytes", "cls"),
    "camembert": Case("camembert", "unigram", more=AS_XLM_R),
    "xlm-roberta-scores": Case("xlm-roberta-scores", "unigram", "", more=AS_XLM_R),
    "jina_bert_v2": Case("jina_bert_v2", "mean"),
    "neobert": Case("neobert", "mean", "cls"),
    "jina_embeddings_v3": Case("jina_embeddings_v3", "unigram", more=AS_XLM_R),
    "modernbert": Case("modernbert", "bytes", "cls"),
    "modernbert-scores": Case("modernbert-scores", "bytes", "", {"classifier_bias": False},
                              without=("head.dense.bias",)),
    "eurobert": Case("eurobert", "bytes"),
    "gemma3_text": Case("gemma3_text", "bytes", "mean", {"query_pre_attn_scalar": 16}),
    "gemma": Case("gemma", "bytes", "", {"query_pre_attn_scalar": 16}),
    "qwen3": Case("last", "bytes", "last"),
    "t5": Case("t5", "unigram", more=AS_XLM_R),
    "mt5": Case("mt5", "unigram", more=AS_XLM_R),
    "umt5": Case("umt5", "unigram", more=AS_XLM_R),
}  # fmt: skip
SCORED = ("bert-scores", "xlm-roberta-scores", "modernbert-scores")


@functools.cache
def charsmap() -> str:
    """The published table of XLM-RoBERTa, as tokenizer.json has it."""
    with tempfile.TemporaryDirectory() as place:
        numbers = recorded_metadata("nomic-bert-moe", Path(place))["tokenizer.ggml.precompiled_charsmap"]
    return base64.b64encode(np.asarray(numbers, np.int64).astype(np.uint8).tobytes()).decode()


def folder(path: Path, case: Case) -> Path:
    """The folder of a case."""
    files: Files
    if case.base in AUTHORS:
        config, shapes_of, _ = AUTHORS[case.base]
        files, tensors = {"config.json": config}, shapes_of()
    else:
        files, tensors, _ = about(case.base)
    words: Files = about(case.words)[0]
    rows = words["config.json"]["vocab_size"]
    config = files["config.json"] | {"vocab_size": rows} | case.fields
    own: Files = {
        name: content for name, content in files.items() if name.startswith(("modules", "1_", "2_", "3_"))
    }
    own |= {name: words[name] for name in ("tokenizer.json", "tokenizer_config.json")} | {
        "config.json": config
    }
    if case.mode:
        own |= {"modules.json": [*POOLED, module("Normalize", "2_Normalize")]}
        own |= {"1_Pooling/config.json": pooling(case.mode)}
    more = dict(case.more)
    if case.more is AS_XLM_R:
        normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap()}
        more["tokenizer.json"] = more["tokenizer.json"] | {"normalizer": normalizer}
    for name, changed in more.items():
        stated = own.get(name, {})
        own[name] = (json.loads(stated) if isinstance(stated, str) else stated) | changed
    shapes = {
        name: [rows, *shape[1:]] if name.endswith(TABLES) else shape
        for name, shape in tensors.items()
        if not any(part in name for part in case.without)
    }
    return write(path, own, shapes)


def converted(path: Path, case: Case) -> Path:
    """The file of a case, beside its folder."""
    with graphml.load(folder(path / "folder", case), "reference", kv="f32", quant="fp32") as model:
        return hand_on(model, path / "model.gguf", None, OPTIONS).path


def rows_of(model: graphml.Model, name: str) -> Any:
    """What graphml computes of a case's texts or pairs."""
    if name in SCORED:
        return model.rank(PAIRS[0][0], [text for _, text in PAIRS])
    return model.embed(TEXTS, normalize=False)


def _by_llama_cpp(program: str, model: Path, texts: list[str], count: int) -> Any:
    """Rows; count: of their numbers, behind which of scores there is nothing that means something."""
    words = [program, "-m", str(model), "-p", SEPARATOR.join(texts), "--embd-separator", SEPARATOR,
             "--embd-output-format", "json", "--embd-normalize", "-1", "-c", "512", "-b", "512", "-ub", "512",
             "-t", "1", "--no-warmup"]  # fmt: skip
    for _ in range(8):  # it ends, now and then, before all of its output is written
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        rows = re.findall(r'"embedding": \[(.*?)\]', done.stdout, re.S)
        if done.returncode or len(rows) == len(texts):
            break
    if len(rows) != len(texts):
        raise SystemExit(f"{model}: wanted {len(texts)} rows; got {done.stdout[-300:]} {done.stderr[-3000:]}")
    return np.asarray([[*map(float, row.split(","))] for row in rows], np.float32)[:, :count]


def main(program: str, names: list[str]) -> None:
    """Write the record, and say how near graphml's own rows are."""
    rows = dict(np.load(RECORD)) if RECORD.exists() else {}
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as place:
            path = converted(Path(place), CASES[name])
            texts = ["\t".join(pair) for pair in PAIRS] if name in SCORED else TEXTS
            with graphml.load(path, "reference", kv="f32", quant="fp32") as model:
                ours = rows_of(model, name)
            rows[name] = theirs = _by_llama_cpp(program, path, texts, ours.shape[1])
        print(
            name, ours.shape, theirs.shape, f"cosine {cosine(ours, theirs):.7f}", np.abs(ours - theirs).max()
        )
    np.savez_compressed(RECORD, **rows)


def cosine(ours: Any, theirs: Any) -> float:
    """The least of two tables of rows."""
    if ours.shape != theirs.shape:
        return -1.0
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / norms).min())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
