"""llama-server's command line: flags by their long and short names, and its variables, as plain values.

What graphml's own flags are called is accepted too; so are flags of llama-server that have no meaning here.
Knows names and the types of values; `graphml.cli.serve` knows what they mean, `graphml.settings` reads the
environment.
"""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

from graphml.errors import UsageError, did_you_mean

IN_OTHERS: Final = {
    **dict.fromkeys(("--max-model-len", "--max-seq-len", "--context-length"), "--ctx-size (-c)"),
    "--max-num-seqs": "--parallel (-np)",
    "--max-num-batched-tokens": "--batch-size (-b)",
    "--served-model-name": "--alias",
    "--kv-cache-dtype": "--cache-type-k (-ctk) with --cache-type-v (-ctv)",
    "--root-path": "--api-prefix",
}
"""Options of vLLM's and SGLang's servers -> those here, which are llama-server's."""
_CODER = "--port 8012 -b 1024 -ub 1024 -hf ggml-org/"
_DRAFT = " -hfd ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"
_OSS = "--port 8013 -b 32768 -ub 2048 -np 2 -c 262144 --temp 1 --top-p 1 --top-k 0 --min-p 0.01 -hf ggml-org/"
_GEMMA = "--port 8014 -hf ggml-org/"

PRESETS: Final = {
    "--embd-gemma-default": "--port 8011 -b 2048 -ub 2048 -np 32 -c 65536 --embeddings "
    "-hf ggml-org/embeddinggemma-300M-qat-q4_0-GGUF:embeddinggemma-300M-qat-Q4_0.gguf",
    "--fim-qwen-1.5b-default": f"{_CODER}Qwen2.5-Coder-1.5B-Q8_0-GGUF:qwen2.5-coder-1.5b-q8_0.gguf",
    "--fim-qwen-3b-default": f"{_CODER}Qwen2.5-Coder-3B-Q8_0-GGUF:qwen2.5-coder-3b-q8_0.gguf",
    "--fim-qwen-7b-default": f"{_CODER}Qwen2.5-Coder-7B-Q8_0-GGUF:qwen2.5-coder-7b-q8_0.gguf",
    "--fim-qwen-7b-spec": f"{_CODER}Qwen2.5-Coder-7B-Q8_0-GGUF:qwen2.5-coder-7b-q8_0.gguf{_DRAFT}",
    "--fim-qwen-14b-spec": f"{_CODER}Qwen2.5-Coder-14B-Q8_0-GGUF:qwen2.5-coder-14b-q8_0.gguf{_DRAFT}",
    "--fim-qwen-30b-default": f"{_CODER}Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF"
    ":qwen3-coder-30b-a3b-instruct-q8_0.gguf",
    "--gpt-oss-20b-default": f"{_OSS}gpt-oss-20b-GGUF:gpt-oss-20b-mxfp4.gguf",
    "--gpt-oss-120b-default": f"{_OSS}gpt-oss-120b-GGUF",
    "--vision-gemma-4b-default": f"{_GEMMA}gemma-3-4b-it-qat-GGUF",
    "--vision-gemma-12b-default": f"{_GEMMA}gemma-3-12b-it-qat-GGUF",
    "--spec-default": "--spec-type ngram-mod",
}


Reader = Callable[[str], Any]


def _switch(text: str) -> bool:
    if text.lower() not in ("on", "off", "true", "false", "1", "0"):
        raise ValueError(text)
    return text.lower() in ("on", "true", "1")


@dataclass(frozen=True)
class Flag:
    """A flag: its names, the value's name, what reads it (None for a switch), and what it is for.

    value: of a switch. repeated: it may be given again; values are collected. n_values: a tuple of so many.
    """

    names: str
    into: str
    read: Reader | None = str
    help: str = ""
    value: Any = True
    repeated: bool = False
    n_values: int = 1


