"""Models of a folder: which there are, their flags, and what errors say of them and of their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphml.cli.serve import model_sources, server_options
from graphml.errors import GraphmlError
from graphml.server.engine.served_models import _without_folder
from graphml.server.options.command_line import parsed
from graphml.server.options.model_sources import folder_models
from graphml.server.responses.api_errors import unknown_model
from tests import tiny_model
from tests.server.running_server import Running, running


def _states(server: Running) -> dict[str, str]:
    data = server.http.get("/v1/models").json()["data"]
    return {entry["id"]: entry["status"]["value"] for entry in data}


def test_the_names_of_models_in_an_error_are_bounded() -> None:
    message = unknown_model("x", [f"m{i}" for i in range(100)]).message
    assert "there are m0, m1, m10, m11, m12, m13, m14, m15, ...; " in message
    assert "there is none; " in unknown_model("x", ()).message


def test_a_model_with_other_flags_leaves_at_a_reload(tmp_path: Path) -> None:
    tiny_model.write(tmp_path / "a.gguf", n_ctx=512)
    tiny_model.write(tmp_path / "b.gguf", n_ctx=512)
    file = tmp_path / "models.ini"
    file.write_text("[a]\nctx-size = 64\n")
    command = parsed(["--models-dir", str(tmp_path), "--models-preset", str(file)])
    options = server_options(command)
    with running(options, None, sources=lambda: model_sources(command, options, None)) as server:
        for name in "ab":
            server.post("/models/load", {"model": name})
        server.http.get("/models?reload=1")
        assert set(_states(server).values()) == {"loaded"}
        file.write_text("[a]\nctx-size = 128\n")
        server.http.get("/models?reload=1")
        assert _states(server) == {"a": "unloaded", "b": "loaded"}
        server.post("/models/load", {"model": "a"})
        assert server.http.get("/props?model=a").json()["default_generation_settings"]["n_ctx"] == 128


def test_a_folder_lists_files_and_folders_of_one_model(tmp_path: Path) -> None:
    for name in ("a.gguf", "B.GGUF", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "notes.txt",
                 ".hidden.gguf", "mmproj-a.gguf", "sp ace.gguf"):  # fmt: skip
        (tmp_path / name).touch()
    for folder, names in {
        "one": ["x.gguf", "mmproj.gguf"], "two": ["x.gguf", "y.gguf"], "none": [],
        "parts": ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf"],
    }.items():  # fmt: skip
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch()
    models = folder_models(tmp_path)
    assert set(models) == {"a", "B", "big-00001-of-00002", "one", "parts"}
    assert models["parts"].name == "x-00001-of-00002.gguf"


@pytest.mark.parametrize(
    ("path", "said", "left"),
    [("/home/a/b.gguf", "/home/a/b.gguf: of /home/a: no, a.b", "b.gguf: of its folder: no, a.b"),
     ("b.gguf", "b.gguf: version 1.0.", "b.gguf: version 1.0."),
     ("a/b.gguf", "a/b.gguf: a wrong a/ka", "b.gguf: a wrong ka")],
    ids=str,
)  # fmt: skip
def test_folders_are_left_out_of_errors(path: str, said: str, left: str) -> None:
    assert _without_folder(GraphmlError(said), Path(path)) == left
