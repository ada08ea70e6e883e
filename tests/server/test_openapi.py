"""Requests that schemathesis makes of the server's own OpenAPI description are answered as it says.

Its phase "coverage", ten thousand requests more, is run by hand: see docs/serving.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import graphml
from graphml.server.options.server_options import RequestLimits, ServerOptions
from tests.server.running_server import Running, running

OFF = "rerank|models/(load|unload|sse)"
"""Paths that are off here, which answer 501, a fault to it; and a stream without an end."""
ANY_VALUES = "positive_data_acceptance"
"""The check that is left out: the description leaves messages and prompts open, which handlers check."""

TABLES = {"HYPOTHESIS_STORAGE_DIRECTORY": str(Path(__file__).parents[2] / ".hypothesis")}
"""Where hypothesis finds the tables of Unicode that other tests made; of examples nothing is kept."""


def test_schemathesis_finds_no_fault(stories: graphml.Model, tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    slots = tmp_path / "slots"
    slots.mkdir()
    options = ServerOptions(
        parallel=4,
        n_ctx=64,
        n_predict=4,
        metrics=True,
        props=True,
        activations=True,
        slot_save_path=slots,
        limits=RequestLimits(n=2),
    )
    with running(options, stories) as server:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", f"{server.address}/openapi.json",
            "--checks", "all", "--exclude-checks", ANY_VALUES, "--exclude-path-regex", OFF,
            "--phases", "fuzzing", "--max-examples", "12", "--seed", "1", "--continue-on-failure",
            "--request-timeout", "60", "--generation-deterministic", "--no-color",
        ]  # fmt: skip
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path,
            env={**os.environ, **TABLES},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
        assert server.at_rest()
    assert "passed" in done.stdout


def test_errors_are_of_the_described_schema(server: Running) -> None:
    described = server.http.get("/openapi.json").json()
    schema = {"$ref": "#/components/schemas/Error", "components": described["components"]}
    named = server.http.get("/models/another")
    wrong = server.http.post("/v1/completions", json={"prompt": 3.5})
    for answer, status in (named, 404), (wrong, 400):
        assert answer.status_code == status
        jsonschema.validate(answer.json(), schema)


def test_a_wrong_method_is_told_which_are_right(server: Running) -> None:
    refused = server.http.delete("/props")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert refused.json()["error"]["code"] == 405
    assert refused.json()["error"]["message"].endswith("that method; it answers GET, HEAD, POST")


def test_an_unknown_path_is_named_with_the_nearest(server: Running) -> None:
    for path, said in (
        ("/v1/chat/completion", ": /v1/chat/completion. Did you mean /v1/chat/completions?"),
        ("/v1/completion", ": /v1/completion. Did you mean /v1/completions?"),
        ("/api/copy", ": /api/copy"),
        ("/docs", ": `GET /openapi.json` is the OpenAPI document"),
        ("/" + "a" * 200, ": /" + "a" * 79),
        ("/%3Cb%3E", ""), ("/a%0Aforged%20line", ""), ("/%1b[2J", ""), ("/%E2%80%AEx", ""),
    ):  # fmt: skip
        answer = server.http.get(path)
        assert answer.status_code == 404
        body = answer.json()["error"]
        assert (body if isinstance(body, str) else body["message"]) == f"File Not Found{said}"
