"""`load`: opens a file, checks its options and makes the `Model`.

Knows the order in which a file is found, opened and read; nothing of what a model does.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace

from graphml.api.draft_choice import DraftModel
from graphml.api.keywords import hinted
from graphml.api.model import Model
from graphml.api.notebook_progress import notebook_progress
from graphml.api.text_prompts import prompt_of
from graphml.api.text_rows import longest_text
from graphml.backend import Progress
from graphml.errors import UsageError
from graphml.ir.cache_types import cache_types
from graphml.loading import discovery, fetch
from graphml.loading.open_file import open_path
from graphml.options.argument_checks import progress_of
from graphml.runtime.programs.adapter_options import Layers, Scaled
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.memory_needed import read_ahead
from graphml.runtime.programs.metadata_overrides import check_read
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.sessions.draft_file import open_draft_file
from graphml.system.log_output import follow_setting
from graphml.text.chat_template import template_text
from graphml.weights import ModelFile

LOG = logging.getLogger(__name__)
AnyPath = str | os.PathLike[str]
_OF_DRAFTS = (
    "backend",
    "threads",
    "kv",
    "pages",
    "numa",
    "pin",
    "n_batch",
    "tuned",
    "deterministic",
    "offline",
)
"""Options of a model that count for its draft model too."""
MOST_PADDING = 128
"""Tokens that one of two equal vocabularies may have more than the other, as llama.cpp allows."""


@hinted
def load(
    path: AnyPath | None = None,
    backend: str = "cpu",
    threads: int | None = None,
    *,
    kv: str | None = None,
    swa_full: bool = False,
    quant: str | None = None,
    pages: str | None = None,
    numa: str | None = None,
    pin: bool | None = None,
    n_batch: int = 512,
    arch: AnyPath | None = None,
    trust_arch: bool = False,
    pre: str | None = None,
    template: AnyPath | None = None,
    progress: Progress | None = None,
    fuse: str = "",
    place: str = "",
    strict: bool = False,
    tuned: bool | None = None,
    deterministic: bool = False,
    gpu_layers: int | None = None,
    lora: Scaled | None = None,
    control_vectors: Scaled | None = None,
    control_layers: Layers | None = None,
    draft_model: AnyPath | None = None,
    offline: bool | None = None,
    override_kv: Mapping[str, bool | int | float | str] | None = None,
    n_ctx: int | None = None,
) -> Model:
    """Open a model: a GGUF file (of a split one any part), a folder of transformers, or what a name means.

    path: None is the short name smollm2, a chat model of 98 MB. A llama2.c checkpoint is a model, too. Short
    names, "user/repo:QUANT" and "https://HOST/PATH.gguf" are downloaded once; a path wins.
    Weights stay in the mapped file.

    backend: "cpu", "reference", or any other installed one; several with commas ("cpu,reference") share the
    model, the preferred first. threads: worker threads; None: the physical cores. kv: type of the
    keys and values in the cache (f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl), or two ("q8_0/q4_0");
    None: f16, and f32 of an encoder with weights of F32 or F16, whose keys and values live for one step.
    swa_full: layers with a sliding window keep all of them, so that any rewind is free; else what is seen and
    `n_batch` tokens more. quant: what weights become in memory, whatever the file stores: "fp32" is the exact
    reference, "q8" and "q4" requantise matrices; None leaves them in the mapped file.
    pages, numa: where weights lie, see `graphml.weights.page_policy.PagePolicy`; None: what GRAPHML_PAGES and
    GRAPHML_NUMA say, else "ahead" (in the map, read ahead) and "first-touch".
    pin: each worker thread stays on a core of its own (Linux, the backend "cpu"); None: GRAPHML_PIN.
    n_batch: most tokens of one evaluation.
    arch: a Python file that defines the architecture, in place of the known one (it is run, so it must be
    trusted). trust_arch: the definition that the file itself carries is run (`graphml import --weights`).
    pre: name of the pre-tokenizer, in place of the file's. template: Jinja text of a chat template,
    or as a `Path` a file of it, in place of the file's. progress: called as progress(what, done, total);
    None: in a notebook a line of output while the model is opened, elsewhere nothing.
    fuse: which fusions are on ("none", "-swiglu,+linear"); "": what GRAPHML_FUSE says, else all. place: where
    nodes go ("cpu:layers.0-14,reference:softmax"). strict: refuse what the preferred backend cannot run.
    tuned: kernels use the parameters that `graphml tune` found; None: what GRAPHML_TUNED says, else not.
    deterministic: a text's logits are the same bits whatever else is computed beside it, in chunks of any
    size and on any number of threads; the backend "cpu" alone, more slowly (docs/cpu.md).
    gpu_layers: how many of the last layers the first backend takes, the next one or the CPU the others;
    None: all, or of several backends as many as fit in the first one's memory. lora: LoRA adapters of the
    model (GGUF), each with its scale: [("style.gguf", 1.0)]. control_vectors: directions that are added to
    what layers give, likewise; control_layers: the first and the last one; None: all but the first.
    draft_model: a smaller model that drafts tokens for this one (docs/speculation.md): what `path` may be;
    it is opened with the same backend, threads and types. offline: no server is asked; None: what
    GRAPHML_OFFLINE and HF_HUB_OFFLINE say. override_kv: values in place of those of the file's metadata, by
    key; `.rope.freq_base` is the architecture's own key `llama.rope.freq_base`. n_ctx: most tokens of
    sessions, chats, batches and engines that are given none; None: all that the model was trained for.

    Raises a GraphmlError: WeightsError for a bad file, ArchitectureError, BackendError, UsageError for an
    argument, DownloadError.
    """
    options = LoadOptions(
        backend=backend, threads=threads, kv=kv, swa_full=swa_full, quant=quant, pages=pages, numa=numa,
        pin=pin, n_batch=n_batch, arch=arch, trust_arch=trust_arch, pre=pre, template=template, fuse=fuse,
        place=place, strict=strict,
        tuned=tuned, deterministic=deterministic, gpu_layers=gpu_layers, lora=lora,
        control_vectors=control_vectors, control_layers=control_layers, draft_model=draft_model,
        offline=offline, override_kv=override_kv,
    )  # fmt: skip
    shown = notebook_progress() if progress is None else None
    try:
        return with_context(load_model(path, options, progress or shown), n_ctx)
    finally:
        if shown is not None:
            shown.close()


def with_context(model: Model, n_ctx: int | None) -> Model:
    """The model with this context where none is asked for; it is closed where that cannot be."""
    try:
        model.default_n_ctx = None if n_ctx is None else model._context(n_ctx)
        return model
    except BaseException:
        model.close()
        raise


def use_draft(model: Model, options: LoadOptions, report: Progress) -> None:
    """Have what `options.draft_model` names draft for a model; UsageError where it cannot."""
    executor = model.executor
    if not executor.architecture.causal or executor.encodes or not executor.generates:
        raise UsageError(
            f"draft_model: wanted a model that continues a text, token by token, to draft for; {model.path} "
            f"is of {model.arch}, which does not"
        )
    path = fetch.resolve(
        options.draft_model, lambda done, total: report("download", done, total or 0), options.offline
    )
    file = open_path(path)
    try:
        if file.metadata.text("general.architecture") in discovery.drafters():
            open_draft_file(model.executor, file)
        else:
            model.draft = opened_draft(model, options, report, file)
    except BaseException:
        file.close()
        raise


def opened_draft(model: Model, options: LoadOptions, report: Progress, file: ModelFile) -> DraftModel:
    """The draft model of a model, of an open file; UsageError where it cannot draft for it."""
    of_draft = {name: getattr(options, name) for name in _OF_DRAFTS}
    if options.kv is not None:
        of_draft["kv"] = str(cache_types(options.kv).most)  # types of single layers are the model's own
    draft_options = replace(LoadOptions(), **of_draft)
    draft = load_model(file.path, draft_options, report, file)
    try:
        return draft_model_of(model, draft)
    except BaseException:
        draft.close()
        raise


def load_model(
    path: AnyPath | None,
    options: LoadOptions,
    progress: Progress | None = None,
    file: ModelFile | None = None,
) -> Model:
    """As `load`, with the options as one value; file: it is open already, and is the model's from now on."""
    follow_setting()
    report = progress_of(progress)
    options.compiling.fusions()  # a wrong name is told before anything is fetched
    _ = options.page_policy
    local_path = fetch.resolve(
        path, lambda done, total: report("download", done, total or 0), options.offline
    )
    start = time.perf_counter()
    executor = open_executor(file or local_path, options, report)
    try:
        if progress is not None:
            read_ahead(executor.file, progress)
        model = Model(executor, local_path, options.pre, template_text(options.template), report)
        model.opened_by = options
        metadata = executor.file.metadata
        if metadata.unread_overrides() and model.tokenizer is not None and model.has_template:
            _ = model.template  # both read keys of their own, and only when they are asked for
        if metadata.unread_overrides():
            _ = model.sampling_defaults, prompt_of(executor, None), longest_text(executor)
        check_read(metadata)
        if options.draft_model is not None:
            use_draft(model, options, report)
        names = model.arch, executor.backend.name
        LOG.debug("%s: opened as %s on %s in %.3f s", local_path, *names, time.perf_counter() - start)
        return model
    except BaseException:
        executor.close()
        raise


