"""Opens a model: file, architecture, backend and executor put together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphml import settings
from graphml.backend import (
    Backend,
    DeterministicDevice,
    Device,
    PinnableDevice,
    Progress,
    TunableDevice,
    no_progress,
)
from graphml.compiler.multi_device import NOT_DETERMINISTIC, multi_device_backend
from graphml.compiler.offload import place_layers, with_host
from graphml.errors import ArchitectureError, BackendError, GraphmlError, UsageError, WeightsError
from graphml.loading import discovery
from graphml.loading.architecture import EMBEDDING, Architecture, Keys, described
from graphml.loading.carried_definition import trusted_definition
from graphml.loading.open_file import open_path
from graphml.loading.own_ops import load_own_ops
from graphml.options.argument_checks import path_of
from graphml.runtime.programs.adapter_options import with_adapters, with_control
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.metadata_overrides import check_read, overridden
from graphml.sampling.candidates import score_order
from graphml.system.pages import main_memory
from graphml.system.read_files import guarded
from graphml.weights import ModelFile
from graphml.weights.deferred import computed
from graphml.weights.page_policy import settled
from graphml.weights.requantise import requantised
from graphml.weights.tensor import PLAIN_DTYPES

DEFAULT = LoadOptions()
_EXACT = frozenset(("f32", "f16", *PLAIN_DTYPES))
"""Types of tensors by which no backend rounds what is multiplied with them."""
READ_LATER = ("tokenizer.", "general.sampling.", "sentence_transformers.")
"""What keys begin with that the model reads itself."""


def read_architecture(file: ModelFile, arch_file: Path | None = None) -> tuple[Architecture, Any]:
    """The file's architecture (or the one that a Python file defines) and its configuration."""
    name = file.metadata.text("general.architecture")
    with guarded(file.path, WeightsError, f"the metadata of architecture {name!r} make no sense"):
        try:
            known = discovery.architecture_from_file(arch_file) if arch_file else discovery.architecture(name)
            keys = Keys(file.metadata, name)
            known = replace(known, causal=keys.boolean("attention.causal", True) and known.causal)
            config = known.read(keys)
        except GraphmlError:
            raise
        except Exception as error:  # an architecture may be a stranger's file
            if arch_file is None:
                raise
            raise ArchitectureError(f"architecture {name!r}: {described(error)}") from error
        own = f"{name}.features_length"  # of models whose rows are wider or narrower than their embedding
        _check_width(file, own if file.metadata.has(own) else f"{name}.embedding_length")
    return known, config


def _check_width(file: ModelFile, key: str) -> None:
    """Metadata that contradict the embedding would give another model without a word."""
    embedding = file.tensors.get(EMBEDDING)
    if embedding is not None and file.metadata.has(key) and embedding.shape[-1] != file.metadata.integer(key):
        raise ArchitectureError(
            f"{key} is {file.metadata.integer(key)}; {EMBEDDING} has rows of {embedding.shape[-1]}"
        )


def usual_cache_types(architecture: Architecture, dtypes: Iterable[str]) -> str:
    """How keys and values are kept where nobody says it; dtypes: of the model's tensors.

    Those of an encoder live for one step: there is nothing to save. Where products round activations anyhow,
    attention is faster with f16, which it may multiply as bfloat16 (docs/decisions/0149).
    """
    encoder = not architecture.causal and architecture.encode is None and architecture.diffusion is None
    return "f32" if encoder and _EXACT.issuperset(dtypes) else "f16"


def choose_backend(names: str) -> Backend:
    """The installed backend of that name; of several names, with commas, all as one."""
    if not isinstance(names, str):
        raise UsageError(f"backend: wanted names in one text, got {names!r}")
    backends = []
    for name in (part.strip() for part in names.split(",")):
        backends.append(discovery.backend(name))
        reason = backends[-1].unavailable()
        if reason is not None:
            raise BackendError(f"backend {name!r} cannot be used here: {reason}")
    return backends[0] if len(backends) == 1 else multi_device_backend(backends)


