"""`graphml run` with beams, best of several, guidance and healing: the texts of the methods of `Model`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import graphml
from graphml import SamplingParams
from graphml.cli.main import app
from graphml.sampling.settings.params import LLAMA_SERVER
from tests import tiny_model
from tests.stories import STORIES

REFERENCE = ["--backend", "reference"]
PROMPT, NEGATIVE = "Lily went to the", "Once upon a time, there was a little girl named Lily. She"


def run(path: Path, *options: object) -> dict[str, Any]:
    """The JSON that the command prints, whose text is what it prints without --json."""
    greedy = [] if "--temp" in options else ["--temp", 0]
    limit = [] if "-n" in options else ["-n", 12]
    given = ["run", path, *limit, *options, *greedy, *REFERENCE]
    shown, done = (
        CliRunner().invoke(app, [str(one) for one in (*given, *more)]) for more in ([], ["--json"])
    )
    assert (shown.exit_code, done.exit_code) == (0, 0), done.output
    found: dict[str, Any] = json.loads(done.stdout)
    if "--temp" not in options or "--seed" in options:
        assert shown.stdout.startswith(found["text"] + "\n")
    return found


@pytest.fixture(scope="module")
def model() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, backend="reference") as opened:
        yield opened


def test_beams(model: graphml.Model) -> None:
    found = run(STORIES, "-p", PROMPT, "--beams", 3, "--length-penalty", 0.5, "--early-stopping", "never")
    want = model.beam_search(PROMPT, 3, 12, n_best=3, length_penalty=0.5, early_stopping="never")
    assert (found["text"], found["ids"]) == (want[0].text, want[0].tokens)
    assert found["scores"] == [one.score for one in want]
    assert run(STORIES, "-p", PROMPT, "--beams", 1)["ids"] == run(STORIES, "-p", PROMPT)["ids"]
    n_prompt = len(model.encode(PROMPT))
    assert len(run(STORIES, "-p", PROMPT, "--beams", 2, "-c", n_prompt + 3)["ids"]) == 3  # of 12
    nothing = run(STORIES, "-p", PROMPT, "--beams", 2, "-n", 0)
    assert (nothing["text"], nothing["ids"], nothing["stop_reason"]) == ("", [], "length")
    refused = CliRunner().invoke(
        app, ["run", str(STORIES), "-p", PROMPT, "--beams", "2", "-c", str(n_prompt)]
    )
    assert f"n_ctx = {n_prompt}" in refused.stderr
    (stop,) = run(STORIES, "-p", PROMPT, "--beams", 3)["ids"][2:3]
    assert len(run(STORIES, "-p", PROMPT, "--beams", 3, "--stop-token", stop)["ids"]) < 12


@pytest.mark.parametrize("by", ["mean", "sum"])
def test_the_best_of_several(model: graphml.Model, by: str) -> None:
    options = ["-p", PROMPT, "--temp", 1.2, "--seed", 3, "--stop", "."]
    found = run(STORIES, *options, "--best-of", 4, "--best-by", by, "--logprobs", 1)
    usual: dict[str, Any] = {**LLAMA_SERVER, "temperature": 1.2}
    params = SamplingParams(**usual, stop=(".",), logprobs=1)
    want = model.best_of(PROMPT, 4, params, 12, seed=3, by=by)
    assert (found["text"], found["ids"], found["stop_reason"]) == (want.text, want.tokens, want.stop_reason)
    assert found["scores"] == sorted(found["scores"], reverse=True)
    assert len(found["scores"]) == 4
    assert len(found["logprobs"]) == len(want.tokens)
    again = run(STORIES, "-p", PROMPT, "--temp", 1.2, "--seed", found["seed"], "--stop", ".")
    assert again["text"] == found["text"]
    assert "logprobs" not in run(STORIES, *options, "--best-of", 2)


def test_guidance(model: graphml.Model) -> None:
    found = run(STORIES, "-p", PROMPT, "--guidance-scale", 3, "--negative-prompt", NEGATIVE)
    assert found["text"] == model.guided(PROMPT, NEGATIVE, 3.0, max_tokens=12).text
    assert found["text"] != run(STORIES, "-p", PROMPT)["text"]
    alone = run(STORIES, "-p", PROMPT, "--guidance-scale", 2)
    assert alone["ids"] == model.guided(PROMPT, None, 2.0, max_tokens=12).tokens


def test_healing(model: graphml.Model) -> None:
    prompt = "Once upon a t"
    found, healed = run(STORIES, "-p", prompt, "--heal"), model.heal(prompt)
    (want,) = model.generate([healed.ids], healed.params, max_tokens=12)
    assert (found["text"], found["ids"], found["prompt_ids"]) == (want.text, want.tokens, healed.ids)
    assert "time" in found["text"]


def test_a_chat_template_is_put_around_both_prompts(tmp_path: Path) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf")
    around = "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    with graphml.load(path, backend="reference") as model:
        ids, other = (model.encode(around.format(one), parse_special=True) for one in ("hello", "bye"))
        want = model.guided(ids, other, 2.5, max_tokens=12)
        options = ["-p", "hello", "--system", "be kind"]
        found = run(path, *options, "--guidance-scale", 2.5, "--negative-prompt", "bye")
        assert (found["prompt"], found["prompt_ids"]) == (around.format("hello"), ids)
        assert (found["text"], found["ids"]) == (want.text, want.tokens)
        assert run(path, *options, "--beams", 2)["ids"] == model.beam_search(ids, 2, 12)[0].tokens
