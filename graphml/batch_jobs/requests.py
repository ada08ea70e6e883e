"""The requests of a batch file: OpenAI's lines, rows with messages or a prompt, lines of text, tables.

A line that is no request is one with a reason. Knows files; nothing of models or results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphml.system.row_files import WrongLine, read_rows

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS, "/v1/responses")
OWN = ("custom_id", "method", "url", "body")
COLUMNS = {"messages": CHAT, "prompt": COMPLETIONS, "text": COMPLETIONS, "input": EMBEDDINGS}
"""What a row has -> the endpoint that answers it."""


LIMITS = {CHAT: "max_tokens", COMPLETIONS: "max_tokens", "/v1/responses": "max_output_tokens"}
"""What each endpoint calls the most tokens of an answer."""


@dataclass(frozen=True)
class BatchDefaults:
    """Fields of requests that do not have them; tokens and sampling of answers, not of embeddings."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def of(self, url: str) -> dict[str, Any]:
        """The fields of a body for an endpoint."""
        limit = {} if self.max_tokens is None else {LIMITS.get(url, ""): self.max_tokens}
        answer = {**self.sampling, **limit} if url in LIMITS else {}
        return {**answer, **self.fields}


@dataclass(frozen=True)
class BatchRequest:
    """A line: its number from 1, its name, and what is asked; problem: why it cannot be, "" if it can."""

    number: int
    custom_id: str
    url: str = ""
    body: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def read_requests(path: Path, texts: str, defaults: BatchDefaults) -> Iterator[BatchRequest]:
    """The requests of a file, in order.

    texts: the endpoint of lines and prompts that are plain text. UsageError for a file that cannot be read.
    """
    for number, row in read_rows(path):
        if isinstance(row, WrongLine):
            request = BatchRequest(number, f"line-{number}", problem=row.problem)
        else:
            request = _request(number, row, texts)
        body = {**defaults.of(request.url), **request.body}
        yield request if request.problem else replace(request, body=body)


def _request(number: int, row: Any, texts: str) -> BatchRequest:
    """A line's value as a request: OpenAI's, a row, or a text."""
    name = f"line-{number}"
    if isinstance(row, str):
        return BatchRequest(number, name, texts, _of_text(row, texts))
    if not isinstance(row, Mapping):
        return BatchRequest(number, name, problem=f"wanted an object or a text; got {row!r:.80}")
    stated = row.get("custom_id", name)
    if not isinstance(stated, str | int) or isinstance(stated, bool) or stated == "":
        return BatchRequest(number, name, problem=f"custom_id: wanted a text; got {stated!r:.80}")
    name = str(stated)
    if "url" in row or "body" in row:
        return _of_openai(number, name, row)
    column = next((column for column in COLUMNS if row.get(column) is not None), None)
    if column is None:
        problem = f"wanted url and body, or one of {', '.join(COLUMNS)}; got {', '.join(map(str, row))!r:.80}"
        return BatchRequest(number, name, problem=problem)
    value = row[column]
    if column in ("prompt", "text") and isinstance(value, str):
        url, body = texts, _of_text(value, texts)
    else:
        url, body = COLUMNS[column], {column: value}
    more = {key: value for key, value in row.items() if key not in ("custom_id", *COLUMNS)}
    return BatchRequest(number, name, url, {**more, **body})


def _of_text(text: str, url: str) -> dict[str, Any]:
    if url == CHAT:
        return {"messages": [{"role": "user", "content": text}]}
    return {"prompt" if url == COMPLETIONS else "input": text}


def _of_openai(number: int, name: str, row: Mapping[str, Any]) -> BatchRequest:
    url, body, method = str(row.get("url")), row.get("body"), row.get("method", "POST")
    unknown = [key for key in row if key not in OWN]
    problem = ""
    if "custom_id" not in row:
        problem = "custom_id: wanted a name for the result"
    elif unknown:
        problem = f"wanted {', '.join(OWN)}; got {', '.join(unknown)!r:.80} too"
    elif method != "POST":
        problem = f"method: wanted POST; got {method!r:.40}"
    elif url not in ENDPOINTS:
        problem = f"url: wanted {', '.join(ENDPOINTS)}; got {url!r:.80}"
    elif not isinstance(body, Mapping):
        problem = f"body: wanted an object; got {body!r:.80}"
    elif body.get("stream"):
        problem = "body.stream: wanted false: a result is one line"
    if problem or not isinstance(body, Mapping):
        return BatchRequest(number, name, problem=problem)
    return BatchRequest(number, name, url, body)
