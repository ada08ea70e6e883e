"""Words that people know from other programs' command lines, and what they are here.

Read where graphml's own words do not fit. Knows words of ollama, llama.cpp, llm and Hugging Face; imports no
command.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from graphml.cli.help_pages import USUAL, flags_of
from graphml.cli.second_words import FIRST_WORDS, SECOND_WORDS, near_commands
from graphml.cli.terminal.console import be_quiet
from graphml.cli.value_flags import as_form, value_hint
from graphml.errors import UsageError
from graphml.ir.cache_types import of_all_layers
from graphml.loading import discovery, fetch
from graphml.options.keyword_arguments import SAME_NAMES
from graphml.server.options.command_line import other_name
from graphml.system.log_output import show_log

SAME_COMMANDS: Final = {
    "ls": "models", "list": "models", "show": "info", "download": "pull", "get": "pull", "remove": "rm",
    "delete": "rm", "server": "serve", "generate": "run", "prompt": "run", "ask": "run", "benchmark": "bench",
    "embedding": "embed", "embeddings": "embed", "ppl": "perplexity", "quantise": "quantize",
    "devices": "doctor", "dump": "info", "metadata": "info", "gguf-dump": "info", "model": "models",
    "upgrade": "update", "tokenise": "tokenize", "cvector-generator": "cvector", "control-vector": "cvector",
}  # fmt: skip
"""Another program's command -> ours with the same meaning, or another name for one of `OTHER_COMMANDS`."""

OTHER_COMMANDS: Final = {
    "backends": "`graphml doctor` lists backends and devices, `graphml test-backend` checks one",
    "complete": "`graphml run --raw` continues a text",
    "cp": "a model is a file of its own: `graphml models` says where it is",
    "create": "`--system`, `--template` and settings are options, or in graphml.toml; `graphml new-arch` "
    "drafts an architecture, `graphml import` writes one from PyTorch",
    "push": "a file is uploaded with the hub's own client, `hf upload`",
    "eval": "`graphml perplexity` scores texts and tasks; `python -m graphml.workshop.lm_eval` is lm_eval",
    "inspect": "`graphml info` shows a file, `graphml graph` its graph",
    "login": "the hub's token is the variable HF_TOKEN",
    "perf": "`graphml bench` measures speed, `graphml profile` where the time goes",
    "ps": "a server tells its model at /v1/models and its requests at /slots; `graphml models` lists files",
    "search": "`graphml models --suggest` lists models that fit into memory",
    "stop": "a server ends with Ctrl-C, or when its process is ended",
    "ui": "`graphml serve` has a page at /",
    "update": "`pip install -U` in the environment of graphml brings a later version",
    "web": "`graphml serve` has a page at /",
}
"""Another program's command -> what does it here, with other arguments."""

