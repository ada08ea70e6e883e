"""Bad GGUF files: each gives one WeightsError that names the file and the key or tensor."""

import struct
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphml.errors import WeightsError
from graphml.weights import open_model
from tests.weights import gguf_bytes as g

ONE = g.scalar(g.U32, "I", 1)
BIG = 2**64 - 1
DATA = bytes(256)


def tensors(*some, data=DATA, **more):
    return g.file([("k", ONE)], list(some), data, **more)


BAD = {
    "magic only": (b"GGUF", "version.*truncated"),
    "half a version": (b"GGUF\3\0", "version.*truncated"),
    "version 0": (g.file(version=0), "version 0, known are 1, 2 and 3"),
    "version 4": (g.file(version=4), "version 4, known are 1, 2 and 3"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 1), "big-endian.*little-endian"),
    "huge number of keys": (g.file(n_keys=BIG), "18446744073709551615 keys, at most 0 fit"),
    "huge number of tensors": (g.file(n_tensors=1 << 63), "tensors, at most 0 fit"),
    "more keys than there are": (g.file([("k", ONE)] * 1, n_keys=2), "2 keys, at most 1 fit"),
    "keys run out": (g.file([("k", g.text("x" * 99))], n_keys=2), "key 1 of 2.*truncated"),
    "huge key": (
        g.file([("k", ONE), ("z" * 40, ONE)])[:41] + struct.pack("<Q", BIG) + b"x" * 50,
        "key 1 of 2",
    ),
    "key longer than allowed": (g.file([("x" * 65536, ONE)]), "key 0 of 1.*65536 bytes, at most 65535"),
    "empty key": (g.file([("", ONE)]), "key ''.*is empty"),
    "key not UTF-8": (g.file([(b"\xff\xfe", ONE)]), "key 0 of 1.*not UTF-8"),
    "key twice": (g.file([("k", ONE), ("k", ONE)]), "key 'k'.*appears twice"),
    "value type 13": (g.file([("k", struct.pack("<IQ", 13, 0))]), "key 'k'.*unknown value type 13"),
    "element type 13": (g.file([("k", g.array(13, DATA, 1))]), "key 'k'.*unknown value type 13"),
    "value cut": (g.file([("k", g.scalar(g.U64, "Q", 1)[:-1])]), "key 'k'.*truncated"),
    "huge text": (g.file([("k", g.text("abc", BIG))]), "key 'k'.*18446744073709551615 bytes, at most"),
    "text beyond the end": (g.file([("k", g.text("abc", 4))]), "key 'k'.*truncated"),
    "huge array": (g.file([("k", g.array(g.F64, b"", 1 << 61))]), "key 'k'.*truncated"),
    "array beyond the end": (g.file([("k", g.array(g.U16, b"12345", 3))]), "key 'k'.*truncated"),
    "huge string array": (g.file([("k", g.texts(["a"], BIG))]), "key 'k'.*strings, at most"),
    "string array beyond": (g.file([("k", g.texts(["a"] * 9, 12))]), "key 'k'.*truncated"),
    "last string cut": (g.file([("k", g.texts(["abc"] * 999))])[:-1], "key 'k'.*string 998 of 999"),
    "huge string inside": (
        g.file([("k", g.array(g.STRING, g.string("a", BIG) + DATA, 2))]),
        "key 'k'.*string 0 of 2",
    ),
    "array of arrays": (
        g.file([("k", g.array(g.ARRAY, g.array(g.ARRAY, b"", 9), 1))]),
        "key 'k'.*array of arrays",
    ),
    "alignment 0": (g.file([("general.alignment", g.scalar(g.U32, "I", 0))]), "'general.alignment'.*got 0"),
    "alignment 4": (g.file([("general.alignment", g.scalar(g.U32, "I", 4))]), "'general.alignment'.*got 4"),
    "alignment 48": (
        g.file([("general.alignment", g.scalar(g.U32, "I", 48))]),
        "'general.alignment'.*got 48",
    ),
    "alignment is text": (g.file([("general.alignment", g.text("32"))]), "'general.alignment'.*got string"),
    "alignment past the end": (
        g.file([("general.alignment", g.scalar(g.U32, "I", 1 << 31))], [g.tensor("t", [1], 0, 0)]),
        "tensor 't'.*truncated",
    ),
    "tensor without a name": (tensors(g.tensor("", [1], 0, 0)), "tensor ''.*has no name"),
    "tensor name not UTF-8": (tensors(g.tensor(b"\x80", [1], 0, 0)), "name of tensor 0 of 1.*not UTF-8"),
    "tensor twice": (
        tensors(g.tensor("t", [1], 0, 0), g.tensor("t", [1], 0, 32)),
        "tensor 't'.*appears twice",
    ),
    "no dimensions": (tensors(g.tensor("t", [], 0, 0)), "tensor 't'.*0 dimensions, wanted 1 to 4"),
    "five dimensions": (tensors(g.tensor("t", [1] * 5, 0, 0)), "tensor 't'.*5 dimensions, wanted 1 to 4"),
    "2**32-1 dimensions": (
        tensors(g.string("t") + struct.pack("<I", 2**32 - 1)),
        "tensor 't'.*4294967295 dimensions",
    ),
    "empty dimension": (tensors(g.tensor("t", [32, 0], 8, 0)), "tensor 't'.*no empty dimension"),
    "negative dimension": (tensors(g.tensor("t", [BIG], 0, 0)), "tensor 't'.*truncated or damaged"),
    "sizes that overflow": (
        tensors(g.tensor("t", [1 << 32, 1 << 32], 0, 0)),
        "tensor 't'.*truncated or damaged",
    ),
    "rows of half blocks": (
        tensors(g.tensor("t", [48, 2], 8, 0)),
        r"tensor 't'.*whole blocks of 32 \(q8_0\)",
    ),
    "type 4, removed": (tensors(g.tensor("t", [32], 4, 0)), "tensor 't'.*type 4"),
    "type 999": (tensors(g.tensor("t", [32], 999, 0)), "tensor 't'.*type 999"),
    "offset not aligned": (tensors(g.tensor("t", [1], 0, 4)), "tensor 't'.*offset 4 is not a multiple.*32"),
    "offset past the end": (tensors(g.tensor("t", [1], 0, 256)), "tensor 't'.*truncated or damaged"),
    "offset that overflows": (
        tensors(g.tensor("t", [64], 0, 2**64 - 32)),
        "tensor 't'.*truncated or damaged",
    ),
    "data cut": (tensors(g.tensor("t", [64], 0, 0))[:-1], "tensor 't'.*truncated or damaged"),
    "overlap": (
        tensors(g.tensor("a", [16], 0, 0), g.tensor("b", [1], 0, 32)),
        "tensor 'b'.*overlaps tensor 'a'",
    ),
    "tensors run out": (
        tensors(g.tensor("a" * 60, [1], 0, 0), n_tensors=2, data=b""),
        "tensor 1 of 2.*truncated",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_by_name(tmp_path, name):
    content, message = BAD[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message) as caught:
        open_model(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 2000


def test_bad_values_are_named_when_they_are_read(tmp_path):
    path = tmp_path / "late.gguf"
    bad = {
        "text": (g.text(b"ab\xff"), "key 'text': not UTF-8"),
        "words": (g.texts(["a"] * 2000 + [b"\xc3"] + ["b"]), "key 'words': string 2000: not UTF-8"),
        "bool": (g.scalar(g.BOOL, "B", 2), "key 'bool': a bool is stored as 2"),
        "bools": (g.array(g.BOOL, b"\0\1\7", 3), "key 'bools': a bool is stored as 7"),
    }
    path.write_bytes(g.file([(key, value) for key, (value, _) in bad.items()]))
    metadata = open_model(path).metadata
    for key, (_, message) in bad.items():
        with pytest.raises(WeightsError, match=message):
            metadata[key]


def test_unusual_paths(tmp_path):
    (tmp_path / "empty.gguf").touch()
    for path, message in (
        (tmp_path / "none.gguf", "is not there"),
        (tmp_path, "is a folder"),
        (tmp_path / "empty.gguf", "is empty"),
    ):
        with pytest.raises(WeightsError, match=message):
            open_model(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x00" * 100, "begins with b'.x00"),
        (b"hi", "begins with b'hi'"),
        (b"PK\x03\x04" + bytes(50), "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (struct.pack("<Q", 90) + b'{"a":' + bytes(99), "safetensors"),
        (b"<!DOCTYPE html>", "web page"),
        (b"24ka" + bytes(300), "later version"),
    ],
)
def test_unknown_kinds_say_what_is_known_and_what_came(tmp_path, content, message):
    path = tmp_path / "strange.bin"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message) as caught:
        open_model(path)
    assert "Known are GGUF" in str(caught.value)


def real_like() -> bytes:
    """A header with everything that real ones have, small."""
    keys = [
        ("general.architecture", g.text("llama")),
        ("general.alignment", g.scalar(g.U32, "I", 32)),
        ("llama.block_count", g.scalar(g.U32, "I", 2)),
        ("llama.rope.freq_base", g.scalar(g.F32, "f", 1e4)),
        ("tokenizer.ggml.tokens", g.texts([f"\u2581t{index}" for index in range(80)])),
        ("tokenizer.ggml.scores", g.array(g.F32, bytes(320), 80)),
        ("tokenizer.ggml.add_bos_token", g.scalar(g.BOOL, "B", 1)),
        ("split.count", g.scalar(g.U16, "H", 0)),
    ]
    some = [
        g.tensor("token_embd.weight", [32, 8], 8, 0),
        g.tensor("blk.0.attn_norm.weight", [32], 0, 288),
        g.tensor("blk.0.ffn_up.weight", [32, 4, 2], 3, 416),
    ]
    return g.file(keys, some, bytes(576))


def mutated(raw: bytes, edits: list[tuple[str, float, int]]) -> bytes:
    out = bytearray(raw)
    for kind, where, value in edits:
        at = int(where * (len(out) - 1)) if out else 0
        if kind == "flip" and out:
            out[at] ^= 1 << value % 8
        elif kind == "byte" and out:
            out[at] = value % 256
        elif kind == "u32":
            out[at : at + 4] = struct.pack("<I", value % 2**32)
        elif kind == "u64":
            out[at : at + 8] = struct.pack("<Q", value)
        elif kind == "insert":
            out[at:at] = struct.pack("<Q", value)
        elif kind == "delete":
            del out[at : at + value % 16]
        elif kind == "repeat":
            out[at:at] = out[at : at + value % 256]
        elif kind == "cut":
            del out[at:]
    return bytes(out)


COUNTS = st.one_of(
    st.sampled_from([0, 1, 7, 255, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1]), st.integers(0, BIG)
)
KINDS = st.sampled_from(["flip", "byte", "u32", "u64", "insert", "delete", "repeat", "cut"])
# Three quarters of the edits fall into the first sixth: counts, keys and types stand there.
PLACES = st.one_of(st.floats(0, 0.16), st.floats(0, 1))


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(KINDS, PLACES, COUNTS), min_size=1, max_size=4))
def test_fuzz_any_mutation_opens_or_is_refused_in_bounded_time_and_memory(tmp_path, edits):
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(b"GGUF" + mutated(real_like(), edits)[4:])
    start = time.perf_counter()
    tracemalloc.start()
    refusal = f"{path}: "
    try:
        read_everything(path)
    except WeightsError as error:
        refusal = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert refusal.startswith(f"{path}: ")
    assert peak < 4 << 20
    assert time.perf_counter() - start < 20  # no hang


def read_everything(path) -> None:
    with open_model(path) as model:
        for key in model.metadata:
            str(model.metadata.describe(key))
            model.metadata[key]
        for tensor in model.tensors.values():
            assert tensor.numpy().shape == tensor.shape


def test_every_truncation_is_refused(tmp_path):
    path = tmp_path / "cut.gguf"
    raw = real_like()
    path.write_bytes(raw)
    read_everything(path)
    for length in range(0, len(raw), 7):
        path.write_bytes(raw[:length])
        with pytest.raises(WeightsError):
            open_model(path)


def test_millions_of_empty_strings_end_soon(tmp_path):
    path = tmp_path / "zeros.gguf"
    path.write_bytes(g.file([("k", g.array(g.STRING, bytes(8 << 20), 1 << 20))]))
    start = time.perf_counter()
    open_model(path)
    assert time.perf_counter() - start < 30  # no hang
    path.write_bytes(g.file([("k", g.array(g.STRING, bytes(8 << 20), (1 << 24) + 1))]))
    with pytest.raises(WeightsError, match="at most 16777216"):
        open_model(path)
