"""Files of their own that draft for a model from its hidden rows: which fit, and what drafts by them.

They run on the model's device; tensors that such a file lacks (embeddings, output matrix) are the model's.
Knows files, architectures and executors; nothing of steps, text, or of who asks for drafts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from graphml.compiler.multi_device import PartsDevice
from graphml.errors import UsageError
from graphml.ir.shape import fixed
from graphml.ir.step import WrittenCache
from graphml.loading import discovery
from graphml.loading.architecture import EMBEDDING, MODELS_EMBEDDING, Keys
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.model_graphs import DRAFTED_IDS
from graphml.runtime.sessions.block_head import BlockHead
from graphml.runtime.sessions.feature_head import FeatureHead
from graphml.runtime.sessions.prediction_head import PredictionHead
from graphml.runtime.sessions.shared_cells_head import SharedCellsHead
from graphml.weights import ModelFile
from graphml.weights.tensor import Tensor

OUTPUT = "output.weight"


def open_draft_file(executor: Executor, file: ModelFile) -> None:
    """Have the drafter `file` draft for a model that has drafted nothing yet, which closes it from now on.

    UsageError where it does not fit.
    """
    name = file.metadata.text("general.architecture")
    architecture, form, unread, correcting, corrects = discovery.drafter(name)
    config: Any = architecture.read(Keys(file.metadata, name))
    if getattr(config, "usual_layers", False):
        config = replace(config, target_layers=usual_layers(getattr(executor.config, "n_layer", 0)))
    _check_fits(executor, file, config)
    tensors = _with_shared(executor, file, form)
    drafted = None if form == "cells" else _drafted_ids(executor, file, tensors[OUTPUT])
    _check_embedding(executor, file, tensors[EMBEDDING], config.n_embd)
    own = file.with_tensors(tensors)
    executor.graphs.hidden_layers = config.target_layers
    try:
        executor.graphs.build(1, 1, hidden=True)  # which refuses layers that give more than one value
        head: PredictionHead
        if form == "block":
            second = correcting if any(name in file.tensors for name in corrects) else None
            head = BlockHead(executor, own, architecture, config, drafted, second)
        elif form == "cells":
            head = SharedCellsHead(executor, own, architecture, config, _caches(executor, file, config))
        else:
            head = FeatureHead(executor, own, architecture, config, drafted)
        _check_used(head, file, unread if drafted is None else {DRAFTED_IDS, *unread})
        executor.head = head
    except BaseException:
        executor.graphs.hidden_layers = ()
        raise


def usual_layers(n_layer: int) -> tuple[int, ...]:
    """The layers of a model whose inputs an EAGLE-3 head reads where its config does not say it."""
    return (2, n_layer // 2, n_layer - 3)


def drafts_by_file(executor: Executor) -> str:
    """The `spec_type` by which a file of its own drafts from the model's hidden rows; "" where none does."""
    head: PredictionHead | None = executor.head
    return "" if head is None else head.spec_type


def _check_fits(executor: Executor, file: ModelFile, config: Any) -> None:
    model, own = executor.file.path, executor.config
    if isinstance(executor.device, PartsDevice):
        raise UsageError(f"draft_model: {file.path} wants a model on one backend; it is on several")
    if not executor.architecture.causal or executor.encodes or not executor.generates:
        raise UsageError(f"draft_model: {file.path} wants a model that continues a text; got {model}")
    table, n_layer = executor.file.tensors.get(EMBEDDING), getattr(own, "n_layer", None)
    if table is None or n_layer is None:
        missing = f"no tensor {EMBEDDING}" if table is None else "a Config without n_layer"
        raise UsageError(f"draft_model: {file.path} reads rows between layers; {model} has {missing}")
    if config.n_embd_target != table.shape[-1]:
        raise UsageError(
            f"draft_model: {file.path} reads hidden rows of {config.n_embd_target} numbers; {model} has "
            f"rows of {table.shape[-1]}"
        )
    for i, (token, wanted) in enumerate(zip(_tokens(file), _tokens(executor.file), strict=False)):
        if token != wanted:
            raise UsageError(f"draft_model: {file.path}: token {i} is {token!r}; {model} has {wanted!r}")
    mask = getattr(config, "mask", 0)
    if not 0 <= mask < executor.n_vocab:
        raise UsageError(
            f"draft_model: {file.path}: wanted a mask token below {executor.n_vocab}, the ids of {model}; "
            f"got {mask}"
        )
    wrong = [layer for layer in config.target_layers if not 1 <= layer < n_layer]
    if wrong:
        raise UsageError(
            f"draft_model: {file.path} reads what the layers {list(config.target_layers)} are given; wanted "
            f"numbers from 1 to {n_layer - 1}, of layers behind another of {model}; got {wrong[0]}"
        )


