"""The tokens that follow a step's output rows: sampled from the top k or by the device where that is enough.

Masks of structured sequences are computed by threads of their own while a step computes the logits. Matchers
compute without the interpreter's lock, all but GBNF's first mask of a state, which the next ones find.
Knows a program's outputs and samplers; nothing of plans, blocks or who waits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from graphml.compiler.top_k_outputs import (
    OF_ROW,
    SAMPLED,
    SAMPLING_SETTINGS,
    TOP_K,
    TOP_K_IDS,
    TOP_K_LOGITS,
)
from graphml.errors import UsageError
from graphml.ir.op import Array, Floats
from graphml.runtime.blocks.drafting import n_right
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.plans.step_plan import Rows
from graphml.runtime.steps.guidance import WaitingRow
from graphml.sampling import (
    DeviceSample,
    DeviceSettings,
    NextLogits,
    TopK,
    device_settings,
)
from graphml.sampling.batches.row_batches import One, TopRows, sample_rows
from graphml.sampling.chain.next_logits import next_token
from graphml.sampling.chain.top_k_sampling import samples_without_row
from graphml.sampling.structured.forced_tokens import MOST, forced_tokens
from graphml.sampling.structured.matcher import Matcher
from graphml.sampling.structured.packed_masks import Bits

Sampled: TypeAlias = int | Exception | WaitingRow | None
"""A token, an error of this row alone, a row that waits for another sequence's; None where the whole row is
needed and not among the outputs."""

_N_MASK_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))
_LONG = 65_536
"""Logits of a row from which on threads gain more than they wait for each other."""


def top_k_of(
    outputs: Mapping[str, Array],
    row: int,
    n_vocab: int,
    settings: DeviceSettings | None,
    whole: Callable[[], Floats | None] = lambda: None,
) -> TopK:
    """The top k of a row of outputs, or the device's sample alone; settings: by which the device sampled."""
    log_sum, token, before, upto = map(float, outputs[OF_ROW][row])
    sampled = None if settings is None else DeviceSample(int(token), before, upto, settings)
    if TOP_K_IDS in outputs:
        return TopK(outputs[TOP_K_IDS][row], outputs[TOP_K_LOGITS][row], log_sum, n_vocab, whole, sampled)
    return TopK(outputs[SAMPLED][row : row + 1], np.zeros(1, np.float32), log_sum, n_vocab, whole, sampled)


def write_settings(feed: Mapping[str, Array], of: Mapping[int, Sequence], n_before: int = 0) -> None:
    """Tell the device how it samples output rows, each of its sequence, if the graph has that input.

    n_before: how many tokens of each sequence will have been sampled before that are not yet.
    """
    if SAMPLING_SETTINGS in feed:
        for row, sequence in of.items():
            feed[SAMPLING_SETTINGS][row] = device_settings_of(sequence, n_before) or 0.0


def write_draft_settings(feed: Mapping[str, Array], of: Mapping[int, Rows]) -> None:
    """The same for the rows of drafts; of: the row before each draft -> its rows."""
    if SAMPLING_SETTINGS in feed:
        for first, rows in of.items():
            for i in range(1, rows.n_drafted + 1):
                feed[SAMPLING_SETTINGS][first + i] = device_settings_of(rows.sequence, i) or 0.0


def drafted_rows(
    outputs: Mapping[str, Array],
    of: Mapping[int, Rows],
    first: Mapping[Sequence, Sampled],
    n_vocab: int,
    path: Path,
) -> dict[Sequence, list[int | Exception]]:
    """The tokens behind the first of each sequence with a draft, as long as the one before was drafted.

    Each is sampled as it would be without drafts: from the logits behind the same ids, by the next random
    numbers. first: the first tokens. Other arguments as of `sampled_rows`, behind which this is called.
    """
    tokens: dict[Sequence, list[int | Exception]] = {}
    for row, rows in of.items():
        sequence, further, forced = rows.sequence, list[int | Exception](), list[int]()
        draft, history = sequence.draft[: rows.n_drafted], list(sequence.ids)
        while n_right(draft, [first.get(sequence), *further]) == len(further) + 1:
            history.append(draft[len(further)])
            token: Sampled
            try:
                forced = forced or _forced(sequence, history)
                if forced:
                    token = forced.pop(0)
                else:
                    token = _sampled(outputs, row + 1 + len(further), sequence, n_vocab, path, history)
            except Exception as error:  # a sampler's: this request's own
                token = error
            if token is None or isinstance(token, WaitingRow):
                break  # its whole row is needed: the next step has it
            further.append(token)
        tokens[sequence] = further
    return tokens


def _forced(sequence: Sequence, ids: list[int]) -> list[int]:
    """The ids that must follow, which are not sampled with drafts either."""
    n = sequence.n_generated + len(ids) - len(sequence.ids)
    return forced_tokens(sequence.matcher, sequence.request.params, ids, n, MOST)


