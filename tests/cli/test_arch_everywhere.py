"""An architecture in a file outside of the repository works in every command that opens a model.

The model calls itself by a name that nothing installed knows, so a command that forgot `--arch` fails.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from graphml.api.load_model import load_model
from graphml.backend import no_progress
from graphml.cli.main import COMMANDS, app
from graphml.cli.serve import load_options
from graphml.server.options.command_line import parsed
from tests import tiny_model
from tests.docs.pages import ROOT, blocks

# None, or no graph.
NO_MODEL = {
    "tokenize",
    "info",
    "doctor",
    "adapter",
    "quantize",
    "gguf",
    "models",
    "pull",
    "rm",
    "cache",
    "new-arch",
    "import",
    "test-backend",
    "test-op",
    "fuzz",
}
ENDLESS = {"serve"}
OF_TORCH = {"finetune"}  # tests/finetuning gives it the file
SMALL = ["-p", "hello world", "--tokens", 3]
# The arguments of each command besides the model's and `--arch`.
WAYS: dict[str, list[object]] = {
    "run": ["-p", "hello", "-n", 3],
    "chat": ["-n", 2],
    "batch": ["in.jsonl", "-o", "out.jsonl", "-n", 2],
    "embed": ["-p", "hello", "--pooling", "mean"],
    "rerank": ["-q", "hello", "-p", "hello"],
    "plan": [],
    "placement": [],
    "perplexity": ["-f", "text.txt", "-c", 16],
    "imatrix": ["-f", "text.txt", "-c", 16, "-o", "seen.gguf", "--force"],
    "cvector": ["--positive-file", "up.txt", "--negative-file", "down.txt", "-o", "way.gguf", "--force"],
    "graph": [],
    "diff": ["--fuse-a", "none"],
    "explain": ["--node", "layers.0.attention"],
    "profile": ["-p", 4, "-n", 2, "-r", 1],
    "simulate": ["--measure", "-np", 1, "-c", 64, "--seconds", 9],
    "bench": ["-p", 4, "-n", 0, "-r", 1, "--backend", "reference", "-o", "json"],
    "tune": ["--backend", "cpu"],
    "compare": ["--backend", "reference", "--place", "cpu:layers.0", *SMALL],
    "bisect": ["--backend", "reference", "--place", "cpu:layers.0", *SMALL],
    "verify": ["--record", "out.npz"],
    "convert": ["-o", "out.gguf", "--force"],
    "report": ["-o", "report.zip"],
}
NAMED_BY_OPTION = {"bench": "-m"}
MAY_END_WITH_1 = ("diff", "bisect", "rerank")  # they differ, something is wrong, the model ranks nothing
OTHERWISE = ("bench", "tune", "compare", "bisect", "verify")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of an unknown architecture, and the file of the documentation that defines it."""
    folder = tmp_path_factory.mktemp("arch")
    tiny_model.write(folder / "model.gguf", architecture="novel")
    page = ROOT / "docs" / "architectures.md"
    (source,) = [block.text for block in blocks(page) if block.said("file") == "small.py"]
    (folder / "small.py").write_text(source)
    (folder / "text.txt").write_text("hello world hello world hello world, said the world " * 3)
    (folder / "up.txt").write_text("hello world\nworld hello")
    (folder / "down.txt").write_text("world\nhello")
    (folder / "in.jsonl").write_text('{"prompt": "hello"}')
    return folder


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def graphml(name: str, *more: object) -> Result:
    option = [NAMED_BY_OPTION[name]] if name in NAMED_BY_OPTION else []
    backend = [] if name in OTHERWISE else ["--backend", "reference"]
    arguments = [name, *option, "model.gguf", *WAYS[name], *backend, *more]
    return CliRunner().invoke(app, [str(one) for one in arguments], input="hello\n")


def test_every_command_is_walked() -> None:
    assert set(WAYS) | NO_MODEL | ENDLESS | OF_TORCH == set(COMMANDS)
    assert not set(WAYS) & (NO_MODEL | ENDLESS | OF_TORCH)


def test_a_server_has_the_file_too() -> None:
    flags = ["model.gguf", "--arch", "small.py", "--backend", "reference"]
    with load_model("model.gguf", load_options(parsed(flags)), no_progress) as model:
        assert model.arch == "small"


@pytest.mark.parametrize("name", WAYS)
def test_a_command_takes_the_file(name: str) -> None:
    done = graphml(name, "--arch", "small.py")
    assert done.exit_code in ((0, 1) if name in MAY_END_WITH_1 else (0,)), done.output
    assert "unknown architecture" not in done.output
    if name == "bench":
        assert json.loads(done.stdout)[0]["model_filename"].endswith("model.gguf")


def test_a_report_is_whole() -> None:
    """A report tells of what fails within it, and goes on."""
    told = []
    for more in (["--arch", "small.py"], []):
        Path("report.zip").unlink(missing_ok=True)  # of a run before
        assert graphml("report", *more).exit_code == 0
        with zipfile.ZipFile("report.zip") as archive:
            told.append(b"".join(archive.read(name) for name in archive.namelist()))
    assert b"unknown architecture" not in told[0]
    assert b"unknown architecture" in told[1]


@pytest.mark.parametrize("name", [name for name in WAYS if name != "report"])
def test_without_the_file_it_is_unknown(name: str) -> None:
    """So that the test above can fail."""
    done = graphml(name)
    assert done.exit_code == 1
    assert "unknown architecture 'novel'" in done.stderr
