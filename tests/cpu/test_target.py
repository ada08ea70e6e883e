"""Levels: what they name, and how one is chosen."""

import os
import subprocess
import sys

import pytest
from graphml_cpu import machine_code, processors, target

from graphml.errors import BackendError
from tests.looped import looped


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


@looped("name", target.available())
def test_the_environment_chooses(name: str) -> None:
    code = "from graphml_cpu import target; print(target.current().name)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GRAPHML_CPU_LEVEL": name},
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == name, found.stderr


def test_an_arm_host_gets_the_best_level_of_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(target, "_llvm_features", dict)
    for features, best in (
        (("dotprod", "i8mm"), "neon-i8mm"),
        (("dotprod",), "neon-dotprod"),
        (("i8mm",), "neon"),
        ((), "neon"),
    ):
        monkeypatch.setattr(processors, "arm_features", lambda found=features: found)
        assert target.available()[0] == best
        assert not {"avx512", "avx2"} & set(target.available())


CPUINFO = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp{big}

processor\t: 1
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm{small}
"""


@pytest.mark.parametrize(
    ("big", "small", "found"),
    [
        (" i8mm", " asimddp i8mm", ("dotprod", "i8mm")),
        (" i8mm", " asimddp", ("dotprod",)),
        ("", "", ()),
    ],
)
def test_every_arm_core_must_have_a_feature(big: str, small: str, found: tuple[str, ...]) -> None:
    assert processors._features_of(CPUINFO.format(big=big, small=small)) == found


def test_code_for_another_processor_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = next(name for name in target.REQUIRED if target.missing_features(name))
    monkeypatch.setattr(target, "current", lambda: target.level(foreign))
    with pytest.raises(BackendError, match=f"compiled for {foreign} do not run here: .* lacks "):
        machine_code._engine.__wrapped__()


def test_a_process_keeps_its_level() -> None:
    target.compile_for(target.current().name)
    target._foreign.clear()
    with pytest.raises(BackendError, match="already, not for"):
        target.compile_for(next(name for name in target.REQUIRED if name != target.current().name))
