"""Texts to rows in an engine: each a request of its own, so that texts of many callers share steps.

Knows arguments, ids, loops and rows; what pooling means is `graphml.loading.pooling`'s.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from graphml.api.engine_opening import opened
from graphml.backend import Progress, no_progress
from graphml.errors import BackendError, UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.op import Floats
from graphml.loading.pooling import KINDS_BY_ID, PADDING_ID, POOLINGS
from graphml.options.argument_checks import items_of, text_of, whole_number
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence as RunningSequence
from graphml.runtime.blocks.window_blocks import WindowBlocks, WindowRoom
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.loop.step_budget import StepBudget
from graphml.runtime.loop.step_loop import StepLoop
from graphml.runtime.programs.executor import Executor
from graphml.runtime.steps.runner import Runner
from graphml.text.tokenizer import Tokenizer

TOGETHER = 8
"""Texts of one step at most, of a model's own engine of texts."""
LONGEST = "sentence_transformers.max_seq_length"
AHEAD = 4
"""Steps for which texts of one caller wait, so that other requests need not wait for all of its texts."""


def default_pooling(executor: Executor) -> str:
    """The pooling that the file says; where it says none, of a decoder `last`, whose token has seen all."""
    decodes = executor.architecture.output == "logits"
    return "last" if executor.pooling == "none" and decodes else executor.pooling


def chosen_pooling(executor: Executor, pooling: str | None) -> str:
    """The pooling that is asked for, else the default one; UsageError for an unknown one, or for none."""
    if pooling is not None and pooling not in POOLINGS:
        raise UsageError(f"pooling: wanted one of {', '.join(POOLINGS)}; got {pooling!r}")
    chosen = pooling or default_pooling(executor)
    if chosen == "none":
        raise UsageError(
            f"pooling: {executor.file.path} says none, which gives no row for a text as a whole: "
            "choose mean, cls (the first token's) or last, or see embed_tokens"
        )
    return chosen


def pair_ids(executor: Executor, tokenizer: Tokenizer, query: str, text: str) -> list[int]:
    """The ids of a query and a text in one sequence, and their kinds in them where the model knows kinds."""
    ids, key = tokenizer.pair(query, text), f"{executor.architecture.name}.{KINDS_BY_ID}"
    if not executor.file.metadata.boolean(key, False):
        return ids
    kinds, n_vocab = tokenizer.pair_kinds(query, text), executor.config.n_vocab
    return [id + n_vocab * kind for id, kind in zip(ids, kinds, strict=True)]


def texts_of(texts: str | Sequence[str]) -> list[str]:
    """One text or several as a list; UsageError for what is no text."""
    if isinstance(texts, str):
        return [texts]
    every = items_of("texts", texts, "a text or a sequence of texts")
    return [text_of(f"texts[{i}]", text) for i, text in enumerate(every)]


def normalized(rows: Floats, kind: int = 2) -> Floats:
    """Rows divided by a norm, as llama.cpp numbers them; zeros stay.

    kind: below 0 none, 0 the largest value so that they fit int16, else the p-norm, 2 for length 1.
    """
    if kind < 0:
        return rows
    wide = rows.astype(np.float64)
    largest = np.abs(wide).max(axis=1, keepdims=True, initial=0.0)
    wide = wide / np.where(largest > 0, largest, 1.0)  # else a power of small values is 0
    norm = 1 / 32760.0 if kind == 0 else (np.abs(wide) ** kind).sum(axis=1, keepdims=True) ** (1.0 / kind)
    return np.asarray(wide / np.where(largest > 0, norm, 1.0), np.float32)


def cut_rows(rows: Floats, dimensions: int | None, pooling: str) -> Floats:
    """The first `dimensions` numbers of each row; None: all. They may have another length than 1.

    Models trained for it lose little by that (Matryoshka, Kusupati et al. 2022, arXiv:2205.13147). UsageError
    for scores, which `pooling` "rank" gives, and for more numbers than a row has.
    """
    if dimensions is None:
        return rows
    number, width = whole_number(dimensions), rows.shape[1] if len(rows) else None
    if pooling == "rank":
        raise UsageError(f"dimensions: wanted none beside the scores of a classifier; got {dimensions!r}")
    if number is None or number < 1 or (width is not None and number > width):
        most = "at least 1" if width is None else f"1 to {width}, the numbers of a row"
        raise UsageError(f"dimensions: wanted {most}; got {dimensions!r}")
    return rows[:, :number]