_ONE_PROMPT: Final = '`graphml run MODEL "PROMPT"` answers one prompt'
OPTIONS: Final = {
    **{
        (command, option): "wanted --backend A,B, of which A is judged and B is the judge"
        for command in ("compare", "bisect")
        for option in ("--a", "--b")
    },
    **dict.fromkeys((("run", "-i"), ("run", "--interactive"), ("run", "-cnv")), "`graphml chat` converses"),
    **{
        (
            "run",
            option,
        ): "`graphml chat` keeps a conversation: /save FILE writes, --load FILE goes on"
        for option in ("--prompt-cache", "--session", "--save", "--load")
    },
    ("run", "--no-display-prompt"): "the prompt is printed with --show-prompt alone",
    **dict.fromkeys((("run", "-r"), ("run", "--reverse-prompt")), "--stop TEXT ends the answer at a text"),
    **dict.fromkeys(
        ((name, "--diffusion-add-gumbel-noise") for name in ("run", "chat")),
        "a --temp above 0 samples as the largest of noisy logits does",
    ),
    ("finetune", "--data"): "the examples are the word behind the model: MODEL DATA.jsonl",
    **dict.fromkeys((("finetune", "--lora-rank"), ("finetune", "--lora-r")), "--rank is the adapter's"),
    ("perplexity", "--text"): "the text is in a file, -f FILE, or on stdin",
    ("perplexity", "--prompt"): "the text is in a file, -f FILE, or on stdin",
    **{
        (
            "graph",
            f"--{kind}",
        ): f"Graphviz draws it: -f dot | dot -T{kind} -o FILE.{kind}"
        for kind in ("svg", "png", "pdf")
    },
    ("tokenize", "--count"): "a line each: `| wc -l`, or n_tokens of --json",
    ("run", "--json-mode"): "--format json has the model answer in JSON",
    ("profile", "--top"): "rows are sorted, the largest first: `| head`",
    ("rm", "--dry-run"): "it asks before it removes; --yes does not",
    ("tokenize", "--text"): "the text is behind MODEL, or --prompt",
    ("tokenize", "--no-bos"): "--no-special adds no BOS and EOS",
    **dict.fromkeys((("chat", "-p"), ("chat", "--prompt")), _ONE_PROMPT),
    ("quantize", "--output-tensor-type"): "--tensor-type '^output.weight=TYPE' is the output matrix's, and "
    "of a model without one '^token_embd.weight=TYPE'",
    ("quantize", "--token-embedding-type"): "--tensor-type token_embd=TYPE is the embedding's",
    ("quantize", "--tensor-type-file"): "--tensor-type REGEX=TYPE may be given again",
    **dict.fromkeys(
        (("quantize", "--include-weights"), ("quantize", "--exclude-weights")),
        "importance is used of all matrices that --imatrix has",
    ),
    ("quantize", "--prune-layers"): "no layer is left out; llama-quantize does that",
    ("quantize", "--override-kv"): "`graphml gguf set FILE KEY VALUE` sets a key of a file",
    ("quantize", "--max-buffer-size"): "matrices are read and written in pieces, whatever their size",
    ("imatrix", "--output-format"): "the output's ending says which: FILE.gguf or FILE.dat",
    ("imatrix", "--parse-special"): "control tokens that the text spells stay text",
    ("imatrix", "--save-frequency"): "what was seen is kept by --save-every, for a run that is stopped",
    **dict.fromkeys(
        (("imatrix", "--from-chunk"), ("imatrix", "--chunk")),
        "it begins with the first chunk: `--file` of a later part, `--in-file` for the others",
    ),
    ("imatrix", "--show-statistics"): "none are shown; llama-imatrix reads the file",
    ("embed", "--normalize"): "embeddings have length 1; --embd-normalize -1 leaves them as they are",
}
"""A command and an option that it had, or that others have -> what it has today."""

FLASH: Final = "wanted on or auto; attention is always computed in this way"
_DEVICE: Final = "--backend chooses what computes; `graphml doctor` lists what there is"
ANY_OPTIONS: Final = {
    "--device": _DEVICE, "--gpu": _DEVICE, "--cpu": _DEVICE,
    "--list-devices": "`graphml doctor` lists devices",
    "--dtype": "--quant converts weights, --kv the cache",
    **dict.fromkeys(("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"), "this command keeps no cache"),
    **dict.fromkeys(("-ub", "--ubatch-size"), "--batch is the most tokens of a step"),
    **dict.fromkeys(("-fa", "--flash-attn"), FLASH),
    **dict.fromkeys(("--mlock", "--mmap", "--no-mmap"), "--pages says where weights are in memory"),
    "--load-in-8bit": "--quant q8 converts weights", "--load-in-4bit": "--quant q4 converts weights",
    "--stream": "answers are streamed; --json prints them at once",
    "--no-stream": "--json prints an answer at once",
    **dict.fromkeys(("-o", "--output", "--out"), "the result is on stdout: > FILE, as JSON with --json"),
}  # fmt: skip
"""The same of every command that has no option of this name."""

