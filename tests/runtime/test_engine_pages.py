"""The pages of an engine's keys and values: large ones, which are not touched all at once."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest
from graphml_cpu import state

import graphml
from graphml.system import pages
from tests import tiny_model


def test_large_pages_begin_behind_the_small_head(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Pages(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            asked.append((start, length))

    monkeypatch.setattr(mmap, "mmap", Pages)
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    head = 3 * mmap.PAGESIZE
    made = pages.fresh(5 * pages.LARGE_BYTES + 3, large=True, small_head=head)
    assert made.shape == (5 * pages.LARGE_BYTES + 3,)
    assert not made.any()
    boundary = made.ctypes.data + head
    base = made.base.ctypes.data if made.base is not None else 0
    assert boundary % pages.LARGE_BYTES == 0
    assert asked == [(boundary - base, 4 * pages.LARGE_BYTES)]  # and nothing behind the array
    made[-1] = 1
    assert pages.fresh(pages.LARGE_BYTES, large=True, small_head=head).nbytes == pages.LARGE_BYTES
    assert len(asked) == 1


def test_states_of_engines_alone_are_on_large_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, int]] = []

    def fresh(n_bytes: int, large: bool, small_head: int = 0) -> Any:
        asked.append((large, small_head))
        return pages.fresh(n_bytes, large, small_head)

    monkeypatch.setattr(state, "fresh", fresh)
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), threads=1) as model:
        with model.session() as session:
            session.eval([3])
        assert {large for large, _ in asked} == {False}
        asked.clear()
        with model.engine(max_sequences=2, n_ctx=64) as engine:
            of_engine = [one for one in asked if one[0]]
            assert engine.submit([3, 4], max_tokens=2).result().n_gen == 2
    heads = [head for _, head in of_engine]
    assert len(set(heads)) == len(heads) > 1
    assert max(heads) < pages.LARGE_BYTES
    assert all(head % mmap.PAGESIZE == 0 for head in heads)
