"""Tokenizers of folders: ids as the `tokenizers` library has them, pieces, roles, templates."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from graphml.errors import TokenizerError, WeightsError
from graphml.loading.download.choice import folder_files
from graphml.loading.open_file import open_path
from graphml.text.tokenizer import Tokenizer as Ours
from graphml.text.tokenizer import load_tokenizer
from tests.folders.test_folders_of_transformers import folder

TEXTS = [
    "Hello world",
    "  two  spaces\n\tand tabs",
    "naïve café 東京 🙂",
    "",
    "<s>not special</s> <tool>",
    "x" * 50,
]
CORPUS = [
    "Hello world, hello there",
    "two spaces and tabs and more tabs",
    "the special café of the world",
] * 3
SPECIAL = ["<unk>", "<s>", "</s>"]


def made(kind: str) -> Tokenizer:
    """A small tokenizer of 64 + entries as GPT-2 has it, or as Llama 2 has it."""
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        every = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=every, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = [one for one in whole["added_tokens"] if not one["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A", "<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def with_tokenizer(path: Path, kind: str, **settings: Any) -> tuple[Path, Tokenizer]:
    tokenizer = made(kind)
    path = folder(path, "qwen3")
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>"} | settings)
    )
    return path, tokenizer


def ours(path: Path) -> Ours:
    with open_path(path) as file:
        return load_tokenizer(file.metadata)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_ids_and_texts_are_the_librarys(kind: str, tmp_path: Path) -> None:
    path, theirs = with_tokenizer(tmp_path, kind)
    tokenizer = ours(path)
    for text in TEXTS:
        for add_special in (True, False):
            wanted = theirs.encode(text, add_special_tokens=add_special).ids
            assert tokenizer.encode(text, add_special, parse_special=True) == wanted
            assert tokenizer.encode(text, add_special) == wanted
        ids = theirs.encode(text, add_special_tokens=False).ids
        decoded = theirs.decode(ids, skip_special_tokens=False)
        assert tokenizer.decode(ids) == decoded
        stream = tokenizer.stream()
        assert "".join(map(stream.push, ids)) + stream.flush() == decoded
    assert tokenizer.pair("two", "tabs") == theirs.encode("two", "tabs").ids


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_control_tokens_of_a_text_are_text_unless_asked_for(kind: str, tmp_path: Path) -> None:
    tokenizer = ours(with_tokenizer(tmp_path, kind)[0])
    ids = tokenizer.encode("<s>hi</s><tool>", add_special=False, parse_special=False)
    assert not {1, 2} & set(ids)
    assert tokenizer.decode(ids).strip() == "<s>hi</s><tool>"
    assert (
        tokenizer.encode("<tool>", add_special=False, parse_special=False)[-1] == ids[-1]
    )  # no control token


def test_roles_follow_the_files(tmp_path: Path) -> None:
    path, _ = with_tokenizer(tmp_path, "bytes")
    tokenizer = ours(path)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.end_tokens) == (1, 2, frozenset({2}))
    assert tokenizer.is_special(1)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 30, 31]}))
    assert ours(path).end_tokens == frozenset({2, 30, 31})
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 30, 31, 32, 33, 10**6]}))
    assert ours(path).end_tokens == frozenset({2, 30, 31, 32, 33})
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<tool>"}}))
    assert ours(path).eos == made("bytes").token_to_id("<tool>")


TOOL = {"content": "<tool>", "lstrip": False, "rstrip": False, "single_word": False}


@pytest.mark.parametrize(
    ("settings", "files", "flags"),
    [({}, {"added_tokens.json": {"<new>": 9}}, {"special": False}),
     ({"added_tokens_decoder": {"900": {"content": "<new>", "special": True, "rstrip": True}}}, {},
      {"special": True, "rstrip": True}),
     ({"additional_special_tokens": ["<new>", "<s>"]}, {}, {"special": True}),
     ({"extra_special_tokens": {"image": "<new>"}}, {}, {"special": True}),
     ({"image_token": {"content": "<new>", "lstrip": True}}, {}, {"special": True, "lstrip": True}),
     ({}, {"special_tokens_map.json": {"pad_token": "<new>"}}, {"special": True})],
)  # fmt: skip
def test_tokens_that_only_other_files_name_are_one_token(
    settings: dict[str, Any], files: dict[str, Any], flags: dict[str, bool], tmp_path: Path
) -> None:
    path, theirs = with_tokenizer(tmp_path, "bytes", **settings)
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    theirs.add_tokens([AddedToken("<new>", **flags)])  # as AutoTokenizer of transformers 5.24 does
    tokenizer = ours(path)
    for text in ("word<new>word", " <new> <s>", "<tool> <new>"):
        ids = theirs.encode(text).ids
        assert theirs.get_vocab_size() - 1 in ids
        assert tokenizer.encode(text, parse_special=True) == ids
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=False)
    assert tokenizer.is_special(theirs.get_vocab_size() - 1) == flags["special"]


def of_mistral(path: Path, kind: str, count: int, version: str | None, model_type: str) -> Ours:
    """A tokenizer with so many tokens, one of them HelloWorld, and `fix_mistral_regex`."""
    tokenizer = Tokenizer(models.BPE())
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.Split(Regex(r"\p{L}+"), behavior="isolated")
    steps = {"split": of_bytes, "metaspace": pre_tokenizers.Metaspace(prepend_scheme="never"),
             "sequence": pre_tokenizers.Sequence([words, of_bytes])}  # fmt: skip
    tokenizer.pre_tokenizer, tokenizer.decoder = steps[kind], decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(initial_alphabet=letters, vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(["HelloWorld"] * 3, trainer)
    whole = json.loads(tokenizer.to_str())
    vocabulary = whole["model"]["vocab"]
    vocabulary |= {f"unused{i}": i for i in range(len(vocabulary), count)}
    made = folder(path, "llama", transformers_version=version, model_type=model_type)
    (made / "tokenizer.json").write_text(json.dumps(whole))
    (made / "tokenizer_config.json").write_text(json.dumps({"fix_mistral_regex": True}))
    return ours(made)


@pytest.mark.parametrize(
    ("kind", "count", "version", "model_type", "is_fixed"),
    [("sequence", 100_001, "4.50.0", "mistral", True), ("split", 100_001, "4.50.0", "mistral", True),
     ("metaspace", 100_001, "4.50.0", "mistral", True), ("sequence", 100_000, "4.50.0", "mistral", False),
     ("sequence", 100_001, None, "mistral", True), ("sequence", 100_001, "5.0.0.dev0", "mistral", True),
     ("sequence", 100_001, "5.0.0", "mistral", False), ("sequence", 100_001, "4.50.0", "llama", False)],
)  # fmt: skip
def test_words_of_mistral_are_those_that_the_config_asks_for(
    kind: str, count: int, version: str | None, model_type: str, is_fixed: bool, tmp_path: Path
) -> None:
    tokenizer = of_mistral(tmp_path, kind, count, version, model_type)
    parts = [tokenizer.encode(text, False) for text in ("Hello", "World", "HelloWorld")]
    assert (parts[0] + parts[1] == parts[2]) == is_fixed


def test_a_download_brings_the_files_that_name_tokens() -> None:
    names = ["config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
    assert folder_files([*names, "model.safetensors", "README.md"]) == [*names, "model.safetensors"]


def test_a_download_brings_what_modules_name() -> None:
    names = ["config.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
             "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]  # fmt: skip
    others = ["2_Dense/pytorch_model.bin", "onnx/model.safetensors", "README.md"]
    assert folder_files([*names, *others, "model.safetensors"]) == [*names, "model.safetensors"]
    plain = [name for name in names if name != "modules.json"]
    assert "1_Pooling/config.json" not in folder_files([*plain, "model.safetensors"])


def test_flags_of_an_added_token_are_those_of_the_other_file(tmp_path: Path) -> None:
    path, theirs = with_tokenizer(tmp_path, "bytes")
    number = theirs.token_to_id("<tool>")
    stated = {str(number): {**TOOL, "normalized": False, "special": True, "lstrip": True}}
    (path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": stated}))
    assert ours(path).encode("a  <tool>", False, parse_special=True)[-1] == number
    assert len(ours(path).encode("a  <tool>", False, parse_special=True)) == 2
    assert ours(path).is_special(number)


@pytest.mark.parametrize(
    "settings",
    [{"added_tokens_decoder": {"x": TOOL}}, {"added_tokens_decoder": {"1": {"content": 3}}},
     {"additional_special_tokens": "<new>"}, {"additional_special_tokens": [{"special": True}]},
     {"added_tokens_decoder": {"1e9": TOOL}}],
)  # fmt: skip
def test_an_added_token_without_a_text_or_a_number_is_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    path, _ = with_tokenizer(tmp_path, "bytes", **settings)
    with pytest.raises(WeightsError, match="added token"):
        open_path(path)


def test_templates_come_from_their_files(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    path, _ = with_tokenizer(tmp_path, "bytes", chat_template=named)
    with open_path(path) as file:
        assert file.metadata.text("tokenizer.chat_template") == "A"
        assert file.metadata.text("tokenizer.chat_template.tool_use") == "B"
    (path / "chat_template.jinja").write_text("C")
    with open_path(path) as file:
        assert file.metadata.text("tokenizer.chat_template") == "C"


VOCABULARIES = ('{"a": -1}', '{"a": 99999999999}', '{"a": "b"}')
DAMAGED = ["{", "[]", '{"model": 3}', *(f'{{"model": {{"vocab": {one}}}}}' for one in VOCABULARIES)]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_tokenizer_is_told(text: str, tmp_path: Path) -> None:
    path = folder(tmp_path, "qwen3")
    (path / "tokenizer.json").write_text(text)
    with pytest.raises(WeightsError, match=r"tokenizer\.json: wanted"):
        open_path(path)


def test_what_the_library_refuses_is_told(tmp_path: Path) -> None:
    path = folder(tmp_path, "qwen3")
    (path / "tokenizer.json").write_text('{"model": {"type": "New", "vocab": {"a": 0}}}')
    with pytest.raises(TokenizerError, match="the `tokenizers` library refuses it"):
        ours(path).encode("a")


def test_a_folder_without_a_tokenizer_opens(tmp_path: Path) -> None:
    with (
        open_path(folder(tmp_path, "qwen3")) as file,
        pytest.raises(WeightsError, match=r"no tokenizer\.json"),
    ):
        file.metadata.text("tokenizer.ggml.model")


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def field(number: int, value: bytes | int | float) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def sentencepiece(model_type: int = 2) -> bytes:
    """A model of byte pairs: control tokens, bytes, letters and a few merges."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    pieces += [("▁h", -1.0, 1), ("el", -2.0, 1), ("▁hel", -3.0, 1), ("lo", -4.0, 1), ("▁hello", -5.0, 1)]
    pieces += [(letter, -9.0 - i, 1) for i, letter in enumerate("▁helo")]
    told = b"".join(
        field(1, field(1, t.encode()) + field(2, score) + field(3, kind)) for t, score, kind in pieces
    )
    return told + field(2, field(3, model_type)) + field(3, field(3, 1))


