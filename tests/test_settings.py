"""Environment variables: each is defined once, read when it is asked for, and wrong texts name it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphml import settings
from graphml.errors import UsageError
from tests.option_table import settings_of, settings_of_backends

EVERY = [pytest.param(one, id=one.name) for one in [*settings_of(settings), *settings_of_backends()]]


@pytest.mark.parametrize("setting", EVERY)
def test_unset_and_empty_are_the_default(setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in filter(None, (setting.name, setting.same_as)):
        monkeypatch.delenv(name, raising=False)
    assert setting() == setting.default
    monkeypatch.setenv(setting.name, "")
    assert setting() == setting.default
    assert setting.text.endswith(".")
    assert setting.default is not None or setting.shown  # or the docs do not say what then applies


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.cache, "/somewhere", Path("/somewhere")),
        (settings.threads, "3", 3),
        (settings.cpu_level, "avx2", "avx2"),
        (settings.pages, "huge", "huge"),
        (settings.fuse, "-swiglu", "-swiglu"),
        (settings.tuned, "1", True),
        (settings.tuned, "yes", True),
        (settings.tuned, "0", False),
        (settings.verify, "off", False),
        (settings.offline, "FALSE", False),
        (settings.debug, "kernels", True),
    ],
    ids=lambda one: one.name if isinstance(one, settings.Setting) else str(one),
)
def test_a_text_is_read_as_its_type(
    setting: Any, text: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.name, text)
    assert setting() == value


@pytest.mark.parametrize(
    ("setting", "text", "wanted"),
    [
        (settings.threads, "0", "a whole number of at least 1, or nothing; got '0'"),
        (settings.threads, "many", "a whole number of at least 1, or nothing; got 'many'"),
        (settings.pages, "all", "ahead, map, huge or copy, or nothing; got 'all'"),
        (settings.numa, "near", "first-touch or interleave, or nothing; got 'near'"),
    ],
    ids=lambda one: getattr(one, "name", None) or str(one),
)
def test_a_wrong_text_is_named(setting: Any, text: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting.name, text)
    with pytest.raises(UsageError) as caught:
        setting()
    assert str(caught.value) == f"{setting.name}: wanted {wanted}"


def test_either_of_two_variables_goes_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_OFFLINE", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert settings.offline()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not settings.offline()
