"""Commands without the extra `ray`: nothing of it is imported, and what needs it says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from graphml.server.server_app import COUNTED
from tests.stories import STORIES

BLOCKED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from graphml.__main__ import main
main()
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command in a process that has no Ray."""
    command = [sys.executable, "-c", BLOCKED, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "Once", "max_tokens": 2}\n')
    return path


def test_what_needs_no_ray_runs(requests: Path) -> None:
    done = run("batch", STORIES, requests, "-o", requests.with_name("out.jsonl"), "-c", "64", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 1


def test_what_needs_ray_says_what_to_install(requests: Path) -> None:
    batch = run("batch", STORIES, requests, "-o", requests.with_name("out.jsonl"), "--ray", "auto")
    others = [
        run("serve", STORIES, "--ray", "auto"),
        run("bench", STORIES, "--ray", "auto"),
    ]
    for done in (batch, *others):
        assert (done.returncode, "--ray: ray is missing; pip install" in done.stderr) == (2, True), (
            done.stderr
        )
    assert list(requests.parent.iterdir()) == [requests]
    stage = run("run", STORIES, "--raw", "-p", "a", "--backend", "ray.a")
    assert "backend 'ray.a' cannot be imported: No module named 'ray'" in stage.stderr
    assert stage.returncode == 1


def test_what_a_key_may_use_is_counted_at_every_path_that_uses_it() -> None:
    using = {"/v1/chat/completions", "/v1/activations", "/predict", "/v1/embeddings", "/rerank",
             "/api/generate", "/infill", "/v1/fim/completions", "/v1/messages", "/v1/responses",
             "/embedding"}  # fmt: skip
    free = {"/tokenize", "/detokenize", "/apply-template", "/v1/messages/count_tokens", "/props",
            "/api/show"}  # fmt: skip
    assert using <= COUNTED
    assert not free & COUNTED
