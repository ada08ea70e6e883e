"""What templates are given besides messages, and what texts of requests are not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import graphml
from graphml.loading.open_file import open_path
from graphml.server.options.server_options import ServerOptions
from graphml.server.requests.request_fields import Sampling
from graphml.server.requests.sampling_settings import settings_of
from graphml.text.tokenizer import load_tokenizer
from tests.folders.test_folder_tokenizers import with_tokenizer
from tests.server.running_server import running
from tests.stories import STORIES


def test_a_template_knows_the_date_unless_the_request_says_another() -> None:
    template = "{{ date_string }}: {{ messages[0]['content'] }}"
    with (
        graphml.load(STORIES, "cpu", threads=1, n_batch=64, template=template) as model,
        running(ServerOptions(parallel=1, n_ctx=64), model) as server,
    ):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        days = [datetime.now(UTC).strftime("%d %b %Y")]
        prompt = server.post("/apply-template", body).json()["prompt"]
        days.append(datetime.now(UTC).strftime("%d %b %Y"))
        assert prompt in [f"{day}: hi" for day in days]
        other = {**body, "chat_template_kwargs": {"date_string": "today"}}
        assert server.post("/apply-template", other).json()["prompt"] == "today: hi"


@pytest.mark.parametrize(("reasoning", "said"), [("auto", "True"), ("on", "True"), ("off", "False")])
def test_models_may_think_unless_told_otherwise(reasoning: str, said: str) -> None:
    template = "{{ enable_thinking }}"
    with (
        graphml.load(STORIES, "cpu", threads=1, n_batch=64, template=template) as model,
        running(ServerOptions(parallel=1, n_ctx=64, reasoning=reasoning), model) as server,
    ):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        assert server.post("/apply-template", body).json()["prompt"] == said
        other = {**body, "chat_template_kwargs": {"enable_thinking": "perhaps"}}
        assert server.post("/apply-template", other).json()["prompt"] == "perhaps"
        for text in ("true", "false"):
            switched = {**body, "chat_template_kwargs": {"enable_thinking": text}}
            assert server.post("/apply-template", switched).json()["prompt"] == text.title()


def test_a_text_of_a_bias_is_no_control_token(tmp_path: Path) -> None:
    """Tokenizers of folders find control tokens in a text unless they are told otherwise."""
    path, _ = with_tokenizer(tmp_path / "model", "bytes")
    with open_path(path) as file:
        tokenizer = load_tokenizer(file.metadata)
    assert tokenizer is not None
    end = tokenizer.encode("</s>", add_special=False)
    assert len(end) == 1
    given = Sampling(logit_bias=[["</s>", -1.0], [end[0], 2.0]])
    biases = settings_of(given, ServerOptions(), tokenizer).params.logit_bias
    assert biases.pop(end[0]) == 2.0
    assert len(biases) > 1
    assert set(biases.values()) == {-1.0}
