"""Tools of MCP servers: their files, names, arguments, results, errors and ends."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import graphml
from graphml import UsageError
from graphml.api import argument_check
from graphml.api.argument_check import wrong_arguments
from graphml.api.chat_prompt import chat_prompt
from graphml.api.mcp_servers import MOST_CHARS, McpServers, McpTool, _unique, servers_in
from tests import tiny_model
from tests.api.test_chat_tools import TEMPLATE
from tests.mcp_server import by_http, by_stdio, wait_for


@pytest.fixture(scope="module", params=["stdio", "http"])
def tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The tools of a server by their own names."""
    path = tmp_path_factory.mktemp("mcp") / "mcp.json"
    if request.param == "stdio":
        with McpServers(by_stdio(path, "a server")) as servers:
            yield named(servers)
    else:
        with by_http(path, headers={"X-Secret": "s3"}), McpServers(path) as servers:
            yield named(servers)


def named(servers: McpServers) -> dict[str, McpTool]:
    return {tool.name.split("__")[1]: tool for tool in servers.tools}


def test_a_call_is_checked_and_its_result_is_text(tools: dict[str, McpTool]) -> None:
    double = tools["double"]
    assert double.name in ("a_server__double", "far__double")
    assert (double.description, double.parameters["required"]) == ("Double a number.", ["x"])
    assert double.call({"x": 4}) == "8"
    assert double.call({"x": "four"}) == "Error: arguments.x: 'four' is not of type 'integer'"
    assert double.call({}) == "Error: arguments: 'x' is a required property"


def test_a_check_of_arguments_that_takes_long_holds_no_other_call(tmp_path: Path) -> None:
    with McpServers(by_stdio(tmp_path / "mcp.json")) as servers:
        double = named(servers)["double"]
        own, ended = servers._offered[double.name], threading.Event()
        slow = dataclasses.replace(own, wrong=lambda arguments: "" if ended.wait(10) else "late")
        servers._offered["slow"] = slow
        late = servers.start("slow", {"x": 1})
        assert double.call({"x": 4}) == "8"
        assert not late.done()
        ended.set()
        assert late.result(10) == "2"


def test_a_schema_whose_expressions_never_end_ends_the_process_that_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's `re` holds its interpreter, so no thread could go on, nor end it."""
    monkeypatch.setattr(argument_check, "SECONDS", 0.1)
    endless = {"properties": {"city": {"pattern": "^(a+)+$"}}}
    assert wrong_arguments(endless, {"city": "aaa"}) == ""
    with pytest.raises(UsageError, match=r"arguments: .* within 0.10 s \(its process ended: time"):
        wrong_arguments(endless, {"city": "a" * 40 + "!"})
    assert wrong_arguments(endless, {"city": "b"}) == "arguments.city: 'b' does not match '^(a+)+$'"


def test_a_schema_that_leads_elsewhere_checks_nothing() -> None:
    with pytest.raises(UsageError, match=r"arguments: they cannot be checked: .*Unresolvable"):
        wrong_arguments({"$ref": "https://example.com/schema"}, {})


def test_an_error_of_a_tool_is_told_as_one(tools: dict[str, McpTool]) -> None:
    assert tools["fail"].call({}) == "Error: Error executing tool fail: no such city"


def test_a_tool_that_hangs_is_given_up(tmp_path: Path) -> None:
    with McpServers(by_stdio(tmp_path / "mcp.json", timeout=0.05)) as servers:
        assert named(servers)["hang"].call({}) == "Error: Request 'tools/call' timed out"


def test_results_are_bounded_and_images_are_named(tools: dict[str, McpTool]) -> None:
    text = tools["picture"].call({})
    assert text.startswith("[image image/png: not shown to the model]\nxxxxx")
    assert text.endswith("x\n[3658 of 20042 characters are left out]")
    assert len(text) < MOST_CHARS + 60


def test_headers_go_to_an_address(tools: dict[str, McpTool]) -> None:
    assert tools["header"].call({}) == ("s3" if tools["header"].name.startswith("far") else "None")


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_server_that_dies_is_an_error_of_each_call(tmp_path: Path, transport: str) -> None:
    path = tmp_path / "mcp.json"
    with by_http(path) if transport == "http" else nullcontext(by_stdio(path)), McpServers(path) as servers:
        assert named(servers)["die"].call({}) == "Error: Connection closed"
        assert named(servers)["double"].call({"x": 4}) == "Error: Connection closed"


