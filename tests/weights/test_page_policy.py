"""Where weights lie: in the map, read ahead, or copied; and the pages that they lie on."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import pytest
from graphml_models._samples import transformer

import graphml
from graphml.errors import UsageError
from graphml.system import pages
from graphml.weights import open_model
from graphml.weights.filemap import FileMap
from graphml.weights.page_policy import NUMA, PAGES, PagePolicy, chosen, settled
from tests.looped import looped
from tests.sample_models import write_model

STATM = Path("/proc/self/statm")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("page_policy") / "f32.gguf", "llama", transformer("llama"))


def test_a_call_comes_before_the_environment_and_that_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GRAPHML_PAGES", raising=False)
    monkeypatch.delenv("GRAPHML_NUMA", raising=False)
    assert chosen(None, None) == PagePolicy("ahead", "first-touch")
    monkeypatch.setenv("GRAPHML_PAGES", "copy")
    monkeypatch.setenv("GRAPHML_NUMA", "interleave")
    assert chosen(None, None) == PagePolicy("copy", "interleave")
    assert chosen("map", "first-touch") == PagePolicy("map", "first-touch")


def test_unknown_words_list_the_known(path: Path) -> None:
    with pytest.raises(UsageError, match="pages: wanted one of ahead, map, huge, copy; got 'all'"):
        graphml.load(path, pages="all")
    with pytest.raises(UsageError, match="numa: wanted one of first-touch, interleave; got 'near'"):
        graphml.load(path, numa="near")


@pytest.mark.parametrize("how", PAGES)
def test_the_weights_are_the_same_wherever_they_lie(path: Path, how: str) -> None:
    with open_model(path) as plain, settled(open_model(path), PagePolicy(how), 2) as file:
        assert list(file.tensors) == list(plain.tensors)
        for name, tensor in file.tensors.items():
            np.testing.assert_array_equal(tensor.data, plain.tensors[name].data)
            assert tensor.mapped == (how != "copy")
            assert not tensor.data.flags.writeable


@pytest.mark.parametrize(("how", "calls"), [("map", []), ("ahead", [False]), ("huge", [True])])
def test_the_system_is_asked_for_what_was_chosen(path: Path, how: str, calls: list[bool]) -> None:
    asked: list[bool] = []
    with mock.patch.object(FileMap, "will_need", lambda self, large=False: asked.append(large)):
        graphml.load(path, "reference", pages=how).close()
    assert asked == calls


@pytest.mark.skipif(not STATM.exists(), reason="the system does not tell what lies in memory")
@pytest.mark.parametrize("how", ["map", "ahead"])
def test_opening_a_large_file_takes_no_memory(tmp_path: Path, how: str) -> None:
    """A file of 600 MB that is nearly all holes: who read its weights would have them in memory."""
    large = tmp_path / "large.gguf"
    writer = gguf.GGUFWriter(large, "llama")
    for key, value in transformer("llama").metadata.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(key, value)
    writer.add_tokenizer_model("no_vocab")
    writer.add_tensor_info("token_embd.weight", (80, 64), np.float32, 80 * 64 * 4)
    writer.add_tensor_info("other.weight", (150 << 10, 1 << 10), np.float32, 600 << 20)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with large.open("r+b") as file:
        file.truncate(large.stat().st_size + 64 + 80 * 64 * 4 + (600 << 20))

    def resident() -> int:
        return int(STATM.read_text().split()[1]) * mmap.PAGESIZE

    before = resident()
    model = graphml.load(large, "reference", pages=how)
    assert resident() - before < 50 << 20
    touched = int(model.executor.weights["other.weight"].sum())
    assert touched == 0
    assert resident() - before > 500 << 20
    model.executor.file.forget_pages()
    assert resident() - before < 50 << 20
    model.close()


@looped("large", [False, True])
@looped("n_bytes", [0, 1, 5000, 5 << 20])
def test_fresh_pages_are_zeros_of_that_size(n_bytes: int, large: bool) -> None:
    found = pages.fresh(n_bytes, large)
    assert found.shape == (n_bytes,)
    assert found.flags.writeable
    assert not found.any()


def test_nodes_are_read_from_the_systems_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_NODES", tmp_path / "online")
    assert pages.nodes() == [0]
    (tmp_path / "online").write_text("0-2,5\n")
    assert pages.nodes() == [0, 1, 2, 5]


def test_interleaving_asks_for_all_nodes_and_puts_the_policy_back(path: Path) -> None:
    asked: list[tuple[object, ...]] = []

    def call(number: int, *arguments: object) -> None:
        asked.append((number, arguments[0], [*arguments[1]] if arguments[1] is not None else None))  # type: ignore[misc]

    with (
        mock.patch.object(pages, "_call", call),
        mock.patch.object(pages, "nodes", return_value=[0, 3, 65]),
        mock.patch.object(pages.platform, "machine", return_value="x86_64"),
        mock.patch.object(pages.sys, "platform", "linux"),
        pages.interleaved(),
    ):
        assert asked[1] == (238, 3, [0b1001, 2, *[0] * 14])
    assert asked[2] == (238, 0, None)
    with (
        mock.patch.object(pages.platform, "machine", return_value="vax"),
        pytest.raises(UsageError, match="numa: this system cannot interleave memory; wanted first-touch"),
    ):
        graphml.load(path, "reference", numa="interleave")


def test_a_system_that_refuses_says_why() -> None:
    with (
        mock.patch.object(pages, "_CALLS", {"x86_64": (-1, -1), "aarch64": (-1, -1)}),
        pytest.raises(UsageError, match=r"numa: .*\(Function not implemented\)|cannot interleave"),
        pages.interleaved(),
    ):
        pass
    assert len(NUMA) == 2


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system cannot be asked to forget a file")
def test_a_file_that_is_let_go_leaves_memory(tmp_path: Path) -> None:
    """`mincore` tells which pages of a map are in memory, touched or not."""
    path, n_pages = tmp_path / "written", 256
    path.write_bytes(b"x" * n_pages * mmap.PAGESIZE)

    def in_memory() -> int:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as map:
            found = (ctypes.c_ubyte * n_pages)()
            address = np.frombuffer(map, np.uint8).ctypes.data
            asked = ctypes.CDLL(None, use_errno=True).mincore(
                ctypes.c_void_p(address), ctypes.c_size_t(len(map)), found
            )
            assert asked == 0
            return sum(page & 1 for page in found)

    kind = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True).stdout.strip()
    if kind in ("tmpfs", "ramfs", "overlayfs"):
        pytest.skip(f"a file of {kind} cannot leave memory so")
    assert in_memory() > 0
    with path.open("rb") as file:
        pages.let_go(file.fileno())
    assert in_memory() == 0
    assert path.read_bytes() == b"x" * n_pages * mmap.PAGESIZE