FLAGS: Final = (
    Flag("-m --model", "model", help="A GGUF file, as the argument MODEL."),
    Flag("-hf -hfr --hf-repo --hf", "hf", help="A model of the Hugging Face hub, USER/REPO:QUANT."),
    Flag("-hff --hf-file", "hf_file", help="The file of that repository."),
    Flag("-mu --model-url", "model_url", help="The address of a file on huggingface.co."),
    Flag("-dr --docker-repo", "docker_repo", help="Refused: Docker Hub is not read."),
    Flag("--offline", "offline", None, "Ask no server for models."),
    Flag("--arch", "arch", help="A Python file with the architecture."),
    Flag("--trust-arch", "trust_arch", None, "Run the definition of the architecture in the file."),
    Flag("--backend", "backend", help="What computes: cpu, or another installed backend."),
    Flag("-t --threads", "threads", int, "Threads of the CPU backend."),
    Flag("--ray", "ray", help="Replicas on a Ray cluster: HOST:PORT, auto, or N replicas on auto."),
    Flag("--replicas", "replicas", help="How many: N, or LEAST-MOST as requests want them."),
    Flag("--replica-cpus", "replica_cpus", float, "CPUs of a node for each replica, and its threads."),
    Flag("--replica-gpus", "replica_gpus", float, "GPUs of a node for each replica."),
    Flag("-c --ctx-size --ctx", "ctx", int, "Tokens of context, of all slots together unless -kvu."),
    Flag("-np --parallel", "parallel", int, "Slots: requests that are computed at a time."),
    Flag("--kv-unified-per-slot", "ctx_per_slot", int, "Tokens of context of each slot, at most."),
    Flag("-kvu --kv-unified", "unified", None, "Each slot may use all of the context."),
    Flag("-no-kvu --no-kv-unified", "unified", None, "Slots share the context out.", value=False),
    Flag("-b --batch-size --batch", "batch", int, "Most tokens of a step."),
    Flag("-ub --ubatch-size", "ubatch", int, "The same."),
    Flag("-ctk --cache-type-k", "kv_k", help="Type of keys in the cache."),
    Flag("-ctv --cache-type-v", "kv_v", help="Type of values in the cache."),
    Flag("--kv", "kv", help="Types of both: TYPE or KEYS/VALUES, and of single layers behind commas."),
    Flag("--quant", "quant", help="Weights are converted as the model is opened: q8, q4 or fp32."),
    Flag("-ngl --gpu-layers --n-gpu-layers", "gpu_layers", help="Layers that the first backend takes."),
    Flag("--place", "place", help="Rules of placement, BACKEND:WHAT with commas."),
    Flag("-ot --override-tensor", "override_tensor", help="PATTERN=CPU, or a backend.", repeated=True),
    Flag("-cmoe --cpu-moe", "cpu_moe", None, "Weights of experts stay on the CPU."),
    Flag("-ncmoe --n-cpu-moe", "n_cpu_moe", int, "The same, of the first N layers."),
    Flag("-ncffn --n-cpu-ffn", "n_cpu_ffn", int, "The same of dense feed-forward weights."),
    Flag("--swa-full", "swa_full", None, "Layers with a window keep everything."),
    Flag("--numa", "numa", help="Where weights are in memory."),
    Flag("--deterministic", "deterministic", None, "The same bits in any company."),
    Flag("--override-kv", "override_kv", help="KEY=TYPE:VALUE in the file's metadata.", repeated=True),
    Flag("--rope-scaling", "rope_scaling", help="none, linear or yarn."),
    Flag("--rope-scale", "rope_scale", float, "Factor of the context."),
    Flag("--rope-freq-base", "rope_freq_base", float, "Base of the rotary frequencies."),
    Flag("--rope-freq-scale", "rope_freq_scale", float, "Factor of the rotary frequencies."),
    Flag("--yarn-orig-ctx", "yarn_orig_ctx", int, "YaRN's original context."),
    Flag("--yarn-ext-factor", "yarn_ext_factor", float, "YaRN's mix."),
    Flag("--yarn-attn-factor", "yarn_attn_factor", float, "YaRN's factor of attention."),
    Flag("--yarn-beta-slow", "yarn_beta_slow", float, "YaRN's lower end."),
    Flag("--yarn-beta-fast", "yarn_beta_fast", float, "YaRN's upper end."),
    Flag("--lora", "lora", help="A LoRA adapter, or several with commas.", repeated=True),
    Flag("--lora-scaled", "lora_scaled", help="FILE:SCALE, or several with commas.", repeated=True),
    Flag("--lora-init-without-apply", "lora_off", None, "Adapters wait for POST /lora-adapters."),
    Flag("--control-vector", "control_vector", help="A control vector.", repeated=True),
    Flag("--control-vector-scaled", "control_vector_scaled", help="FILE:SCALE.", repeated=True),
    Flag("--control-vector-layer-range", "control_layers", int, "FIRST LAST: their layers.", n_values=2),
    Flag("--host", "host", help="Address, or path of a UNIX socket (.sock); several with commas."),
    Flag("--port", "port", int, "Port to listen at; 0: a free one."),
    Flag("--api-prefix", "prefix", help="What comes before each path."),
    Flag("--allow-no-key", "unsafe_bind", None, "Listen beyond this machine without a key."),
    Flag("-a --alias", "alias", help="Names of the model, with commas."),
    Flag("--tags", "tags", help="Tags of the model, with commas."),
    Flag("--api-key", "api_key", help="A key that requests must have; several with commas.", repeated=True),
    Flag("--api-key-file", "api_key_file", help="A file with a key in each line."),
    Flag("--cors-origins", "cors", help="Origins whose pages may ask, with commas, or localhost."),
    Flag("--ssl-key-file", "ssl_key", help="PEM file of the private key."),
    Flag("--ssl-cert-file", "ssl_certificate", help="PEM file of the certificate."),
    Flag("-to --timeout", "timeout", float, "Seconds until a client that does not read is left; 0: never."),
    Flag("--shutdown-timeout", "drain", float, "Seconds in which requests may end after SIGTERM."),
    Flag("--sse-ping-interval", "ping", float, "Seconds of silence until a comment is sent; -1: never."),
    Flag("--sleep-idle-seconds", "sleep_idle", float, "Seconds until an idle model is closed; -1: never."),
    Flag("--max-waiting", "waiting", int, "Requests at a time, answered ones included; one more is 429."),
    Flag("--max-body", "body_mib", int, "Largest body in MiB; more is 413."),
    Flag("--share-prefixes", "share_prefixes", None, "Prefixes are shared between keys."),
    Flag("--slots", "slots", None, "GET /slots answers (the default)."),
    Flag("--no-slots", "slots", None, "It does not.", value=False),
    Flag("--metrics", "metrics", None, "GET /metrics answers (the default)."),
    Flag("--no-metrics", "metrics", None, "It does not.", value=False),
    Flag("--props", "props", None, "POST /props answers."),
    Flag("--ui --webui", "page", None, "There is a page at / (the default)."),
    Flag("--no-ui --no-webui", "page", None, "There is none.", value=False),
    Flag("--mcp", "mcp", help="MCP servers, as mcp.json names them, whose tools the page may call."),
    Flag("--slot-save-path", "slot_save_path", help="Folder of saved slots."),
    Flag("--embedding --embeddings", "embeddings", None, "Embed texts alone."),
    Flag("--rerank --reranking", "reranking", None, "POST /rerank answers."),
    Flag("--activations", "activations", None, "POST /v1/activations answers."),
    Flag("--pooling", "pooling", help="none, mean, cls, last or rank."),
    Flag("--embd-normalize", "embd_normalize", int, "Norm of embeddings: -1 none, 0, 1, 2, ..."),
    Flag("-n --predict --n-predict", "n_predict", int, "Most tokens of an answer; -1: until the model ends."),
    Flag("--keep", "keep", int, "First tokens that a context shift keeps; -1: the prompt."),
    Flag("--context-shift", "shift", None, "A full context forgets its older half."),
    Flag("--no-context-shift", "shift", None, "A full context ends the answer (the default).", value=False),
    Flag("--cache-prompt", "cache_prompt", None, "Prefixes are found again (the default)."),
    Flag("--no-cache-prompt", "cache_prompt", None, "They are not.", value=False),
    Flag("--cache-reuse", "cache_reuse", int, "0; reuse behind a changed text is refused."),
    Flag("--chat-template", "template", help="Jinja text, or a known template's name."),
    Flag("--chat-template-file --template", "template_file", help="A file of it."),
    Flag("--chat-template-kwargs", "variables", help="Variables of the template as JSON."),
    Flag("--reasoning-format", "reasoning_format", help="none, deepseek, deepseek-legacy or auto."),
    Flag("-rea --reasoning", "reasoning", help="on, off or auto."),
    Flag("--reasoning-budget", "reasoning_budget", int, "Tokens of reasoning; -1: no limit, 0: none."),
    Flag("--reasoning-budget-message", "reasoning_budget_message", help="Text where reasoning is ended."),
    Flag("--reasoning-effort", "reasoning_effort", help="The template's variable of this name, or default."),
    Flag("--prefill-assistant", "prefill", None, "A begun answer is continued (the default)."),
    Flag("--no-prefill-assistant", "prefill", None, "It is not.", value=False),
    Flag("-v --verbose --log-verbose", "verbose", None, "Answers say what the prompt was."),
    Flag("--models-dir", "models_dir", help="A folder of models that requests may name."),
    Flag("--models-preset", "models_preset", help="An INI file of models and their flags."),
    Flag("--models-max", "models_max", int, "Most models that are loaded at a time; 0: any number."),
    Flag("--models-autoload", "models_autoload", None, "A request loads its model (the default)."),
    Flag("--no-models-autoload", "models_autoload", None, "It does not.", value=False),
    Flag("--log-level", "log_level", help="Show the log on stderr: debug, info, warning or error."),
    Flag("--log-requests", "log_requests", None, "One line for each request on stderr, without contents."),
    Flag("--otlp-endpoint", "otlp_endpoint", help="A collector of OpenTelemetry's traces, by its URL."),
    Flag("-s --seed", "seed", int, "Seed of requests that do not say; -1: a random one."),
    Flag("--ignore-eos", "ignore_eos", None, "Answers go on behind an end token."),
    Flag("-r --reverse-prompt", "stop", help="A text that ends answers.", repeated=True),
    Flag("--grammar-file", "grammar_file", help="A file with a GBNF grammar."),
    Flag("-jf --json-schema-file", "schema_file", help="A file with a JSON schema."),
    Flag("--samplers", "samplers", help="Names of filters with ; between."),
    Flag("--sampler-seq --sampling-seq", "samplers", help="Letters of filters."),
    Flag("--temp --temperature", "temperature", float, "Temperature."),
    Flag("--top-k", "top_k", int, "Keep the k most likely tokens."),
    Flag("--top-p", "top_p", float, "Keep the most likely tokens that reach p."),
    Flag("--min-p", "min_p", float, "Keep tokens at least p times as likely as the first."),
    Flag("--top-nsigma --top-n-sigma", "top_n_sigma", float, "Keep logits within n standard deviations."),
    Flag("--xtc-probability", "xtc_probability", float, "Chance of XTC."),
    Flag("--xtc-threshold", "xtc_threshold", float, "Threshold of XTC."),
    Flag("--typical --typical-p", "typical_p", float, "Locally typical sampling."),
    Flag("--repeat-last-n", "repeat_last_n", int, "Window of the penalties."),
    Flag("--repeat-penalty", "repeat_penalty", float, "Penalty of repeated tokens."),
    Flag("--presence-penalty", "presence_penalty", float, "Penalty of tokens in the window."),
    Flag("--frequency-penalty", "frequency_penalty", float, "The same, for each occurrence."),
    Flag("--dry-multiplier", "dry_multiplier", float, "Strength of DRY."),
    Flag("--dry-base", "dry_base", float, "Base of DRY."),
    Flag("--dry-allowed-length", "dry_allowed_length", int, "Shortest repetition that DRY lowers."),
    Flag("--dry-penalty-last-n", "dry_penalty_last_n", int, "Window of DRY."),
    Flag("--dry-sequence-breaker", "dry_sequence_breakers", help="Where repetitions end.", repeated=True),
    Flag("--adaptive-target", "adaptive_target", float, "Target of adaptive-p."),
    Flag("--adaptive-decay", "adaptive_decay", float, "Memory of adaptive-p."),
    Flag("--dynatemp-range", "dynatemp_range", float, "Range of the dynamic temperature."),
    Flag("--dynatemp-exp", "dynatemp_exponent", float, "Its exponent."),
    Flag("--mirostat", "mirostat", int, "Mirostat 1 or 2."),
    Flag("--mirostat-lr", "mirostat_eta", float, "Mirostat's learning rate."),
    Flag("--mirostat-ent", "mirostat_tau", float, "Mirostat's surprise."),
    Flag("-md --model-draft --spec-draft-model", "draft_model", help="A smaller model that drafts tokens."),
    Flag("-hfd -hfrd --hf-repo-draft --spec-draft-hf", "draft_model", help="The same, of the hub."),
    Flag("--spec-type", "spec_type",
         help="Drafts by: none, draft-simple, draft-eagle3, draft-mtp, ngram-simple or auto."),
    Flag("--spec-draft-n-max --draft-max --draft-n --draft", "spec_draft_n_max", int, "Most tokens drafted."),
    Flag("--spec-draft-n-min --draft-min --draft-n-min", "spec_draft_n_min", int, "Fewer are not drafted."),
    Flag("--diffusion-steps", "diffusion_steps", int, "Most steps of a diffusion model's answer."),
    Flag("--diffusion-block-length", "diffusion_block_length", int, "Tokens of its blocks."),
    Flag("--diffusion-eps", "diffusion_eps", float, "Where timesteps of a whole answer end."),
    Flag("--diffusion-algorithm", "diffusion_algorithm", help="Which tokens are filled in first."),
    Flag("--diffusion-alg-temp", "diffusion_alg_temp", float, "Temperature of that choice."),
    Flag("--diffusion-cfg-scale", "diffusion_cfg_scale", float, "Guidance away from a masked prompt."),
    Flag("-l --logit-bias", "logit_bias", help="ID+X or ID-X.", repeated=True),
    Flag("--grammar", "grammar", help="A GBNF grammar."),
    Flag("-j --json-schema", "json_schema", help="A JSON schema."),
    Flag("--version", "version", None, "The version."),
    Flag("-h --help --usage", "help", None, "This text."),
)  # fmt: skip
BY_NAME: Final = {name: flag for flag in FLAGS for name in flag.names.split()}


