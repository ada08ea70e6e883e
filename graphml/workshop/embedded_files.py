"""A file of texts to a file of their embeddings, in full steps; killed at any moment the same job goes on.

Rows are appended to a partial file beside the output, whose first bytes name the job: what another one has
left is refused. The output has its name when it is whole. Knows models, rows and files; nothing of terminals.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from graphml.api.embedding_model import EmbeddingModel
from graphml.api.saved_file import model_identity
from graphml.api.text_rows import chosen_pooling, cut_ids, cut_rows, longest_text, normalized
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.options.argument_checks import whole_number
from graphml.system.closing import Closing
from graphml.system.file_lock import lock_alone
from graphml.workshop.embedding_writers import check_output, write_output
from graphml.workshop.text_files import NumberedText, TextFile

PARTIAL: Final = ".partial"
HEADER: Final = 4096
"""Bytes before the rows of a partial file."""
MOST_TEXTS, STEPS = 512, 16
"""Texts whose rows are written together, at most, and the steps that they fill, unless they are fewer."""


@dataclass(frozen=True)
class EmbedSettings:
    """How texts become rows. pooling, prompt_name, prompt, dimensions: of `Model.embed`.

    norm: as of `normalized`. column: of the texts in the file; None: "text". truncate: texts that are too
    long for a step are cut, not refused.
    """

    pooling: str | None = None
    norm: int = 2
    prompt_name: str | None = None
    prompt: str | None = None
    dimensions: int | None = None
    column: str | None = None
    truncate: bool = False


@dataclass(frozen=True)
class EmbedSummary:
    """rows: of the output, each of `width` numbers; kept: had been computed before; truncated: texts cut now.

    tokens: read in this run; seconds: since it began.
    """

    rows: int
    width: int
    kept: int
    truncated: int
    tokens: int
    seconds: float


Report = Callable[[int, int], None]


def embed_file(
    model: EmbeddingModel,
    texts: Path,
    output: Path,
    settings: EmbedSettings = EmbedSettings(),
    report: Report = lambda done, total: None,
) -> EmbedSummary:
    """Write the embedding of each text of a file to `output`, in their order; a job that was killed goes on.

    texts: .txt (a line a text), .jsonl, .csv or .parquet, with a column of texts. output: .npy (float32
    [n, d]), .parquet or .jsonl, with the columns of `texts` and `embedding`. report: gets the rows that are
    done and all. UsageError for a line that is no text, with its number, for one that is too long, for a file
    that cannot be written, and for what an other job has left; rows up to then are kept.
    """
    begin = time.monotonic()
    source = TextFile(texts, settings.column)
    check_output(source, output)
    total = source.count()
    job = _Job(model, settings)
    read = source.fingerprint()
    with _Partial(output, job.identity | {"input": read, "rows": total}) as partial:
        kept = partial.count
        report(kept, total)
        for chunk in job.chunks(source.after(kept)):
            partial.append(job.rows(chunk, _behind(partial.count, total, report)))
            report(partial.count, total)
        if source.fingerprint() != read:
            raise UsageError(f"{texts}: was changed while it was read; remove {partial.path} and begin again")
        width = partial.width
        write_output(source, output, partial.path, HEADER, (total, width))
        partial.remove()
    seconds = time.monotonic() - begin
    return EmbedSummary(total, width, kept, job.truncated, job.tokens, seconds)


def _behind(done: int, total: int, report: Report) -> Callable[[int], None]:
    """What reports rows that follow `done` others."""
    return lambda count: report(done + count, total)


class _Job:
    """Texts to rows by a model and settings. identity: what decides about rows, by name."""

    def __init__(self, model: EmbeddingModel, settings: EmbedSettings) -> None:
        self._model, self._settings, executor = model, settings, model.executor
        self._pooling = chosen_pooling(executor, settings.pooling)
        self._before = model.text_prompt(settings.prompt_name, settings.prompt)
        self._longest = longest_text(executor)
        self.truncated = self.tokens = 0
        norm = -1 if self._pooling == "rank" else settings.norm
        self._norm = norm
        cut_rows(np.empty((0, 0), np.float32), settings.dimensions, self._pooling)
        self.identity: dict[str, object] = {
            **model_identity(executor, executor.options), "pooling": self._pooling, "norm": norm,
            "prompt": self._before, "dimensions": whole_number(settings.dimensions),
            "column": settings.column, "longest": self._longest,
        }  # fmt: skip

    def chunks(self, texts: Iterator[NumberedText]) -> Iterator[list[list[int]]]:
        """The ids of texts that are computed together."""
        room = STEPS * self._model.executor.n_batch
        chunk, n_ids = list[list[int]](), 0
        for text in texts:
            ids = self._ids(text)
            chunk.append(ids)
            n_ids += len(ids)
            if len(chunk) == MOST_TEXTS or n_ids >= room:
                yield chunk
                chunk, n_ids = [], 0
        if chunk:
            yield chunk

    def _ids(self, text: NumberedText) -> list[int]:
        ids = self._model.encode(self._before + text.text)
        if len(ids) > self._longest:
            if not self._settings.truncate:
                wanted = f"wanted at most {self._longest} tokens of a text; got {len(ids)}"
                raise UsageError(f"{text.place}: {wanted}; truncate cuts it")
            self.truncated += 1
            tokenizer = self._model.tokenizer
            assert tokenizer is not None  # it has encoded the text
            ids = cut_ids(ids, self._longest, tokenizer)
        if not ids:
            raise UsageError(f"{text.place}: wanted a text with tokens; got {text.text!r:.80}")
        self.tokens += len(ids)
        return ids

    def rows(self, texts: Sequence[Sequence[int]], report: Callable[[int], None]) -> Floats:
        """The rows of texts, float32 [n, d]."""
        every = self._model.embed_ids(texts, self._pooling, progress=lambda what, done, total: report(done))
        return normalized(
            cut_rows(np.concatenate(every), self._settings.dimensions, self._pooling), self._norm
        )


class _Partial(Closing):
    """The rows of a job so far, in a file beside its output.

    count: of whole rows; width: of each, 0 at first. UsageError for what another job has left, and while
    another process writes it.
    """

    def __init__(self, output: Path, identity: dict[str, object]) -> None:
        self.path, self.count, self.width = output.with_name(output.name + PARTIAL), 0, 0
        self._removed = False
        text = json.dumps(identity, sort_keys=True, default=str)
        self._job, self._total = hashlib.sha256(text.encode()).hexdigest(), int(str(identity["rows"]))
        try:
            self._file = self.path.open("a+b", buffering=0)
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror or error}") from None
        try:
            lock_alone(self._file, self.path)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def _read(self) -> None:
        """Take the rows of this job that are whole; what a kill has left of another one is cut off."""
        self._file.seek(0)
        header, size = self._file.read(HEADER) or b"", self._file.seek(0, os.SEEK_END)
        if len(header) < HEADER:  # nothing follows it
            if header and not _header(self._job, 0).startswith(header[:20]):
                self._refuse()
            self._file.truncate(0)
            return
        with contextlib.suppress(ValueError, RecursionError):
            stated = json.loads(header)
            width = stated.get("width") if isinstance(stated, dict) else None
            if isinstance(width, int) and width > 0 and header == _header(self._job, width):
                self.width, self.count = width, (size - HEADER) // (4 * width)
        if not self.width or self.count > self._total:
            self._refuse()
        self._file.truncate(HEADER + 4 * self.width * self.count)

    def _refuse(self) -> None:
        raise UsageError(
            f"{self.path}: was left by another job: of another file or model, or with other options; remove "
            "it, or choose another name for the output"
        )

    def append(self, rows: Floats) -> None:
        """Write rows, each whole or not at all; UsageError where they cannot be written."""
        if not self.width:
            self.width = rows.shape[1]
            self._write(_header(self._job, self.width), 0)
        at = HEADER + 4 * self.width * self.count
        self._write(np.ascontiguousarray(rows, "<f4").tobytes(), at)
        self.count += len(rows)

    def _write(self, data: bytes, at: int) -> None:
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(at)
            raise UsageError(
                f"{self.path}: {error.strerror or error}; {self.count} rows are kept, and the same command "
                "goes on from them"
            ) from None

    def remove(self) -> None:
        """Have the file removed in the end: its rows are in the output."""
        self._removed = True

    def close(self) -> None:
        """Write what the system holds to the disk; a file without rows, or that is done with, is removed."""
        is_left = bool(self.count) and not self._removed
        with contextlib.suppress(OSError):
            if is_left:
                os.fsync(self._file.fileno())
            else:
                self.path.unlink(missing_ok=True)  # while nobody else can have it
        self._file.close()
        if not is_left and os.name != "posix":  # where an open file stays
            self.path.unlink(missing_ok=True)


def _header(job: str, width: int) -> bytes:
    text = json.dumps({"graphml": "embed", "job": job, "width": width})
    return text.encode().ljust(HEADER - 1) + b"\n"
