"""How formats are found: by file, by name, by number."""

import subprocess
import sys

import graphml_quant
import pytest
from graphml_quant import FormatError, by_ggml_type, by_name, formats

NEW_FILE = """
from graphml_quant.f32 import decode
from graphml_quant.format import Format
NEW = Format({name!r}, ggml_type={number}, block_elements=1, block_bytes=4, decode=decode)
"""


@pytest.fixture
def new_file(tmp_path, monkeypatch):
    """Return a function that adds one format file to the package for the length of a test."""
    monkeypatch.setattr(graphml_quant, "__path__", [*graphml_quant.__path__, str(tmp_path)])

    def add(stem: str, name: str, number: int) -> None:
        (tmp_path / f"{stem}.py").write_text(NEW_FILE.format(name=name, number=number))
        added.append(f"graphml_quant.{stem}")
        formats.cache_clear()
        graphml_quant._by_ggml_type.cache_clear()

    added: list[str] = []
    yield add
    for module in added:
        sys.modules.pop(module, None)
    formats.cache_clear()
    graphml_quant._by_ggml_type.cache_clear()


def test_a_new_format_is_one_new_file(new_file) -> None:
    new_file("brand_new", "brand_new", 1234)
    assert by_name("brand_new") is by_ggml_type(1234)
    assert "brand_new" in formats()


def test_two_formats_of_one_name_or_number_are_refused(new_file) -> None:
    new_file("impostor", "q8_0", 1234)
    with pytest.raises(FormatError, match="two formats are named q8_0"):
        formats()
    new_file("impostor", "impostor", 8)
    sys.modules.pop("graphml_quant.impostor")
    with pytest.raises(FormatError, match="share the ggml type 8"):
        formats()


def test_formats_are_found_by_name_and_number() -> None:
    for name, format in formats().items():
        assert by_name(name) is format
        assert by_ggml_type(format.ggml_type) is format
    numbers = [format.ggml_type for format in formats().values()]
    assert numbers == sorted(numbers)
    with pytest.raises(TypeError):
        formats()["q8_0"] = by_name("q4_0")  # type: ignore[index]  # the mapping is read-only


def test_unknown_formats_name_the_known() -> None:
    with pytest.raises(FormatError, match=r"'Q8_0'.*q8_0"):
        by_name("Q8_0")
    with pytest.raises(FormatError, match=r"ggml type 4;.*8 \(q8_0\)"):
        by_ggml_type(4)


def test_the_import_is_light() -> None:
    """No format, codebook or other library comes with the import."""
    path = graphml_quant.__path__[0].removesuffix("graphml_quant")
    code = "import numpy; before = set(sys.modules); import graphml_quant; print(*set(sys.modules) - before)"
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    new = set(result.stdout.split())
    assert {name for name in new if name.startswith("graphml")} == {"graphml_quant", "graphml_quant.format"}
    assert not new & {"gguf", "llvmlite", "graphml"}
