"""Makes the files of this folder: vocabularies, and what llama.cpp makes of texts with them.

    PYTHONPATH=. python tests/data/tokenizers/record.py LLAMA_CPP/models

Wants llama-cpp-python (the extra `peers`) and the `ggml-vocab-*.gguf` files of the llama.cpp repository.
"""

from __future__ import annotations

import ctypes
import json
import lzma
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import llama_cpp

from graphml.text.tokenizer import PRE_TOKENIZERS
from tests.text.vocabularies import MADE, pairs_vocabulary

HERE = Path(__file__).parent
WHOLE = ("gpt-2", "llama-spm", "bert-bge", "phi-3", "deepseek-coder", "qwen2", "llama-bpe")
# Vocabularies that are cut down: name, tokens kept.
CUT = {"gemma-4": 12_000, "nomic-bert-moe": 8_000}
UNCUTTABLE = ("whitespace",)  # llama.cpp aborts on a byte-level vocabulary with this pre-tokenizer

POOLS = [
    [*[" "] * 6, "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\xa0", "\u3000", "\u2009", "\v", "\f", "\x85"],
    list("abcdefghijklmnopqrstuvwxyz"), list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), list("0123456789"),
    ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'RE", "'Ll", "'", "\u2019s", "'x", " ' "],
    list("!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~"), list("éèüñçßøÅÄÖİıſµªº"), list("абвгдЖЩ"), list("αβγδΣς"),
    list("中文字符漢字日本語𠀀𪜀々"), list("ひらがなカタカナー"), list("한국어가힣ㄱ"), list("עבריתعربية"),
    list("हिन्दीবাংলাไทย၁၂"), list("½²³Ⅷ①٣४〇"), list("\u0301\u0300\u0308\u20dd\u093e\u3099"),
    ["🙂", "👍🏽", "👨‍👩‍👧", "🇩🇪", "❤️", "™", "→", "∑", "€", "…", "“", "。", "，"],
    [*"\x01\x07\x1b\x7f\x9f\xad\ufffd\uffff\ue000", "\U0010ffff", "\u0378", "\U00010d40"],
    ["Hello", "world", "the", " of", "http://", "foo_bar", "CamelCase", "IMGIMGABZ"],
    ["<sentinel:12>", "I'm", "1234567", "\U0001f469\u200d\U0001f467", "\u2764\ufe0f"],
]  # fmt: skip


# Texts that pre-tokenizers cut differently.
TELLING = [
    "In 1234567 or 12 or 123 of ١٢٣٤٥ and ½²³ digits, x1y22z333; 1,000,000.50",
    "I'm we'll THEY'RE he'S can'T it’s 'twas o'clock 'the' ' s ' abc'def'ghi",
    "def f(x):\n        return x  # and\n\n\n    pass\t\tend   \n  ",
    "CamelCase HTTPServer eBay ABCdef iPhone ÄÖÜäöü ПриветМир XMLHttp Ünïcode e\u0301te\u0301",
    "http://foo.bar/baz?q=1&r=2 a/b //c\n/d (x) [y] {z} <<=>> ++i;\r\n!!!\n\n...",
    "中文字符123漢字 日本語テキストです、はい。 한국어 문장입니다! ไทย ဗမာ हिन्दी में",
    " leading\u3000wide\xa0space \u2009thin  two   three    four     five",
    "no\nnew\r\nlines\n\n\ntail \n \n",
    "!hello #tag @user $var %mod ^caret &amp *star _under",
    "the quick brown fox jumps over the lazy dog. IMGIMGABZ <sentinel:12>\t\tof of",
] + [" " * n + "end" + " " * n for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 65, 130, 260, 520)]


MATCHING = ("rwkv", "plamo2")
"""Kinds by which llama.cpp makes control tokens of what plain text spells, as graphml does not."""
DNA = ["<dna>ACGTACGTACGT</dna>", "<dna>acgtTGCAa</dna>", "<dna>AC-GTN中CCC</dna>", "<dna></dna>", "</dna>",
       "<dna>", "<dna>ACGTAC", "CCCCCC", "<oov>", "<dna>TTTTTTG</dna>ACGTAC"]  # fmt: skip


def random_text(rng: random.Random) -> str:
    """A text of a few of the pools, in short runs."""
    pools = rng.sample(POOLS, rng.randint(1, 5)) if rng.random() < 0.7 else POOLS
    parts: list[str] = []
    for _ in range(rng.choice([1, 2, 3, 5, 8, 13, 20])):
        pool = rng.choice(pools)
        parts += [rng.choice(pool) for _ in range(rng.choice([1, 1, 1, 2, 3, 7]))]
    return "".join(parts)


