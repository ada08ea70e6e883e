"""`graphml.toml`: what counts before what, and what is refused with its file, table and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from graphml import settings
from graphml.cli.main import app
from graphml.cli.options.config_file import _options_of_server, chosen_tables
from graphml.server.options.command_line import parsed, with_stated
from tests import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def run(tmp_path: Path, text: str, *arguments: object) -> Result:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    return CliRunner().invoke(app, ["run", "--config", str(file), *map(str, arguments)])


def sampling(tmp_path: Path, model: Path, text: str, *arguments: object) -> dict[str, Any]:
    shared = ["-m", model, "-p", "hi", "-n", 1, "--json", "--backend", "reference"]
    done = run(tmp_path, text, *shared, *arguments)
    assert done.exit_code == 0, done.output
    stated: dict[str, Any] = json.loads(done.stdout)["sampling"]
    return stated


TABLES = """
[defaults]
temp = 0.1
top-k = 11
min-p = 0.01
top-p = 0.11
ctx = 64
[run]
top-k = 12
min-p = 0.02
top-p = 0.12
[models."tiny*"]
min-p = 0.03
top-p = 0.13
[profiles.fast]
top-p = 0.14
"""


def test_each_table_counts_more_than_those_before_it(tmp_path: Path, model: Path) -> None:
    stated = sampling(tmp_path, model, TABLES, "--profile", "fast")
    values = {name: value["value"] for name, value in stated.items()}
    names = ("temperature", "top_k", "min_p", "top_p")
    assert [values[name] for name in names] == [0.1, 12, 0.03, 0.14]
    assert stated["top_p"]["from"].endswith("settings.toml: [profiles.fast] top-p")
    stated = sampling(tmp_path, model, TABLES, "--top-p", 0.5)
    assert stated["top_p"] == {"value": 0.5, "from": "--top-p"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[defaults]\ntmp = 1", "[defaults] tmp: no such option. Did you mean 'temp'?"),
        ("[default]\ntemp = 1", "default: wanted a table [defaults]"),
        ("[run]\nraw = 1", "[run] raw: wanted true or false, got 1"),
        ("[run]\nraw = 'yes'", "[run] raw: wanted true or false, got 'yes'"),
        ("[run]\nctx = '64'", "[run] ctx: wanted a number, got '64'"),
        ("[run]\nctx = 0", "[run] ctx: "),
        ("[run]\nmirostat-lr = 'x'", "[run] mirostat-lr: "),
        ("[run]\ntemp = [1]", "[run] temp: wanted one value, got a list"),
        ("[run]\nquant = 'q9'", "[run] quant: "),
        ("[run]\nearly-stopping = 'soon'", "[run] early-stopping: wanted one of better"),
        ("temp = 1", "temp: wanted options below a table: [defaults] for every command"),
        ("[run", "wanted a file of settings in TOML"),
    ],
)
def test_a_wrong_file_is_named_with_table_and_key(tmp_path: Path, model: Path, text: str, error: str) -> None:
    done = run(tmp_path, text, "-m", model, "-p", "hi")
    assert done.exit_code == 2, done.output
    assert error in done.stderr
    assert "settings.toml" in done.stderr


@pytest.mark.parametrize(
    "text", ["[defaults]\npredict = 3", "[run]\nn = 3", "[defaults]\nmax-tokens = 3", "[run]\nmax_tokens = 3"]
)
def test_a_key_may_be_any_name_of_the_option(tmp_path: Path, model: Path, text: str) -> None:
    line = ["-m", model, "-p", "hi", "--raw", "--temp", "0"]
    done = run(tmp_path, text, *line)
    assert done.exit_code == 0, done.output
    assert (
        done.stdout
        == run(tmp_path, "", *line, "-n", "3").stdout
        != run(tmp_path, "", *line, "-n", "9").stdout
    )


def test_a_missing_file_and_a_missing_profile_are_errors(tmp_path: Path) -> None:
    assert "no such file" in CliRunner().invoke(app, ["--config", "/nowhere", "run", "hi"]).stderr
    done = run(tmp_path, "[profiles.fast]", "--profile", "fats", "hi")
    assert done.exit_code == 2
    assert "Did you mean 'fast'?" in done.stderr


def test_a_conflict_names_the_file(tmp_path: Path, model: Path) -> None:
    done = run(tmp_path, "[run]\nbeams = 2", "-m", model, "-p", "hi", "--best-of", 2)
    assert done.exit_code == 2
    assert "settings.toml: [run] beams states --beams" in done.stderr


def test_the_folder_of_a_command_is_not_looked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAPHML_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(tmp_path)
    Path("graphml.toml").write_text("[")
    assert not settings.has_config_file()
    assert settings.config_file() == tmp_path / "own" / "graphml" / "graphml.toml"


def test_a_name_counts_more_than_a_pattern(tmp_path: Path) -> None:
    file = tmp_path / "graphml.toml"
    file.write_text('[models.smollm2]\ntemp = 1\n[models."smol*"]\ntemp = 2\n[run]\nmodel = "smollm2"')
    names = [name for name, _ in chosen_tables(file, ["run"], "run", None, None)]
    assert names == ["defaults", "run", 'models."smol*"', 'models."smollm2"']


def test_flags_of_the_server_count_more_than_the_file() -> None:
    stated = [("f: [serve] port", "--port", ["1"]), ("f: [serve] slots", "--slots", [False])]
    assert with_stated(parsed(["--port", "2"]), stated).values == {"port": 2, "slots": False}


def test_variables_of_the_server_count_more_than_the_file() -> None:
    options = _options_of_server()
    assert options["threads"].variable == "GRAPHML_THREADS"
    assert options["port"].variable == ""
