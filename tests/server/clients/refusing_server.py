"""A server that refuses some requests, as a busy one does, and hands the others on to a real one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.server.served_app import served_routes


@dataclass
class Refusing:
    """statuses: of the next requests. n: how many came."""

    behind: str
    address: str = ""
    statuses: list[int] = field(default_factory=list)
    n: int = 0

    @property
    def v1(self) -> str:
        return f"{self.address}/v1"

    async def __call__(self, request: Request) -> Response:
        self.n += 1
        if self.statuses:
            status = self.statuses.pop(0)
            kind = "rate_limit_error" if status == 429 else "overloaded_error"
            error = {"message": "busy", "type": kind, "code": status}
            return JSONResponse({"type": "error", "error": error}, status, {"Retry-After": "0"})
        body = await request.body()
        async with httpx2.AsyncClient(base_url=self.behind, timeout=60, verify=False) as client:
            found = await client.request(
                request.method, request.url.path, content=body, headers={"content-type": "application/json"}
            )
        return Response(found.content, found.status_code, media_type=found.headers["content-type"])


@contextmanager
def refusing(behind: str) -> Iterator[Refusing]:
    made = Refusing(behind)
    with served_routes([Route("/{path:path}", made.__call__, methods=["GET", "POST"])]) as address:
        made.address = address
        yield made
