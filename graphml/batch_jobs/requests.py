"""The requests of a batch file: OpenAI's lines, rows with messages or a prompt, lines of text, tables.

A line that is no request is one with a reason. Knows files; nothing of models or results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphml.errors import UsageError

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDPOINTS = (CHAT, COMPLETIONS, EMBEDDINGS, "/v1/responses")
TABLES = (".parquet", ".arrow")
LONGEST = 64 << 20  # bytes of a line
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
    for number, row in _rows(path):
        request = row if isinstance(row, BatchRequest) else _request(number, row, texts)
        body = {**defaults.of(request.url), **request.body}
        yield request if request.problem else replace(request, body=body)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Number and value of each line or row; a line that cannot be read is a request with its problem."""
    ending = path.suffix.lower()
    if path.is_dir() or ending in TABLES:
        yield from enumerate(_table_rows(path), 1)
        return
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: wanted a plain file: a job reads it again when it goes on")
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
                if len(raw) > LONGEST:
                    raise UsageError(f"{path}: line {number}: wanted at most {LONGEST >> 20} MiB")
                if raw.strip():
                    yield number, _line(number, raw, is_text=ending not in (".jsonl", ".ndjson", ".json"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def _line(number: int, raw: bytes, is_text: bool) -> Any:
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")
        return text if is_text else json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        what = "UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        return BatchRequest(number, f"line-{number}", problem=f"no {what}: {error}")


def _table_rows(path: Path) -> Iterator[Any]:
    """The rows of a parquet or arrow file, or of a folder of those, as a dataset of Hugging Face is saved."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise UsageError(f"{path}: tables are read with pyarrow: pip install pyarrow") from None
    files = [path]
    if path.is_dir():
        files = sorted(each for ending in TABLES for each in path.rglob(f"*{ending}"))
        if not files:
            raise UsageError(f"{path}: wanted a file, or a folder with {' or '.join(TABLES)} files")
    for file in files:
        try:
            if file.suffix.lower() == ".parquet":
                batches = pq.ParquetFile(file).iter_batches(batch_size=256)
            else:
                batches = pa.ipc.open_stream(pa.memory_map(str(file)))
            for batch in batches:
                yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{file}: no table that pyarrow reads: {error}") from None


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