EXTRA_WORDS: Final = {
    "bisect": "one model is compared on two backends: --backend A,B",
    "bench": "-m MODEL names the model: before its options it may be a word, `graphml bench MODEL -p 512`",
    "chat": _ONE_PROMPT,
    "compare": "one model is compared on two backends; of two models `graphml diff A B` compares graphs, "
    "`graphml bench -m A -m B` speed, and `graphml perplexity` says how well each predicts a text",
    "diff": "wanted two models, A and B",
    "doctor": "wanted one model, or none for the machine",
    "explain": "wanted one model and one node",
    "graph": "-o FILE names the file; `graphml diff A B` compares two graphs",
    "info": "wanted one model; `graphml diff A B` compares the graphs of two",
    "models": "it lists all of them; `graphml info MODEL` describes one, `graphml pull MODEL` downloads one",
    "perplexity": "wanted one model and one file of text",
    "placement": "wanted one model",
    "plan": "wanted one model",
    "profile": "wanted one model; -p is the number of the prompt's tokens",
    "tune": "wanted one model",
    "verify": "--against names what the model is compared with",
}
"""A command that was given a word too many -> where that word may belong."""

SAME_OPTIONS: Final = {
    **{
        ("perplexity", f"--{kind}-tasks"): "--tasks"
        for kind in ("hellaswag", "winogrande", "multiple-choice")
    },
    **{(name, option): "--json-schema" for name in ("run", "chat") for option in ("--schema", "-j")},
    **{
        (name, option): "--n-predict"
        for name in ("run", "chat")
        for option in ("--num-predict", "--max-new-tokens")
    },
    ("run", "--prompt-file"): "--file",
    **{
        ("run", option): "--max-tokens" for option in ("--tokens", "--n-tokens", "--num-tokens", "--gen")
    },
    **{("bench", option): "--n-prompt" for option in ("--prompt", "--prompt-tokens", "--pp")},
    **{
        ("bench", option): "--n-gen"
        for option in ("--gen", "--tg", "--tokens", "--n-predict", "--max-tokens", "--new-tokens")
    },
    **{
        (name, option): ours
        for name, ours in (("bench", "--repetitions"), ("profile", "--rounds"))
        for option in ("--runs", "--repeat", "--reps", "--iterations", "--n-runs")
    },
    **{("profile", option): "--prompt-tokens" for option in ("--n-prompt", "--pp")},
    ("run", "--stats"): "--verbose", ("run", "--timings"): "--verbose",
    ("run", "-no-cnv"): "--raw", ("run", "--no-conversation"): "--raw",
    ("quantize", "--nthreads"): "--threads", ("perplexity", "--save-all-logits"): "--kl-divergence-base",
    **{("imatrix", option): "--save-every" for option in ("-ofreq", "--output-frequency")},
    ("embed", "--truncate-dim"): "--dimensions",
    ("compare", "--backends"): "--backend", ("bisect", "--backends"): "--backend",
    ("chat", "--verbose"): "--stats", ("chat", "-v"): "--stats",
}  # fmt: skip
"""A command and another program's option -> ours with the same meaning and values."""
_VERBOSE: Final = ("-v", "--verbose", "--debug")
_QUIET: Final = ("-q", "--quiet", "--silent")
_CACHE_TYPES: Final = {"-ctk": 0, "--cache-type-k": 0, "-ctv": 1, "--cache-type-v": 1}
_AS_IT_IS: Final = ("--stream", "--jinja", "--no-warmup", "--log-disable", "--simple-io", "--no-perf",
    "--no-display-prompt")  # fmt: skip
"""Options of others that ask for what `run` and `chat` do in any case."""
_IGNORED: Final = (("cvector", "--pca-batch"),)
"""A command and another program's option whose value changes no result."""
_CONVERSING: Final = {
    "chat": ("-cnv", "--conversation"),
    "run": ("-st", "--single-turn"),
    "imatrix": ("--no-ppl",),
}
"""What says that the command does what it does anyway."""