def test_a_process_ends_with_the_servers(tmp_path: Path) -> None:
    with McpServers(by_stdio(tmp_path / "mcp.json")) as servers:
        process = int(named(servers)["process"].call({}))
        os.kill(process, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    calls = tmp_path / "calls.txt"
    with McpServers(by_stdio(tmp_path / "mcp.json", env={"CALLS": str(calls)})) as servers:
        future = servers.start("own__hang", {})
        wait_for(calls, "hangs")
        future.cancel()
        wait_for(calls, "cancelled")


def test_descriptions_of_tools_spell_no_control_token(tmp_path: Path, tools: dict[str, McpTool]) -> None:
    path = tiny_model.write(tmp_path / "tiny.gguf", template=TEMPLATE, n_ctx=4000)
    with graphml.load(path, backend="reference") as model:
        user = [{"role": "user", "content": "go"}]
        assert model.tokenizer is not None
        for source in (TEMPLATE, TEMPLATE.replace("tools | tojson", "functions")):
            templates = {"default": type(model.templates["default"])(source)}
            prompts = [
                chat_prompt(model.tokenizer, templates, user, tools=[tool])
                for tool in (tools["double"], tools["steer_it"])
            ]
            end = model.tokenizer.encode("<|im_end|>", add_special=False, parse_special=True)[0]
            assert [prompt.ids.count(end) for prompt in prompts] == [2, 2], source


def test_names_are_unique_and_as_formats_allow() -> None:
    taken: dict[str, None] = {}
    for wanted, name in (
        ("a b__c.d", "a_b__c_d"),
        ("a.b__c d", "a_b__c_d_2"),
        ("x" * 90, "x" * 64),
        ("x" * 91, "x" * 62 + "_2"),
    ):
        assert _unique(wanted, taken) == name
        taken[name] = None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "wanted an object with the key mcpServers alone, got list"),
        ('{"servers": {}}', "wanted an object with the key mcpServers alone, got the keys servers"),
        ('{"mcpServers": {}}', "mcpServers: wanted an object with a server by its name"),
        ({"x": []}, "mcpServers.x: wanted an object, got list"),
        ({"x": {}}, "mcpServers.x: wanted one of the keys command and url"),
        ({"x": {"command": "a", "url": "http://b"}}, "mcpServers.x: wanted one of the keys command and url"),
        (
            {"x": {"command": "a", "arg": []}},
            "mcpServers.x.arg: wanted one of the keys command, args, env, cwd, type, timeout",
        ),
        ({"x": {"command": 3}}, "mcpServers.x.command: wanted text, got int"),
        ({"x": {"command": "a", "args": "b"}}, "mcpServers.x.args: wanted a list of text, got str"),
        ({"x": {"command": "a", "env": {"K": 1}}}, "mcpServers.x.env: wanted an object of text, got dict"),
        (
            {"x": {"command": "a", "headers": {}}},
            "mcpServers.x.headers: wanted one of the keys command",
        ),
        ({"x": {"command": "a", "type": "http"}}, "mcpServers.x.type: wanted one of stdio beside command"),
        ({"x": {"url": "ftp://a"}}, "mcpServers.x.url: wanted an address that begins with http://"),
        ({"x": {"url": "http://a", "type": "sse"}}, "mcpServers.x.type: wanted one of http"),
        ({"x": {"url": "http://a", "timeout": True}}, "mcpServers.x.timeout: wanted a number of seconds"),
    ],
)
def test_a_wrong_file_is_one_error(tmp_path: Path, content: Any, said: str) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(content if isinstance(content, str) else json.dumps({"mcpServers": content}))
    with pytest.raises(UsageError) as error:
        servers_in(path)
    assert str(error.value).startswith(f"{path}: {said}")


def test_a_server_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    script = "import sys; sys.exit('wrong \\x1b[2J key')"
    both = {"command": sys.executable, "args": [str(Path(by_stdio.__code__.co_filename))]}
    for server, reason in (
        ({"command": "no-such-command"}, "[Errno 2] No such file or directory: 'no-such-command'"),
        (
            {"command": sys.executable, "args": ["-c", script]},
            r"Connection closed; it wrote: wrong \x1b[2J key",
        ),
        ({"url": "http://127.0.0.1:9/mcp"}, "All connection attempts failed"),
    ):
        path.write_text(json.dumps({"mcpServers": {"first": both, "x": server}}))
        with pytest.raises(UsageError) as error, McpServers(path):
            pass
        assert str(error.value) == f"{path}: mcpServers.x: cannot be used: {reason}"
    with pytest.raises(UsageError, match="cannot be read"):
        McpServers(tmp_path / "none.json")
