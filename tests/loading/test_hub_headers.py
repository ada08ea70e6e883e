"""Headers of models on the hub: read in pieces, as few bytes as will do, and never silently without data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.errors import DownloadError, WeightsError
from graphml.loading.fetch import open_header
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.memory_needed import arena_bytes
from graphml.runtime.programs.open_executor import open_executor
from graphml.weights import open_model
from graphml.weights import remote_header as headers
from tests import tiny_model
from tests.hub_server import HubServer
from tests.weights import gguf_bytes as g

MODEL = "some/tiny:Q8_0"
NAME = "tiny-Q8_0.gguf"


@pytest.fixture
def model(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model on the hub, of which the header is a twentieth; here too, for comparison."""
    path = tiny_model.write(tmp_path / NAME)
    hub.files = {NAME: path.read_bytes()}
    monkeypatch.setattr(headers, "FIRST_BYTES", 1000)
    return path


def test_a_header_is_what_the_whole_file_says(hub: HubServer, model: Path) -> None:
    with open_header(MODEL) as found, open_model(model) as whole:
        assert found.header_only
        assert not whole.header_only
        assert dict(found.metadata) == dict(whole.metadata)
        assert [(one.name, one.dtype, one.shape, one.n_bytes) for one in found.tensors.values()] == [
            (one.name, one.dtype, one.shape, one.n_bytes) for one in whole.tensors.values()
        ]
        assert (found.n_bytes, found.n_weight_bytes) == (whole.n_bytes, whole.n_weight_bytes)
        with pytest.raises(WeightsError, match="the header of the file alone"):
            next(iter(found.tensors.values())).numpy()
    assert hub.sent <= 16000 < len(hub.files[NAME]) // 9
    assert hub.ranges[0] == "bytes=0-999"
    assert len(hub.ranges) <= 5
    assert not list(model.parent.glob("cache/**/*.gguf"))


def test_no_program_is_made_of_a_header(model: Path) -> None:
    executor = open_executor(open_header(MODEL), LoadOptions("reference"))  # type: ignore[arg-type]
    assert arena_bytes(executor)["decode"] > 0
    with pytest.raises(WeightsError, match=r"some/tiny/tiny-Q8_0.gguf: tensor '.*': the header of"):
        executor.compiled(1, 1)
    executor.close()


def test_how_fast_it_will_be_is_known_before_it_is_here(hub: HubServer, model: Path) -> None:
    asked = ["plan", MODEL, "--speed", "--backend", "reference", "-b", "16", "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["speed"]["generation"] > 0
    assert hub.sent <= 16000


@pytest.mark.parametrize(
    "command",
    ["info", "plan", "placement", "graph", "explain --node layers.1.up", "diff --fuse-b none"],
)
def test_commands_that_need_the_header_read_no_more(hub: HubServer, model: Path, command: str) -> None:
    name, *options = command.split()
    options += ["--backend", "reference"] if name != "info" else []
    code = int(name == "diff")
    outputs = []
    for named in ([str(model)], ["-hf", MODEL], [MODEL]):
        result = CliRunner().invoke(app, [name, *named, *options])
        assert result.exit_code == code, result.output
        outputs.append(result.stdout.replace(str(model), f"some/tiny/{NAME}"))
    assert outputs[0] == outputs[1] == outputs[2]
    asked = [one for one in hub.ranges if one is not None]
    ends = [int(one.rpartition("-")[2]) for one in asked]
    assert asked
    assert max(ends) < 16000


def test_a_model_that_is_here_is_not_read_from_the_server(hub: HubServer, model: Path) -> None:
    here = CliRunner().invoke(app, ["pull", MODEL]).stdout.strip()
    hub.ranges.clear()
    assert json.loads(CliRunner().invoke(app, ["info", MODEL, "--json"]).stdout)["path"] == here
    assert hub.ranges == []


def test_a_tokenizer_needs_no_weights(hub: HubServer, model: Path) -> None:
    tokenizer = graphml.load_tokenizer(MODEL)
    assert tokenizer.encode("hello world") == graphml.load_tokenizer(model).encode("hello world")
    assert hub.sent <= 16000


def part(number: int, count: int = 2) -> bytes:
    keys = [("split.no", g.scalar(g.U16, "H", number)), ("split.count", g.scalar(g.U16, "H", count))]
    keys += [("general.name", g.text("two"))] if number == 0 else []
    return g.file(keys, [g.tensor(f"t{number}", [64], 0, 0)], bytes(256))


def test_of_a_split_model_every_part_has_a_header(hub: HubServer) -> None:
    hub.files = {f"x-Q8_0-0000{number + 1}-of-00002.gguf": part(number) for number in range(2)}
    with open_header(MODEL) as found:
        assert list(found.tensors) == ["t0", "t1"]
        assert found.metadata.text("general.name") == "two"
        assert [path.name for path in found.paths] == sorted(hub.files)
    assert len(hub.ranges) == 2
    hub.files["x-Q8_0-00002-of-00002.gguf"] = part(0)
    with pytest.raises(WeightsError, match=r"00002.*wanted part 2 of 2, got 1 of 2"):
        open_header(MODEL)


def test_a_server_that_ignores_ranges_sends_a_header_too(hub: HubServer, model: Path) -> None:
    hub.ignores_ranges = True
    with open_header(MODEL) as found, open_model(model) as whole:
        assert dict(found.metadata) == dict(whole.metadata)


def test_a_header_that_never_ends_is_given_up(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    many = g.file([("general.name", g.array(g.U8, bytes(10**6), 10**6))])
    hub.files = {NAME: many}
    monkeypatch.setattr(headers, "FIRST_BYTES", 1000)
    monkeypatch.setattr(headers, "LARGEST_HEADER", 50_000)
    with pytest.raises(WeightsError, match=r"tiny-Q8_0.gguf: the header goes on after \d+ bytes; 50000 are"):
        open_header(MODEL)
    assert hub.sent <= 50_000


@pytest.mark.parametrize("first", [4, 24, 5000, 1 << 20])
def test_a_header_is_the_same_in_whatever_pieces_it_comes(
    model: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(headers, "FIRST_BYTES", first)
    with open_header(MODEL) as found, open_model(model) as whole:
        assert dict(found.metadata) == dict(whole.metadata)
        assert list(found.tensors) == list(whole.tensors)


@pytest.mark.parametrize(("lies", "says"), [("range", "sends 'bytes 1-"), ("gzip", "an encoding")])
def test_a_server_that_lies_of_ranges_is_refused(hub: HubServer, model: Path, lies: str, says: str) -> None:
    hub.lies = lies
    with pytest.raises(DownloadError, match=f"{NAME[:4]}.*{says}"):
        open_header(MODEL)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"PK\x03\x04" * 1000])
def test_what_is_no_model_is_a_weights_error(hub: HubServer, content: bytes) -> None:
    hub.files = {NAME: content}
    with pytest.raises(WeightsError, match=r"some/tiny/tiny-Q8_0.gguf: "):
        open_header(MODEL)
