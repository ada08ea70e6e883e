"""`graphml chat --server`: a conversation whose answers come from a server, by what the server is sent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import graphml
from graphml import SamplingParams, UsageError
from graphml.cli.conversation.server_chat import SAME, fields_of
from graphml.cli.main import app
from graphml.server.options.server_options import ServerOptions
from graphml.server.requests.request_fields import ChatCompletion
from tests.mcp_server import by_stdio
from tests.server.running_server import running
from tests.server.scripted_server import Script, chunk, served
from tests.stories import STORIES

END: list[dict[str, Any] | None] = [
    chunk({}, "stop"),
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
]
TOOLS = '''
def double(x: int) -> int:
    """Double a number."""
    return 2 * x
'''


def say(address: str, *lines: str, code: int = 0, options: tuple[str, ...] = ()) -> Result:
    arguments = ["chat", "--server", address, *options]
    result = CliRunner().invoke(app, arguments, input="\n".join(lines))
    assert result.exit_code == code, result.output
    return result


def text(*pieces: str) -> list[dict[str, Any] | None]:
    return [chunk({"role": "assistant", "content": None}), *(chunk({"content": one}) for one in pieces), *END]


def call(name: str, *arguments: str) -> list[dict[str, Any] | None]:
    begin = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"tool_calls": [{"index": 0, "function": {"arguments": one}}]} for one in arguments]
    return [chunk({"tool_calls": [begin]}), *map(chunk, rest), *END]


def test_answers_are_those_of_the_same_requests() -> None:
    lines = ["Once upon a time", "and then", "/regenerate"]
    options = ServerOptions(parallel=2, n_ctx=512, aliases=("stories",))
    with graphml.load(STORIES, "cpu", threads=1) as model, running(options, model) as server:
        given = ("-n", "12", "--temp", "0", "--system", "Be kind.", "--stats", "--logprobs", "0")
        found = say(server.address, *lines, options=given)
        asked: list[dict[str, str]] = [{"role": "system", "content": "Be kind."}]
        told = []
        for one in lines[:2]:
            asked.append({"role": "user", "content": one})
            body = {"messages": asked, "max_tokens": 12, "temperature": 0}
            answer = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]
            asked.append(answer)
            told.append(answer["content"] + "\n")
    assert found.stdout == "".join([*told, told[-1]])
    assert found.stderr.count("answer 12 tokens") == 3
    assert "of 512" in found.stderr


def test_the_history_and_the_settings_go_along() -> None:
    script = Script([text("Hel", "lo."), text("Fine."), text("Yes."), text("New.")])
    with served(script) as address:
        lines = [
            "hi",
            "/set top_p",
            "/set temperature 0.8",
            "/set min_p 0",
            "/set seed 7",
            "how?",
            "/undo",
            "really?",
            "/reset",
            "anew",
        ]
        found = say(f"{address}/v1/", *lines, options=("--system", "Be kind.", "--top-k", "5"))
    assert found.stdout == "Hello.\nFine.\nYes.\nNew.\n"
    first, second, third, fourth = script.bodies
    system, user = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}
    assert first["messages"] == [system, user]
    assert first["top_k"] == 5
    assert "max_tokens" not in first
    assert not {"temperature", "min_p"} & first.keys()  # the server's own
    assert "seed" not in first
    said = {"role": "assistant", "content": "Hello."}
    assert second["messages"] == [system, user, said, {"role": "user", "content": "how?"}]
    wanted = {"temperature": 0.8, "top_k": 5, "min_p": 0.0, "seed": 7, "model": "scripted"}
    assert {name: second[name] for name in wanted} == wanted
    assert "top_p  (the server's)" in found.stderr
    assert "top_p" not in second
    assert third["messages"][-1]["content"] == "really?"
    assert len(third["messages"]) == 4
    assert fourth["messages"] == [system, {"role": "user", "content": "anew"}]


def test_functions_run_here_and_their_results_are_told(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    script = Script([call("double", '{"x"', ": 4}"), text("It is 8."), call("triple", "{}")])
    with served(script) as address:
        options = ("--tools", str(tmp_path / "tools.py"), "--yes")
        found = say(address, "go", "/history", "again", code=1, options=options)
    assert found.stdout.startswith("It is 8.\nuser: go\n")
    assert 'calls double({"x": 4})' in found.stderr
    assert script.bodies[0]["tools"][0]["function"]["name"] == "double"
    assert [one["role"] for one in script.bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert script.bodies[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"x": 4}'
    assert script.bodies[1]["messages"][2]["tool_call_id"] == "c1"
    assert "the model calls 'triple', which is no tool" in found.stderr


def test_tools_of_mcp_servers_run_here(tmp_path: Path) -> None:
    script = Script([call("own__double", '{"x": 4}'), text("It is 8.")])
    with served(script) as address:
        found = say(address, "go", options=("--mcp", str(by_stdio(tmp_path / "mcp.json")), "--yes"))
    assert found.stdout == "It is 8.\n"
    assert script.bodies[0]["tools"][0]["function"]["name"] == "own__double"
    assert script.bodies[1]["messages"][2]["content"] == "8"


def test_reasoning_is_told_apart_and_kept() -> None:
    script = Script([[chunk({"reasoning_content": "hm"}), *text("So.")], text("On.")])
    with served(script) as address:
        found = say(address, "a", "b")
    assert found.stdout == "So.\nOn.\n"
    assert script.bodies[1]["messages"][1] == {
        "role": "assistant", "content": "So.", "reasoning_content": "hm",
    }  # fmt: skip


def test_an_error_removes_its_message_and_the_talk_goes_on() -> None:
    broken: list[dict[str, Any] | None] = [chunk({"content": "Hal"})]
    failed: list[dict[str, Any] | None] = [{"error": {"message": "out of memory", "code": 500}}]
    odd: list[dict[str, Any] | None] = [{"choices": ["x"]}]
    script = Script([broken, failed, odd, text("Well.")])
    with served(script) as address:
        found = say(address, "a", "b", "c", "d", code=1)
    assert found.stdout == "Hal\n\n\nWell.\n"
    for told in ("the answer broke off", "out of memory", "a chunk is not as OpenAI's are"):
        assert told in found.stderr
    assert script.bodies[-1]["messages"] == [{"role": "user", "content": "d"}]


def test_a_key_is_needed_and_given(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    with served(Script([text("Yes.")], key="secret")) as address:
        assert "401: Invalid API Key" in say(address, "a", code=1).stderr
        assert say(address, "a", options=("--api-key", f"@{key}")).stdout == "Yes.\n"


class _Odd(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *given: object) -> None:
        pass


@contextmanager
def another_server() -> Iterator[str]:
    """A server that speaks HTTP and no more."""
    with HTTPServer(("127.0.0.1", 0), _Odd) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_what_is_no_such_server_is_told_before_anything_is_typed() -> None:
    refused = say("http://127.0.0.1:9", "a", code=1)
    assert refused.stderr == "graphml: http://127.0.0.1:9: Connection refused\n"
    with another_server() as address:
        assert "wanted JSON objects, got b'<html>'" in say(address, "a", code=1).stderr
    for wrong in ("nonsense", "http://127.0.0.1:x", "ftp://host"):
        assert "--server: wanted an address as" in say(wrong, code=2).stderr


def test_what_a_server_cannot_be_told_is_refused(tmp_path: Path) -> None:
    with served(Script([text("Yes.")])) as address:
        wrong = say(address, "/set eta_cutoff 0.1", f"/save {tmp_path}/a.safetensors", "a", code=1)
        assert "--eta-cutoff: wanted no --server" in wrong.stderr
        assert "/save: wanted messages" in wrong.stderr
        assert wrong.stdout == "Yes.\n"
        assert "--eta-cutoff" in say(address, code=2, options=("--eta-cutoff", "0.1")).stderr


def test_messages_are_saved_and_whole_chats_are_not(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    script = Script([text("Yes."), text("No.")])
    with served(script) as address:
        found = say(address, "a", f"/save {tmp_path}/a.safetensors", f"/save {file}", "/reset",
                    f"/load {file}", "/regenerate", code=1)  # fmt: skip
    assert "wanted a name for the messages" in found.stderr
    assert json.loads(file.read_text())[1]["content"] == "Yes."
    assert found.stdout == "Yes.\nNo.\n"
    assert script.bodies[1]["messages"] == [{"role": "user", "content": "a"}]


def test_ctrl_c_ends_an_answer_and_keeps_what_was_said() -> None:
    script = Script([[chunk({"content": "Hello"}), None], text("Yes.")])
    with served(script) as address:
        command = [sys.executable, "-m", "graphml", "chat", "--server", address]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("a\n")
            process.stdin.flush()
            end = time.monotonic() + 30
            while not script.bodies and time.monotonic() < end:
                time.sleep(0.02)
            assert process.stdout.read(5) == "Hello"
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate("b\n", timeout=30)
    assert out == "\nYes.\n"
    assert process.returncode == 0
    assert script.bodies[1]["messages"][1] == {"role": "assistant", "content": "Hello"}


def test_every_field_that_is_sent_is_one_of_requests() -> None:
    known = set(ChatCompletion.__struct_fields__)
    assert set(SAME) <= known
    assert set(SAME) <= {one.name for one in fields(SamplingParams)}
    schema = SamplingParams(json_schema={"type": "object"}, logprobs=2, logit_bias={3: float("-inf"), 4: 1.5})
    found = fields_of(schema)
    assert set(found) <= known
    assert found["logit_bias"] == [[3, False], [4, 1.5]]
    assert found["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert (found["logprobs"], found["top_logprobs"]) == (True, 2)
    with pytest.raises(UsageError, match="--choice"):
        fields_of(SamplingParams(choices=("a",)))