def sampled_rows(
    outputs: Mapping[str, Array],
    of: Mapping[int, Sequence],
    n_vocab: int,
    path: Path,
    top_rows: TopRows | None = None,
) -> list[Sampled]:
    """The token that follows each sequence, by its output row; whole rows are read where they are needed.

    path: the model's, as errors name it. top_rows: a device's top k of many rows: with it chains that need no
    more are run over all rows at once. Others are run by several threads where rows are long.

    The outputs must be those of `write_settings`, and must stay valid until this returns.
    """
    sampled: dict[int, Sampled] = {}
    if top_rows is not None and OF_ROW not in outputs:
        simple, masks = list[One](), dict[int, Bits]()
        for row, sequence in of.items():
            if sequence.guidance is not None or sequence.request.params.logprobs is not None:
                continue
            try:
                bits = None if sequence.matcher is None else _needed_bits(sequence, sequence.matcher)
            except Exception:  # a structure's: raised again where its row is sampled
                continue
            if bits is not None:
                masks[row] = bits
            simple.append((row, sequence.request.params, sequence.numbers))
        sampled |= sample_rows(outputs["logits"], simple, top_rows, masks) if simple else {}

    def sample(row: int) -> Sampled:
        try:
            return _sampled(outputs, row, of[row], n_vocab, path, of[row].ids)
        except Exception as error:  # a sampler's: this request's own
            return error

    rest = [row for row in of if row not in sampled]
    apart = [row for row in rest if _is_apart(of[row])] if n_vocab >= _LONG and OF_ROW not in outputs else []
    if len(apart) > 1:
        sampled |= zip(apart, sampling_threads().map(sample, apart), strict=True)
    sampled |= {row: sample(row) for row in rest if row not in sampled}
    return [sampled[row] for row in of]


def _needed_bits(sequence: Sequence, matcher: Matcher) -> Bits | None:
    """The tokens that may follow a sequence; None where all may."""
    matcher.catch_up(sequence.ids, sequence.n_generated)
    return matcher.needed_bits()


def _is_apart(sequence: Sequence) -> bool:
    """Whether its row can be sampled beside others: it shares nothing with them and calls no user's code."""
    return sequence.guidance is None and sequence.request.params.function is None


@lru_cache(maxsize=1)
def sampling_threads() -> ThreadPoolExecutor:
    """Threads that sample rows beside each other: NumPy and compiled loops need no interpreter's lock."""
    return ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1)), "graphml-sampling")


def device_settings_of(sequence: Sequence, n_before: int = 0) -> DeviceSettings | None:
    """How the device samples what follows a sequence; n_before: tokens that will have been sampled before."""
    return device_settings(sequence.request.params, sequence.numbers.peek(n_before), TOP_K)


def _sampled(
    outputs: Mapping[str, Array],
    row: int,
    sequence: Sequence,
    n_vocab: int,
    path: Path,
    ids: list[int],
) -> int | WaitingRow | None:
    """What follows ids, which are the sequence's and perhaps some of a draft, sampled from a row."""
    if sequence.guidance is not None:
        guided = sequence.guidance.combined(sequence, outputs["logits"][row])
        if guided is None:
            return WaitingRow.WAITS
        leader = sequence.guidance.leader
        return _by(NextLogits(guided), leader, path, leader.ids)
    params = sequence.request.params
    if OF_ROW in outputs and samples_without_row(params, TOP_K):

        def whole() -> Floats | None:
            return outputs["logits"][row] if "logits" in outputs else None

        known = NextLogits(top_k_of(outputs, row, n_vocab, device_settings_of(sequence), whole))
    else:
        known = NextLogits(outputs["logits"][row])
    return _by(known, sequence, path, ids)


def _by(known: NextLogits, sequence: Sequence, path: Path, ids: list[int]) -> int | None:
    params = sequence.request.params
    if sequence.matcher is not None:
        sequence.matcher.catch_up(ids, sequence.n_generated + len(ids) - len(sequence.ids))
    return next_token(known, params, ids, sequence.numbers, path, sequence.matcher, sequence.scores)


@lru_cache(maxsize=1)
def _mask_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_N_MASK_THREADS, "graphml-masks")


def begin_masks(sequences: Iterable[Sequence]) -> Callable[[], None]:
    """Begin to compute the masks of those that have matchers; what waits until they are there.

    Errors are found again by those who ask the matcher. Until then nobody else may use the matchers.
    """
    structured = [sequence for sequence in sequences if sequence.matcher is not None]
    if not structured:
        return lambda: None
    workers, share = _mask_threads(), -(-len(structured) // _N_MASK_THREADS)
    begun: list[Future[None]] = [
        workers.submit(_compute_masks, structured[start : start + share])
        for start in range(0, len(structured), share)
    ]

    def ready() -> None:
        wait(begun)

    return ready


def _compute_masks(sequences: Iterable[Sequence]) -> None:
    for sequence in sequences:
        with contextlib.suppress(UsageError):  # raised again where this one's token is sampled
            assert sequence.matcher is not None
            sequence.matcher.catch_up(sequence.ids, sequence.n_generated)
            sequence.matcher.bits()