@dataclass
class Parsed:
    """What a command line says: values by name, arguments MODEL, and flags that mean nothing here.

    model: the first, which answers requests that name none. others: those that requests must name.
    """

    values: dict[str, Any] = field(default_factory=dict)
    model: str | None = None
    ignored: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def copy(self) -> Parsed:
        """One that can be added to."""
        return Parsed(dict(self.values), self.model, [*self.ignored], [*self.others])


def parsed(arguments: Sequence[str]) -> Parsed:
    """Read a command line; UsageError for an unknown flag, or a value that is missing or wrong."""
    command, left = Parsed(), list(arguments)
    while left:
        name = left.pop(0)
        if not name.startswith("-") or name == "-":
            if command.model is None:
                command.model = name
            else:
                command.others.append(name)
            continue
        inline: str | None = None
        if name.startswith("--") and "=" in name:
            name, _, inline = name.partition("=")
        name = name if name in BY_NAME else name.replace("_", "-") if name.startswith("--") else name
        if name in PRESETS:
            left = [*PRESETS[name].split(), *left]
            continue
        if inline is not None and (name in ALONE or (name in BY_NAME and BY_NAME[name].read is None)):
            raise UsageError(f"{name}: wanted no value, got {inline!r:.40}")
        if name in WITH_VALUE or name in ALONE:
            command.ignored.append(name)
            if name in WITH_VALUE and inline is None:
                _value(name, left)
            continue
        flag = BY_NAME.get(name)
        if flag is None:
            here = IN_OTHERS.get(name)
            meaning = f" {here} means that here" if here else did_you_mean(name, BY_NAME)
            raise UsageError(f"{name}: serve has no such option.{meaning}")
        if flag.read is None:
            command.values[flag.into] = flag.value
            continue
        texts = [_value(name, left) if inline is None else inline]
        texts += [_value(name, left) for _ in range(flag.n_values - 1)]
        values = tuple(_read(name, flag.read, text) for text in texts)
        value = values[0] if flag.n_values == 1 else values
        if flag.repeated:
            command.values.setdefault(flag.into, []).append(value)
        else:
            command.values[flag.into] = value
    return command


