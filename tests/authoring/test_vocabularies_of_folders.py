"""tokenizer.json of a folder as a vocabulary of a GGUF file: the same ids, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from graphml.authoring.llama_cpp.vocabulary import TEXTS, vocabulary_values
from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.loading.open_file import open_path
from graphml.text.tokenizer.tokenizer_loading import load_tokenizer
from graphml.weights import Metadata, open_model
from graphml.weights.metadata import StoredValue, stored
from tests.folder_records import about, write_folder
from tests.llama_cpp_rows import AS_XLM_R, charsmap
from tests.text.vocabularies import recorded_metadata

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
DIGITS = WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
NO_WORDS = BYTE_LEVEL | {"use_regex": False}
SPACED = [
    {"type": "Prepend", "prepend": "\u2581"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
]
Json = dict[str, Any]


def cut(*expressions: str) -> Json:
    """A pre-tokenizer that isolates matches."""
    steps = [
        {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False}
        for text in expressions
    ]
    return {"type": "Sequence", "pretokenizers": [*steps, NO_WORDS]}


CUTS = {
    "gpt-2": BYTE_LEVEL,
    "llama-bpe": cut(WORDS),
    "qwen2": cut(DIGITS),
    "deepseek-coder": cut(
        "[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}"
    ),
}


def around(ids: dict[str, int], *names: str) -> Json:
    """A post-processor that puts tokens before a text."""
    before: list[Json] = [{"SpecialToken": {"id": name, "type_id": 0}} for name in names]
    of_text = {"Sequence": {"id": "A", "type_id": 0}}
    special = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in names}
    return {
        "type": "TemplateProcessing", "single": [*before, of_text], "pair": [*before, of_text],
        "special_tokens": special,
    }  # fmt: skip


def as_tokenizer_json(name: str, folder: Path) -> tuple[Json, int]:
    """A recorded vocabulary as transformers has it, and how many tokens it has."""
    metadata = recorded_metadata(name, folder)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata["tokenizer.ggml.token_type"]
    ids = {token: index for index, token in enumerate(tokens)}
    added = [
        {"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": kind != 4}
        for token, kind in zip(tokens, types, strict=True) if kind in (2, 3, 4)
    ]  # fmt: skip
    vocabulary = {token: index for token, index in ids.items() if types[index] not in (3, 4)}
    model: Json = {"type": "BPE", "vocab": vocabulary, "ignore_merges": name == "llama-bpe"}
    whole: Json = {"version": "1.0", "added_tokens": added, "model": model, "normalizer": None}
    if name in CUTS:
        model["merges"] = metadata["tokenizer.ggml.merges"]
        whole |= {"pre_tokenizer": CUTS[name], "decoder": BYTE_LEVEL}
        if name == "llama-bpe":
            whole["post_processor"] = around(ids, "<|begin_of_text|>")
        return whole, len(tokens)
    scores: list[float] = metadata["tokenizer.ggml.scores"]
    pairs = [
        (-scores[ids[token]], ids[token[:at]], ids[token[at:]], [token[:at], token[at:]])
        for token, index in ids.items() if types[index] == 1
        for at in range(1, len(token)) if token[:at] in ids and token[at:] in ids
    ]  # fmt: skip
    model |= {"merges": [pair[3] for pair in sorted(pairs)], "byte_fallback": True, "unk_token": "<unk>"}
    model |= {"fuse_unk": True, "vocab": {token: index for token, index in ids.items() if index < 32000}}
    whole |= {"normalizer": {"type": "Sequence", "normalizers": SPACED}, "post_processor": around(ids, "<s>")}
    return whole, len(tokens)


def values(path: Path, whole: Json, rows: int, **more: Any) -> tuple[dict[str, StoredValue], Any]:
    """The keys of a folder with such a tokenizer.json, and its own tokenizer."""
    config, tensors, _ = about("llama")
    sized = {name: [rows, shape[1]] if shape[0] == 64 else shape for name, shape in tensors.items()}
    write_folder(path, config | {"vocab_size": rows}, sized)
    (path / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    with open_path(path) as file:
        return vocabulary_values(file, rows, **more), load_tokenizer(file.metadata)


@pytest.mark.parametrize("name", [*CUTS, "llama-spm"])
def test_a_vocabulary_has_the_kind_and_the_words_of_the_published_file(name: str, tmp_path: Path) -> None:
    published = recorded_metadata(name, tmp_path)
    whole, rows = as_tokenizer_json(name, tmp_path)
    keys, own = values(tmp_path / "folder", whole, rows)
    said = {key: value.read(None) for key, value in keys.items()}
    for key in ("model", "pre", "tokens"):
        assert said[f"tokenizer.ggml.{key}"] == published[f"tokenizer.ggml.{key}"], key
    if name in CUTS:
        assert said["tokenizer.ggml.merges"] == published["tokenizer.ggml.merges"]
    assert said["tokenizer.ggml.add_bos_token"] is (name in ("llama-bpe", "llama-spm"))
    assert keys["tokenizer.ggml.bos_token_id"].type == "u32"
    written = load_tokenizer(Metadata(tmp_path, {**keys, "general.architecture": stored("llama")}))
    texts = (Path(__file__).parents[1] / "data" / "tokenizers" / f"{name}.inp").read_text().split(
        "\n__ggml_vocab_test__\n"
    )  # fmt: skip
    for text in (*TEXTS, *texts):
        assert written.encode(text, True, False) == own.encode(text, True, False), text


def of_encoder(name: str, published: Json) -> Json:
    """The tokenizer.json of a published vocabulary of an encoder."""
    tokens: list[str] = published["tokenizer.ggml.tokens"]
    types: list[int] = published["tokenizer.ggml.token_type"]
    special = [index for index, kind in enumerate(types) if kind in (2, 3)]
    added = [
        {"id": index, "content": tokens[index], "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for index in special
    ]  # fmt: skip
    ids = {token: index for index, token in enumerate(tokens)}
    first = "cls" if name == "bert-bge" else "bos"
    before, behind = (published[f"tokenizer.ggml.{of}_token_id"] for of in (first, "seperator"))
    ends = {tokens[index]: index for index in (before, behind)}
    post = around(ends, tokens[before])
    token = {"SpecialToken": {"id": tokens[behind], "type_id": 0}}
    post["single"] = [*post["single"], token]
    between = [token] if name == "bert-bge" else [token, token]
    post["pair"] = [*post["single"][:-1], *between, {"Sequence": {"id": "B", "type_id": 0}}, token]
    post["special_tokens"] |= around(ends, tokens[behind])["special_tokens"]
    whole: Json = {"version": "1.0", "added_tokens": added, "post_processor": post}
    if name == "bert-bge":
        unmarked = [
            text if index in special else text[1:] if text[0] == "\u2581" else f"##{text}"
            for index, text in enumerate(tokens)
        ]
        vocabulary = {text: index for index, text in enumerate(unmarked)}
        model: Json = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                       "max_input_chars_per_word": 100, "vocab": vocabulary}  # fmt: skip
        normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                      "strip_accents": None, "lowercase": True}  # fmt: skip
        return whole | {
            "normalizer": normalizer,
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "model": model,
        }
    scores: list[float] = published["tokenizer.ggml.scores"]
    model = {"type": "Unigram", "unk_id": ids["<unk>"], "byte_fallback": False,
             "vocab": [[text, score] for text, score in zip(tokens, scores, strict=True)]}  # fmt: skip
    normalizer = {"type": "Precompiled", "precompiled_charsmap": charsmap()}
    return whole | {"normalizer": normalizer, "pre_tokenizer": AS_XLM_R["tokenizer.json"]["pre_tokenizer"],
                    "model": model}  # fmt: skip


@pytest.mark.parametrize("name", ["bert-bge", "nomic-bert-moe"])
def test_a_vocabulary_of_an_encoder_is_the_published_one(name: str, tmp_path: Path) -> None:
    published = recorded_metadata(name, tmp_path)
    whole, rows = of_encoder(name, published), len(published["tokenizer.ggml.tokens"])
    keys, own = values(tmp_path / "folder", whole, rows)
    said = {key: value.read(None) for key, value in keys.items()}
    if name == "bert-bge":  # which has the unknown token as a control token
        types = [*published["tokenizer.ggml.token_type"]]
        types[published["tokenizer.ggml.unknown_token_id"]] = 2
        published = {**published, "tokenizer.ggml.token_type": types}
    for key in ("model", "tokens", "token_type", "scores", "precompiled_charsmap", "bos_token_id",
                "seperator_token_id", "unknown_token_id", "add_space_prefix",
                "remove_extra_whitespaces"):  # fmt: skip
        if f"tokenizer.ggml.{key}" in published:
            assert said[f"tokenizer.ggml.{key}"] == pytest.approx(published[f"tokenizer.ggml.{key}"]), key
    written = load_tokenizer(Metadata(tmp_path, {**keys, "general.architecture": stored("bert")}))
    for text in TEXTS:
        is_hangul = text.startswith("\uc548")
        same = written.encode(text, True, False) == own.encode(text, True, False)
        assert same is not (is_hangul and name == "bert-bge"), text
    assert written.pair("a cat", "the mat") == own.pair("a cat", "the mat")


def small(tokens: str = "") -> Json:
    """Byte pairs of all bytes, of one merge."""
    from graphml.text.tokenizer.pieces import BYTE_LETTERS

    names = [*BYTE_LETTERS, "ab", *tokens.split()]
    added = [
        {"id": index, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for index, name in enumerate(names) if index > 256
    ]  # fmt: skip
    vocabulary = {name: index for index, name in enumerate(names) if index <= 256}
    return {
        "version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": cut(DIGITS),
        "decoder": BYTE_LEVEL, "model": {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]]},
    }  # fmt: skip


def test_words_that_no_pre_tokenizer_cuts_are_refused_unless_one_is_named(tmp_path: Path) -> None:
    odd = small() | {"pre_tokenizer": cut(r"[aeiou]+|[^aeiou]+")}
    with pytest.raises(UsageError, match="no pre-tokenizer cuts words as it does"):
        values(tmp_path / "odd", odd, 257)
    keys, _ = values(tmp_path / "named", odd, 257, pre="qwen2")
    assert keys["tokenizer.ggml.pre"].read(None) == "qwen2"


def test_the_command_names_a_pre_tokenizer_for_byte_pairs_alone(tmp_path: Path) -> None:
    odd, plain, output = tmp_path / "odd", tmp_path / "plain", tmp_path / "out.gguf"
    with pytest.raises(UsageError, match="--pre names one"):
        values(odd, small() | {"pre_tokenizer": cut(r"[aeiou]+|[^aeiou]+")}, 257)
    write_folder(plain, *about("llama")[:2])
    words = ["-o", str(output), "--pre", "qwen2", "--backend", "reference", "--kv", "f32"]
    done = CliRunner().invoke(app, ["convert", str(odd), *words])
    assert done.exit_code == 0, done.output
    with open_model(output) as file:
        assert file.metadata.text("tokenizer.ggml.pre") == "qwen2"
    done = CliRunner().invoke(app, ["convert", str(plain), *words, "--force"])
    assert done.exit_code == 2
    assert "--pre qwen2: wanted for a vocabulary of byte pairs" in done.output


def test_two_tokens_before_a_text_are_refused(tmp_path: Path) -> None:
    whole = small("<a> <b>")
    whole["post_processor"] = around({"<a>": 257, "<b>": 258}, "<a>", "<b>")
    with pytest.raises(UsageError, match="puts 2 tokens before a text and 0 behind it"):
        values(tmp_path / "two", whole, 259)


def test_a_normalizer_that_changes_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="wanted ids"):
        values(tmp_path / "lower", small() | {"normalizer": {"type": "Lowercase"}}, 257)


def test_more_tokens_than_rows_are_refused(tmp_path: Path) -> None:
    config, tensors, _ = about("llama")
    write_folder(tmp_path / "few", config, tensors)
    (tmp_path / "few" / "tokenizer.json").write_text(json.dumps(small()), encoding="utf-8")
    with open_path(tmp_path / "few") as file, pytest.raises(UsageError, match="wanted at most 64 tokens"):
        vocabulary_values(file, 64)


def test_a_folder_without_a_tokenizer_has_no_vocabulary(tmp_path: Path) -> None:
    config, tensors, _ = about("llama")
    with open_path(write_folder(tmp_path / "none", config, tensors)) as file:
        assert vocabulary_values(file, 64)["tokenizer.ggml.model"].read(None) == "no_vocab"


def test_chat_templates_and_ends_are_kept(tmp_path: Path) -> None:
    whole, folder = small("<end> <more>"), tmp_path / "chat"
    values(folder, whole, 259)
    templates = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": templates, "eos_token": "<end>"})
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257, 258]}))
    with open_path(folder) as file:
        keys = {key: value.read(None) for key, value in vocabulary_values(file, 259).items()}
    assert keys["tokenizer.chat_template"] == "d"
    assert keys["tokenizer.chat_template.tool_use"] == "t"
    assert keys["tokenizer.chat_templates"] == ["tool_use"]
    assert keys["tokenizer.ggml.eos_token_id"] == 257
    assert keys["tokenizer.ggml.eot_token_id"] == 258
