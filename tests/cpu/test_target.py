"""Levels: what they name, and how one is chosen."""

import os
import subprocess
import sys

import pytest
from graphml_cpu import target

from graphml.errors import BackendError


def test_levels_are_ordered_and_consistent() -> None:
    assert target.available()[-1] == "plain"
    for name in target.REQUIRED:
        level = target.level(name)
        assert level.name == name
        assert level.f32_lanes * 4 == level.vector_bytes
    assert target.level("avx512").f32_lanes == 16
    assert target.level("avx2").f32_lanes == 8
    assert not target.level("avx2").has_vnni


def test_unknown_level_names_the_known() -> None:
    with pytest.raises(BackendError, match=r"sse9.*avx512.*plain"):
        target.level("sse9")


def test_a_level_that_the_host_lacks_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_host_features", lambda: {"avx2": True})
    monkeypatch.setenv("GRAPHML_CPU_LEVEL", "avx512")
    with pytest.raises(BackendError, match=r"lacks .*avx512vnni.*available: plain"):
        target.current.__wrapped__()


@pytest.mark.parametrize("name", target.available())
def test_the_environment_chooses(name: str) -> None:
    code = "from graphml_cpu import target; print(target.current().name)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GRAPHML_CPU_LEVEL": name},
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == name, found.stderr
