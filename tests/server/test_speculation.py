"""Speculation over HTTP: flags and fields by llama-server's names, and counts of drafts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import graphml
from graphml.cli.serve import load_options, server_options
from graphml.errors import UsageError
from graphml.runtime.blocks.drafting import StepTimes
from graphml.server.engine.service import Service
from graphml.server.options.command_line import parsed
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import Running, running
from tests.stories import STORIES

PROMPT = "Once upon a time, there was a little girl. Once upon a time, there"
ASKED: dict[str, Any] = {"prompt": PROMPT, "n_predict": 40, "temperature": 0}
NGRAM = {"speculative.type": "ngram-simple"}


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps whose times do not depend on what else the machine does: lengths of drafts follow them."""
    monkeypatch.setattr(StepTimes, "of", lambda self, n_rows: 1 + 0.05 * n_rows)


@pytest.fixture(scope="module")
def drafting() -> Iterator[Running]:
    with (
        graphml.load(STORIES, "cpu", threads=1, n_batch=64, draft_model=STORIES) as model,
        running(ServerOptions(parallel=2, n_ctx=256, metrics=True), model) as found,
    ):
        yield found


def metric(server: Running, name: str) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(f"llamacpp:{name} ")).split()[1])


def test_a_request_drafts_and_says_how_much_was_right(server: Running) -> None:
    names = [f"spec_decode_num_{one}_total" for one in ("draft_tokens", "accepted_tokens", "drafts")]
    before = [metric(server, one) for one in names]
    plain = server.post("/completion", ASKED).json()
    drafted = server.post("/completion", {**ASKED, **NGRAM, "speculative.n_max": 4}).json()
    after = [metric(server, one) for one in names]
    n_drafted, n_accepted, n_drafts = (b - a for a, b in zip(before, after, strict=True))
    assert plain["content"] == drafted["content"]
    assert "draft_n" not in plain["timings"]
    timings = drafted["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (n_drafted, n_accepted)
    assert 0 < n_accepted <= n_drafted
    assert n_drafts < n_drafted <= 4 * n_drafts
    assert drafted["generation_settings"]["speculative.types"] == "ngram-simple"
    assert plain["generation_settings"]["speculative.types"] == "none"


def test_a_server_with_a_draft_model_drafts_unless_a_request_says_no(drafting: Running) -> None:
    assert all(one["speculative"] for one in drafting.http.get("/slots").json())
    found = drafting.post("/v1/completions", {**ASKED, "verbose": True}).json()
    assert found["timings"]["draft_n_accepted"] > 0
    assert found["__verbose"]["generation_settings"]["speculative.types"] == "draft-simple"
    for fields in ({"speculative.n_max": 0}, {"speculative.type": "none"}):
        assert "draft_n" not in drafting.post("/completion", {**ASKED, **fields}).json()["timings"]


def test_tokens_that_were_drafts_are_marked(server: Running) -> None:
    asked = {**ASKED, **NGRAM, "speculative.n_max": 4, "n_probs": 1}
    found = server.post("/completion", asked).json()
    marked = [one["drafted"] for one in found["completion_probabilities"] if "drafted" in one]
    assert marked == [True] * found["timings"]["draft_n_accepted"]
    assert marked
    streamed = server.events("/completion", asked)
    entries = [entry for one in streamed for entry in one.get("completion_probabilities", ())]
    assert [one.get("drafted") for one in entries] == [
        one.get("drafted") for one in found["completion_probabilities"]
    ]
    plain = server.post("/completion", {**ASKED, "n_probs": 1}).json()["completion_probabilities"]
    assert not any("drafted" in one for one in plain)


def test_a_request_that_could_draft_says_that_it_did_not(server: Running) -> None:
    timings = server.post("/completion", {**ASKED, **NGRAM, "n_predict": 1}).json()["timings"]
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("speculative.type", "guess"), ("speculative.n_max", -1), ("speculative.n_min", "a")],
    ids=["kind", "range", "type"],
)
def test_wrong_fields_are_named(server: Running, field: str, value: object) -> None:
    refused = server.post("/completion", {**ASKED, field: value})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


def test_a_draft_model_must_be_there(server: Running, stories: graphml.Model) -> None:
    assert server.post("/completion", {**ASKED, "speculative.type": "draft-simple"}).status_code == 400
    options = server_options(parsed(["--spec-type", "draft-simple"]))
    with pytest.raises(UsageError, match="--model-draft"):
        Service(stories, options)


def test_flags_become_options() -> None:
    line = "-md small.gguf --spec-type ngram-mod,ngram-simple --spec-draft-n-max 100 --spec-draft-n-min 2"
    given = parsed(line.split(" "))
    params = server_options(given).params
    assert (params.spec_type, params.spec_draft_n_max, params.spec_draft_n_min) == ("ngram", 64, 2)
    assert given.ignored == []
    assert load_options(given).draft_model == "small.gguf"
    older = server_options(parsed(["--draft-max", "9", "--draft-min", "3"])).params
    assert (older.spec_draft_n_max, older.spec_draft_n_min) == (9, 3)
    assert server_options(parsed(["--spec-type", "ngram-mod", "--draft", "0"])).params.spec_type == "none"
    both = server_options(parsed(["--spec-type", "ngram-simple,draft-simple"])).params
    assert both.spec_type == "draft"
    block = parsed(["--spec-type", "draft-dflash,draft-dspark"])
    assert server_options(block).params.spec_type == "dspark"
    eagle = parsed(["--spec-type", "draft-mtp,draft-eagle3"])
    assert server_options(eagle).params.spec_type == "eagle3"
    head = parsed(["--spec-type", "ngram-simple,draft-mtp"])
    assert server_options(head).params.spec_type == "mtp"
    assert not head.ignored
    with pytest.raises(UsageError, match="--spec-type: wanted"):
        server_options(parsed(["--spec-type", "guess"]))
