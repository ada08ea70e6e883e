"""Reports: what is in them, that nothing private is, and that failures are part of them."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.backend import Device
from graphml.inspect.bug_report import Sizes, report, write_zip
from graphml.inspect.dumps.records import read_dump
from graphml.inspect.profile import profile as profile_module
from graphml.ir.text import parse
from graphml.loading import discovery
from graphml.passes.fusion import all_ops
from graphml.weights import open_model
from tests import golden, tiny_model

SMALL = Sizes(8, 3, 1)
TEMPLATE = "{% for message in messages %}the very secret template {{ message.content }}{% endfor %}"
FACTS = {"cpu": "abacus", "bandwidth": 1e9, "cache_folder": "/home/somebody/.cache/graphml"}
BACKENDS = [name for name in discovery.backend_names() if discovery.backend(name).unavailable() is None]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("private-folder") / "tiny.gguf", template=TEMPLATE)


def made(path: Path, backend: str = "cpu", **options: str) -> dict[str, str]:
    return report(path, lambda: graphml.load(path, backend, threads=2, **options), lambda: FACTS, SMALL)


@pytest.fixture(scope="module", params=BACKENDS)
def files(request: pytest.FixtureRequest, path: Path) -> dict[str, str]:
    return made(path, request.param)


def test_a_report_has_all_parts(files: Mapping[str, str]) -> None:
    assert set(files) >= {
        "README.txt", "model.json", "doctor.json", "versions.json", "graph/build.txt", "graph/fuse.txt",
        "graph.json", "plan.txt", "placement.txt", "fusions.txt", "profile.md", "profile.json",
    }  # fmt: skip
    assert "errors.txt" not in files
    for name, text in files.items():
        if name.endswith(".json"):
            json.loads(text)
        if name.startswith("graph/"):
            assert parse(text, all_ops()).outputs["logits"].name == "logits"
    assert json.loads(files["doctor.json"])["cpu"] == "abacus"
    assert json.loads(files["versions.json"])["graphml"] == graphml.__version__
    model = json.loads(files["model.json"])
    assert (model["file"], model["architecture"]) == ("tiny.gguf", "llama")
    assert {"name": "blk.1.ffn_down.weight", "dtype": "f32", "shape": [32, 64]} in model["tensors"]
    assert "  rms_norm_mul  layers.0.attn_norm  " in files["fusions.txt"]
    assert "layers.1.attention  attention  " in files["placement.txt"]
    assert "## generation" in files["profile.md"]


def test_the_graph_is_a_dump_with_the_profile_laid_over_it(files: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "graph.json").write_text(files["graph.json"])
    document = read_dump(tmp_path / "graph.json")
    assert document["overlays"]["time_us"]["logits"] > 0


def test_no_weights_vocabulary_template_prompt_or_folder_is_in_it(
    files: Mapping[str, str], path: Path
) -> None:
    whole = "\n".join(files.values())
    raw = whole.encode()
    with open_model(path) as file:
        for name, tensor in file.tensors.items():
            data = tensor.data.tobytes()
            for start in range(0, len(data) - 16, 16):
                assert data[start : start + 16] not in raw, name
            assert base64.b64encode(data)[:32] not in raw
            values = tensor.data.view(np.float32).reshape(-1)
            if len(set(values.tolist())) > 1:  # norms are ones
                assert not any(repr(float(value)) in whole for value in values[:64]), name
    assert "secret" not in whole
    for words in (profile_module.TEXT[:40], "engineers", "bridge"):
        assert words not in whole
    for token in tiny_model.vocabulary()[-12:]:
        assert f'"{token}"' not in whole
    assert "private-folder" not in whole
    assert "/home/somebody" not in whole
    assert str(Path.home()) + "/" not in whole


def test_what_is_looked_for_would_be_found(path: Path, files: dict[str, str]) -> None:
    """The test above can fail."""
    with open_model(path) as file:
        value = float(file.tensors["blk.0.attn_q.weight"].data.view(np.float32).reshape(-1)[3])
    spoilt = {**files, "more.txt": f"{value!r}"}
    with pytest.raises(AssertionError):
        test_no_weights_vocabulary_template_prompt_or_folder_is_in_it(spoilt, path)


@pytest.mark.parametrize("name", golden.some())
def test_goldens(name: str, tmp_path: Path) -> None:
    found = made(golden.build(golden.read(name), tmp_path / "golden.gguf"))
    assert "errors.txt" not in found
    assert "profile.md" in found


def test_a_file_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    broken = tmp_path / "deep" / "broken.gguf"
    broken.parent.mkdir()
    broken.write_bytes(b"GGUF" + bytes(40))
    found = made(broken)
    assert set(found) == {"README.txt", "doctor.json", "versions.json", "errors.txt"}
    assert "opening: WeightsError: broken.gguf" in found["errors.txt"]
    assert str(tmp_path) not in found["errors.txt"]


def test_an_architecture_that_fails_is_reported(path: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from graphml_models.llama import Config\n\ndef build(g, config, weights):\n    return 1 / 0\n"
    )
    found = made(path, arch=str(own))
    assert {"model.json", "doctor.json", "errors.txt"} <= set(found)
    assert "graph.json" not in found
    assert "division by zero" in found["errors.txt"]
    assert "report.py:" in found["errors.txt"]


def test_a_program_that_fails_leaves_the_graphs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(*arguments: object) -> Device:
        raise RuntimeError("the compiler broke")

    monkeypatch.setattr("graphml_cpu.device.CpuDevice.lower", lower)
    found = made(path)
    assert {"graph.json", "plan.txt", "placement.txt", "fusions.txt"} <= set(found)
    assert "profile.md" not in found
    assert "profile: RuntimeError: the compiler broke" in found["errors.txt"]


def test_fallbacks_are_named_with_their_reasons(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = discovery.backend("cpu")
    changed = backend.refuses

    def refuses(node: object) -> str | None:
        return "no rope here" if getattr(node, "op", None) and node.op.name == "rope_table" else changed(node)  # type: ignore[attr-defined, arg-type]

    object.__setattr__(backend, "refuses", refuses)
    try:
        found = made(path)
    finally:
        object.__setattr__(backend, "refuses", changed)
    assert "rope_table  rope_table  numpy  no rope here" in found["placement.txt"]
    assert ", 1 without a kernel" in found["placement.txt"]


def test_the_zip_holds_the_files_and_no_time(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        write_zip({"one.txt": "eins", "graph/two.txt": "zwei\n"}, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {
            "one.txt": "eins",
            "graph/two.txt": "zwei\n",
        }
