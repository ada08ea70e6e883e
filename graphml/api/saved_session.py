"""Sessions and chats in files: all that makes them go on as if they had never ended.

A `saved_file` of ids, the cells in use, recurrent states and what follows the last token.

Knows sessions and chats; nothing of how states are computed, or of which model a file is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphml.api.saved_file import array_name, model_identity, named_arrays, open_saved, write_saved
from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.options.argument_checks import path_of, seed_or_random, whole_number
from graphml.options.option_fields import options_of
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.committed import Committed
from graphml.runtime.sessions.pinned import Pinned
from graphml.runtime.sessions.sequence_arrays import fill_sequence, sequence_arrays
from graphml.runtime.sessions.shared_room import session_sequence
from graphml.sampling import NextLogits, PeekableRandom, SamplingParams, TopK
from graphml.sampling.chain.next_logits import NOTHING_KNOWN
from graphml.system.read_files import guarded
from graphml.weights.tensor_file import TensorFile

WHAT = "session"
OWN = IDS, SOURCE, ROW, TOP_IDS, TOP_LOGITS, CHAT = "ids", "source", "row", "top_ids", "top_logits", "chat"
AnyPath = str | os.PathLike[str]


@dataclass
class SessionSettings:
    """What a session is besides what it holds. params: by what the latest generation chose."""

    n_ctx: int
    seed: int
    numbers: PeekableRandom
    params: SamplingParams


def save_session(
    executor: Executor,
    options: CompileOptions,
    sequence: Pinned,
    held: Committed,
    settings: SessionSettings,
    path: AnyPath,
    chat: Mapping[str, Any] | None = None,
) -> None:
    """Write what a session holds, in `sequence`, and its settings to a file, whole or not at all.

    A file that graphml has saved is replaced, any other one is a UsageError. chat: what a conversation is
    besides, as JSON can hold it.
    """
    target = Path(path_of("path", path))
    try:
        besides = None if chat is None else json.dumps(chat).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"save: wanted variables that JSON can hold: {error}") from None
    commit = held.latest
    arrays = named_arrays(sequence_arrays(sequence))
    arrays |= {IDS: np.array(held.ids, np.int32), SOURCE: np.array(commit.source, np.int32)}
    about = {
        **model_identity(executor, options), "kind": "session" if chat is None else "chat",
        "n_ctx": settings.n_ctx, "n_evaluated": commit.n_evaluated,
        "seed": settings.seed, "random": settings.numbers.saved(), "params": params_as_json(settings.params),
    }  # fmt: skip
    arrays |= _next_as_arrays(commit.next_logits, about)
    if besides is not None:
        arrays[CHAT] = np.frombuffer(besides, np.uint8)
    write_saved(target, WHAT, about, arrays)


def restore_session(
    executor: Executor, path: AnyPath, check_n_ctx: Callable[[int], object]
) -> tuple[Committed, SessionSettings, Mapping[str, Any] | None]:
    """What the session of a file held, its settings, and what `chat` was when it was saved, or None.

    check_n_ctx: raises a UsageError for contexts that the model does not have. UsageError for a file of
    another model, cache type or version, or one that cannot be read.
    """
    target = Path(path_of("path", path))
    with (
        guarded(target, UsageError),
        open_saved(target, WHAT, model_identity(executor, executor.options)) as file,
    ):
        about = file.about
        n_ctx, n_evaluated, seed = (_count(target, about, name) for name in ("n_ctx", "n_evaluated", "seed"))
        check_n_ctx(n_ctx)
        ids, source = (_ids(file, name, executor.n_vocab, n_ctx) for name in (IDS, SOURCE))
        if n_evaluated > len(ids) or (len(source) and not executor.encodes):
            raise UsageError(f"{target}: {n_evaluated} tokens evaluated of {len(ids)}, {len(source)} read")
        params = params_from_json(about.get("params"))
        random = PeekableRandom.restored(about.get("random", {}), seed_or_random(about.get("seed")))
        next_logits, chat = _next_of(file, executor.n_vocab), _chat_of(file)
        sequence = session_sequence(executor, executor.options, n_ctx)
        nodes = sequence.room.runner.parts.nodes
        wanted = {array_name(kind, name) for kind, some in nodes.items() for name in some}
        wanted |= {*OWN} & file.names
        if file.names != wanted:
            raise UsageError(
                f"{target}: wanted the arrays of this model; {sorted(wanted - file.names)[:3]} are missing, "
                f"{sorted(file.names - wanted)[:3]} are unknown"
            )
        fill_sequence(
            sequence,
            n_evaluated,
            source,
            lambda kind, name, shape, dtype: file.array(array_name(kind, name), shape, dtype),
        )
    held = Committed(sequence)
    held.restore(ids.tolist(), n_evaluated, tuple(source.tolist()), next_logits)
    return held, SessionSettings(n_ctx, seed, random, params), chat


def is_saved(path: Path) -> bool:
    """Whether a file begins as those of `save_session` do, whatever follows."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(9)[4:] == b"\0\0\0\0{"
    except (OSError, ValueError):
        return False


def _count(path: Path, about: Mapping[str, Any], name: str) -> int:
    number = whole_number(about.get(name))
    if number is None or number < 0:
        raise UsageError(f"{path}: {name}: wanted a whole number, got {about.get(name)!r:.40}")
    return number


def _ids(file: TensorFile, name: str, n_vocab: int, n_ctx: int) -> Array:
    ids = file.array(name, (None,), "i4")
    if len(ids) > n_ctx or (len(ids) and not 0 <= ids.min() <= ids.max() < n_vocab):
        raise UsageError(f"{file.path}: {name}: wanted at most {n_ctx} ids from 0 to {n_vocab - 1}")
    return ids


def _next_as_arrays(known: NextLogits, about: dict[str, Any]) -> dict[str, Array]:
    """What is known of the logits after the last token."""
    row, top = known.whole_row(), known.top_k
    if row is not None:
        return {ROW: row}
    if top is None or not top.usable or len(top.ids) < 2:  # one id: what a device sampled
        return {}
    about["log_sum"] = top.log_sum
    return {TOP_IDS: np.asarray(top.ids, np.int32), TOP_LOGITS: np.asarray(top.logits, np.float32)}


def _next_of(file: TensorFile, n_vocab: int) -> NextLogits:
    if ROW in file.names:
        return NextLogits(file.array(ROW, (n_vocab,), "f4"))
    if TOP_IDS not in file.names:
        return NOTHING_KNOWN
    ids = file.array(TOP_IDS, (None,), "i4")
    log_sum = file.about.get("log_sum")
    if not isinstance(log_sum, float) or not len(ids) or not 0 <= ids.min() <= ids.max() < n_vocab:
        raise UsageError(f"{file.path}: {TOP_IDS}: wanted ids of the vocabulary, and their log_sum")
    return NextLogits(TopK(ids, file.array(TOP_LOGITS, ids.shape, "f4"), log_sum, n_vocab))


def params_as_json(params: SamplingParams) -> dict[str, Any]:
    """Settings as JSON can hold them; UsageError for a function of the caller's own."""
    if params.function is not None:
        raise UsageError("save: wanted params without a function of your own, which a file cannot hold")
    values = {name: getattr(params, name) for name in options_of(SamplingParams)}
    values |= {"stop_tokens": sorted(params.stop_tokens), "logit_bias": list(params.logit_bias.items())}
    return values


def params_from_json(saved: Any) -> SamplingParams:
    """What `params_as_json` has made; UsageError for anything else."""
    try:
        values = dict(saved)
        values["logit_bias"] = {int(token): float(bias) for token, bias in values["logit_bias"]}
        return SamplingParams(**values)
    except (UsageError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"params: {error}") from None


def _chat_of(file: TensorFile) -> Mapping[str, Any] | None:
    if file.about.get("kind") != "chat":
        return None
    with guarded(file.path, UsageError, "chat: no JSON"):
        chat = json.loads(file.array(CHAT, (None,), "u1").tobytes())
    if not isinstance(chat, dict):
        raise UsageError(f"{file.path}: chat: wanted an object, got {type(chat).__name__}")
    return chat
