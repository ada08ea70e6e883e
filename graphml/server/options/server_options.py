"""How a server runs: one value, which the command line fills.

Knows names, defaults and ranges; nothing of sockets or models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphml.errors import UsageError
from graphml.sampling import SamplingParams
from graphml.sampling.settings.params import LLAMA_SERVER
from graphml.server.options.api_keys import FileKey

DEFAULT_SAMPLING = SamplingParams(**LLAMA_SERVER, dry_penalty_last_n=64, rng="llama.cpp")
"""llama-server's, with its random numbers."""

REASONING = ("on", "off", "auto")
REASONING_FORMATS = ("none", "deepseek", "deepseek-legacy", "auto")
NO_CACHE_REUSE = "wanted 0: equal beginnings of prompts are reused, no texts behind a change"
POOLINGS = ("none", "mean", "cls", "last", "rank")


HEALTH = frozenset({"/health", "/v1/health", "/ping", "/healthz", "/livez", "/readyz"})
"""Paths at which servers are asked whether they are there: of llama-server, vLLM and Kubernetes."""


@dataclass(frozen=True)
class RequestLimits:
    """What one request may ask for; more is 400, a larger body 413."""

    body_bytes: int = 32 << 20
    values: int = 1 << 19
    """Of a body, in lists and objects; more is 413."""
    nested: int = 1 << 15
    """Lists, objects and keys of a body."""
    escapes: int = 2 << 20
    """Characters of a body that are written with a backslash."""
    tokenized_chars: int = 1 << 19
    """Of a text whose tokens are wanted and nothing else."""
    detokenized: int = 1 << 18
    """Tokens whose text is wanted."""
    n: int = 128
    prompts: int = 256
    embedded: int = 2048
    """Texts of one request for embeddings."""
    messages: int = 4096
    stops: int = 64
    stop_chars: int = 4096
    breakers: int = 64
    """Texts at which repetitions end for DRY."""
    logit_biases: int = 4096
    logprobs: int = 64
    grammar_chars: int = 256 << 10
    """Of a grammar or schema, before anything walks it."""
    tool_chars: int = 1 << 20
    """Of a request's tools together, and of the arguments of a call, as JSON."""
    metadata_chars: int = 64 << 10
    head_s: float = 20.0
    """Seconds in which a request's head must have come."""
    body_s: float = 30.0
    """The same of its body; a longer one must bring body_bytes_per_s on average, or it is 408."""
    body_bytes_per_s: int = 16 << 10
    whole_body_s: float = 300.0
    """Seconds in which any body must have come."""
    held_bytes: int = 256 << 20
    """Of the big bodies of all requests that are not answered yet; one more is 429."""
    connections: int = 4096
    """That are open, or twice `waiting`; one that waits longest for a request is closed for a further one."""
    activation_bytes: int = 256 << 20
    """Of the captured values of one request."""
    waiting: int = 1024
    """Answers that wait or are being generated, `n` of each prompt; more is 429."""
    stored_responses: int = 256
    """Responses that `previous_response_id` finds, the latest ones."""
    stored_bytes: int = 128 << 20
    """Of all of them."""
    stored_each_bytes: int = 4 << 20
    """Of one; a larger one is not found."""
    replays: int = 16
    """Stored responses that are read as events at a time, of one key; one more is 429."""


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, what it serves, and how.

    short_name: by which the model was named at the start; an alias, too, but not its id.
    parallel: requests that are computed at a time. n_ctx: tokens of each; None: all that the model was
    trained for. n_predict: most tokens of an answer that does not say. params, seed: likewise; asked: fields
    of params that the model's file does not change.
    api_keys: any of them opens the server, and so do file_keys, those of api_key_file at the start; none of
    either: nobody is asked. slots, metrics, props, activations: whether these endpoints answer.
    loras: adapters (file, scale), by number. models_dir, models_preset: a folder of models that requests may
    name, and a file of them; more_models: others, as they were typed; models_max: how many are loaded at a
    time, 0: any number; models_autoload: whether a request loads the one that it names.
    mcp: a file of MCP servers, whose tools the page may call.
    timeout: seconds until a client that does not read is left. ping: seconds of silence after which a stream
    sends a comment. drain: seconds in which requests may end after SIGTERM. sleep_idle: seconds without a
    request after which the model is closed until the next one; below 0: never.
    log_requests: a line for each on stderr; otlp_endpoint: a collector of their traces.
    """

    hosts: tuple[str, ...] = ("127.0.0.1",)
    port: int = 8080
    aliases: tuple[str, ...] = ()
    short_name: str = ""
    tags: tuple[str, ...] = ()
    parallel: int = 4
    n_ctx: int | None = None
    n_predict: int = -1
    keep: int = 0
    context_shift: bool = False
    cache_prompt: bool = True
    ignore_eos: bool = False
    params: SamplingParams = DEFAULT_SAMPLING
    asked: frozenset[str] = frozenset()
    seed: int = -1
    slots: bool = True
    props: bool = False
    metrics: bool = True
    page: bool = True
    embeddings_only: bool = False
    reranking: bool = False
    activations: bool = False
    pooling: str | None = None
    embd_normalize: int = 2
    template_variables: dict[str, Any] = field(default_factory=dict)
    reasoning: str = "auto"
    reasoning_format: str = "deepseek"
    prefill_assistant: bool = True
    loras: tuple[tuple[Path, float], ...] = ()
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    file_keys: tuple[FileKey, ...] = ()
    unsafe_bind: bool = False
    cors_origins: tuple[str, ...] | None = None
    slot_save_path: Path | None = None
    models_dir: Path | None = None
    models_preset: Path | None = None
    more_models: tuple[str, ...] = ()
    models_max: int = 4
    models_autoload: bool = True
    mcp: Path | None = None
    share_prefixes: bool = False
    log_requests: bool = False
    otlp_endpoint: str | None = None
    verbose: bool = False
    ssl_key: Path | None = None
    ssl_certificate: Path | None = None
    prefix: str = ""
    timeout: float = 3600.0
    ping: float = 30.0
    sleep_idle: float = -1.0
    drain: float = 30.0
    limits: RequestLimits = field(default_factory=RequestLimits)

    def __post_init__(self) -> None:
        for flag, value, least, most in (
            ("--port", self.port, 0, 65535),
            ("--models-max", self.models_max, 0, 1 << 20),
            ("--max-waiting", self.limits.waiting, 1, 1 << 30),
            ("--max-body", -(-self.limits.body_bytes // (1 << 20)), 1, 1 << 20),
        ):
            if not least <= value <= most:
                raise UsageError(f"{flag}: wanted a whole number from {least} to {most}, got {value}")
        for flag, text, names in (
            ("--reasoning", self.reasoning, REASONING),
            ("--reasoning-format", self.reasoning_format, REASONING_FORMATS),
            ("--pooling", self.pooling, (None, *POOLINGS)),
        ):
            if text not in names:
                wanted = ", ".join(name for name in names if name is not None)
                raise UsageError(f"{flag}: wanted one of {wanted}; got {text!r:.40}")

    @property
    def n_ctx_said(self) -> str:
        """The context as a line for people."""
        return "as trained" if self.n_ctx is None else str(self.n_ctx)

    @property
    def routes(self) -> bool:
        """Whether requests choose among several models."""
        return self.models_dir is not None or self.models_preset is not None or bool(self.more_models)

    @property
    def loopback(self) -> bool:
        """Whether it listens to this machine alone."""
        return all(host in ("127.0.0.1", "::1", "localhost") or is_path(host) for host in self.hosts)


def is_path(host: str) -> bool:
    """Whether an address is the path of a UNIX socket, as llama-server tells them apart."""
    return host.endswith(".sock")
