"""Who may write in the folders that code is loaded from, and what is done with folders of others."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from graphml_cpu import kernel_cache
from graphml_cpu.compiler import KernelRef
from graphml_cpu.kernel_cache import Artifact

from graphml.backend import tuning_file
from graphml.system import cache_access

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no owners and permission bits")

REF = KernelRef("k", "graphml_cpu.kernels.nowhere", "make_k", ("f32", 4))
ARTIFACT = Artifact(kernel_cache.symbol_of(REF), (("x", "address"),), (), b"\x90\x0a\x90")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and nobody warned yet."""
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "deep" / "cache"))
    monkeypatch.setattr(cache_access, "_told", set())
    return tmp_path / "deep" / "cache"


@pytest.fixture
def kernels(root: Path) -> Path:
    """The folder of kernels, with one."""
    where = kernel_cache.folder()
    kernel_cache.write(where, REF, ARTIFACT)
    assert kernel_cache.read(where, REF) == ARTIFACT
    assert kernel_cache.usable_folder() == where
    return where


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_of_code_are_closed_to_others_whatever_the_umask(root: Path) -> None:
    before = os.umask(0o002)
    try:
        tuning_file.write(tuning_file.path(), [])
        kernel_cache.write(kernel_cache.folder(), REF, ARTIFACT)
    finally:
        os.umask(before)
    where = kernel_cache.folder()
    assert [mode(place) for place in (root, where.parent, where)] == [0o755, 0o700, 0o700]
    (file,) = where.iterdir()
    assert mode(file) == 0o600
    assert kernel_cache.usable_folder() == where


def test_folders_that_others_could_read_are_closed(kernels: Path) -> None:
    kernels.chmod(0o755)
    kernels.parent.chmod(0o755)
    assert kernel_cache.usable_folder() == kernels
    kernel_cache.write(kernels, REF, ARTIFACT)
    assert [mode(kernels.parent), mode(kernels)] == [0o700, 0o700]


@pytest.mark.parametrize("up", [0, 1, 2])
@pytest.mark.parametrize("bits", [0o770, 0o757])
def test_a_folder_that_others_can_write_is_refused_with_one_warning(
    up: int, bits: int, kernels: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = [kernels, *kernels.parents][up]
    place.chmod(bits)
    assert kernel_cache.usable_folder() is None
    assert kernel_cache.usable_folder() is None
    (line,) = caplog.messages
    assert f"{place} has mode 0{bits:o}" in line
    assert f"chmod go-w {place}" in line
    place.chmod(0o700)
    assert kernel_cache.usable_folder() == kernels


def test_a_folder_of_another_user_is_refused_with_one_warning(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 54321)
    assert kernel_cache.usable_folder() is None
    assert kernel_cache.usable_folder() is None
    (line,) = caplog.messages
    assert f"user {owner}" in line
    assert f"wanted user {owner + 54321}" in line
    assert "GRAPHML_CACHE" in line
    assert kernel_cache.read(kernels, REF) is None  # nor is a single file of theirs


def test_a_file_that_others_can_write_is_not_loaded(kernels: Path) -> None:
    (file,) = kernels.iterdir()
    file.chmod(0o620)
    assert kernel_cache.read(kernels, REF) is None


def test_the_cache_folder_itself_may_be_open_to_all_as_tmp_is(kernels: Path) -> None:
    root = kernels.parent.parent
    root.chmod(0o1777)
    assert kernel_cache.usable_folder() == kernels
    kernels.chmod(0o1777)  # not so for the files
    assert kernel_cache.usable_folder() is None


def test_systems_without_owners_use_every_folder(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.chmod(0o777)
    monkeypatch.setattr(sys, "platform", "win32")
    assert kernel_cache.usable_folder() == kernels