def other_name(name: str, known: Container[str]) -> str | None:
    """A known name of the flag that llama-server calls so, too; None where there is none."""
    names = BY_NAME[name].names.split() if name in BY_NAME else ()
    return next((other for other in names if other in known), None)


def by_flag(error: UsageError) -> UsageError:
    """The error by its flag, where its text begins with the name of an argument of the library."""
    name, colon, rest = str(error).partition(":")
    flag = next((flag for flag in FLAGS if flag.into == name), None)
    return UsageError(f"{max(flag.names.split(), key=len)}:{rest}") if colon and flag else error


def _value(name: str, left: list[str]) -> str:
    if not left:
        raise UsageError(f"{name}: wanted a value")
    return left.pop(0)


def _read(name: str, read: Reader, text: str) -> Any:
    try:
        value = read(text)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(text)
        return value
    except ValueError:
        raise UsageError(
            f"{name}: wanted {'a whole number' if read is int else 'a number'}, got {text!r}"
        ) from None


_HELP_COLUMN: Final = 30


def help_text() -> str:
    """All flags and what they do, as wide as the terminal."""
    lines = ["Usage: graphml serve [OPTIONS] [MODEL]...", "", "Options are llama-server's, and:", ""]
    width = min(shutil.get_terminal_size().columns, 100) - 2
    for flag in FLAGS:
        names = f"  {flag.names.replace(' ', ', ')}"
        help_lines = textwrap.wrap(flag.help, width - _HELP_COLUMN)
        if len(names) + 2 > _HELP_COLUMN:
            lines.append(names)
            names = ""
        lines += [
            f"{left:<{_HELP_COLUMN}}{line}" for left, line in zip_longest([names], help_lines, fillvalue="")
        ]
    return "\n".join(lines)


