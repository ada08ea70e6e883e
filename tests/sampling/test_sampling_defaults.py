"""Sampling settings that a model's file carries: what is read of it, what is not, and what has precedence."""

from __future__ import annotations

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
from typer.testing import CliRunner

import graphml
from graphml import SamplingParams
from graphml.cli.main import app
from graphml.errors import WeightsError
from graphml.loading.huggingface.generation_settings import sampling_metadata
from graphml.sampling.settings.sampling_defaults import FIELDS, PREFIX, SamplingDefaults, sampling_defaults
from graphml.server.options.model_sources import LoadableModel
from graphml.server.options.server_options import ServerOptions
from graphml.weights import Metadata
from graphml.weights.metadata import stored
from tests import tiny_model
from tests.folders.test_folders_of_transformers import RECORDS, folder
from tests.looped import looped
from tests.server.running_server import running

GGUF_FILE = Path("model.gguf")
STATED = {"temp": 0.6, "top_k": 20, "top_p": 0.9, "penalty_repeat": 1.1}
REFERENCE = ["--backend", "reference"]


def defaults(values: dict[str, Any]) -> SamplingDefaults:
    return sampling_defaults(Metadata(GGUF_FILE, {PREFIX + key: stored(x) for key, x in values.items()}))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose file states settings, one of which is not known."""
    return tiny_model.write(
        tmp_path_factory.mktemp("stated") / "stated.gguf", sampling=STATED | {"colour": 3.0}
    )


def folder_defaults(path: Path, content: str) -> SamplingDefaults:
    (path / "generation_config.json").write_text(content)
    return sampling_defaults(Metadata(path, sampling_metadata(path)))


def test_every_key_of_gguf_is_a_field() -> None:
    keys = {key for name, key in vars(gguf.Keys.General).items() if name.startswith("SAMPLING_")}
    assert len(keys) == 12
    assert keys <= {PREFIX + name for name in FIELDS}
    assert {getattr(SamplingParams(), field, None) is not None for field in FIELDS.values()} == {True}


def test_a_file_states_fields_of_sampling_params(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), graphml.load(path, backend="reference") as model:
        stated = model.sampling_defaults
        assert stated == {"temperature": 0.6, "top_k": 20, "top_p": 0.9, "repeat_penalty": 1.1}
        assert SamplingParams(**stated) == SamplingParams(
            temperature=0.6, top_k=20, top_p=0.9, repeat_penalty=1.1
        )
        assert "temperature=0.6 (general.sampling.temp)" in repr(stated)
        assert "general.sampling.colour" in repr(stated)
    assert ["general.sampling.colour" in line for line in caplog.messages] == [True]


def test_a_file_without_settings_states_none(tmp_path: Path) -> None:
    with graphml.load(tiny_model.write(tmp_path / "tiny.gguf"), backend="reference") as model:
        assert dict(model.sampling_defaults) == {}
        assert SamplingParams(**model.sampling_defaults).greedy


@looped(
    "values",
    [
        {"temp": float("nan")}, {"temp": float("inf")}, {"temp": -0.5}, {"temp": 1e300}, {"temp": "hot"},
        {"temp": True}, {"top_k": 2.5}, {"top_p": 1.5}, {"min_p": [0.1, 0.2]}, {"penalty_last_n": -2},
        {"penalty_repeat": 0.0}, {"mirostat": 7}, {"sequence": "top_k;" + "x" * 9999}, {"sequence": 3},
        {"function": "os.py:system"}, {"": 1}, {"\x1b[2J": 1},
        {"top_k": 1 << 62 | 1, "xtc_threshold": "\x1b[2J"},
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_and_not_used(values: dict[str, Any]) -> None:
    stated = defaults({**values, "mirostat_tau": 4.0})
    assert stated["mirostat_tau"] == 4.0
    assert len(stated.unused) >= 1
    (name, *_) = [key for key in values if FIELDS.get(key) not in stated]
    assert stated.unused[0].lstrip("'").startswith(PREFIX + name.replace("\x1b", "\\x1b"))
    assert len(stated.unused[0]) <= 300
    assert "\x1b" not in stated.unused[0]


def test_values_are_read_as_llama_cpp_reads_them() -> None:
    stated = defaults(
        {"top_k": -1, "temp": 0.6000000238418579, "penalty_last_n": -1, "sequence": "top_k;temp"}
    )
    assert stated == {"top_k": 0, "temperature": 0.6, "repeat_last_n": -1, "samplers": "top_k;temp"}
    assert defaults({"top_k": 40.0}) == {"top_k": 40}


def test_a_folder_states_what_its_generation_config_does(tmp_path: Path) -> None:
    stated = folder_defaults(
        tmp_path,
        json.dumps({
            "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": None, "typical_p": 0.9,
            "repetition_penalty": 1.05, "eos_token_id": [2], "num_beams": 1, "no_repeat_ngram_size": 3,
            "top_h": 1,
        }),
    )  # fmt: skip
    assert stated == {
        "temperature": 0.7, "top_k": 20, "top_p": 0.8, "typical_p": 0.9, "repeat_penalty": 1.05,
        "repeat_last_n": -1,
    }  # fmt: skip
    assert set(stated.sources.values()) == {"generation_config.json"}
    assert [line.split(":")[0] for line in stated.unused] == ["generation_config.json 'no_repeat_ngram_size'"]


def test_a_folder_that_is_opened_has_them(tmp_path: Path) -> None:
    path = folder(tmp_path, min(RECORDS))
    (path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.7}')
    with graphml.load(path, backend="reference") as model:
        assert model.sampling_defaults == {"temperature": 0.7}


def test_a_folder_is_greedy_only_where_it_says_so(tmp_path: Path) -> None:
    assert folder_defaults(tmp_path, '{"do_sample": false, "temperature": 0.7}')["temperature"] == 0
    assert folder_defaults(tmp_path, '{"temperature": 0.7}') == {"temperature": 0.7}
    assert folder_defaults(tmp_path, '{"eos_token_id": 2}') == {}
    (odd,) = folder_defaults(tmp_path, '{"do_sample": "no"}').unused
    assert "'do_sample'" in odd
    assert folder_defaults(tmp_path, '{"temperature": {"a": 1}, "top_k": NaN, "top_p": 1e999}') == {}
    with pytest.raises(WeightsError, match="generation_config"):
        folder_defaults(tmp_path, "[")


def as_json(path: Path, *options: str) -> Any:
    done = CliRunner().invoke(app, ["run", str(path), "-p", "hi", "-n", "2", "--json", *REFERENCE, *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["sampling"]


def test_run_samples_by_flag_then_file_then_llama_server(path: Path, tmp_path: Path) -> None:
    said = as_json(path, "--top-k", "7", "--stop-token", "9")
    assert said["temperature"] == {"value": 0.6, "from": "general.sampling.temp"}
    assert said["top_k"] == {"value": 7, "from": "--top-k"}
    assert said["min_p"] == {"value": 0.05, "from": "llama-server"}
    assert said["stop_tokens"] == {"value": [9], "from": "--stop-token"}
    plain = as_json(tiny_model.write(tmp_path / "tiny.gguf"))
    assert {name: shown["value"] for name, shown in plain.items()} == {
        "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
    }  # fmt: skip
    assert as_json(path, "--temp", "0")["temperature"] == {"value": 0, "from": "--temp"}
    over = as_json(path, "--override-kv", "general.sampling.temp=float:0.25")
    assert over["temperature"] == {"value": 0.25, "from": "general.sampling.temp"}


def test_a_chat_shows_where_settings_come_from_and_goes_back_to_them(path: Path) -> None:
    lines = ["/set temp", "/set top_k", "/set min_p", "/set temp 1", "/set temp default", "/set dynatemp_exp"]
    arguments = ["chat", str(path), "--top-k", "5", *REFERENCE]
    done = CliRunner().invoke(app, arguments, input="\n".join(lines))
    assert done.exit_code == 0, done.output
    shown = [
        " ".join(line.split()[:3])
        for line in done.stderr.splitlines()
        if "general.sampling.colour" not in line
    ]
    assert shown == [
        "temperature 0.6 (general.sampling.temp)", "top_k 5 (--top-k)", "min_p 0.05 (llama-server)",
        "temperature 1.0 (/set)", "temperature 0.6 (general.sampling.temp)", "dynatemp_exponent 1.0 Exponent",
    ]  # fmt: skip


def test_a_server_samples_by_request_then_flag_then_file(path: Path, tmp_path: Path) -> None:
    flags = SamplingParams(temperature=0.8, top_k=3, top_p=0.95, min_p=0.05)
    options = ServerOptions(
        parallel=1, n_ctx=64, params=flags, asked=frozenset({"top_k"}), models_dir=tmp_path
    )
    tiny_model.write(tmp_path / "plain.gguf")
    model = graphml.load(path, backend="reference")

    def listed() -> dict[str, LoadableModel]:
        plain = tmp_path / "plain.gguf"
        load = partial(graphml.load, backend="reference")
        return {"plain": LoadableModel(options, lambda: plain, load)}

    with running(options, model, sources=listed) as server:
        props = server.http.get("/props").json()
        params, sources = props["default_generation_settings"]["params"], props["sampling_sources"]
        assert (params["temperature"], params["top_k"], params["min_p"]) == (0.6, 3, 0.05)
        assert sources["temperature"] == "general.sampling.temp"
        assert (sources["top_k"], sources["min_p"]) == ("the command line", "llama-server")
        body = {"prompt": "hi", "n_predict": 1, "temperature": 0.1}
        told = server.post("/completion", body).json()["generation_settings"]
        assert (told["temperature"], told["top_p"]) == (0.1, 0.9)
        assert server.post("/models/load", {"model": "plain"}).json() == {"success": True}
        props = server.http.get("/props?model=plain").json()
        params = props["default_generation_settings"]["params"]
        assert (params["temperature"], params["top_k"]) == (0.8, 3)  # the next file's own, which is silent
        assert props["sampling_sources"]["temperature"] == "llama-server"