def check_texts(executor: Executor, texts: Sequence[Sequence[int]]) -> None:
    """UsageError for a text without ids or of more than n_batch: all of a text takes part in one step.

    Or one with padding, where positions are counted without it.
    """
    if executor.encodes:
        raise UsageError(
            f"{executor.file.path}: {executor.architecture.name} answers texts and embeds none: wanted its "
            "encoder alone, as a file of the architecture t5encoder has it, or a decoder alone"
        )
    if executor.max_chunk < executor.n_batch:
        raise UsageError(
            f"{executor.file.path}: {executor.architecture.name} has states of its own, read and written "
            "token by token: wanted a model that reads all of a text in one step, to embed it"
        )
    limit = longest_text(executor)
    padding = executor.file.metadata.integer(f"{executor.architecture.name}.{PADDING_ID}", -1)
    for i, ids in enumerate(texts):
        if not 0 < len(ids) <= limit:
            bounds = {"n_batch": executor.n_batch, "the model's context": executor.config.n_ctx}
            which = next((name for name, bound in bounds.items() if bound == limit), "max_seq_length")
            raise UsageError(f"texts[{i}]: wanted 1 to {limit} tokens ({which}); got {len(ids)}")
        if padding in ids:
            raise UsageError(
                f"texts[{i}]: wanted ids without the padding token, {padding}, which has no position of its "
                f"own in {executor.file.path}; got it at {list(ids).index(padding)}"
            )


def longest_text(executor: Executor) -> int:
    """Ids of the longest text that becomes rows: a folder of sentence-transformers may say fewer."""
    stated = executor.file.metadata.integer(LONGEST, executor.config.n_ctx)
    return int(min(executor.n_batch, executor.config.n_ctx, stated))


def cut_ids(ids: Sequence[int], most: int, tokenizer: Tokenizer) -> list[int]:
    """The first ids, at most so many; a token that stands behind every text, as BERT's [SEP], stays."""
    if len(ids) <= most:
        return list(ids)
    closed = tokenizer.is_special(ids[-1]) or tokenizer.encode("")[-1:] == [ids[-1]]
    return [*ids[: most - 1], ids[-1 if closed else most - 1]]


class Cancellation:
    """Ends texts that are computed, and those that begin later, once it is called; from any thread."""

    def __init__(self) -> None:
        self._lock, self._called = threading.Lock(), False
        self._cancel: Callable[[], None] = lambda: None

    def __call__(self) -> None:
        """Nobody wants the texts any more."""
        with self._lock:
            self._called, cancel = True, self._cancel
        cancel()

    def begun(self, cancel: Callable[[], None]) -> None:
        """Texts are being computed that `cancel` ends."""
        with self._lock:
            self._cancel, called = cancel, self._called
        if called:
            cancel()


class _Text:
    """The listener of one text. rows: float32 [rows, d], once they are computed."""

    def __init__(self, sequence: RunningSequence) -> None:
        self._sequence = sequence
        self.rows: Future[Floats] = Future()

    def sampled(self, token: int) -> str | None:
        """See `Listener`; no token is sampled."""

    def appended(self, token: int, last: bool) -> str | None:
        """See `Listener`; no token is sampled."""

    def prompt_computed(self, count: int) -> None:
        """See `Listener`; a text is computed at once."""

    def denoised(self) -> None:
        """See `Listener`; no answer follows."""

    def ended(self, reason: str) -> None:
        """See `Listener`."""
        rows, self._sequence.pooled = self._sequence.pooled, None
        if rows is None:
            self.rows.set_exception(BackendError("engine: the text was cancelled, or the engine closed"))
        else:
            self.rows.set_result(rows)

    def failed(self, error: BaseException) -> None:
        """See `Listener`."""
        self.rows.set_exception(error)