def in_our_words(name: str, command: Any, words: Sequence[str]) -> list[str]:
    """The words behind a command with other programs' options as ours, where these have the same meaning.

    command: click's. What it has itself stays. UsageError for a value that has no meaning here.
    """
    own, shows = flags_of(command), "--show-prompt" in _before_values(command, words)
    ours: list[str] = []
    cache: dict[int, str] = {}  # 0, 1: the types of keys and values
    judges: list[str] = []
    left = list(words)
    ends = ("--", *getattr(command, "commands", ()))  # a command of this one reads its own options
    while left and left[0] not in ends:
        option, equals, value = (word := left.pop(0)).partition("=")
        ours_too = SAME_OPTIONS.get((name, option), option)
        if option.startswith("--") and option.replace("_", "-") in own:
            ours_too = option.replace("_", "-")
        if ours_too not in own:
            ours_too = other_name(option, own) or _of_python(name, option, own) or option
        usual = USUAL.get(own[ours_too].name, ()) if ours_too in own else ()
        if (value if equals else "".join(left[:1])) in usual:
            _value(option, equals, value, left)
        elif ours_too in own:
            ours.append(f"{ours_too}{equals}{value}")
            if left and not (equals or own[ours_too].is_flag):
                ours.append(left.pop(0))
        elif option in _CACHE_TYPES and "--kv" in own:
            if _CACHE_TYPES[option] in cache:
                raise UsageError(f"{option}: wanted once; got it twice")
            cache[_CACHE_TYPES[option]] = _value(option, equals, value, left)
        elif option == "--against" and name in ("compare", "bisect"):
            judges.append(_value(option, equals, value, left))
        else:
            ours += _as_meant(name, own, word, left, shows)
    if judges:
        ours = _judged(ours, ",".join(judges))
    if cache:
        ours[:0] = ["--kv", of_all_layers(("-ctk", "-ctv"), *(cache.get(i, "f16") for i in range(2)))]
    return [*ours, *left]


def _of_python(name: str, option: str, own: Mapping[str, Any]) -> str | None:
    """The option of the argument that libraries call so, as `--max-new-tokens`; None where there is none."""
    if not option.startswith("--") or option in ANY_OPTIONS or (name, option) in OPTIONS:
        return None
    called = option[2:].replace("-", "_")
    meant = [ours.removeprefix("n_") if ours == "n_ctx" else ours for ours in SAME_NAMES.get(called, ())]
    meant += ["ctx"] if called in ("n_ctx", "context", "ctx_len") else []
    flags = {param.name: max(param.opts, key=len) for param in own.values() if not param.is_flag}
    return next((flags[ours] for ours in meant if ours in flags), None)


def _judged(words: Sequence[str], judge: str) -> list[str]:
    """`--backend A --against B` as `--backend A,B`; without --backend A is cpu, as everywhere."""
    judged = list(words)
    for i, word in enumerate(words):
        if word.startswith("--backend=") or (i and words[i - 1] == "--backend"):
            judged[i] += f",{judge}"
            return judged
    return ["--backend", f"cpu,{judge}", *judged]


def _before_values(command: Any, words: Iterable[str]) -> Iterator[str]:
    """The words before `--` that are no value of one of the command's options."""
    own, left = flags_of(command), iter(words)
    for word in takewhile("--".__ne__, left):
        yield word
        if word in own and not own[word].is_flag:
            next(left, None)


def _as_meant(name: str, own: Mapping[str, Any], word: str, left: list[str], shows: bool) -> list[str]:
    """None for an option that says what is so anyway; others stay. left: what values are taken from.

    shows: whether the prompt is printed.
    """
    option, equals, value = word.partition("=")
    if (name, option) == ("run", "--format"):
        if (form := _value(option, equals, value, left)) != "json":
            raise UsageError(f"--format: wanted json, or --json-schema with a schema; got {form!r:.80}")
        return ["--json-schema", '{"type":"object"}']
    if option in ("-fa", "--flash-attn") and "--backend" in own:
        has_value = equals or (left and not left[0].startswith("-"))
        if has_value and (state := _value(option, equals, value, left)) not in _FLASH_ON:
            raise UsageError(f"{option}: {FLASH}; got {state!r:.80}")
        return []
    if word == "-o" and name in ("run", "chat"):
        return _setting(own, left)
    if (as_ours := as_form(own, word, left)) is not None:
        return as_ours
    if word == "--greedy" and "--temp" in own:
        return ["--temp", "0"]
    if option == "--log-level" or (name, option) in _IGNORED:
        heed = show_log if option == "--log-level" else _ignore
        heed(_value(option, equals, value, left))
        return []
    if word in _VERBOSE and (name, word) not in OPTIONS:
        show_log("debug")
        return []
    if word in _QUIET:
        be_quiet()
        return []
    if word in _AS_IT_IS and name in ("run", "chat"):
        return [word] if word == "--no-display-prompt" and shows else []
    return [] if option in _CONVERSING.get(name, ()) else [word]


