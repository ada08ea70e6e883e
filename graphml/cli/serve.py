"""`graphml serve`: a model for clients of OpenAI's, Anthropic's, llama-server's and ollama's protocols.

Turns flags into options of the model and of the server.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

import graphml
from graphml import settings
from graphml.api.load_model import load_model
from graphml.api.mcp_servers import McpServers
from graphml.api.model import Model
from graphml.backend import Progress, no_progress
from graphml.cli.options.checks import text_or_file
from graphml.cli.options.typer_options import CONFIG_FILE
from graphml.cli.terminal.console import Bars, own_output, write
from graphml.cluster.cluster_options import ReplicaOptions, importing_ray, least_and_most
from graphml.errors import UsageError
from graphml.ir.cache_types import of_all_layers
from graphml.loading import fetch
from graphml.loading.open_file import open_path
from graphml.runtime.programs.adapter_options import parse_files
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.memory_needed import memory_need
from graphml.runtime.programs.metadata_overrides import parse_overrides
from graphml.runtime.programs.open_executor import open_executor
from graphml.sampling import SamplingParams
from graphml.sampling.settings.field_checks import parse_biases
from graphml.server.observing.told_lines import tell
from graphml.server.options.api_keys import keys_in
from graphml.server.options.chat_templates import NAMED
from graphml.server.options.command_line import (
    PRINTING,
    WHICH_MODEL,
    Parsed,
    by_flag,
    help_text,
    parsed,
    with_stated,
    with_variables,
)
from graphml.server.options.model_presets import EVERY, loaded_on_startup, preset_command, read_presets
from graphml.server.options.model_sources import LoadableModel, folder_models, named_models
from graphml.server.options.server_options import (
    DEFAULT_SAMPLING,
    NO_CACHE_REUSE,
    RequestLimits,
    ServerOptions,
)
from graphml.server.options.tensor_overrides import placed
from graphml.server.requests.draft_names import draft_flags
from graphml.system.log_output import show_log
from graphml.system.pages import free_memory
from graphml.system.read_files import plain_text
from graphml.text.template_process import PROCESSES

DEFAULT_PARALLEL = 8
SAME_OF_LOAD = (
    "arch", "trust_arch", "backend", "swa_full", "deterministic", "offline", "rope_scaling", "rope_freq_base",
    "rope_freq_scale", "draft_model", "control_layers", "quant", "kv",
    "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast",
)  # fmt: skip
SAME_OF_SERVER = (
    "port", "n_predict", "cache_prompt", "ignore_eos", "seed", "slots", "props", "metrics", "page",
    "reranking", "reasoning", "reasoning_format", "unsafe_bind", "share_prefixes", "log_requests", "verbose",
    "otlp_endpoint", "prefix", "timeout", "ping", "sleep_idle", "drain", "keep", "pooling",
    "embd_normalize", "activations", "models_max", "models_autoload",
)  # fmt: skip
RENAMED = {"embeddings": "embeddings_only", "shift": "context_shift", "prefill": "prefill_assistant"}
LISTED = {"host": "hosts", "alias": "aliases", "tags": "tags", "cors": "cors_origins"}
PATHS = ("ssl_key", "ssl_certificate", "slot_save_path", "models_dir", "models_preset", "mcp")
OF_FIRST = {*WHICH_MODEL, "alias", "lora", "lora_scaled", "lora_off"}
"""What a command line says of MODEL alone, where there are others."""


def serve(context: typer.Context) -> None:
    """Serve a model to clients of OpenAI's, Anthropic's, llama-server's and ollama's protocols."""
    command = with_variables(parsed(context.args), settings.llama_variables())
    if CONFIG_FILE in context.meta:
        from graphml.cli.options.config_file import stated_flags  # only where there is a file

        command = with_stated(command, stated_flags(context))
    if (text := _printed(command)) is not None:
        write(text + "\n")
        return
    if (level := command.values.pop("log_level", None)) is not None:
        show_log(level)
    try:
        from graphml.server.serving import serve_until_stopped
    except ModuleNotFoundError as error:
        raise UsageError(f"serve: {error.name} is missing; pip install '.[server]' in a clone") from None
    try:
        options, opening = server_options(command), load_options(command)
    except UsageError as error:
        raise by_flag(error) from None
    if command.ignored:
        names = " ".join(dict.fromkeys(command.ignored))
        tell(f"graphml: serve: without a meaning here: {names}")
    check_binding(options)
    if on_cluster(command.values):
        _serve_replicas(command, options, opening)
        return
    PROCESSES.prepare()  # while the model is opened
    servers = None if options.mcp is None else McpServers(options.mcp)
    # Other programs need some of what is free now, before the first model takes its part.
    budget = free_memory() // 10 * 9 if options.routes else None
    model: Model | None = None
    if not options.routes or command.model or any(name in command.values for name in WHICH_MODEL):
        with Bars(sys.stderr) as bars:
            model = load_model(_path(command, opening, bars.report), opening, bars.report)
            for other in command.others:
                _path(replace(_of_all(command), model=other), opening, bars.report)
        if opening.template is not None and model.tokenizer is not None:
            _ = model.templates["default"]  # a wrong one is told now, not to the first client
    sources = partial(model_sources, command, options, model)
    with model or contextlib.nullcontext(), servers or contextlib.nullcontext() as mcp:
        serve_until_stopped(model, options, sources, mcp, budget)
    end_process()


def on_cluster(values: dict[str, Any]) -> bool:
    """Whether replicas answer; UsageError for options of replicas without --ray."""
    if "ray" not in values:
        for name in ("replicas", "replica_cpus", "replica_gpus"):
            if name in values:
                raise by_flag(UsageError(f"{name}: wanted --ray ADDRESS with it"))
    return "ray" in values


def refuse_with_replicas(command: Parsed) -> None:
    """UsageError for what a replica cannot have."""
    for name in ("models_dir", "models_preset", "slot_save_path", "mcp", "sleep_idle"):
        if name in command.values:
            raise by_flag(UsageError(f"{name}: wanted a server without replicas"))
    if command.others:
        raise UsageError(f"--ray: wanted one model; got {command.others[0]!r} too")


def replica_options(values: dict[str, Any], address: str) -> ReplicaOptions:
    """How many replicas there are, and where."""
    counts = least_and_most(values.get("replicas", "1"))
    cpus, gpus = values.get("replica_cpus", 1.0), values.get("replica_gpus", 0.0)
    return ReplicaOptions(address, *counts, cpus, gpus)


def _serve_replicas(command: Parsed, options: ServerOptions, opening: LoadOptions) -> None:
    """Serve by replicas on a Ray cluster."""
    refuse_with_replicas(command)
    values = dict(command.values)
    if (address := values["ray"]).isdecimal():
        if "replicas" in values:
            raise UsageError(f"--ray: wanted an address beside --replicas; got {address!r}")
        address, values["replicas"] = "auto", address
    replicas = replica_options(values, address)
    with importing_ray():
        from graphml.cluster.replicated_server import serve_replicas_until_stopped

    with Bars(sys.stderr) as bars:
        path = _path(command, opening, bars.report)
    with contextlib.closing(open_path(path)) as file:
        tensor_files = [Path(part) for part in file.paths]
    opening = replace(opening, threads=opening.threads or max(1, int(replicas.cpus)))
    with own_output():
        serve_replicas_until_stopped(path, tensor_files, opening, options, replicas)


def model_sources(command: Parsed, options: ServerOptions, model: Model | None) -> dict[str, LoadableModel]:
    """The models that may be loaded, by name: the first one, further ones, those of folder and presets.

    A name is a file's or a section's, never a path. Further arguments MODEL are loaded at the start, if so
    many may be. UsageError for a section without a model.
    """
    presets = {} if options.models_preset is None else read_presets(options.models_preset)
    shared = _of_all(command)
    files = {} if options.models_dir is None else folder_models(options.models_dir)
    sources: dict[str, LoadableModel] = {}
    further: dict[str, Path] = {}
    if model is not None:
        first = model.path
        name = sorted(options.aliases)[0] if options.aliases else first.name
        further = {
            other: _path(replace(shared, model=text), load_options(shared), no_progress)
            for other, text in named_models(name, options.more_models).items()
        }
        sources[name] = _source(command, options, first)
        same = {name for name, path in files.items() if path.resolve() == first.resolve()} - presets.keys()
        files = {name: path for name, path in files.items() if name not in same}
    for name in further.keys() & files.keys():
        if further[name].resolve() != files[name].resolve():
            raise UsageError(f"serve: {further[name]}: --models-dir has another model of the name {name!r}")
    files |= further
    all_fit = not 0 < options.models_max <= len(further)
    for name in dict.fromkeys((*files, *(section for section in presets if section != EVERY))):
        own = preset_command(shared, presets, name)
        if name not in files and not any(which in own.values for which in WHICH_MODEL):
            raise UsageError(
                f"--models-preset: {options.models_preset}: [{name}]: wanted a model or hf-repo, or one of "
                "this name in --models-dir"
            )
        if name in sources:
            raise UsageError(f"--models-preset: [{name}]: MODEL has that name")
        source = _source(own, replace(server_options(own), aliases=()), files.get(name))
        sources[name] = replace(
            source, on_startup=loaded_on_startup(presets, name) or (all_fit and name in further)
        )
    return sources


def _of_all(command: Parsed) -> Parsed:
    """What a command line says of every model."""
    return Parsed({name: value for name, value in command.values.items() if name not in OF_FIRST})


def _source(command: Parsed, options: ServerOptions, path: Path | None) -> LoadableModel:
    """A model with the flags of a command line; path: its file, where that is known."""
    opening = load_options(command)

    def find() -> Path:
        return _path(command, opening, no_progress) if path is None else path

    def size(file: Path) -> int:
        with contextlib.closing(open_executor(file, replace(opening, pages="map"))) as executor:
            limit = executor.config.n_ctx
            return memory_need(executor, min(options.n_ctx or limit, limit)).total

    stated = (opening, options, command.values, path)
    return LoadableModel(options, find, lambda file: load_model(file, opening), size, stated=stated)


def _printed(command: Parsed) -> str | None:
    """What a command line wants printed, instead of a server."""
    if command.values.get("help"):
        return help_text()
    if command.values.get("version"):
        return f"graphml {graphml.__version__}"
    return next((PRINTING[flag] for flag in command.ignored if flag in PRINTING), None)


def end_process() -> None:
    """End at once: everything is closed, and taking compiled code and weights apart would take a second."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