def draft_model_of(model: Model, draft: Model) -> DraftModel:
    """Drafts by `draft`, which is closed with it; UsageError where it cannot draft for `model`."""
    if not draft.executor.architecture.causal or draft.executor.encodes:
        raise UsageError(
            f"draft_model: wanted a model that continues a text; {draft.path} is of {draft.arch}, which "
            "does not"
        )
    own, other = model.tokenizer, draft.tokenizer
    translate = None
    if not same_tokens(model, draft):
        if own is None or other is None:
            raise UsageError(
                f"draft_model: wanted the {model.n_vocab} tokens of {model.path}, or a tokenizer in "
                f"both; {draft.path} has {draft.n_vocab} tokens"
            )
        translate = own, other
    n_ctx = min(model.n_ctx, draft.n_ctx)
    return DraftModel(lambda: draft.session(n_ctx, prefix_cache=False), draft.close, model.n_vocab, translate)


def same_tokens(model: Model, draft: Model) -> bool:
    """Whether each id that both know is the same token."""
    if abs(model.n_vocab - draft.n_vocab) > MOST_PADDING:
        return False
    if model.tokenizer is None or draft.tokenizer is None:
        return model.tokenizer is draft.tokenizer
    count = min(model.tokenizer.n_vocab, draft.tokenizer.n_vocab)
    ends = sorted(model.tokenizer.end_tokens), sorted(draft.tokenizer.end_tokens)
    pieces = all(model.tokenizer.piece_bytes(i) == draft.tokenizer.piece_bytes(i) for i in range(count))
    return ends[0] == ends[1] and pieces