def _ignore(value: str) -> None:
    """A value that changes no result."""


def _setting(own: Mapping[str, Any], left: list[str]) -> list[str]:
    """llm's `-o KEY VALUE` as our option of that name, which has a value."""
    flag = f"--{left[0].replace('_', '-')}" if left else ""
    if len(left) < 2 or flag not in own or own[flag].is_flag:
        raise UsageError(
            "-o: wanted the name of a setting and its value, `-o temperature 0`, which is `--temp 0`; "
            f"got {' '.join(left[:2])!r:.80}; the answer is on stdout: > FILE"
        )
    left.pop(0)
    return [flag, left.pop(0)]


_FLASH_ON: Final = ("on", "auto", "1", "-1", "true", "enabled")


def _value(option: str, equals: str, value: str, left: list[str]) -> str:
    """The value of an option, behind `=` or the next word, which is taken."""
    if not (equals or left):
        raise UsageError(f"{option}: wanted a value behind it")
    return value if equals else left.pop(0)


def hint(error: Exception, name: str, command: Any, words: Iterable[str]) -> str:
    """What to say in place of an error of a command line; empty where nothing is known.

    command: click's of that name, None for none. words: of its line, none where it has all of these
    options. click takes `-st` apart, as `-s t`, so that an error may name another option, or come from what
    an option's value is taken for.
    """
    if "ignore_unknown_options" in getattr(command, "context_settings", ()):  # it has flags of its own
        return ""
    own = flags_of(command)
    for word in _before_values(command, words):
        option = word.partition("=")[0]
        meant = None if option in own else OPTIONS.get((name, option)) or ANY_OPTIONS.get(option)
        if meant is not None:
            return f"{option}: {meant}"
    if meant := value_hint(own, str(getattr(error, "option_name", ""))):
        return f"{error.option_name}: {meant}"  # type: ignore[attr-defined]
    message = str(getattr(error, "message", "")).rstrip(".")
    if getattr(getattr(error, "param", None), "name", None) == "seed" and "-sys" in own:
        return f"{message}: -s is the seed; the system message is -sys TEXT"
    if not message.startswith(("Got unexpected extra argument", "No such command")):
        return ""
    where = _place_of(re.findall(r"[^\s()']+", re.split(r" [('](?!s\))", message, maxsplit=1)[-1]), own)
    where = where or EXTRA_WORDS.get(name, "")
    return f"{message}: {where}" if where else ""


def _place_of(words: Sequence[str], own: Mapping[str, Any]) -> str:
    """The option that words too many are values of, as it is typed; empty where none is known.

    own: the command's options. Names of backends are --backend's, a file that is there is --file's.
    """
    names = [name for word in words for name in word.split(",")]
    if names and "--backend" in own and set(names) <= set(discovery.backend_names()):
        several = own["--backend"].metavar in ("A,B", "NAMES")
        return f"a backend is named by --backend {','.join(names) if several else names[0]}"
    if len(words) == 1 and "--file" in own and Path(words[0]).is_file():
        return f"a file is named by --file {shlex.quote(words[0])}"
    return ""


def meaning(name: str, commands: Iterable[str]) -> str:
    """What to add to the error of a command that there is not: what does it here, or the nearest of ours."""
    if name in OTHER_COMMANDS:
        return f" Here {OTHER_COMMANDS[name]}."
    if " " in name or name.lower().endswith(".gguf"):
        return f" Did you mean `graphml run {shlex.quote(name[:80])}`?"
    near = near_commands(name, commands, SAME_COMMANDS)
    return near if near or not fetch.names_model(name) else f" Did you mean `graphml run {name}`?"


def translated(words: Sequence[str]) -> list[str]:
    """The words with our name of the command; `help COMMAND` is its page of help."""
    first, *others = words
    if first == "help":
        return [*others[:1], "--help"]
    if first == "version":
        return ["--version"]
    words = [*FIRST_WORDS.get(first, (SAME_COMMANDS.get(first, first),)), *others]
    if len(words) > 1 and (ours := SECOND_WORDS.get((words[0], words[1]))):
        words[:2] = ours
    return words