serve.context_settings = {  # type: ignore[attr-defined]
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "help_option_names": [],
}


def check_binding(options: ServerOptions) -> None:
    """UsageError where nobody could ask, or others without a key."""
    if not options.hosts:
        raise UsageError("--host: wanted an address, got none")
    if not (options.loopback or options.api_keys or options.file_keys or options.unsafe_bind):
        raise UsageError(
            f"--host {','.join(options.hosts)}: others can ask there; wanted an --api-key, or --allow-no-key"
        )
    if options.mcp is not None and not (options.loopback or options.api_keys or options.file_keys):
        raise UsageError(f"--mcp: wanted an --api-key, as others can ask at --host {','.join(options.hosts)}")
    if options.mcp is not None and not options.page:
        raise UsageError("--mcp: wanted the page, which alone may call tools, and no --no-ui")


def load_options(command: Parsed) -> LoadOptions:
    """How the model is opened."""
    values = command.values
    stated: dict[str, Any] = {name: values[name] for name in SAME_OF_LOAD if name in values}
    if values.get("threads", 0) > 0:
        stated["threads"] = values["threads"]
    if "kv_k" in values or "kv_v" in values:
        if "kv" in values:
            raise UsageError("--kv: wanted either this or --cache-type-k and --cache-type-v")
        keys, other = values.get("kv_k", "f16"), values.get("kv_v", "f16")
        stated["kv"] = of_all_layers(("--cache-type-k", "--cache-type-v"), keys, other)
    batch = min((values[name] for name in ("batch", "ubatch") if name in values), default=512)
    stated["n_batch"] = max(batch, values.get("parallel", 1), 1)
    stated |= placed(values, values.get("backend", "cpu"))
    if values.get("gpu_layers", "auto").isdecimal() and values.get("backend", "cpu") != "cpu":
        stated["gpu_layers"] = int(values["gpu_layers"])
    if values.get("rope_scale") == 0:
        raise UsageError("--rope-scale: wanted a number besides 0")
    if "rope_scale" in values:
        stated["rope_freq_scale"] = 1 / values["rope_scale"]
    if "override_kv" in values:
        stated["override_kv"] = parse_overrides(
            [x for text in values["override_kv"] for x in text.split(",")]
        )
    if "template_file" in values:
        stated["template"] = Path(values["template_file"])
    elif "template" in values:
        stated["template"] = NAMED.get(values["template"]) or text_or_file(
            "--chat-template", values["template"]
        )
    vectors = [x for text in values.get("control_vector", []) for x in text.split(",")]
    vectors += [x for text in values.get("control_vector_scaled", []) for x in text.split(",")]
    if vectors:
        stated["control_vectors"] = parse_files(vectors)
    return LoadOptions(**stated)


