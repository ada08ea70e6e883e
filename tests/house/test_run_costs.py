"""The plugin that measures tests: what it times is there, and what it writes is counted right."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests import run_costs
from tests.looped import looped


@looped(("part", "module", "name"), run_costs.PARTS)
def test_what_is_timed_is_there(part: str, module: str, name: str) -> None:
    run_costs.holder_of(module, name)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(pytest.UsageError, match=r"times graphml_cpu.compiler.nothing, which is not there"):
        run_costs.holder_of("graphml_cpu.compiler", "nothing")


def test_a_part_within_another_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = run_costs.Costs(tmp_path / "gw0.jsonl")

    def spend(seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    inner = costs.timed("inner", lambda: spend(0.2))
    costs.timed("outer", lambda: (inner(), spend(0.05)))()
    costs.write("tests/a/test_b.py::test_c[1]")
    costs.close()
    (line,) = run_costs.read(tmp_path)["gw0"]
    assert line["parts"]["inner"] > line["parts"]["outer"] > 0.04
    assert line["own"] >= line["parts"]["inner"]
    monkeypatch.setattr(sys, "argv", ["run_costs", str(tmp_path), "--by", "function"])
    run_costs.main()
    assert "tests/a/test_b.py::test_c " in capsys.readouterr().out