def _caches(executor: Executor, file: ModelFile, config: Any) -> tuple[WrittenCache, ...]:
    """What each layer of a drafter reads of the model's keys and values."""
    caches, model = executor.graphs.last_caches(), executor.file.path
    for layer, (window, n_head) in enumerate(zip(config.windows, config.heads, strict=True)):
        which, width = f"window {window}" if window else "no window", config.width(layer)
        if window not in caches:
            raise UsageError(
                f"draft_model: {file.path}: layer {layer} reads the keys of a layer with {which}; the "
                f"windows of layers of {model} are {sorted(caches)} (0: none)"
            )
        n_head_kv, head_dim = caches[window].keys.shape[1:]
        if head_dim != width or n_head % fixed(n_head_kv):
            raise UsageError(
                f"draft_model: {file.path}: layer {layer} reads keys by {n_head} heads of {width} numbers; "
                f"those with {which} of {model} have {n_head_kv} of {head_dim}"
            )
    return tuple(caches[window] for window in config.windows)


def _check_used(head: PredictionHead, file: ModelFile, unread: Iterable[str]) -> None:
    used = {*head.executor.build(1, 1).leaves("weight"), *unread}
    if isinstance(head, BlockHead) and head.correction is not None:
        used |= {*head.correction.executor.build(1, 1).leaves("weight")}
    unused = sorted(set(file.tensors) - used)
    if unused:
        raise UsageError(
            f"draft_model: {file.path}: wanted tensors that {head.executor.architecture.name} with these "
            f"metadata has; got {', '.join(unused)} besides"
        )


def _tokens(file: ModelFile) -> list[str]:
    return file.metadata.texts("tokenizer.ggml.tokens", list[str]())


def _with_shared(executor: Executor, file: ModelFile, form: str) -> dict[str, Tensor]:
    """The drafter's tensors, and the model's where it has none of its own."""
    shared = executor.file.tensors
    if form == "cells":
        own = file.tensors.get(EMBEDDING, shared[EMBEDDING])
        return {**file.tensors, EMBEDDING: own, OUTPUT: own, MODELS_EMBEDDING: shared[EMBEDDING]}
    models = {EMBEDDING: shared[EMBEDDING], OUTPUT: shared.get(OUTPUT, shared[EMBEDDING])}
    return {**models, **file.tensors}


def _check_embedding(executor: Executor, file: ModelFile, table: Tensor, n_embd: int) -> None:
    if table.shape != (executor.n_vocab, n_embd):
        raise UsageError(
            f"draft_model: {file.path}: wanted {EMBEDDING}, its own or that of {executor.file.path}, of "
            f"{executor.n_vocab} ids and {n_embd} numbers; got {table.shape}"
        )


def _drafted_ids(
    executor: Executor, file: ModelFile, output: Tensor
) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    table, n_vocab = file.tensors.get(DRAFTED_IDS), executor.n_vocab
    n_drafted = output.shape[0]
    if table is None:
        if n_drafted != n_vocab:
            raise UsageError(
                f"draft_model: {file.path} has logits of {n_drafted} ids and no tensor {DRAFTED_IDS}; "
                f"wanted those of the {n_vocab} ids of {executor.file.path}"
            )
        return None
    ids = table.numpy() if table.dtype == "i64" else np.array([-1])
    n_different = len(set(ids.tolist()))
    if not len(ids) == n_drafted == n_different or ids.min() < 0 or ids.max() >= n_vocab:
        raise UsageError(
            f"draft_model: {file.path}: tensor {DRAFTED_IDS}: wanted {n_drafted} different ids below "
            f"{n_vocab} (i64), one for each row of {OUTPUT}; got {table.dtype} {table.shape}"
        )
    return np.array(ids, np.int64)
