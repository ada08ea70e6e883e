"""The store of an engine's prefixes: the folder checked, and which blocks in it may be used.

Knows arguments and what decides about keys and values; nothing of blocks in use.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import graphml
from graphml.api.saved_file import model_identity
from graphml.errors import UsageError
from graphml.options.argument_checks import path_of, whole_number
from graphml.runtime.blocks.state_rows import StateRow
from graphml.runtime.plans.checkpoints import STATES
from graphml.runtime.programs.executor import Executor
from graphml.runtime.store.block_files import BlockFiles
from graphml.runtime.store.block_store import BlockStore
from graphml.runtime.store.model_code import code_of

LOG = logging.getLogger(__name__)
DEFAULT_BYTES = 8 << 30
AnyPath = str | os.PathLike[str]


def opened_store(
    store: AnyPath | None,
    store_bytes: int | None,
    executor: Executor,
    rows: Mapping[str, Mapping[str, StateRow]],
    prefix_cache: bool,
) -> BlockStore | None:
    """The store in a folder, which is made if it is not there; None for None, and where there is no room.

    UsageError for a folder of other files, a model whose prefixes no blocks hold, and other wrong values.
    """
    if store is None:
        if store_bytes is not None:
            raise UsageError("store_bytes: wanted store, too: a folder")
        return None
    folder = Path(path_of("store", store))
    if not prefix_cache:
        raise UsageError("store: wanted prefix_cache, too: what is stored are its blocks")
    if executor.recurrent and STATES not in rows:
        why = "beside windows" if executor.cell_groups else "in so little kv_memory"
        other = "open the model with swa_full" if executor.cell_groups else "give more of it"
        raise UsageError(
            f"store: {executor.architecture.name} goes on from copies of recurrent states, which an engine "
            f"does not keep {why}: {other}, or leave it out"
        )
    if not rows:
        raise UsageError(
            f"store: {executor.architecture.name} keeps states that are in no blocks: leave it out"
        )
    most = DEFAULT_BYTES if store_bytes is None else whole_number(store_bytes)
    if most is None or most < 1:
        raise UsageError(f"store_bytes: wanted a whole number of bytes, or None; got {store_bytes!r}")
    try:
        files = BlockFiles(folder, engine_identity(executor), rows, most)
    except OSError as error:
        LOG.warning("store %s: cannot be used: %s; the engine goes on without it", folder, error)
        return None
    except ValueError as error:  # a name that no folder can have
        raise UsageError(f"store: {str(folder)!r}: {error}") from None
    if most < files.largest_bytes:
        raise UsageError(
            f"store_bytes: wanted room for a block of {files.largest_bytes:,} bytes; got {store_bytes!r}"
        )
    return BlockStore(files)


def engine_identity(executor: Executor) -> dict[str, str]:
    """What must be equal for an engine's keys and values on disk to be usable, by name.

    Requests share them without knowing, so they are equal to the last bit: the backend decides, too.
    """
    return model_identity(executor, executor.options) | {
        "backend": executor.backend.name, "graphml": graphml.__version__,
        "code": code_of(executor), "sums": executor.order_of_sums,
    }  # fmt: skip