def _use_tuning(device: Device, options: LoadOptions) -> None:
    if isinstance(device, TunableDevice):
        device.use_tuning(settings.tuned() if options.tuned is None else options.tuned)
    elif options.tuned:
        raise BackendError(f"backend {options.backend!r} has nothing to tune")


def _make_deterministic(device: Device, options: LoadOptions) -> None:
    if not options.deterministic:
        return
    if not isinstance(device, DeterministicDevice):
        raise BackendError(NOT_DETERMINISTIC.format(options.backend))
    device.make_deterministic()


def _pin_threads(device: Device, options: LoadOptions) -> None:
    if isinstance(device, PinnableDevice):
        if settings.pin() if options.pin is None else options.pin:
            device.pin_threads()
    elif options.pin:
        raise BackendError(
            f"pin: wanted the backend 'cpu', which has worker threads; got {options.backend!r}"
        )


def open_executor(
    path: Path | ModelFile, options: LoadOptions = DEFAULT, progress: Progress = no_progress
) -> Executor:
    """Open a model file on a backend, or on several (`cpu,reference`), the preferred first.

    path: or a file that is open, which the executor takes over; a header alone is enough to build graphs.
    options: what of them is about names, text and downloads (`pre`, `template`, `offline`) has no meaning
    here. Nothing is compiled before it is needed.
    """
    compiling, page_policy = options.compiling, options.page_policy
    load_own_ops()
    compiling.fusions()  # a wrong name is told before anything is opened
    wanted = choose_backend(with_host(options.backend, options.gpu_layers))
    with contextlib.ExitStack() as undo:
        arch_file = None if options.arch is None else Path(path_of("arch", options.arch))
        file = path if isinstance(path, ModelFile) else open_path(path, arch_file)
        undo.callback(file.close)
        if arch_file is None:
            arch_file = trusted_definition(file, options.trust_arch)
        if options.overrides:
            file = file.with_metadata(overridden(file.metadata, options.overrides))
        architecture, config = read_architecture(file, arch_file)
        if architecture.encode is not None and "," in wanted.name:
            raise BackendError(
                f"backend: {architecture.name} has an encoder, which writes what the decoder reads: wanted "
                f"one backend for both; got {wanted.name}"
            )
        compiling = with_adapters(compiling, file, options.lora)
        compiling = with_control(compiling, file, options.control_vectors, options.control_layers)
        device = wanted.open(options.threads)
        if wanted.row_order is not None:
            score_order.lend(wanted.row_order)
        undo.callback(device.close)
        place = place_layers(file.tensors, device, options.gpu_layers, compiling.place)
        compiling = replace(compiling, place=place)
        _use_tuning(device, options)
        _make_deterministic(device, options)
        _pin_threads(device, options)
        helpers = options.threads or settings.threads() or os.cpu_count() or 1
        with page_policy.placed():
            if options.quant is not None:
                file = requantised(file, options.quant, helpers, progress)
            if not isinstance(path, ModelFile):  # an open one is read for its graphs, perhaps for these alone
                file = computed(file, helpers, progress)
            if page_policy.pages == "copy" or file.n_bytes <= (main_memory() or 0) // 2:
                file = settled(file, page_policy, helpers, progress)  # more would push itself out again
        dtypes = (tensor.dtype for tensor in file.tensors.values())
        kv = options.kv or usual_cache_types(architecture, dtypes)
        executor = Executor(
            file, architecture, config, wanted, device, options.n_batch, kv, progress, compiling,
            options.swa_full,
        )  # fmt: skip
        if file.metadata.unread_overrides():
            _ = executor.pooling, executor.shifts_logits  # keys besides those of the configuration
            check_read(file.metadata, READ_LATER)
        undo.pop_all()
    return executor
