"""Backends and architectures are found through entry points, or an error says what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphml.backend import Backend
from graphml.errors import ArchitectureError, BackendError
from graphml.loading import discovery

ARCHITECTURE = """
from graphml_models.llama import Config, build
"""


def test_the_built_in_ones_come_through_the_door_of_strangers() -> None:
    assert {"cpu", "reference"} <= set(discovery.backend_names())
    assert "llama" in discovery.architecture_names()
    assert not [name for name in discovery.architecture_names() if name.startswith(("_", "-"))]
    for name in discovery.backend_names():
        found = discovery.backend(name)
        assert isinstance(found, Backend)
        assert found.name == name


def test_an_unknown_backend_lists_the_installed() -> None:
    with pytest.raises(BackendError, match=r"no backend 'cuda' is installed; installed: .*cpu.*reference"):
        discovery.backend("cuda")


def test_an_unknown_architecture_names_the_nearest_the_known_and_the_way_to_add_it() -> None:
    with pytest.raises(ArchitectureError) as caught:
        discovery.architecture("lama")
    text = str(caught.value)
    assert "unknown architecture 'lama'" in text
    assert "Did you mean 'llama'?" in text
    assert "Known: " in text
    assert "--arch FILE.py" in text


def test_an_architecture_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my_model.py"
    path.write_text(ARCHITECTURE)
    found = discovery.architecture_from_file(path)
    assert found.name == "my-model"
    assert found.sample is None


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("gone.py", None, "no such architecture file"),
        ("words.txt", "hello", r"wanted a Python file that ends in \.py"),
        ("empty.py", "", "architecture 'empty' has no Config"),
        ("half.py", "class Config:\n    pass\n", "architecture 'half' has no build"),
        (
            "blind.py",
            "class Config:\n    pass\ndef build(): pass\n",
            r"Config of .* 'blind' has no read\(keys\)",
        ),
        ("typo.py", "x = 1\ndef build(:\n", r"SyntaxError: invalid syntax \(typo\.py, line 2\)"),
        ("alone.py", "\nimport no_such_module\n", r"ModuleNotFoundError: .*no_such_module.*alone\.py:2\)"),
    ],
)
def test_a_file_that_is_none(name: str, text: str | None, wanted: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ArchitectureError, match=wanted) as caught:
        discovery.architecture_from_file(tmp_path / name)
    assert name in str(caught.value)


def test_a_diffusion_model_says_the_length_of_its_blocks(tmp_path: Path) -> None:
    for value, causal in (("-1", False), ("'32'", False), ("0.5", False), ("32", True)):
        path = tmp_path / "own.py"
        path.write_text(f"{ARCHITECTURE}\nCAUSAL = {causal}\nDIFFUSION = {value}\n")
        with pytest.raises(
            ArchitectureError, match=f"DIFFUSION: wanted .*; got {value} and CAUSAL = {causal}"
        ):
            discovery.architecture_from_file(path)
    path.write_text(f"{ARCHITECTURE}\nCAUSAL = False\nDIFFUSION = 16\n")
    assert discovery.architecture_from_file(path).diffusion == 16
