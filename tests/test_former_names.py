"""Modules under the names of version 0.1: each is the module of today, and says so."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

from graphml.former_names import FORMER_NAMES


@pytest.mark.parametrize("former", FORMER_NAMES)
def test_a_former_name_is_the_module_of_today(former: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in FORMER_NAMES]:
        monkeypatch.delitem(sys.modules, name)
    with warnings.catch_warnings(record=True) as caught:  # its parent is one, too
        warnings.simplefilter("always")
        module = importlib.import_module(former)
    assert str(caught[-1].message) == f"{former} is {FORMER_NAMES[former]} now"
    assert module is importlib.import_module(FORMER_NAMES[former])
    assert module.__name__ == FORMER_NAMES[former] == module.__spec__.name


def test_the_line_that_imports_it_is_named() -> None:
    code = "pass\nfrom graphml.engine.architecture import Architecture"
    command = [sys.executable, "-W", "default", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "<string>:2: DeprecationWarning: graphml.engine.architecture is graphml.loading" in done.stderr


def test_a_name_that_never_was_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"graphml\.app\.nothing"):
        importlib.import_module("graphml.app.nothing")
