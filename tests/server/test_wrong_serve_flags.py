"""Values of `graphml serve`'s flags with which a server would answer nobody: told before it begins."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import graphml
from graphml.cli import serve as command
from graphml.cli.serve import load_options, server_options
from graphml.errors import GraphmlError, UsageError
from graphml.server.access.connections import check_certificate
from graphml.server.engine.service import Service
from graphml.server.options.command_line import BY_NAME, IN_OTHERS, parsed
from graphml.server.options.server_options import ServerOptions
from tests.stories import STORIES


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--metrics=off"], "--metrics: wanted no value"), (["--jinja=1"], "--jinja: wanted no value"),
     (["--timeout", "nan"], "--timeout"), (["--shutdown-timeout", "inf"], "--shutdown-timeout"),
     (["--port", "70000"], "--port"), (["--port", "-1"], "--port"), (["--max-waiting", "0"], "--max-waiting"),
     (["--max-body", "0"], "--max-body"), (["--reasoning", "maybe"], "--reasoning"),
     (["--reasoning-format", "maybe"], "--reasoning-format"), (["--pooling", "maybe"], "--pooling"),
     (["--sleep-idle-seconds", "0"], "--sleep-idle-seconds"),
     (["--sleep-idle-seconds", "-2"], "--sleep-idle-seconds"),
     (["--models-max", "-1"], "--models-max"), (["--rope-scale", "0"], "--rope-scale"),
     (["--api-key", " ,"], "--api-key"),
     ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)  # fmt: skip
def test_a_value_that_would_serve_nobody_is_told_at_the_start(flags: list[str], said: str) -> None:
    def read() -> None:
        given = parsed(flags)
        server_options(given)
        load_options(given)

    with pytest.raises(UsageError, match=said):
        read()


def test_a_file_stands_for_a_grammar_and_a_schema(tmp_path: Path) -> None:
    for name, flag, text in (("grammar", "--grammar", 'root ::= "a"'), ("json_schema", "-j", "{}")):
        (tmp_path / name).write_text(text)
        for value in (text, str(tmp_path / name)):
            assert getattr(server_options(parsed([flag, value])).params, name) == text
    with pytest.raises(UsageError, match=r"^--json-schema: nowhere\.json: no such file"):
        server_options(parsed(["--json-schema", "nowhere.json"]))


@pytest.mark.parametrize("flag", IN_OTHERS)
def test_an_option_of_another_server_names_the_one_here(flag: str) -> None:
    here = IN_OTHERS[flag].split()[0]
    with pytest.raises(UsageError, match=f"^{flag}: serve has no such option. {here}"):
        parsed([flag, "1"])
    assert here in BY_NAME


def test_a_prefix_of_paths_is_whole_names() -> None:
    for text, wanted in (("api", "/api"), ("/api/", "/api"), ("/", ""), ("/a/b", "/a/b")):
        assert server_options(parsed(["--api-prefix", text])).prefix == wanted


def test_a_certificate_that_cannot_be_used_names_its_flag(tmp_path: Path) -> None:
    path = tmp_path / "wrong.pem"
    path.write_text("nothing")
    for found in ({"ssl_key": path}, {"ssl_certificate": path}, {"ssl_key": path, "ssl_certificate": path},
                  {"ssl_key": tmp_path / "none", "ssl_certificate": path}):  # fmt: skip
        with pytest.raises(UsageError, match="--ssl-"):
            check_certificate(ServerOptions(**found))
    check_certificate(ServerOptions())


def test_a_model_without_a_classifier_does_not_rerank(stories: graphml.Model) -> None:
    options = server_options(parsed(["--reranking"]))
    with pytest.raises(UsageError, match=r"^--reranking: .* is no reranking model: .* wants a classifier"):
        Service(stories, options)
    Service(stories, server_options(parsed(["--embeddings"]))).access.close()


def test_an_adapter_that_is_not_there_is_told_at_the_start(stories: graphml.Model) -> None:
    with pytest.raises(GraphmlError, match="nowhere"):
        Service(stories, ServerOptions(parallel=1, n_ctx=64, loras=((Path("/nowhere.gguf"), 1.0),)))


def test_a_template_that_is_wrong_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []
    monkeypatch.setattr("graphml.server.serving.serve_until_stopped", lambda *given: served.append(given))
    flags = [str(STORIES), "-t", "1", "--chat-template", "{% for"]
    with pytest.raises(GraphmlError, match="template"):
        command.serve(SimpleNamespace(args=flags, meta={}))  # type: ignore[arg-type]
    assert not served
