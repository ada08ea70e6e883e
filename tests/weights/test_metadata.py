from pathlib import Path

import pytest

from graphml.errors import WeightsError
from graphml.weights.metadata import Metadata, StoredValue


def stored(value, type):
    if isinstance(value, list):
        return StoredValue(type, len(value), lambda limit: value[:limit])
    return StoredValue(type, None, lambda limit: value)


@pytest.fixture
def metadata():
    return Metadata(
        Path("model.gguf"),
        {
            "name": stored("tiny", "string"),
            "heads": stored(8, "u32"),
            "base": stored(10000.5, "f32"),
            "norm": stored(True, "bool"),
            "heads_of": stored([1, 2, 3], "i32"),
            "scores": stored([0.5, 1.5], "f32"),
            "sliding": stored([True, False], "bool"),
            "words": stored(["a", "b", "c", "d", "e"], "string"),
        },
        {"tokenizer.": "no tokenizer file beside it"},
    )


def test_typed_reads(metadata):
    assert metadata.text("name") == "tiny"
    assert metadata.integer("heads") == 8
    assert metadata.number("base") == 10000.5
    assert metadata.boolean("norm") is True
    assert metadata.integers("heads_of") == [1, 2, 3]
    assert metadata.numbers("scores") == [0.5, 1.5]
    assert metadata.booleans("sliding") == [True, False]
    assert metadata.texts("words") == ["a", "b", "c", "d", "e"]
    assert metadata.unread() == []


def test_integers_are_numbers_too(metadata):
    assert isinstance(metadata.number("heads"), float)
    assert all(isinstance(value, float) for value in metadata.numbers("heads_of"))


def test_defaults(metadata):
    assert metadata.integer("none", 3) == 3
    assert metadata.integer("none", default=None) is None
    assert metadata.number("none", 1) == 1
    assert metadata.text("none", "x") == "x"
    assert metadata.boolean("none", False) is False
    assert metadata.integers("none", []) == []
    assert metadata.texts("none", None) is None


def test_reads_are_remembered_and_looks_are_not(metadata):
    every = list(metadata)
    metadata.has("heads"), metadata.describe("heads"), metadata.is_array("heads"), "heads" in metadata
    assert "'name': 'tiny'" in repr(metadata)
    assert metadata.unread() == every
    metadata.integer("heads")
    assert metadata["name"] == "tiny"
    assert metadata.unread() == [key for key in every if key not in ("heads", "name")]
    with pytest.raises(WeightsError):
        metadata.text("norm")
    assert "norm" in metadata.unread()


def test_one_for_all_layers_or_one_for_each(metadata):
    assert metadata.integers("heads", length=4) == [8, 8, 8, 8]
    assert metadata.integers("heads_of", length=3) == [1, 2, 3]
    with pytest.raises(WeightsError, match=r"'heads_of': wanted 4 integers, got an array of 3 x i32"):
        metadata.integers("heads_of", length=4)
    with pytest.raises(WeightsError, match="at most"):
        metadata.integers("heads", length=1 << 40)


@pytest.mark.parametrize(
    ("read", "key", "message"),
    [
        ("integer", "name", "wanted an integer, got string 'tiny'"),
        ("integer", "norm", "wanted an integer, got bool True"),
        ("integer", "base", "wanted an integer, got f32 10000.5"),
        ("integer", "heads_of", "wanted an integer, got an array of 3 x i32"),
        ("number", "name", "wanted a number, got string"),
        ("boolean", "heads", "wanted a bool, got u32 8"),
        ("text", "words", "wanted a string, got an array of 5 x string"),
        ("integers", "heads", "wanted an array of integers, got u32 8"),
        ("texts", "heads_of", "wanted an array of strings, got an array of 3 x i32"),
        ("integer", "none", "wanted an integer, but the file has no such key"),
        ("text", "tokenizer.model", "no such key .no tokenizer file beside it"),
    ],
)
def test_errors_name_file_key_wanted_and_got(metadata, read, key, message):
    with pytest.raises(WeightsError, match=message) as caught:
        getattr(metadata, read)(key)
    assert "model.gguf" in str(caught.value)
    assert repr(key) in str(caught.value)


def test_mapping(metadata):
    assert len(metadata) == 8
    assert metadata.get("none") is None
    assert dict(metadata)["heads"] == 8
    with pytest.raises(KeyError):
        metadata["none"]


def test_descriptions_are_short_and_safe():
    metadata = Metadata(
        Path("x"),
        {
            "long": stored("x" * 10_000, "string"),
            "escape": stored("\x1b[2Jgone", "string"),
            "many": stored(list(range(100_000)), "u32"),
            "texts": stored(["\x1b" * 1000] * 9, "string"),
        },
    )
    assert str(metadata.describe("many")) == "many: u32[100000] = [0, 1, 2, 3, ...]"
    for key in metadata:
        description = metadata.describe(key)
        assert len(description.preview) < 400
        assert description.preview.isprintable()
    with pytest.raises(WeightsError, match="'none'"):
        metadata.describe("none")
