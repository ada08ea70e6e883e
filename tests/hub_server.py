"""A small server on this machine that speaks as the Hugging Face hub does, well or badly."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"
REPO = "some/tiny"
FILES = {
    "README.md": b"# tiny",
    "tiny-Q8_0.gguf": b"q8" * 5000,
    "tiny-Q4_K_M.gguf": b"k4" * 4000,
    "mmproj-tiny-Q8_0.gguf": b"picture",
    "big/tiny-f16-00001-of-00002.gguf": b"one" * 3000,
    "big/tiny-f16-00002-of-00002.gguf": b"two" * 2000,
}


class HubServer(ThreadingHTTPServer):
    """Files of one repository; what was asked for and with which tokens, the bytes sent, and how it behaves.

    breaks_after: connections end after so many bytes of a file; ignores_ranges, lies (other ranges, sizes or
    sums than asked for or told), redirects (to a path of another host name, or to `target`), status (of all
    files), version (the headers that name that of a file, {} for none; None: the ETag is its sum).
    """

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.commit, self.asked = dict(files), COMMIT, []
        self.ranges: list[str | None] = []
        self.tokens: set[str | None] = set()
        self.sent = 0
        self.breaks_after: int | None = None
        self.ignores_ranges = self.redirects = False
        self.status = 200
        self.lies = self.target = ""
        self.version: dict[str, str] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def downloads(self) -> list[str]:
        return [path for command, path in self.asked if command == "GET" and "/resolve/" in path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:  # the name that http.server calls
        self.answer()

    def do_GET(self) -> None:  # as above
        self.answer()

    def answer(self) -> None:
        server = self.server
        server.asked.append((self.command, self.path))
        server.tokens.add(self.headers.get("Authorization"))
        path = unquote(urlsplit(self.path).path)
        resolved = f"/{REPO}/resolve/{server.commit}/"
        if path.startswith(f"/api/models/{REPO}"):
            siblings = [self.listed(name, raw) for name, raw in server.files.items()]
            body = json.dumps({"id": REPO, "sha": server.commit, "siblings": siblings}).encode()
            self.reply(200, body, {"Content-Type": "application/json"})
        elif path.startswith(resolved) and path.removeprefix(resolved) in server.files:
            if server.redirects and "moved" not in self.path:
                moved = f"http://localhost:{server.server_port}{self.path}?moved"
                self.reply(302, b"", {"Location": server.target or moved})
            else:
                self.send_file(server.files[path.removeprefix(resolved)])
        else:
            headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            self.reply(404, b"{}", headers)

    def listed(self, name: str, raw: bytes) -> dict[str, Any]:
        lies = self.server.lies
        size = {"size": 10**15, "smaller": len(raw) - 1}.get(lies, len(raw))
        found: dict[str, Any] = {"rfilename": name, "size": size, "blobId": git_hash(raw)}
        if lies == "no size":
            del found["size"]
        if name.endswith(".json") and lies == "sum of git":
            found["blobId"] = git_hash(b"other")
        if not name.endswith(".json"):  # git has small files itself
            digest = hashlib.sha256(b"other" if lies == "sum" else raw).hexdigest()
            found["lfs"] = {"sha256": digest, "size": size, "pointerSize": 134}
        return found

    def send_file(self, raw: bytes) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.ranges.append(asked)
        if server.status != 200:
            self.reply(server.status, b"no", {})
            return
        first, last = 0, len(raw) - 1
        tag = {"ETag": f'"{hashlib.sha256(raw).hexdigest()}"'}
        headers = {**(tag if server.version is None else server.version), "X-Repo-Commit": server.commit}
        condition = self.headers.get("If-Range")
        if asked and not server.ignores_ranges and condition in (None, *headers.values()):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
            told = f"bytes {first + (server.lies == 'range')}-{last}/{len(raw) + (server.lies == 'total')}"
            headers["Content-Range"] = told
        body = raw[first : last + 1]
        if server.lies == "longer":
            body += b"x" * 5000
        if server.lies == "gzip":
            headers["Content-Encoding"] = "gzip"
        server.sent += len(body[: server.breaks_after])
        self.reply(206 if "Content-Range" in headers else 200, body, headers, server.breaks_after)

    def reply(self, code: int, body: bytes, headers: dict[str, str], breaks_after: int | None = None) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            sent = body[:breaks_after]
            self.wfile.write(sent)
            self.close_connection |= len(sent) < len(body)


def git_hash(raw: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(raw) + raw).hexdigest()


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[HubServer]:
    """The server, running."""
    with HubServer(files) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