_WITH_VALUE: Final = """
--grp-attn-n --grp-attn-w -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio
--poll -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch -fa
--flash-attn -dt --defrag-thold --rpc -lm --load-mode -lzm --lazy-mode -dev --device
-sm --split-mode -ts --tensor-split -mg
--main-gpu -fit --fit -fitt --fit-target -fitc --fit-ctx -hft
--hf-token --log-file --log-colors -lv --verbosity --log-verbosity --spec-draft-type-k -ctkd
--cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft -lcs --lookup-cache-static -lcd
--lookup-cache-dynamic -ctxcp --ctx-checkpoints --swa-checkpoints -cms
--checkpoint-min-step -cram --cache-ram -mm --mmproj -mmu --mmproj-url -mmdev --mmproj-device
--image-min-tokens --image-max-tokens --mtmd-batch-max-tokens --video-fps --video-timestamp-interval
--video-ffmpeg-dir --path --cors-methods --cors-headers --ui-config --webui-config
--ui-config-file --webui-config-file --tools --tools-runtime --mcp-servers-config --mcp-servers-json
--threads-http --media-path
-sps --slot-prompt-similarity
--log-prompts-dir --spec-draft-threads -td
--threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft --spec-draft-cpu-mask -Cd
--cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict
--cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft
--spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-strict-batch
--cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch
--poll-batch-draft --spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe
--spec-draft-ncmoe -ncmoed --n-cpu-moe-draft --spec-synth-len
--spec-synth-rates --spec-draft-p-split --draft-p-split --spec-draft-p-min --draft-p-min
--spec-draft-device -devd --device-draft --spec-draft-ngl -ngld --gpu-layers-draft
--n-gpu-layers-draft --spec-ngram-mod-n-min
--spec-ngram-mod-n-max --spec-ngram-mod-n-match --spec-ngram-simple-size-n
--spec-ngram-simple-size-m --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n
--spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n
--spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --spec-ngram-size-n --spec-ngram-size-m
--spec-ngram-min-hits
"""
_ALONE: Final = """
--backend_sampling --perf --no-perf -e --escape --no-escape -kvo --kv-offload -nkvo --no-kv-offload
--repack -nr --no-repack --no-host --check-tensors --op-offload --no-op-offload
--log-disable --log-jsonl --no-log-jsonl --log-prefix --no-log-prefix --log-timestamps
--no-log-timestamps -bs --backend-sampling --cache-idle-slots --no-cache-idle-slots -sp --special
--warmup --no-warmup --spm-infill -cb --cont-batching -nocb --no-cont-batching --mmproj-auto
--no-mmproj --no-mmproj-auto --mmproj-offload --no-mmproj-offload --reuse-port --cors-credentials
--no-cors-credentials --ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy -ag
--agent -no-ag --no-agent --jinja --no-jinja
--reasoning-preserve --no-reasoning-preserve --skip-chat-parsing --no-skip-chat-parsing
--spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-backend-sampling
--no-spec-draft-backend-sampling --mlock --mmap --no-mmap --direct-io --no-direct-io --verbose-prompt
"""
PRINTING: Final = {
    "--list-devices": "`graphml doctor` lists backends and their devices",
    "-cl": "`graphml models` lists models that are here",
    "--cache-list": "`graphml models` lists models that are here",
    "--completion-bash": "`graphml --show-completion` prints completions for a shell",
}
"""Flags that print something and serve nothing."""
WITH_VALUE: Final = frozenset(_WITH_VALUE.split())
ALONE: Final = frozenset(_ALONE.split()) | PRINTING.keys()


