"""Safetensors files, damaged and hostile ones too: one clear error, and no byte from outside the file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphml.errors import GraphmlError, WeightsError
from graphml.loading.open_file import open_path
from graphml.weights.filemap import FileMap
from graphml.weights.safetensors import read_safetensors
from tests.folders.test_folders_of_transformers import about, folder


def written(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> FileMap:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return FileMap(path)


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_tensors_are_views_of_the_map(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0], np.float32)
    file = written(tmp_path / "m.safetensors", {"__metadata__": {"a": "b"}, "x": entry()}, values.tobytes())
    (found,) = read_safetensors(file).values()
    assert (found.name, found.dtype, found.shape) == ("x", "F32", (2,))
    assert np.array_equal(found.data.view(np.float32), values)
    assert np.shares_memory(found.data, file.data)


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"x": entry("F99")}, "dtype: wanted one of"),
        ({"x": entry(shape=[-2])}, "shape: wanted"),
        ({"x": entry(shape="2")}, "shape: wanted"),
        ({"x": entry(shape=[1 << 60, 1 << 60])}, "shape: wanted"),
        ({"x": entry(offsets=[0, 9])}, "truncated or damaged"),
        ({"x": entry(offsets=[8, 0])}, "truncated or damaged"),
        ({"x": entry(offsets=[0, 4])}, "takes 8 bytes; data_offsets 4"),
        ({"x": entry(offsets=[0])}, "data_offsets: wanted two"),
        ({"x": entry(offsets=[True, 8])}, "data_offsets: wanted two"),
        ({"x": entry(), "y": entry("F32", [1], [4, 8])}, "overlaps tensor"),
        ({"x": 3}, "wanted an object"),
        ([1], "wanted a JSON object"),
        (b"{", "wanted JSON"),
        (b"\xff", "wanted JSON"),
        (b'{"x": 1, "x": 2}', "appears twice"),
        (b"[" * 100_000, "wanted JSON"),
    ],
)
def test_a_wrong_header_is_one_clear_error(header: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=told):
        read_safetensors(written(tmp_path / "m.safetensors", header, bytes(8)))


@pytest.mark.parametrize("length", [1 << 63, 200_000_000, 9])
def test_a_length_of_the_header_beyond_the_file_is_refused(length: int, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="header: a length of"):
        read_safetensors(written(tmp_path / "m.safetensors", b"{}", length=length))


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 400), byte=st.integers(0, 255), cut=st.booleans())
def test_a_changed_byte_opens_or_is_refused(
    place: int, byte: int, cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("byte")
    good = {"x": entry(), "y": entry("F16", [2, 2], [8, 16])}
    written(path / "m.safetensors", good, bytes(16)).close()
    raw = bytearray((path / "m.safetensors").read_bytes())
    raw[place % len(raw)] = byte
    (path / "m.safetensors").write_bytes(bytes(raw[: place % len(raw) + 1] if cut else raw))
    with contextlib.suppress(WeightsError):
        for one in read_safetensors(FileMap(path / "m.safetensors")).values():
            assert one.data.nbytes <= len(raw)


def sharded(path: Path, count: int = 2) -> Path:
    """The folder of a record in several files with an index."""
    from safetensors.numpy import load_file, save_file

    made = folder(path, "qwen3")
    whole = load_file(made / "model.safetensors")
    (made / "model.safetensors").unlink()
    weight_map = {}
    for i in range(count):
        name = f"model-{i + 1:05}-of-{count:05}.safetensors"
        part = {one: values for j, (one, values) in enumerate(whole.items()) if j % count == i}
        save_file(part, made / name)
        weight_map |= dict.fromkeys(part, name)
    (made / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return made


def test_shards_are_one_model(tmp_path: Path) -> None:
    with open_path(sharded(tmp_path / "parts")) as parts, open_path(folder(tmp_path, "qwen3")) as whole:
        assert set(parts.tensors) == set(whole.tensors)
        for name, tensor in whole.tensors.items():
            assert np.array_equal(parts.tensors[name].numpy(), tensor.numpy())


def test_missing_shards_and_tensors_are_told(tmp_path: Path) -> None:
    path = sharded(tmp_path / "a")
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002.safetensors is not there: 1 of 2"):
        open_path(path)
    path = sharded(tmp_path / "b")
    index = json.loads((path / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.extra.weight"] = "model-00001-of-00002.safetensors"
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"'model.extra.weight' is missing"):
        open_path(path)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/model.safetensors", "model.bin", 3])
def test_an_index_names_files_beside_it_alone(name: object, tmp_path: Path) -> None:
    path = sharded(tmp_path)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(WeightsError, match="wanted names of safetensors files beside it"):
        open_path(path)


def test_pickles_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = folder(tmp_path, "qwen3")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"pytorch_model.bin is a pickle: reading it runs"):
        open_path(path)
    (path / "pytorch_model.bin").unlink()
    with pytest.raises(WeightsError, match=r"wanted model.safetensors or"):
        open_path(path)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_value_in_a_config_opens_or_is_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = data.draw(st.sampled_from(["llama", "gemma3", "deepseek_v3", "mamba2", "falcon"]))
    field = data.draw(st.sampled_from(sorted(about(name)[0])))
    numbers = st.one_of(st.integers(-2, 1 << 70), st.floats(), st.booleans())
    others = st.one_of(st.text(max_size=5), st.lists(st.integers(), max_size=2), st.just({"a": {}}))
    value = data.draw(numbers | others)
    path = folder(tmp_path_factory.mktemp("field"), name, **{field: value})
    with contextlib.suppress(GraphmlError):
        open_path(path).close()