def rows_of_texts(
    loop: StepLoop,
    orders: Callable[[], int],
    requests: Sequence[Request],
    progress: Progress = no_progress,
    cancellation: Cancellation | None = None,
) -> list[Floats]:
    """Have a loop compute requests for rows, and wait for them; raises what one has failed with.

    Texts for a few steps wait at a time. orders: returns the place of each next text among all that wait.
    BackendError where they are cancelled.
    """
    room = AHEAD * loop.scheduler.max_texts
    begun, texts, rows = list[RunningSequence](), deque[_Text](), list[Floats]()

    def cancel() -> None:
        loop.cancel(begun)

    try:
        while len(rows) < len(requests):
            if len(texts) <= room // 2 and len(begun) < len(requests):
                first = len(begun)
                begun += [RunningSequence(request, orders()) for request in requests[first : first + room]]
                members = [(sequence, _Text(sequence)) for sequence in begun[first:]]
                loop.add(members)
                texts += [text for _, text in members]
                if cancellation is not None:  # one that came before they were added ended the others alone
                    cancellation.begun(cancel)
            progress("embed", len(rows), len(requests))
            rows.append(texts.popleft().rows.result())
    except BaseException:
        cancel()
        raise
    progress("embed", len(rows), len(requests))
    return rows


class TextEngine:
    """The engine of a model's texts that become rows, all pooled in one way. From any thread.

    It has blocks for one step, and a thread from the first text to `close`.
    """

    def __init__(self, executor: Executor, pooling: str) -> None:
        self._executor, self._pooling = executor, pooling
        count, limit = min(TOGETHER, executor.n_batch), longest_text(executor)
        n_blocks = count + -(-max(limit, executor.n_batch) // BLOCK_SIZE)
        _ = executor.programs.state_graph(count)  # so that the groups are known
        rooms = [
            WindowRoom(group, count, n_blocks * BLOCK_SIZE, executor.n_batch, BLOCK_SIZE)
            for group in executor.cell_groups
        ]
        windows = [WindowBlocks(room, n_blocks) for room in rooms]
        self._runner = Runner(executor, n_blocks, count, windows=windows, pooling=pooling, n_ctx=limit)
        pool = BlockPool(n_blocks, BLOCK_SIZE, keep=False, windows=windows)
        scheduler = Scheduler(pool, count, n_blocks * BLOCK_SIZE, recurrent=executor.recurrent)
        self._loop = StepLoop(self._runner, scheduler, StepBudget(1.0, executor.n_batch))
        self._count = itertools.count()
        opened(self, self._loop)

    def rows(
        self,
        texts: Sequence[Sequence[int]],
        progress: Progress,
        cancellation: Cancellation | None,
        n_unseen: int = 0,
    ) -> list[Floats]:
        """The rows of each text's ids, which were checked. n_unseen: of each text, as of `Request`."""
        self._runner.prepare_texts(self._pooling, map(len, texts))
        requests = [
            Request(np.asarray(ids, np.int32), pooling=self._pooling, n_unseen=n_unseen) for ids in texts
        ]
        return rows_of_texts(self._loop, lambda: next(self._count), requests, progress, cancellation)

    def close(self) -> None:
        """Give its memory back; a second call does nothing."""
        self._loop.close()


class TextEngines:
    """The engines of a model's texts, one for each pooling, made when first asked for. From any thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()
        self._engines: dict[str, TextEngine] = {}

    def rows(
        self,
        texts: Sequence[Sequence[int]],
        pooling: str,
        progress: Progress = no_progress,
        cancellation: Cancellation | None = None,
        n_unseen: int = 0,
    ) -> list[Floats]:
        """The rows of each text's ids, float32 [rows, d]; UsageError as of `check_texts`.

        n_unseen: of each text, as of `Request`.
        """
        check_texts(self._executor, texts)
        with self._lock:
            if pooling not in self._engines:
                self._engines[pooling] = TextEngine(self._executor, pooling)
            engine = self._engines[pooling]
        return engine.rows(texts, progress, cancellation, n_unseen)

    def close(self) -> None:
        """Give the memory of all back; a second call does nothing."""
        with self._lock:
            for engine in self._engines.values():
                engine.close()
            self._engines.clear()
