"""Tools of MCP servers: a file as `mcp.json` of other programs, the servers that it names, and their tools.

A server is a process, by its stdin and stdout, or an address (streamable HTTP). The protocol is the Model
Context Protocol, https://modelcontextprotocol.io/specification; its Python SDK runs in a thread of its own.
Knows that protocol; nothing of models, terminals or who allows a call.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from asyncio import to_thread
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from graphml.api.argument_check import wrong_arguments
from graphml.api.tools import Tool
from graphml.errors import UsageError
from graphml.system.read_files import guarded, plain_json

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult

CONNECT_S = 30.0
"""Until a server has answered each of the first requests."""
CALL_S = 60.0
"""Until a call is given up, where the file does not say."""
MOST_CHARS = 1 << 14
"""Of a result; the model is told how many were left out."""
MOST_PAGES = 100
"""Of a server's list of tools."""
CANCELLED = "Error: the user cancelled this call"
TRANSPORTS = {"command": ("stdio",), "url": ("http", "streamable-http", "streamableHttp")}
"""What `type` may say of a server with that key."""


@dataclass(frozen=True)
class McpServer:
    """A server of a file: command, args, env and cwd of a process, or url and headers.

    timeout: seconds until a call of its tools is given up.
    """

    name: str
    command: str = ""
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    timeout: float = CALL_S


def servers_in(path: Path) -> tuple[McpServer, ...]:
    """The servers of a file; UsageError names the file, the server and the key, but no value (secrets)."""
    content = plain_json(path, UsageError, what="cannot be read as JSON")
    with guarded(path, UsageError):
        return _servers(path, content)


def _servers(path: Path, content: object) -> tuple[McpServer, ...]:
    if not isinstance(content, dict) or list(content) != ["mcpServers"]:
        keys = f"the keys {', '.join(content)}" if isinstance(content, dict) else type(content).__name__
        raise UsageError(f"{path}: wanted an object with the key mcpServers alone, got {keys:.80}")
    servers = content["mcpServers"]
    if not isinstance(servers, dict) or not servers:
        raise UsageError(f"{path}: mcpServers: wanted an object with a server by its name")
    return tuple(_server(f"{path}: mcpServers.{name}", name, stated) for name, stated in servers.items())


def _server(where: str, name: str, stated: object) -> McpServer:
    if not isinstance(stated, dict):
        raise UsageError(f"{where}: wanted an object, got {type(stated).__name__}")
    known = next((key for key in TRANSPORTS if key in stated), None)
    if known is None or all(key in stated for key in TRANSPORTS):
        raise UsageError(f"{where}: wanted one of the keys command and url")
    keys = ("command", "args", "env", "cwd") if known == "command" else ("url", "headers")
    for key, value in stated.items():
        if key not in (*keys, "type", "timeout"):
            raise UsageError(f"{where}.{key}: wanted one of the keys {', '.join((*keys, 'type', 'timeout'))}")
        if (words := _wanted(key, value, known)) is not None:
            raise UsageError(f"{where}.{key}: wanted {words}, got {type(value).__name__}")
    return McpServer(name, **{key: value for key, value in stated.items() if key != "type"})


def _wanted(key: str, value: object, known: str) -> str | None:
    """What is wanted of a key's value; None where the value is as wanted."""
    if key == "args":
        ok, words = isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of text"
    elif key in ("env", "headers"):
        ok = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
        words = "an object of text"
    elif key == "timeout":
        ok = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        words = "a number of seconds above 0"
    elif key == "type":
        ok, words = value in TRANSPORTS[known], f"one of {', '.join(TRANSPORTS[known])} beside {known}"
    elif key == "url":
        ok = isinstance(value, str) and value.startswith(("http://", "https://"))
        words = "an address that begins with http:// or https://"
    else:
        ok, words = isinstance(value, str) and value != "", "text"
    return None if ok else words


@dataclass(frozen=True)
class McpTool(Tool):
    """A tool of a server. Its function takes all arguments as one mapping, and returns errors as text."""

    def call(self, arguments: Mapping[str, Any]) -> str:
        """The result as text: "Error: ..." where the tool, or the way to it, has failed."""
        assert self.function is not None
        return str(self.function(arguments))


@dataclass(frozen=True)
class _Offered:
    """Where calls of a tool go. wrong: what of their arguments does not follow the schema, or empty."""

    client: Client
    name: str
    timeout: float
    wrong: Callable[[Mapping[str, Any]], str]