def test_a_model_of_sentencepiece_is_read(tmp_path: Path) -> None:
    path = folder(tmp_path, "qwen3")
    (path / "tokenizer.model").write_bytes(sentencepiece())
    added = {"300": {"content": "<|im_end|>", "special": True}}
    (path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "added_tokens_decoder": added})
    )
    tokenizer = ours(path)
    assert [tokenizer.piece(one) for one in tokenizer.encode("hello")] == ["<s>", " hello"]
    assert tokenizer.decode(tokenizer.encode("hello é", add_special=False)) == "hello é"
    assert (tokenizer.bos, tokenizer.eos) == (1, 300)
    (path / "added_tokens.json").write_text(json.dumps({"<new>": 305}))
    (path / "tokenizer_config.json").write_text(json.dumps({"additional_special_tokens": ["<tool>", "</s>"]}))
    with open_path(path) as file:
        pieces = file.metadata.texts("tokenizer.ggml.tokens")
    assert pieces[305:307] == ["<new>", "<tool>"]


@pytest.mark.parametrize("cut", [1, 7, 100, 2000])
def test_a_truncated_model_of_sentencepiece_is_refused(cut: int, tmp_path: Path) -> None:
    path = folder(tmp_path, "qwen3")
    (path / "tokenizer.model").write_bytes(sentencepiece()[:-cut] + b"\xff")
    with pytest.raises(WeightsError, match=r"tokenizer\.model: "):
        open_path(path)
