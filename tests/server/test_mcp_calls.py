"""Tools of MCP servers on the page: who may call them, the question before each call, results in the chat."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import graphml
from graphml import UsageError
from graphml.api.mcp_servers import McpServers
from graphml.cli.serve import check_binding, server_options
from graphml.server.options.command_line import parsed
from graphml.server.options.server_options import ServerOptions
from tests.browser import Browser
from tests.mcp_server import by_stdio, wait_for
from tests.server.running_server import Running, running
from tests.server.scripted_server import Script, chunk, served
from tests.server.test_page import END, opened, pieces, say

CALL = {"name": "own__double", "arguments": {"x": 4}}
OWN = {"Sec-Fetch-Site": "same-origin"}
HIDDEN = "\u202e\u200b"
TOOL = {"type": "function", "function": {"name": "own__double", "description": "Double a <b>number</b>."}}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServers]:
    folder = tmp_path_factory.mktemp("mcp")
    path = by_stdio(folder / "mcp.json", env={"CALLS": str(folder / "calls.txt")})
    with McpServers(path) as found:
        yield found


@pytest.fixture(scope="module")
def offering(stories: graphml.Model, servers: McpServers) -> Iterator[Running]:
    with running(ServerOptions(parallel=1, n_ctx=64, mcp=Path("mcp.json")), stories, mcp=servers) as found:
        yield found


def calls(servers: McpServers) -> str:
    path = servers._path.with_name("calls.txt")
    return path.read_text() if path.exists() else ""


def test_the_page_lists_and_calls(offering: Running, servers: McpServers) -> None:
    assert offering.http.get("/props").json()["endpoint_mcp"] is True
    tools = offering.http.get("/mcp/tools", headers=OWN).json()["tools"]
    assert [tool["function"]["name"] for tool in tools] == [tool.name for tool in servers.tools]
    assert offering.post("/mcp/call", CALL, headers=OWN).json() == {"content": "8"}
    wrong = offering.post("/mcp/call", {**CALL, "arguments": {}}, headers=OWN).json()
    assert wrong == {"content": "Error: arguments: 'x' is a required property"}
    for body, field in (
        ({"name": "double", "arguments": {}}, "name"),
        ({"name": "own__double"}, "arguments"),
    ):
        refused = offering.post("/mcp/call", body, headers=OWN)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
    with offering.http.stream("GET", "/mcp/call", headers=OWN) as response:
        assert response.status_code == 405


def test_without_the_flag_there_is_no_route(server: Running) -> None:
    assert server.http.get("/props").json()["endpoint_mcp"] is False
    assert server.http.get("/mcp/tools", headers=OWN).status_code == 404
    assert server.post("/mcp/call", CALL, headers=OWN).status_code == 404


def test_a_page_of_another_site_can_neither_list_nor_call(offering: Running, servers: McpServers) -> None:
    own, before = {"Origin": offering.address}, calls(servers)
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", **own},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": offering.address.replace("127.0.0.1", "localhost")},
        {},
    ):
        assert offering.post("/mcp/call", CALL, headers=headers).status_code == 403, headers
        listed = offering.http.get("/mcp/tools", headers=headers)
        page = headers not in ({}, {"Sec-Fetch-Site": "none"})
        assert listed.status_code == (403 if page else 200), headers
    rebound = {"Host": "elsewhere.example", "Origin": "http://elsewhere.example", **OWN}
    assert offering.post("/mcp/call", CALL, headers=rebound).status_code == 403
    assert calls(servers) == before
    assert offering.post("/mcp/call", CALL, headers=own).status_code == 200


def test_with_keys_an_admin_alone_may_call(
    stories: graphml.Model, servers: McpServers, tmp_path: Path
) -> None:
    (tmp_path / "keys.txt").write_text("plain\nboss admin=1\n")
    options = server_options(
        parsed(["--api-key-file", str(tmp_path / "keys.txt"), "--mcp", "mcp.json", "-np", "1", "-c", "64"])
    )
    with running(options, stories, mcp=servers) as found:
        for key, status, n_tools in (("plain", 403, 0), ("boss", 200, len(servers.tools))):
            headers = {**OWN, "X-Api-Key": key}
            assert found.post("/mcp/call", CALL, headers=headers).status_code == status
            assert len(found.http.get("/mcp/tools", headers=headers).json()["tools"]) == n_tools
        assert found.post("/mcp/call", CALL, headers=OWN).status_code == 401
        elsewhere = {"X-Api-Key": "boss", "Origin": "http://elsewhere.example"}
        assert found.post("/mcp/call", CALL, headers=elsewhere).status_code == 403


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--host 0.0.0.0 --allow-no-key", "--mcp: wanted an --api-key, as others can ask at --host 0.0.0.0"),
        ("--no-ui", "--mcp: wanted the page"),
    ],
)
def test_a_server_that_anybody_could_use_offers_none(line: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        check_binding(server_options(parsed(["--mcp", "mcp.json", *line.split()])))
    assert str(error.value).startswith(said)
    check_binding(server_options(parsed(["--mcp", "mcp.json", "--host", "0.0.0.0", "--api-key", "k"])))


def test_a_page_that_leaves_cancels_its_call(offering: Running, servers: McpServers) -> None:
    path, body = servers._path.with_name("calls.txt"), b'{"name": "own__hang", "arguments": {}}'
    head = f"POST /mcp/call HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    address = urlsplit(offering.address)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + b"Sec-Fetch-Site: same-origin\r\n\r\n" + body)
        wait_for(path, "hangs")
    wait_for(path, "cancelled")


def test_in_a_browser_another_site_cannot_call(
    chromium: Browser, offering: Running, servers: McpServers
) -> None:
    before = calls(servers)
    script = (
        "([address, body]) => fetch(address, {method: 'POST', mode: 'no-cors', body}).then((r) => r.type)"
    )
    with served(Script()) as elsewhere, chromium.page((800, 600)) as page:
        page.goto(elsewhere)
        page.wait_for_selector("body[data-ready]")
        # Its content security policy would stop it; a foreign site has none.
        page.goto(f"{elsewhere}/v1/models")
        assert page.evaluate(script, [f"{offering.address}/mcp/call", json.dumps(CALL)]) == "opaque"
        page.goto(offering.address)
        page.wait_for_selector("body[data-ready]")
        assert calls(servers) == before
        assert page.evaluate(
            "(body) => fetch('mcp/call', {method: 'POST', body}).then((r) => r.json())", json.dumps(CALL)
        ) == {"content": "8"}


def called(arguments: str) -> list[dict[str, Any] | None]:
    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "own__double", "arguments": arguments},
    }
    return [chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]


def test_the_page_asks_before_each_call_and_goes_on(chromium: Browser) -> None:
    script = Script(
        [called(f'{{"x": "{HIDDEN}4"}}'), called('{"x": 5}'), [*pieces("It is 8."), *END]],
        tools=[TOOL],
        results=["<i>8</i>\x1b[2J"],
    )
    with opened(chromium, script) as page:
        page.click("#show-settings")
        assert page.locator("#mcp-tools").text_content() == "own__double Double a <b>number</b>."
        page.check("#set-use_mcp")
        say(page, "go")
        assert script.bodies[0]["tools"] == [TOOL]
        assert script.calls == []
        assert page.locator(".call pre").text_content() == '{"x": "\\u{202e}\\u{200b}4"}'
        page.click("text=Allow this call")
        page.wait_for_selector("article.tool:has-text('<i>8</i>')")
        page.wait_for_selector("article.assistant >> nth=1 >> text=Refuse")
        assert script.calls == [{"name": "own__double", "arguments": {"x": f"{HIDDEN}4"}}]
        page.click("text=Refuse")
        page.wait_for_selector("article.assistant:has-text('It is 8.')")
        assert len(script.calls) == 1
        results = [one["content"] for one in script.bodies[2]["messages"] if one["role"] == "tool"]
        assert results == ["<i>8</i>\x1b[2J", "Error: the user refused this call"]


def test_each_of_several_calls_is_asked_about(chromium: Browser) -> None:
    both = [
        {
            "index": i,
            "id": f"c{i}",
            "type": "function",
            "function": {"name": "own__double", "arguments": "{}"},
        }
        for i in (0, 1)
    ]
    script = Script(
        [[chunk({"tool_calls": both}), chunk({}, "tool_calls")], [*pieces("Both."), *END]],
        tools=[TOOL],
        results=["second", "first"],
    )
    with opened(chromium, script) as page:
        say(page, "go")
        page.click("text=Allow this call >> nth=1")
        page.wait_for_selector("article.tool:has-text('second')")
        assert page.locator("text=Allow this call").count() == 1
        page.click("text=Allow this call")
        page.wait_for_selector("article.assistant:has-text('Both.')")
        sent = {one["tool_call_id"]: one["content"] for one in script.bodies[1]["messages"][2:]}
        assert sent == {"c1": "second", "c0": "first"}


def test_a_call_on_the_page_is_stopped_and_a_wrong_one_is_told(chromium: Browser) -> None:
    script = Script(
        [called('{"x": 4}'), [*pieces("Stopped."), *END], called("{")], tools=[TOOL], results=[None]
    )
    with opened(chromium, script) as page:
        page.click("#show-settings")
        page.check("#set-use_mcp")
        say(page, "go")
        page.click("text=Allow this call")
        page.wait_for_selector("#stop:visible")
        page.click("#stop")
        page.wait_for_selector("article.assistant:has-text('Stopped.')")
        assert script.bodies[1]["messages"][-1]["content"] == "Error: the user cancelled this call"
        say(page, "again", 3)
        page.click("text=Allow this call")
        page.wait_for_selector("article.assistant >> nth=2 >> .error")
        assert page.locator("text=Allow this call").count() == 1
        assert len(script.calls) == 1


def test_tools_that_the_page_does_not_choose_are_not_offered(chromium: Browser) -> None:
    script = Script([[*pieces("Hello."), *END]], tools=[TOOL])
    with opened(chromium, script) as page:
        say(page, "go")
        assert "tools" not in script.bodies[0]