def server_options(command: Parsed) -> ServerOptions:
    """How the server runs."""
    values = command.values
    _check_supported(values)
    stated: dict[str, Any] = {name: values[name] for name in SAME_OF_SERVER if name in values}
    stated |= {into: values[name] for name, into in RENAMED.items() if name in values}
    stated |= {into: _listed(values[name]) for name, into in LISTED.items() if name in values}
    stated |= {name: Path(values[name]) for name in PATHS if name in values}
    stated = {**_models(command), **stated}
    if "prefix" in values:
        stated["prefix"] = f"/{values['prefix'].strip('/')}".rstrip("/")
    if values.get("reranking"):
        stated |= {"embeddings_only": True, "pooling": values.get("pooling", "rank")}
    for name in ("slot_save_path", "models_dir"):
        if name in stated and not stated[name].is_dir():
            raise UsageError(f"--{name.replace('_', '-')}: wanted a folder, got {values[name]!r}")
    stated["parallel"] = parallel = values["parallel"] if values.get("parallel", -1) > 0 else DEFAULT_PARALLEL
    if values.get("ctx", 0) > 0:
        shared = values.get("unified", "parallel" not in values)
        stated["n_ctx"] = values["ctx"] if shared else max(1, values["ctx"] // parallel)
    if values.get("ctx_per_slot", 0) > 0:
        stated["n_ctx"] = min(values["ctx_per_slot"], stated.get("n_ctx", values["ctx_per_slot"]))
    if "variables" in values:
        stated["template_variables"] = _json_object("--chat-template-kwargs", values["variables"])
    if (effort := values.get("reasoning_effort", "default")) != "default":
        stated.setdefault("template_variables", {}).setdefault("reasoning_effort", effort)
    if values.get("reasoning_budget", -1) == 0:
        stated["reasoning"] = "off"
    if "api_key_file" in values:
        stated["api_key_file"] = path = Path(values["api_key_file"])
        stated["file_keys"] = keys_in(path)
    stated["api_keys"] = _keys(values.get("api_key", []))
    return ServerOptions(
        **stated, params=replace(DEFAULT_SAMPLING, **(asked := _sampling(command))),
        asked=frozenset(asked), loras=_loras(values), limits=_limits(values),
    )  # fmt: skip


def _models(command: Parsed) -> dict[str, Any]:
    """What the arguments MODEL say of the server."""
    stated: dict[str, Any] = {"more_models": tuple(command.others)}
    if (named := command.model or command.values.get("model")) in fetch.MODELS:
        stated["short_name"] = named
    stated["models_max"] = max(ServerOptions.models_max, 1 + len(command.others))
    return stated


def _check_supported(values: dict[str, Any]) -> None:
    """UsageError for what llama-server does and the engine does not, and for what it refuses, too."""
    if not (values.get("sleep_idle", -1) == -1 or values["sleep_idle"] > 0):
        raise UsageError(
            f"--sleep-idle-seconds: wanted seconds above 0, or -1 for never; got {values['sleep_idle']:g}"
        )
    if values.get("cache_reuse", 0) > 0:
        raise UsageError(f"--cache-reuse: {NO_CACHE_REUSE}; got {values['cache_reuse']}")


def _keys(texts: list[str]) -> tuple[str, ...]:
    """Keys of a command line; UsageError where there is none, as in an empty variable of a shell."""
    keys = tuple(key for text in texts for key in _listed(text))
    if texts and not keys:
        raise UsageError("--api-key: wanted a key, got none")
    return keys


def _limits(values: dict[str, Any]) -> RequestLimits:
    limits: dict[str, int] = {}
    if "waiting" in values:
        limits["waiting"] = values["waiting"]
    if "body_mib" in values:
        limits["body_bytes"] = values["body_mib"] << 20
    return RequestLimits(**limits)


def _sampling(command: Parsed) -> dict[str, Any]:
    """The fields of `SamplingParams` that flags or variables state."""
    values = command.values
    names = {field.name for field in fields(SamplingParams)}
    changes = {name: value for name, value in values.items() if name in names}
    changes |= draft_flags(values)
    if "logit_bias" in changes:
        changes["logit_bias"] = parse_biases(changes["logit_bias"])
    for name, flag in (("grammar", "grammar_file"), ("json_schema", "schema_file")):
        if flag in values:
            changes[name] = _text_of(values[flag])
        elif name in changes:
            changes[name] = text_or_file(f"--{name.replace('_', '-')}", changes[name])
    return changes


def _loras(values: dict[str, Any]) -> tuple[tuple[Path, float], ...]:
    files = [x for text in (*values.get("lora", []), *values.get("lora_scaled", [])) for x in text.split(",")]
    scale = 0.0 if values.get("lora_off") else None
    return tuple((Path(file), factor if scale is None else scale) for file, factor in parse_files(files))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _text_of(path: str) -> str:
    return plain_text(Path(path), UsageError)


def _json_object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{flag}: wanted a JSON object; {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{flag}: wanted a JSON object, got {text!r:.40}")
    return value


def _path(command: Parsed, opening: LoadOptions, report: Progress) -> Path:
    """The model's file, downloaded if it must be."""
    values = command.values
    if "docker_repo" in values:
        raise UsageError("--docker-repo: Docker Hub is not read; wanted a file, or a model of the hub (-hf)")
    url = values.get("model_url") and fetch.reference_of_address(values["model_url"])
    if url is None and "model_url" in values:
        raise UsageError(
            "--model-url: wanted a file's address on huggingface.co, of the branch main; "
            f"got {values['model_url']!r:.120}"
        )
    named = [name for name in (command.model, values.get("model"), values.get("hf"), url) if name is not None]
    if len(named) > 1:
        raise UsageError(f"serve: wanted one model, got {' and '.join(map(repr, named))}")

    def progress(done: int, total: int | None) -> None:
        report("download", done, total or 0)

    if url is not None:
        return fetch.fetch_hub(url, progress=progress, offline=opening.offline)
    if "hf" not in values:
        return fetch.resolve(named[0] if named else None, progress, opening.offline)
    reference = values["hf"]
    if "hf_file" in values:
        reference = f"{reference.split(':')[0]}:{values['hf_file']}"
    return fetch.fetch_hub(reference, progress=progress, offline=opening.offline)
