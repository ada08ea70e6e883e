"""Folders of safetensors on the hub: what of them is downloaded, opened, listed and removed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save
from typer.testing import CliRunner

import graphml
from graphml.cli.main import app
from graphml.errors import DownloadError, WeightsError
from graphml.loading import fetch
from graphml.loading.download.stored import named, remove, stored_models
from tests.folder_records import TOKENS, about, write_folder
from tests.folders.test_folder_tokenizers import made
from tests.hub_server import HubServer

OTHERS = {
    "pytorch_model.bin": b"\x80\x04", "modeling_tiny.py": b"raise SystemExit", "README.md": b"# tiny",
    "consolidated.safetensors": b"twice", "original/model.safetensors": b"twice",
}  # fmt: skip


@pytest.fixture
def folder(hub: HubServer, tmp_path: Path) -> Path:
    """A model with a tokenizer in two shards, on the hub among other files; here too, for comparison."""
    config, shapes, _ = about("llama")
    tokenizer = made("bytes")
    n_vocab = tokenizer.get_vocab_size()
    wide = {
        name: [n_vocab if n == config["vocab_size"] else n for n in shape] for name, shape in shapes.items()
    }
    path = write_folder(tmp_path / "llama", config | {"vocab_size": n_vocab}, wide)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    weight_map = {name: file for file, held in shards.items() for name in held}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for file, held in shards.items():
        (path / file).write_bytes(save({name: tensors[name] for name in held}))
    hub.files = {one.name: one.read_bytes() for one in path.iterdir()} | OTHERS
    return path


def command(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(one) for one in arguments])
    assert result.exit_code == code, result.output
    return result.output


def logits(model: object, **options: str) -> np.ndarray:
    with graphml.load(model, "reference", **options) as opened:  # type: ignore[arg-type]
        return np.asarray(opened.session(n_ctx=48).eval(TOKENS[:8].tolist()))


@pytest.mark.parametrize("options", [[], ["--quant", "q8"]], ids=["as it is", "requantised"])
def test_a_folder_of_the_hub_runs_by_its_name(folder: Path, options: list[str]) -> None:
    arguments = ["-p", "two", "-n", 3, "--temp", 0, "--backend", "reference", *options]
    wanted = command("run", folder, *arguments)
    assert command("run", "some/tiny", *arguments) == wanted
    assert command("run", "-hf", "some/tiny", "--offline", *arguments) == wanted


def test_its_bits_are_those_of_the_files(folder: Path) -> None:
    np.testing.assert_array_equal(logits("some/tiny"), logits(folder))


def test_what_is_not_read_is_not_downloaded(folder: Path, hub: HubServer) -> None:
    path = fetch.resolve("some/tiny")
    there = {one.relative_to(path).as_posix() for one in path.rglob("*")}
    assert there == {one.name for one in folder.iterdir()}
    assert len(hub.downloads()) == len(there)
    assert fetch.resolve("some/tiny") == path
    assert len(hub.downloads()) == len(there)
    with fetch.open_header("some/tiny") as opened:
        assert opened.metadata.text("general.name") == "tiny"


def test_an_interrupted_folder_is_none_until_it_is_whole(folder: Path, hub: HubServer) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if total is not None and done >= total - 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.resolve("some/tiny", interrupt)
    with pytest.raises(DownloadError, match="not on this machine"):
        fetch.resolve("some/tiny", offline=True)
    assert [one.name for one in stored_models()] == ["some/tiny:b.safetensors"]
    assert fetch.resolve("some/tiny").is_dir()
    assert [one.name for one in stored_models()] == ["some/tiny"]


def test_it_is_listed_and_removed_whole(folder: Path, tmp_path: Path) -> None:
    path = fetch.resolve("some/tiny")
    (_, found) = json.loads(command("models", "--json"))["models"]  # behind the packaged one
    assert (found["name"], found["path"], found["place"]) == ("some/tiny", str(path), "hub cache")
    assert found["type"].startswith("llama ")
    (stored,) = named(stored_models(), "some/tiny")
    assert remove(stored) == sum(one.stat().st_size for one in folder.iterdir())
    assert not list((tmp_path / "shared").glob("models--*"))


def test_a_header_is_read_where_the_folder_is_here(folder: Path) -> None:
    assert "`graphml pull some/tiny` downloads it" in command("info", "some/tiny", code=1)
    command("pull", "some/tiny")
    assert "block_count" in command("info", "some/tiny")


def test_a_quantisation_of_a_folder_is_told(folder: Path) -> None:
    with pytest.raises(DownloadError, match=r"holds no .gguf model; it has safetensors: leave out ':Q8_0'"):
        fetch.resolve("some/tiny:Q8_0")


def test_a_gguf_file_goes_before_a_folder(folder: Path, hub: HubServer) -> None:
    hub.files["tiny-Q8_0.gguf"] = b"GGUF"
    assert fetch.resolve("some/tiny").name == "tiny-Q8_0.gguf"


@pytest.mark.parametrize(
    ("file", "error", "says"),
    [
        ("c.safetensors", DownloadError, "lacks c.safetensors, which model.safetensors.index.json names"),
        ("../a.safetensors", WeightsError, "wanted names of safetensors files beside it"),
        ("pytorch_model.bin", WeightsError, "wanted names of safetensors files beside it"),
    ],
)
def test_an_index_that_names_other_files_is_refused(
    folder: Path, hub: HubServer, file: str, error: type[Exception], says: str
) -> None:
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": {"x": file}}).encode()
    with pytest.raises(error, match=says):
        fetch.resolve("some/tiny")
    assert not [path for path in hub.downloads() if path.endswith((".bin", ".safetensors"))]


def test_small_files_have_the_sum_of_git(folder: Path, hub: HubServer) -> None:
    hub.lies = "sum of git"
    with pytest.raises(DownloadError, match=r"config.json: wanted \d+ bytes with git's hash \w{40}, got"):
        fetch.resolve("some/tiny")
