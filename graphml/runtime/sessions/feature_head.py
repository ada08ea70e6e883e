"""Drafters that are files of their own and read hidden rows of layers of the model: EAGLE-3.

They draft as a layer for multi-token prediction does (see `prediction_head`), on the model's device; tensors
that such a file lacks (embeddings, output matrix) are the model's. Knows executors, files and ids; nothing of
text, or of who asks for drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphml.compiler.multi_device import PartsDevice
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.loading import discovery
from graphml.loading.architecture import EMBEDDING, Architecture, Keys
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.model_graphs import DRAFTED_IDS
from graphml.runtime.sessions.pinned import Pinned
from graphml.runtime.sessions.prediction_head import PredictionHead, alone
from graphml.weights import ModelFile
from graphml.weights.tensor import Tensor

OUTPUT = "output.weight"


class FeatureHead(PredictionHead):
    """The drafter `file` of a model, which becomes its `Executor.head`; see `open_feature_head`.

    drafted: the ids that its logits are of; None: all of the model's.
    """

    def __init__(
        self, executor: Executor, file: ModelFile, architecture: Architecture, config: Any,
        drafted: np.ndarray[Any, np.dtype[np.int64]] | None,
    ) -> None:  # fmt: skip
        self._n_rows, self._n_own = len(config.target_layers) * config.n_embd_target, config.n_embd
        self._drafted, self._n_vocab = drafted, executor.n_vocab
        super().__init__(executor, file, alone(architecture, self._n_rows + self._n_own), config)

    def of_model(self, rows: Floats) -> Floats:
        """See `PredictionHead`: with no row of its own."""
        return np.pad(rows, ((0, 0), (0, self._n_own)))

    def of_own(self, rows: Floats) -> Floats:
        """See `PredictionHead`: with no rows of the model."""
        return np.pad(rows, ((0, 0), (self._n_rows, 0)))

    def step(self, sequence: Pinned, ids: Sequence[int], hidden: Floats) -> tuple[Floats, Floats]:
        """See `PredictionHead`; logits of all of the model's ids."""
        logits, row = super().step(sequence, ids, hidden)
        if self._drafted is None:
            return logits, row
        every = np.full(self._n_vocab, -np.inf, np.float32)
        every[self._drafted] = logits
        return every, row

    def close(self) -> None:
        """See `PredictionHead`; the file is given back."""
        super().close()
        self.executor.file.close()


def open_feature_head(executor: Executor, file: ModelFile) -> None:
    """Have the drafter `file` draft for a model that has drafted nothing yet, which closes it from now on.

    UsageError where it does not fit.
    """
    name = file.metadata.text("general.architecture")
    architecture = discovery.drafter(name)
    config: Any = architecture.read(Keys(file.metadata, name))
    _check_fits(executor, file, config)
    tensors = _with_shared(executor, file)
    drafted = _drafted_ids(executor, file, tensors[OUTPUT])
    _check_embedding(executor, file, tensors[EMBEDDING], config.n_embd)
    executor.graphs.hidden_layers = config.target_layers
    try:
        executor.graphs.build(1, 1, hidden=True)  # which refuses layers that give more than one value
        head = FeatureHead(executor, file.with_tensors(tensors), architecture, config, drafted)
        _check_used(head, file)
        executor.head = head
    except BaseException:
        executor.graphs.hidden_layers = ()
        raise


def has_feature_head(executor: Executor) -> bool:
    """Whether a file of its own drafts from the model's hidden rows."""
    return isinstance(executor.head, FeatureHead)


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
    wrong = [layer for layer in config.target_layers if not 1 <= layer < n_layer]
    if wrong:
        raise UsageError(
            f"draft_model: {file.path} reads what the layers {list(config.target_layers)} are given; wanted "
            f"numbers from 1 to {n_layer - 1}, of layers behind another of {model}; got {wrong[0]}"
        )


def _check_used(head: FeatureHead, file: ModelFile) -> None:
    used = head.executor.build(1, 1).leaves("weight")
    unused = sorted(set(file.tensors) - set(used) - {DRAFTED_IDS})
    if unused:
        raise UsageError(
            f"draft_model: {file.path}: wanted tensors that {head.executor.architecture.name} with these "
            f"metadata has; got {', '.join(unused)} besides"
        )


def _tokens(file: ModelFile) -> list[str]:
    return file.metadata.texts("tokenizer.ggml.tokens", list[str]())


def _with_shared(executor: Executor, file: ModelFile) -> dict[str, Tensor]:
    """The drafter's tensors, and the model's where it has none of its own."""
    shared = executor.file.tensors
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