class McpServers:
    """The servers of a file, which run while within. tools: theirs at the start, named SERVER__TOOL.

    UsageError where the extra `mcp` is missing, the file is wrong, or a server cannot be reached.
    """

    def __init__(self, path: Path) -> None:
        try:
            import anyio.from_thread
            import mcp  # noqa: F401 - an extra, and half a second
        except ModuleNotFoundError as error:
            raise UsageError(f"--mcp: {error.name} is missing; pip install '.[mcp]' in a clone") from None
        self._path, self._servers = path, servers_in(path)
        self._portals = anyio.from_thread.start_blocking_portal
        self._open = ExitStack()
        self._offered: dict[str, _Offered] = {}
        self.tools: tuple[McpTool, ...] = ()

    def __enter__(self) -> McpServers:
        # What a server writes is quoted by the SDK's log, which would reach the terminal.
        logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
        try:
            self._portal = self._open.enter_context(self._portals())
            for server in self._servers:
                connected = _connected(f"{self._path}: mcpServers.{server.name}", server)
                client, listed = self._open.enter_context(self._portal.wrap_async_context_manager(connected))
                for tool in listed:
                    self._offer(server, client, tool)
        except BaseException:
            self.__exit__(None, None, None)  # through the other servers' tasks the error would become a group
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(CancelledError):  # of a connection that has broken; its calls have told of it
            self._open.close()

    def start(self, name: str, arguments: Mapping[str, Any]) -> Future[str]:
        """The result of a call, as text, once it is there; cancelling it cancels the call."""
        return self._portal.start_task_soon(self._result, name, arguments)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        future = self.start(name, arguments)
        try:
            return future.result()
        except BaseException:  # Ctrl-C
            future.cancel()
            raise

    def _offer(self, server: McpServer, client: Client, tool: Any) -> None:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        try:
            validator_for(tool.input_schema).check_schema(tool.input_schema)
        except SchemaError as error:
            raise UsageError(
                f"{self._path}: mcpServers.{server.name}: the schema of its tool {tool.name!r:.80} is wrong: "
                f"{error.message:.200}"
            ) from None
        name = _unique(f"{server.name}__{tool.name}", self._offered)
        wrong = partial(wrong_arguments, tool.input_schema)
        self._offered[name] = _Offered(client, tool.name, server.timeout, wrong)
        function = partial(self._call, name)
        self.tools += (McpTool(name, tool.description or "", tool.input_schema, function),)

    async def _result(self, name: str, arguments: Mapping[str, Any]) -> str:
        from mcp import MCPError

        offered = self._offered[name]
        try:
            # A schema of somebody else's may take long: others' calls go on meanwhile.
            if wrong := await to_thread(offered.wrong, dict(arguments)):
                return _bounded(f"Error: {wrong}")
            result = await offered.client.call_tool(offered.name, dict(arguments), offered.timeout)
        except MCPError as error:
            return _bounded(f"Error: {error.message}")
        except Exception as error:
            return _bounded(f"Error: {type(error).__name__}: {error}")
        return text_of_result(result)


@asynccontextmanager
async def _connected(where: str, server: McpServer) -> AsyncIterator[tuple[Client, list[Any]]]:
    """A client of the server, and its tools; UsageError where there is none."""
    import httpx2
    from mcp import Client, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    stderr, failure = None, None
    with suppress(ExceptionGroup):  # of a connection that has broken
        async with AsyncExitStack() as held:
            try:
                if server.url:
                    timeout = httpx2.Timeout(CONNECT_S, read=None)
                    http = httpx2.AsyncClient(headers=server.headers, timeout=timeout)
                    await held.enter_async_context(http)
                    transport = streamable_http_client(server.url, http_client=http)
                else:
                    stderr = held.enter_context(_LastWords())
                    command = StdioServerParameters(
                        command=server.command, args=server.args, env=server.env, cwd=server.cwd
                    )
                    transport = stdio_client(command, stderr.stream)
                client = await held.enter_async_context(Client(transport, read_timeout_seconds=CONNECT_S))
                listed = await _listed(client)
            except Exception as error:  # raised below: through tasks it would become a group
                failure = error
            else:
                yield client, listed
    if failure is not None:
        while isinstance(failure, ExceptionGroup):
            failure = failure.exceptions[0]
        words = stderr.words() if stderr is not None else ""
        reason = f"{str(failure) or type(failure).__name__:.300}{f'; it wrote: {words}' if words else ''}"
        raise UsageError(f"{where}: cannot be used: {reason}")


async def _listed(client: Client) -> list[Any]:
    page = await client.list_tools()
    listed = list(page.tools)
    for _ in range(MOST_PAGES):
        if page.next_cursor is None:
            break
        page = await client.list_tools(cursor=page.next_cursor)
        listed += page.tools
    return listed


class _LastWords:
    """The stderr of a process, read on so that it never waits; its end is for the error of a failed start."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.stream = os.fdopen(writing, "w")
        self._end = b""
        self._thread = threading.Thread(target=self._read, args=(reading,), daemon=True)
        self._thread.start()

    def words(self) -> str:
        """Its last line, in ASCII."""
        self.stream.close()
        self._thread.join(1.0)  # a process of its own may hold the pipe
        lines = self._end.decode("utf-8", "replace").split("\n")
        return next((ascii(line.strip())[1:-1] for line in reversed(lines) if line.strip()), "")[:300]

    def _read(self, reading: int) -> None:
        with open(reading, "rb", buffering=0) as stream:
            while part := stream.read(4096):
                self._end = (self._end + part)[-4096:]

    def __enter__(self) -> _LastWords:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()


def _unique(name: str, taken: Mapping[str, object]) -> str:
    """The name as formats of calls allow it: 64 letters, digits, _ and -; a number ends one that is taken."""
    plain = re.sub("[^A-Za-z0-9_-]", "_", name)
    unique, number = plain[:64], 2
    while unique in taken:
        end = f"_{number}"
        unique, number = plain[: 64 - len(end)] + end, number + 1
    return unique


def text_of_result(result: CallToolResult) -> str:
    """A result as the model reads it: text as it is, all else by its name; bounded."""
    parts = [_text_of(block.model_dump(mode="json")) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    text = "\n".join(parts)
    return _bounded(f"Error: {text or 'the tool has failed'}" if result.is_error else text)


def _text_of(block: dict[str, Any]) -> str:
    kind, resource = block["type"], block.get("resource", {})
    if kind == "text":
        return str(block["text"])
    if resource.get("text") is not None:
        return str(resource["text"])
    named = [block.get("mime_type"), resource.get("mime_type"), block.get("uri"), resource.get("uri")]
    return f"[{' '.join([kind, *(str(name) for name in named if name)])}: not shown to the model]"


def _bounded(text: str) -> str:
    if len(text) <= MOST_CHARS:
        return text
    return f"{text[:MOST_CHARS]}\n[{len(text) - MOST_CHARS} of {len(text)} characters are left out]"
