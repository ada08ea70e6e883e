"""`graphml models`, `graphml rm`, models of the hub by name, and being offline, as users meet them."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import graphml
from graphml.cli.main import app
from graphml.loading import discovery, fetch
from graphml.loading.download.short_names import HubModel, memory_of
from tests import tiny_model
from tests.docs.pages import table
from tests.hub_server import HubServer

REFERENCE = ["--backend", "reference"]
MODEL = "some/tiny:Q8_0"


def graphml_command(*arguments: object, code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def model(hub: HubServer, tmp_path: Path) -> Path:
    path = tiny_model.write(tmp_path / "tiny-Q8_0.gguf")
    hub.files = {path.name: path.read_bytes()}
    return path


def test_a_model_of_the_hub_is_run_by_its_name(model: Path, hub: HubServer) -> None:
    options = ["-p", "hello", "-n", 3, "--temp", 0, *REFERENCE]
    wanted = graphml_command("run", model, *options).stdout
    assert graphml_command("run", MODEL, *options).stdout == wanted
    assert graphml_command("run", "-hf", MODEL, *options).stdout == wanted
    assert graphml_command("run", "some/tiny", *options).stdout == wanted
    assert len(hub.downloads()) == 1
    with graphml.load(MODEL, "reference") as opened:
        assert opened.path.read_bytes() == model.read_bytes()


def test_a_path_of_that_name_wins(model: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model.parent)
    Path("some").mkdir()
    model.rename(MODEL)
    with graphml.load(MODEL, "reference") as opened:
        assert opened.path == Path(MODEL)
    assert hub.asked == []


@pytest.mark.parametrize("name", ["models/tiny.gguf", "models/stories.bin", "here/tiny", "./tiny", "a/b/c"])
def test_a_slip_in_a_path_is_no_question_to_a_server(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    assert "no such file" in graphml_command("info", name, code=2).stderr
    assert hub.asked == []


def test_models_lists_what_is_there_and_what_could_be(model: Path, hub: HubServer, tmp_path: Path) -> None:
    shown = graphml_command("models").stdout
    assert "nothing downloaded yet" in shown
    assert "stories260k" in shown
    path = graphml_command("pull", MODEL).stdout.strip()
    part = tmp_path / "shared" / "models--some--tiny" / "blobs" / "0123.x-Q4_0.gguf.graphml.part"
    part.write_bytes(b"GGUF")
    found = json.loads(graphml_command("models", "--json").stdout)
    size = model.stat().st_size
    packaged = found["models"].pop(0)
    assert (packaged["name"], packaged["place"]) == ("stories260k", "this package")
    assert Path(packaged["path"]).is_file()
    assert found["models"] == [
        {"name": "some/tiny:tiny-Q8_0.gguf", "short_name": None, "type": found["models"][0]["type"],
         "bytes": size, "place": "hub cache", "path": path, "files": [path]},
        {"name": "some/tiny:x-Q4_0.gguf", "short_name": None, "type": "not whole",
         "bytes": 4, "place": "partial", "path": str(part), "files": [str(part)]},
    ]  # fmt: skip
    assert found["models"][0]["type"].startswith("llama ")
    assert [one["name"] for one in found["short_names"]] == list(fetch.MODELS)
    assert [one["name"] for one in found["short_names"] if one["downloaded"]] == ["stories260k"]
    here = graphml_command("models").stdout
    shown = graphml_command("models", "--all").stdout
    assert shown.startswith(here)
    for words in ("some/tiny:tiny-Q8_0.gguf", "145.5 KiB", path):
        assert words in here
    for words in ("qwen3-0.6b", "Apache-2.0"):
        assert words not in here
        assert words in shown


def test_a_model_that_cannot_be_read_is_listed(hub: HubServer) -> None:
    graphml_command("pull", MODEL)
    assert "cannot be read" in graphml_command("models").stdout


def test_rm_removes_and_says_what_it_frees(model: Path, hub: HubServer) -> None:
    path = Path(graphml_command("pull", MODEL).stdout.strip())
    done = graphml_command("rm", MODEL, "--yes")
    assert done.stdout == f"removed some/tiny:tiny-Q8_0.gguf {path}\nfreed 145.5 KiB\n"
    assert not path.exists()
    assert (
        "not among the downloaded ones; there is nothing" in graphml_command("rm", MODEL, "-y", code=2).stderr
    )


def test_rm_asks_on_a_terminal_and_nowhere_else(
    model: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(graphml_command("pull", MODEL).stdout.strip())
    asked = graphml_command("rm", MODEL, code=2).stderr
    assert "wanted --yes, or a terminal to ask on; it would remove some/tiny:tiny-Q8_0.gguf" in asked
    monkeypatch.setattr("graphml.cli.rm._on_terminal", lambda: True)
    assert "nothing was removed" in graphml_command("rm", MODEL, stdin="n\n", code=1).stderr
    assert path.exists()
    asked = graphml_command("rm", MODEL, stdin="y\n")
    assert "Remove it (145.5 KiB)?" in asked.stderr
    assert "Remove" not in asked.stdout
    assert not path.exists()


COMMANDS: list[list[Any]] = [
    ["run", "-p", "x", "-n", 1], ["chat"], ["embed", "-p", "x"], ["rerank", "-q", "x", "-p", "x"],
    ["info"], ["plan"], ["placement"], ["pull"],
    ["perplexity", "-f", __file__], ["graph"], ["diff", "--fuse-b", "none"], ["explain", "--node", "x"],
    ["profile"], ["tune"], ["compare"], ["bisect"], ["verify", "--record", "x.npz"], ["report"],
]  # fmt: skip


@pytest.fixture
def no_socket(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "__init__", fail)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr("graphml.loading.download.wheel._download_wheel", fail)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.usefixtures("no_socket")
def test_offline_no_command_opens_a_socket(
    command: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for named in ([], ["-hf", MODEL], [MODEL], ["qwen3-0.6b"]):
        done = graphml_command(*command, *named, "--offline", code=1)
        assert "it is not on this machine" in done.stderr, done.output
        assert "`graphml models` lists what is here" in done.stderr


@pytest.mark.usefixtures("no_socket")
def test_bench_is_offline_too() -> None:
    for named in ([], ["-m", MODEL], ["-hf", MODEL]):
        assert "not on this machine" in graphml_command("bench", *named, "--offline", code=1).stderr


@pytest.mark.parametrize(
    ("variable", "value"), [("GRAPHML_OFFLINE", "1"), ("HF_HUB_OFFLINE", "1"), ("HF_HUB_OFFLINE", "TRUE")]
)
@pytest.mark.usefixtures("no_socket")
def test_the_environment_says_so_too(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert "not on this machine" in graphml_command("info", MODEL, code=1).stderr
    with pytest.raises(graphml.DownloadError, match="not on this machine"):
        graphml.load(MODEL)
    with pytest.raises(graphml.DownloadError, match="not on this machine"):
        graphml.load("smollm2")


def test_what_is_here_is_used_offline(model: Path, hub: HubServer) -> None:
    path = graphml_command("pull", MODEL).stdout
    hub.asked.clear()
    assert graphml_command("pull", MODEL, "--offline").stdout == path
    assert graphml_command("pull", "-hf", "some/tiny", "--offline").stdout == path
    assert "block_count" in graphml_command("info", MODEL, "--offline").stdout
    wrong = graphml_command("pull", "some/tiny:Q4_0", "--offline", code=1).stderr
    assert "no file fits 'Q4_0'; there are tiny-Q8_0 (offline: of what was downloaded before)" in wrong
    assert hub.asked == []


def test_a_host_that_cannot_be_reached_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    said = graphml_command("info", MODEL, code=1).stderr
    for words in (
        "127.0.0.1:9 cannot be reached",
        "graphml models",
        "--offline",
        "HTTPS_PROXY",
        "HF_ENDPOINT",
    ):
        assert words in said
    assert said.count("\n") == 1


def test_what_fits_into_memory_is_suggested() -> None:
    def suggested(*options: Any) -> list[str]:
        listed = json.loads(graphml_command("models", "--suggest", *options, "--json").stdout)
        return [row["name"] for row in listed["suggested"]]

    small, large = suggested("--memory", "1G"), suggested("--memory", "16G")
    assert small[0] == "gemma-3-270m"
    assert large[0] == "phi-3.5-mini"
    assert set(small) < set(large)
    assert "phi-4-mini" not in small
    assert not {"nomic-embed", "stories260k", "qwen3-embedding-0.6b"} & set(large)
    assert suggested("--memory", "100M") == []
    assert "none of the short names" in graphml_command("models", "--memory", "100M").stdout
    assert "knows little" in graphml_command("models", "--suggest", "--memory", "64G").stdout
    assert "--memory: wanted a size" in graphml_command("models", "--memory", "much", code=2).stderr


@pytest.mark.parametrize("name", ["smollm2"])
def test_what_is_said_of_memory_is_what_plan_says(name: str) -> None:
    try:
        plan = json.loads(graphml_command("plan", name, "-c", 4096, "--json").stdout)
    except graphml.DownloadError as error:
        pytest.skip(f"offline: {error}")
    known = fetch.MODELS[name]
    assert known.n_bytes_a_token == plan["cache_per_token"]
    assert plan["total"] <= memory_of(known, 4096) <= plan["total"] + (256 << 20)


def test_short_names_are_as_documented_and_of_architectures_that_are_known() -> None:
    rows = {row["name"]: row for row in table("docs/downloads.md", "name")}
    assert list(rows) == list(fetch.MODELS)
    for name, known in fetch.MODELS.items():
        row = rows[name]
        assert row["architecture"] in discovery.architecture_names()
        assert row["licence"] == known.licence
        assert row["MB"] == f"{known.n_bytes / 1e6:.0f}"
        if isinstance(known, HubModel):
            assert row["from"] == known.reference
