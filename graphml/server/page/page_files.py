"""Serves the files of the page under a content security policy that lets them reach this server alone.

There is no bundler: a browser loads the files of `assets` as they are, and the style that all pages of
graphml share. Knows names and types of files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import graphml

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml",
         ".webmanifest": "application/manifest+json"}  # fmt: skip
ROOT = {"/": "page.html", "/sw.js": "sw.js", "/manifest.webmanifest": "manifest.webmanifest",
        "/favicon.ico": "icon.svg"}  # fmt: skip
"""Paths besides `/page/NAME`, and their files. The page of llama-server asks for the second one."""
VERSION = "/_app/version.json"
"""Where the page of llama-server looks whether it is still the server's, and loads anew if it is not."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class _File:
    """A file as it is sent; etag: a hash of its bytes."""

    content: bytes
    media_type: str
    etag: str

    def answer(self, request: Request) -> Response:
        headers = {**_HEADERS, "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def page_routes() -> list[Route]:
    """`GET` of the paths of `ROOT`, and of `/page/NAME`, of files that were read when this was called."""
    assets = _assets()

    async def root(request: Request) -> Response:
        return assets[ROOT[request.scope["path"]]].answer(request)

    async def asset(request: Request) -> Response:
        file = assets.get(request.path_params["name"])
        return PlainTextResponse("not found", 404) if file is None else file.answer(request)

    async def version(request: Request) -> Response:
        return JSONResponse({"version": f"graphml {graphml.__version__}"}, headers=_HEADERS)

    every = {**dict.fromkeys(ROOT, root), "/page/{name}": asset, VERSION: version}
    return [Route(path, answer, methods=["GET"]) for path, answer in every.items()]


def _assets() -> dict[str, _File]:
    assets = {}
    shared = files("graphml.inspect.viewer").joinpath("assets", "base.css")
    for path in (*files("graphml.server.page").joinpath("assets").iterdir(), shared):
        media_type = TYPES.get(path.name[path.name.rfind(".") :])
        if media_type is not None:
            content = path.read_bytes()
            assets[path.name] = _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return assets