PREFIX: Final = "LLAMA_ARG_"
NAMED_OTHERWISE: Final = {
    "LLAMA_ARG_BATCH": "--batch-size", "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_N_PARALLEL": "--parallel", "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling",
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "--spec-draft-hf", "LLAMA_ARG_THINK": "--reasoning-format",
    "LLAMA_ARG_THINK_BUDGET": "--reasoning-budget",
    "LLAMA_ARG_THINK_BUDGET_MESSAGE": "--reasoning-budget-message",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics", "LLAMA_ARG_ENDPOINT_PROPS": "--props",
    "LLAMA_ARG_ENDPOINT_SLOTS": "--slots", "LLAMA_API_KEY": "--api-key",
    "LLAMA_ARG_NO_ENDPOINT_SLOTS": "--no-slots",
}  # fmt: skip
ON: Final = ("on", "enabled", "true", "1")
OFF: Final = ("off", "disabled", "false", "0")
WHICH_MODEL: Final = ("model", "hf", "hf_file", "model_url", "docker_repo")
SAME_MATTER: Final = (
    WHICH_MODEL, ("template", "template_file"), ("rope_scale", "rope_freq_scale"),
    ("reasoning", "reasoning_budget"),
)  # fmt: skip
"""Values of which a flag says one, so that no variable says another."""