class Peer:
    """A vocabulary in llama.cpp."""

    def __init__(self, path: Path, pre: str | None = None) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        overrides = (llama_cpp.llama_model_kv_override * 2)()
        if pre is not None:
            overrides[0].key = b"tokenizer.ggml.pre"
            overrides[0].tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_STR
            overrides[0].value.val_str = pre.encode().ljust(128, b"\0")
            params.kv_overrides = overrides
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.count = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of a text."""
        data = text.encode()
        ids = (llama_cpp.llama_token * (2 * len(data) + 16))()
        count = llama_cpp.llama_tokenize(
            self.vocab, data, len(data), ids, len(ids), add_special, parse_special
        )
        return list(ids[:count])

    def decode(self, ids: list[int], skip_special: bool) -> str:
        """Text of ids."""
        room = ctypes.create_string_buffer(1024 * len(ids) + 64)
        given = (llama_cpp.llama_token * max(1, len(ids)))(*ids)
        size = llama_cpp.llama_detokenize(
            self.vocab, given, len(ids), room, len(room), False, not skip_special
        )
        return room.raw[:size].decode("utf-8", "replace")

    def specials(self) -> list[int]:
        """Unknown, control and user-defined tokens."""
        return [i for i in range(self.count) if llama_cpp.llama_vocab_get_attr(self.vocab, i) & 0b11001]

    def facts(self) -> dict[str, Any]:
        """Special ids."""
        ends = [i for i in range(self.count) if llama_cpp.llama_vocab_is_eog(self.vocab, i)]
        hidden = [i for i in range(self.count) if llama_cpp.llama_vocab_get_attr(self.vocab, i) & 0b1001]
        bos, eos = llama_cpp.llama_vocab_bos(self.vocab), llama_cpp.llama_vocab_eos(self.vocab)
        return {"n_vocab": self.count, "bos": bos, "eos": eos, "ends": ends, "hidden": hidden}


def record(path: Path, texts: int, pool: Sequence[str] = ()) -> dict[str, Any]:
    """What llama.cpp makes of random texts, some with special tokens or texts of a pool in them."""
    peer, rng = Peer(path), random.Random(path.name)
    specials = [peer.decode([token], False) for token in peer.specials()][:400]
    if path.stem in MATCHING:
        specials = []
    cases = []
    for index in range(texts):
        text = random_text(rng)
        for _ in range(3 if pool else 0):
            text += rng.choice(pool) + random_text(rng)[:3]
        for _ in range(index % 3 if specials else 0):
            at, special = rng.randrange(len(text) + 1), rng.choice(specials)
            text = (
                text[:at]
                + rng.choice(["", " ", "\n "])
                + special
                + rng.choice(["", " ", "\t \n"])
                + text[at:]
            )
        ids = {
            f"{add:d}{parse:d}": peer.encode(text, add, parse)
            for add in (False, True)
            for parse in (False, True)
        }
        decoded = [peer.decode(ids[flags], skip) for flags in ("00", "11") for skip in (False, True)]
        cases.append([text, ids, decoded])
    return peer.facts() | {"cases": cases}


def record_pre(path: Path, texts: int) -> dict[str, Any]:
    """Ids of the same texts with every known pre-tokenizer; equal rows are kept once."""
    rng = random.Random(1)
    wanted = [*TELLING, *(random_text(rng) for _ in range(texts))]
    rows: list[list[list[int]]] = []
    names = {}
    for name in PRE_TOKENIZERS:
        if name in UNCUTTABLE:
            continue
        peer = Peer(path, name)
        row = [peer.encode(text, add_special=False, parse_special=False) for text in wanted]
        if row not in rows:
            rows.append(row)
        names[name] = rows.index(row)
    return {"texts": wanted, "rows": rows, "names": names}


def cut(source: Path, target: Path, count: int) -> None:
    """Write a vocabulary of the first `count` tokens, all characters, <mask>, and the merges they allow."""
    reader = gguf.GGUFReader(source)
    values = {
        name: field.contents() for name, field in reader.fields.items() if name.startswith("tokenizer.ggml.")
    }
    texts = values["tokenizer.ggml.tokens"]
    kept = [i for i, text in enumerate(texts) if i < count or len(text) == 1 or text == "<mask>"]
    known = {texts[i] for i in kept}
    for name, value in values.items():
        if name == "tokenizer.ggml.merges":
            pairs = [merge.split(" ", 1) for merge in value]
            values[name] = [" ".join(pair) for pair in pairs if {*pair, "".join(pair)} <= known]
        elif name == "tokenizer.ggml.precompiled_charsmap":
            values[name] = bytes(byte & 255 for byte in value)
        elif name in ("tokenizer.ggml.tokens", "tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
            values[name] = [value[i] for i in kept]
        elif name == "tokenizer.ggml.mask_token_id":
            values[name] = kept.index(value)
    write(target, reader.fields["general.architecture"].contents(), values)


def write(path: Path, architecture: str, values: dict[str, Any]) -> None:
    """Write a GGUF file without tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def pack(data: bytes, name: str) -> None:
    """Write a compressed file of this folder."""
    (HERE / f"{name}.xz").write_bytes(lzma.compress(data, preset=9))


def main() -> None:
    """Make all files."""
    models = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        for name in (*WHOLE, *CUT):
            source, path = models / f"ggml-vocab-{name}.gguf", Path(folder) / f"{name}.gguf"
            if name in CUT:
                cut(source, path, CUT[name])
            else:
                shutil.copy(source, path)
                for kind in ("inp", "out"):
                    shutil.copy(source.with_suffix(f".gguf.{kind}"), HERE / f"{name}.{kind}")
            pack(path.read_bytes(), f"{name}.gguf")
            pack(json.dumps(record(path, 240), ensure_ascii=False).encode(), f"{name}.json")
        for name, make in MADE.items():
            write(Path(folder) / f"{name}.gguf", "llama", make())
            cases = record(Path(folder) / f"{name}.gguf", 160, DNA if name == "hybriddna" else [])
            pack(json.dumps(cases, ensure_ascii=False).encode(), f"{name}.json")
        pairs = Path(folder) / "pairs.gguf"
        write(pairs, "llama", pairs_vocabulary())
        pack(json.dumps(record_pre(pairs, 150), ensure_ascii=False).encode(), "pre.json")


if __name__ == "__main__":
    main()
