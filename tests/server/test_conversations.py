"""What templates are given besides messages."""

from __future__ import annotations

from datetime import UTC, datetime

import graphml
from graphml.server.server_options import ServerOptions
from tests.server.running_server import STORIES, running


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