def with_variables(command: Parsed, variables: Mapping[str, str]) -> Parsed:
    """A command line with what variables say besides. UsageError for a value that the flag would refuse."""
    merged = command.copy()
    said = _said(command)
    for variable, text in sorted(variables.items()):
        name = NAMED_OTHERWISE.get(variable, "--" + variable.removeprefix(PREFIX).lower().replace("_", "-"))
        flag = BY_NAME.get(name)
        if flag is None:
            merged.ignored.append(variable)
        elif flag.into not in said:
            merged.values[flag.into] = _value_of(variable, name, text)
    return merged


def _said(command: Parsed) -> set[str]:
    """The values that a command line decides."""
    said = {*command.values, *(() if command.model is None else ("model",))}
    return said | {name for group in SAME_MATTER if said.intersection(group) for name in group}


def with_stated(command: Parsed, stated: Sequence[tuple[str, str, Sequence[str | bool]]]) -> Parsed:
    """A command line with what a file states besides: where, the flag and its values. UsageError as above."""
    merged = command.copy()
    said = _said(command)
    for where, name, values in stated:
        flag = BY_NAME[name]
        if flag.into in said:
            continue
        if isinstance(values[0], bool):
            merged.values[flag.into] = values[0]
            continue
        words = [str(value) for value in values]
        if flag.n_values > 1 and len(words) != flag.n_values:
            raise UsageError(f"{where}: wanted {flag.n_values} values, got {len(words)}")
        try:
            arguments = [name, *words] if flag.n_values > 1 else [x for word in words for x in (name, word)]
            merged.values[flag.into] = parsed(arguments).values[flag.into]
        except UsageError as error:
            raise UsageError(f"{where}: {str(error).partition(': ')[2]}") from None
    return merged


def _value_of(variable: str, name: str, text: str) -> object:
    flag = BY_NAME[name]
    if flag.read is None:
        # llama-server takes any text of a negative one.
        if not name.startswith("--no-") and text not in ON + OFF:
            raise UsageError(f"{variable}: wanted {', '.join(ON + OFF)}; got {text!r:.40}")
        return flag.value if name.startswith("--no-") or text in ON else not flag.value
    try:
        return parsed([name, text]).values[flag.into]
    except UsageError as error:
        raise UsageError(f"{variable}: {error}") from None
