"""The reader against the gguf package: what it writes, we read; what it reads, we read too."""

import tracemalloc

import gguf
import graphml_quant
import numpy as np
import pytest

from graphml.errors import WeightsError
from graphml.weights import open_model
from tests.weights import gguf_bytes as g

F32, Q4_1, Q8_0 = (
    gguf.GGMLQuantizationType.F32,
    gguf.GGMLQuantizationType.Q4_1,
    gguf.GGMLQuantizationType.Q8_0,
)


@pytest.fixture
def sample(tmp_path):
    path = tmp_path / "sample.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    rng = np.random.default_rng(1)
    writer.add_uint8("k.u8", 255)
    writer.add_int8("k.i8", -128)
    writer.add_uint16("k.u16", 65535)
    writer.add_int16("k.i16", -5)
    writer.add_uint32("k.u32", 1 << 31)
    writer.add_int32("k.i32", -7)
    writer.add_float32("k.f32", 0.25)
    writer.add_uint64("k.u64", 1 << 63)
    writer.add_int64("k.i64", -(1 << 62))
    writer.add_float64("k.f64", 1e300)
    writer.add_bool("k.bool", True)
    writer.add_string("k.text", "grüße 你好")
    writer.add_array("k.integers", [1, -2, 3])
    writer.add_array("k.floats", [0.5, 1.5])
    writer.add_array("k.bools", [True, False, True])
    writer.add_array("k.texts", ["", "a", "\u2581the", "\0\0\0\0\0\0\0\0"] * 500)
    writer.add_tensor("f32", rng.standard_normal((3, 5), np.float32))
    writer.add_tensor("f16", rng.standard_normal((2, 3, 4)).astype(np.float16))
    for kind in (Q4_1, Q8_0):
        data = gguf.quants.quantize(rng.standard_normal((6, 64), np.float32), kind)
        writer.add_tensor(kind.name.lower(), data, raw_dtype=kind)
    for dtype in (np.int8, np.int16, np.int32, np.int64, np.float64):
        writer.add_tensor(np.dtype(dtype).name, np.arange(-3, 4).astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_every_key_is_what_the_gguf_package_reads(sample):
    reader = gguf.GGUFReader(sample)
    model = open_model(sample)
    wanted = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert len(wanted) == 17
    assert dict(model.metadata) == wanted
    assert [type(value) for value in model.metadata.values()] == [type(value) for value in wanted.values()]


def test_every_tensor_is_what_the_gguf_package_reads(sample):
    reader = gguf.GGUFReader(sample)
    model = open_model(sample)
    assert list(model.tensors) == [tensor.name for tensor in reader.tensors]
    for theirs in reader.tensors:
        ours = model.tensors[theirs.name]
        assert ours.dtype == theirs.tensor_type.name.lower()
        assert ours.shape == tuple(reversed(theirs.shape.tolist()))
        assert ours.n_elements == theirs.n_elements
        assert ours.n_bytes == theirs.n_bytes
        assert ours.data.dtype == np.uint8
        assert ours.data.tobytes() == theirs.data.tobytes()
        decoded = ours.numpy()
        assert decoded.shape == ours.shape
        assert decoded.dtype == (
            np.dtype(ours.name) if ours.name.startswith(("int", "float")) else np.float32
        )
        wanted = theirs.data
        if theirs.tensor_type in (Q4_1, Q8_0):
            wanted = gguf.quants.dequantize(theirs.data, theirs.tensor_type)
        np.testing.assert_array_equal(decoded, wanted.astype(decoded.dtype).reshape(ours.shape))


def test_tensors_are_views_on_the_map_and_cannot_be_written(sample):
    model = open_model(sample)
    data = model.tensors["q8_0"].data
    assert not data.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        model.tensors["int32"].numpy()[0] = 1
    assert model.n_bytes == sample.stat().st_size
    assert model.n_weight_bytes == sum(tensor.n_bytes for tensor in model.tensors.values())
    model.will_need()


def test_a_closed_file_says_so_and_its_tensors_live_on(sample):
    with open_model(sample) as model:
        data = model.tensors["f32"].data
        before = data.tobytes()
    assert data.tobytes() == before
    assert not model.tensors
    with pytest.raises(WeightsError, match="closed"):
        model.metadata.text("k.text")
    model.close()
    model.will_need()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_versions(tmp_path, version):
    path = tmp_path / "old.gguf"
    words = ["a", "", "long" * 100] * 50
    path.write_bytes(
        g.file(
            [
                ("general.architecture", g.text("llama", version=version)),
                ("words", g.texts(words, version=version)),
                ("numbers", g.array(g.I16, np.arange(9, dtype="<i2").tobytes(), 9, version)),
                ("u8", g.scalar(g.U8, "B", 9)),
            ],
            [g.tensor("t", [2, 3], 0, 0, version), g.tensor("u", [2], 26, 32, version)],
            np.arange(8, dtype="<f4").tobytes() + np.array([5, 6], "<i4").tobytes(),
            version,
        )
    )
    model = open_model(path)
    assert model.metadata.texts("words") == words
    assert model.metadata.integers("numbers") == list(range(9))
    assert model.metadata.integer("u8") == 9
    np.testing.assert_array_equal(model.tensors["t"].numpy(), np.arange(6).reshape(3, 2))
    assert model.tensors["u"].numpy().tolist() == [5, 6]


def test_alignment_is_honoured(tmp_path):
    path = tmp_path / "aligned.gguf"
    alignment = ("general.alignment", g.scalar(g.U32, "I", 256))
    data = b"\1\0\0\0".ljust(256, b"\0") + b"\2\0\0\0"
    path.write_bytes(
        g.file([alignment], [g.tensor("b", [1], 26, 256), g.tensor("a", [1], 26, 0)], data, 3, 256)
    )
    model = open_model(path)
    assert [(name, tensor.numpy().tolist()) for name, tensor in model.tensors.items()] == [
        ("b", [2]),
        ("a", [1]),
    ]


def test_a_file_of_keys_only_may_end_with_them(tmp_path):
    path = tmp_path / "vocabulary.gguf"
    path.write_bytes(
        g.file([("a", g.scalar(g.BOOL, "B", 1)), ("empty", g.texts([])), ("e", g.array(g.F32, b"", 0))])
    )
    metadata = open_model(path).metadata
    assert metadata.boolean("a") is True
    assert metadata.texts("empty") == []
    assert metadata.numbers("e") == []


@pytest.mark.parametrize("ggml_type", [0, 1, 2, 3, 6, 7, 8, 24, 25, 26, 27, 28, 30])
def test_sizes_agree_with_the_gguf_package(tmp_path, ggml_type):
    path = tmp_path / "one.gguf"
    elements, n_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(ggml_type)]
    path.write_bytes(g.file([], [g.tensor("t", [2 * elements, 3], ggml_type, 0)], bytes(6 * n_bytes)))
    tensor = open_model(path).tensors["t"]
    assert tensor.n_bytes == 6 * n_bytes
    assert not tensor.numpy().any()
    assert tensor.dtype in {*graphml_quant.formats(), "i8", "i16", "i32", "i64", "f64"}


def test_a_large_vocabulary_opens_without_a_look_at_its_words(tmp_path):
    """How fast: benchmarks/opening.py."""
    path = tmp_path / "large.gguf"
    words = [f"word{index * 7919 % 262_144}" for index in range(262_144)]
    pairs = [f"{index} {index + 1}" for index in range(500_000)]
    scores = np.arange(262_144, dtype="<f4").tobytes()
    keys = [
        ("tokens", g.texts(words)),
        ("merges", g.texts(pairs)),
        ("scores", g.array(g.F32, scores, 262_144)),
    ]
    path.write_bytes(g.file(keys))

    tracemalloc.start()
    metadata = open_model(path).metadata
    assert metadata.describe("merges").preview == "['0 1', '1 2', '2 3', '3 4', ...]"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20  # the words alone, decoded, take 15 MB
    assert metadata.texts("tokens") == words
    assert metadata.unread() == ["merges", "scores"]
