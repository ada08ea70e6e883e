"""Every option of every command: a value that is wrong ends it with exit code 2, one error and no output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from graphml.cli.main import COMMANDS, app
from tests import tiny_model

REFERENCE = ["--backend", "reference"]
SOFTPICK = Path(__file__).parents[1] / "own_ops" / "softpick.py"
NO_NUMBER, BELOW = ("x", "1.5", ""), ("-7",)
NO_FILE = ("/nowhere/at/all", "")
NO_NAME = ("nonsense", "")

WRONG: dict[str, tuple[str, ...]] = {
    "--max-tokens": (*NO_NUMBER, *BELOW),
    "--ctx-size": (*NO_NUMBER, *BELOW),
    "--threads": (*NO_NUMBER, *BELOW, "0"),
    "--gpu-layers": (*NO_NUMBER, *BELOW),
    "--batch": (*NO_NUMBER, *BELOW, "0", "1" + "0" * 30),
    "--seed": (*NO_NUMBER, *BELOW),
    "--parallel": (*NO_NUMBER, *BELOW, "0"),
    "--url": ("/v1/audio", "nonsense", ""),
    "--body": ("x", "[]", ""),
    "--ray": ("nowhere", "ray://localhost:1", "localhost:x", ""),
    "--target-bits": ("x", "0", "33", "nan"),
    "--target-size": ("x", "-1", "3 XB"),
    "--texts": (*NO_NUMBER, *BELOW, "0"),
    "--types": ("Q9", "Q4_0,", ""),
    "--costs": ("x.json", "no/folder.gguf"),
    "--plan": NO_FILE,
    "--save-plan": ("x.txt", "no/folder.json", "x.json"),
    "--in-file": NO_FILE,
    "--imatrix": (*NO_FILE, __file__),
    "--tensor-type": ("ffn", "=Q8_0", "ffn=", "nothing=Q8_0", "ffn=Q9", ""),
    "--positive-file": NO_FILE,
    "--negative-file": NO_FILE,
    "--pca-iter": (*NO_NUMBER, *BELOW, "0"),
    "--save-every": (*NO_NUMBER, *BELOW, "0"),
    "--engines": (*NO_NUMBER, *BELOW, "0"),
    "--engine-cpus": ("x", "0", "-1", "nan"),
    "--engine-gpus": ("x", "-1"),
    "--temperature": ("x", "-0.1", "nan", "inf", "1e39"),
    "--top-k": (*NO_NUMBER, *BELOW),
    "--top-p": ("x", "-0.1", "1.1", "nan"),
    "--min-p": ("x", "-0.1", "1.1", "nan"),
    "--typical-p": ("x", "-0.1", "1.1", "nan"),
    "--repeat-penalty": ("x", "0", "-1", "nan", "inf", "1e300"),
    "--rank": (*NO_NUMBER, *BELOW, "0"),
    "--alpha": ("x", "0", "-1", "nan", "inf"),
    "--targets": ("nonsense", "attn_q,,attn_v", ""),
    "--epochs": (*NO_NUMBER, *BELOW, "0"),
    "--max-steps": (*NO_NUMBER, *BELOW, "0"),
    "--tokens-at-once": (*NO_NUMBER, *BELOW, "0"),
    "--learning-rate": ("x", "0", "-1", "nan", "inf"),
    "--warmup": ("x", "-0.1", "1", "nan"),
    "--weight-decay": ("x", "-0.1", "nan", "inf"),
    "--clip": ("x", "0", "-1", "nan", "inf"),
    "--validation": NO_FILE,
    "--presence-penalty": ("x", "nan", "inf", "1e300"),
    "--frequency-penalty": ("x", "nan", "inf", "1e300"),
    "--repeat-last-n": (*NO_NUMBER, *BELOW),
    "--dynatemp-range": ("x", "-0.1", "nan", "inf"),
    "--dynatemp-exp": ("x", "-0.1", "nan", "inf"),
    "--stop": ("",),
    "--stop-token": (*NO_NUMBER, *BELOW),
    "--logit-bias": ("x", "5", "5*1", "-1+1", "5+x", "5+nan", "5+inf", ""),
    "--min-keep": (*NO_NUMBER, *BELOW),
    "--top-nsigma": ("x", "nan", "inf"),
    "--epsilon-cutoff": ("x", "-0.1", "1.1", "nan"),
    "--eta-cutoff": ("x", "-0.1", "1.1", "nan"),
    "--xtc-probability": ("x", "-0.1", "1.1", "nan"),
    "--xtc-threshold": ("x", "-0.1", "1.1", "nan"),
    "--dry-multiplier": ("x", "nan", "inf"),
    "--dry-base": ("x", "-0.1", "nan", "inf"),
    "--dry-allowed-length": (*NO_NUMBER, *BELOW),
    "--dry-penalty-last-n": (*NO_NUMBER, *BELOW),
    "--mirostat": (*NO_NUMBER, *BELOW, "3"),
    "--mirostat-ent": ("x", "-0.1", "nan", "inf"),
    "--mirostat-lr": ("x", "-0.1", "nan", "inf"),
    "--adaptive-target": ("x", "-1.1", "1.1", "nan"),
    "--adaptive-decay": ("x", "-0.1", "1", "nan"),
    "--banned-string": ("",),
    "--sampling-function": ("nonsense", "/nowhere/at/all.py:f", ""),
    "--samplers": ("nonsense", "top_k;nonsense"),
    "--rng": NO_NAME,
    "--logprobs": (*NO_NUMBER, *BELOW, "257"),
    "--prompt-logprobs": (*NO_NUMBER, *BELOW, "257"),
    "--reasoning-budget": (*NO_NUMBER, "-2"),
    "--spec-type": NO_NAME,
    "--spec-draft-n-max": (*NO_NUMBER, *BELOW, "0", "65"),
    "--spec-draft-n-min": (*NO_NUMBER, *BELOW, "65"),
    "--diffusion-steps": (*NO_NUMBER, *BELOW, "0", "65537"),
    "--diffusion-block-length": (*NO_NUMBER, *BELOW, "65537"),
    "--diffusion-eps": ("x", "-0.1", "1.1", "nan"),
    "--diffusion-algorithm": (*NO_NAME, "5", "-1"),
    "--diffusion-alg-temp": ("x", "-0.1", "nan", "inf"),
    "--diffusion-cfg-scale": ("x", "-0.1", "101", "nan"),
    "--model-draft": (*NO_NAME, "/nowhere/at/all"),
    "--grammar": ('root ::= "x', "nonsense", "root ::= b"),
    "--grammar-file": NO_FILE,
    "--json-schema": ("nonsense", "{", '{"type": "nonsense"}'),
    "--json-schema-file": NO_FILE,
    "--regex": ("(",),
    "--lark": ("nonsense", "start: b"),
    "--choice": ("",),
    "--grammar-after": ("</think>",),  # without a structure
    "--grammar-trigger": ("",),
    "--overflow": NO_NAME,
    "--keep": (*NO_NUMBER, "-2"),
    "--sequences": (*NO_NUMBER, *BELOW, "0"),
    "--chat-template-kwargs": ("x", "[]", '"x"', "[" * 2000, ""),
    "--chat-template": ("nonsense", "", "{% for"),
    "--chat-template-file": NO_FILE,
    "--reasoning-format": NO_NAME,
    "--capture": ("nonsense",),
    "--captured": ("run.txt", ""),
    "--beams": (*NO_NUMBER, *BELOW, "1000"),
    "--length-penalty": ("x", "-101", "nan", "inf", "2"),  # 2: without beams
    "--early-stopping": (*NO_NAME, "never"),
    "--best-of": (*NO_NUMBER, *BELOW, "0", "129"),
    "--best-by": (*NO_NAME, "sum"),
    "--guidance-scale": ("x", "-0.1", "101", "nan"),
    "--negative-prompt": ("without a scale",),
    "--tools": ("/nowhere/at/all.py", ""),
    "--load": ("/nowhere/at/all.json", __file__),
    "--mcp": ("/nowhere/at/all.json", ""),
    "--suffix": ("no fill-in-the-middle tokens", ""),
    "--infill-extra": ("/nowhere/at/all",),
    "--template": NO_FILE,
    "--arch": NO_FILE,
    "--file": NO_FILE,
    "--documents": NO_FILE,
    "--saved": NO_FILE,
    "--from-hf": NO_FILE,
    "--backend": (*NO_NAME, "cpu,nonsense"),
    "--graphs": (*NO_NUMBER, *BELOW, "0"),
    "--first": (*NO_NUMBER, *BELOW),
    "--kv": NO_NAME,
    "--quant": NO_NAME,
    "--pre": NO_NAME,
    "--pages": NO_NAME,
    "--lora": (*NO_FILE, ""),
    "--lora-scaled": ("no.gguf:1", ""),
    "--control-vector": (*NO_FILE, ""),
    "--control-vector-scaled": ("no.gguf:1", ""),
    "--control-vector-layer-range": ("x", "1", "5-1", "-1-2", "1-x", ""),
    "--override-kv": (
        "x",
        "x=5",
        "=int:5",
        "x=long:5",
        "x=int:1.5",
        "x=bool:yes",
        "x=float:nan",
        "x=int:5",
        "",
    ),
    "--rope-scaling": NO_NAME,
    "--rope-freq-base": ("x", "0", "-1", "nan", "inf"),
    "--rope-freq-scale": ("x", "0", "-1", "nan", "inf"),
    "--yarn-ext-factor": ("x", "-1", "nan", "inf"),
    "--yarn-attn-factor": ("x", "0", "nan", "inf"),
    "--yarn-beta-slow": ("x", "0", "nan", "inf"),
    "--yarn-beta-fast": ("x", "0", "nan", "inf"),
    "--yarn-orig-ctx": (*NO_NUMBER, *BELOW, "0"),
    "--numa": NO_NAME,
    "--pooling": NO_NAME,
    "--prompt-name": NO_NAME,
    "--column": NO_NAME,
    "--dimensions": (*NO_NUMBER, *BELOW, "0", "100000"),
    "--fuse": ("nonsense", "-nonsense"),
    "--fuse-a": ("nonsense",),
    "--fuse-b": ("nonsense",),
    "--place": ("nonsense", "nonsense:layers.0"),
    "--hf": ("nonsense", ""),
    "--tokens": (*NO_NUMBER, *BELOW, "0", "1" + "0" * 30),
    "--layer": (*NO_NUMBER, *BELOW, "99"),
    "--pass": NO_NAME,
    "--pass-a": NO_NAME,
    "--pass-b": NO_NAME,
    "--format": NO_NAME,
    "--node": NO_NAME,
    "--by": NO_NAME,
    "--embd-normalize": (*NO_NUMBER, "-2"),
    "--embd-output-format": ("xml", "JSON"),
    "--ppl-stride": (*NO_NUMBER, *BELOW, "0"),
    "--tasks": (*NO_NUMBER, *BELOW),
    "--hellaswag": NO_FILE,
    "--winogrande": NO_FILE,
    "--multiple-choice": NO_FILE,
    "--chunks": (*NO_NUMBER, *BELOW, "0"),
    "--prompt-tokens": (*NO_NUMBER, *BELOW, "100000"),
    "--rounds": (*NO_NUMBER, *BELOW, "0"),
    "--worst": (*NO_NUMBER, *BELOW),
    "--limit": ("x", "-1", "nan", "inf"),
    "--save": ("run.txt", ""),
    "--record": ("run.txt", ""),
    "--against": ("nonsense", ""),
    "--like": NO_NAME,
    "--op": ("nonsense", ""),
    "--mode": NO_NAME,
    "--type": ("nonsense",),
    "--limits": NO_NAME,
    # where to write: nothing that is no folder can be one
    "--output": ("/dev/null/no", ""),
    "--html": ("/dev/null/no.html", "x.json"),
    "--trace": ("/dev/null/no",),
    "--graph": ("/dev/null/no.json", "x.html"),
    "--sample": ("/dev/null/no.gguf", "x.py"),
    "--repro": ("/dev/null/no",),
    # bench, with lists and ranges
    "--model": ("nonsense", ""),
    "--shape": NO_NAME,
    "--n-prompt": ("x", "-7", "", "4-1"),
    "--n-gen": ("x", "-7", ""),
    "--n-prompt-gen": ("x", "5", "1,2,3", ""),
    "--n-depth": ("x", "-7", ""),
    "--n-parallel": ("x", "0", ""),
    "--batch-size": ("x", "0", ""),
    "--ubatch-size": ("x", "0", ""),
    "--cache-type-k": ("",),
    "--cache-type-v": ("",),
    "--peer": NO_NAME,
    "--peer-python": ("python", ""),
    "--repetitions": (*NO_NUMBER, "0"),
    "--delay": ("x", "-1", "nan", "inf"),
    "--top-n": (*NO_NUMBER, *BELOW, "0"),
    "--older-than": ("x", "-1"),
    "--memory": ("x", "1X", "-1M"),
    "--bandwidth": ("-1", "0", "x", "nan", "inf"),
    "--tflops": ("-1", "0", "x", "nan", "inf"),
    "--over": ("x", "1X", "-1M"),
    "--case": ("nonsense", ""),
    "--output-err": NO_NAME,
    "--plot": ("/dev/null/no",),
    "--fail-over": NO_NAME,
    "--server": ("nonsense", "", "ftp://host", "http://"),
    "--clients": ("x", "0", ""),
    "--requests": (*NO_NUMBER, "0"),
    "--shared-prefix": (*NO_NUMBER, "-1"),
    "--long-prompt": (*NO_NUMBER, "-1"),
    "--idle": (*NO_NUMBER, "-1"),
    # simulate, which refuses what no server could be
    "--replicas": ("x", "0", "3-2", "-1", ""),
    "--routing": NO_NAME,
    "--blocks": (*NO_NUMBER, "0"),
    "--arrivals": ("/dev/null/no", __file__),
    "--rate": ("x", "0", "-1", "nan", "inf"),
    "--seconds": ("x", "0", "-1", "nan", "inf"),
    "--answer-tokens": (*NO_NUMBER, "0"),
    "--tail": ("x", "-1", "nan", "inf"),
    "--prefix-share": ("x", "-1", "1.5", "nan"),
    "--prefixes": (*NO_NUMBER, "0"),
    "--prefix-tokens": (*NO_NUMBER, "0"),
    "--fail-every": ("x", "0", "-1", "nan"),
    "--restart": ("x", "-1", "nan", "inf"),
    "--start": ("x", "-1", "nan", "inf"),
}
ANY = {
    "--begins-with",
    "--prompt",
    "--system",
    "--text",
    "--query",
    "--python",
    "--dry-sequence-breaker",
    "--reasoning-budget-message",
}
"""Options whose value may be any text; a Python is started, and only then known to be none."""
APART = {
    ("test-backend", "--type"): ("nonsense",),
    ("bench", "--type"): ("Q8_0",),  # without a shape
    ("bench", "--threads"): ("x", "0", ""),
    ("bench", "--output"): NO_NAME,
    ("bench", "--quant"): ("",),
    ("bench", "--gpu-layers"): ("x", "-1", ""),
    ("bench", "--place"): ("nonsense", "nonsense:layers.0", ""),
    ("bench", "--api-key"): ("@/dev/null/no", "x"),  # x: without a server
    ("chat", "--api-key"): ("@/dev/null/no", "x"),
    ("perplexity", "--ctx-size"): (*NO_NUMBER, *BELOW, "3"),
    ("new-arch", "--output"): ("/dev/null/no.py", "x.json"),
    ("import", "--output"): ("/dev/null/no.py", "no/folder.py", "x.txt"),
    ("cvector", "--method"): NO_NAME,
    ("cvector", "--output"): ("/dev/null/no.gguf", "no/folder.gguf", "x.txt"),
    ("imatrix", "--output"): ("/dev/null/no.gguf", "no/folder.gguf", "x.txt"),
    ("imatrix", "--ctx-size"): (*NO_NUMBER, *BELOW, "3"),
    ("perplexity", "--kl-divergence-base"): ("/dev/null/no", "no/folder"),
    ("convert", "--output"): ("/dev/null/no.gguf", "no/folder.gguf", "x.txt"),
    ("convert", "--type"): ("q9", ""),
    ("convert", "--split-max-size"): ("x", "-1G", "1", ""),
    ("convert", "--like"): ("nowhere", "/dev/null/no", __file__),
    ("convert", "--weights"): ("nowhere", "/dev/null/no", __file__),
    ("convert", "--python"): ("nowhere", "/dev/null/no"),
    ("import", "--weights"): ("/dev/null/no.gguf", "x.txt"),
    ("import", "--tokenizer"): ("nowhere", "/dev/null/no"),
    ("finetune", "--output"): ("/dev/null/no.gguf", "no/folder.gguf", "x.txt"),
    ("embed", "--output"): ("x.npy", "/dev/null/no.npy", ""),  # x.npy: without --file
    ("batch", "--output"): ("/dev/null/no.jsonl", "no/folder.jsonl"),
    ("finetune", "--plot"): ("/dev/null/no.png", "x.txt"),
    ("import", "--report"): ("/dev/null/no.html", "x.txt"),
    ("report", "--output"): ("/dev/null/no.zip", "x.txt"),
    ("test-op", "--output"): ("xml", ""),
    ("fuzz", "--record"): (__file__, "/dev/null/no"),
    ("fuzz", "--scripts"): ("/dev/null/no", __file__),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "texts.txt").write_text("hello\nworld", encoding="utf-8")
    (folder / "data.jsonl").write_text('{"text": "hello world"}', encoding="utf-8")
    return tiny_model.write(folder / "tiny.gguf")


def begin(name: str, path: Path) -> list[object]:
    """What the command needs to get as far as its options; few do more than open the model."""
    needs: dict[str, list[object]] = {
        "run": [path, "-p", "hi", "-n", 1, *REFERENCE],
        "chat": [path, "-n", 1, *REFERENCE],
        "batch": [path, path.with_name("data.jsonl"), "-o", "x.jsonl", *REFERENCE],
        "embed": [path, "-p", "hi", "--pooling", "mean", *REFERENCE],
        "rerank": [path, "-q", "hi", "-p", "hi", *REFERENCE],
        "tokenize": [path, "hi"],
        "perplexity": [path, "-f", __file__, "-c", 64, "--chunks", 1, *REFERENCE],
        "imatrix": [path, "-f", __file__, "-o", "x.gguf", "-c", 64, "--chunks", 1, *REFERENCE],
        "adapter": [path, path.with_name("data.jsonl"), "-o", "x"],
        "cvector": [
            path,
            *(f"--{kind}-file={path.with_name('texts.txt')}" for kind in ("positive", "negative")),
            "-o",
            "x.gguf",
            *REFERENCE,
        ],
        "quantize": [path, "x.gguf", "Q8_0"],
        "diff": [path, "--fuse-b", "none", *REFERENCE],
        "explain": [path, "--node", "layers.0.q", *REFERENCE],
        "profile": [path, "-p", 4, "-n", 1, "-r", 1, *REFERENCE],
        "simulate": [path, "--measure", *REFERENCE],
        "bench": ["-m", path, "-p", 4, "-n", 0, "-r", 1, *REFERENCE],
        "compare": [path, "--backend", "reference"],
        "bisect": [path, "--backend", "reference"],
        "finetune": [path, path.with_name("data.jsonl"), "-o", "x.gguf"],
        "new-arch": ["my-arch"],
        "import": ["hf:nowhere", "-o", "x.py"],
        "convert": [path, "-o", "x.gguf", *REFERENCE],
        "test-backend": ["reference", "--op", "add"],
        "test-op": [SOFTPICK, "--backend", "reference"],
        "fuzz": ["--graphs", 1, "--backend", "reference"],
        "doctor": [],
        "cache": [],
        "pull": [],
        "info": [path],
        "verify": [path],
    }
    return needs.get(name, [path, *REFERENCE])


def options_of(name: str) -> set[str]:
    command: Any = typer.main.get_command(app)
    found = command.get_command(None, name)
    flags = {max(one.opts, key=len) for one in found.params if one.param_type_name == "option"}
    return flags - {max(one.opts, key=len) for one in found.params if getattr(one, "is_flag", False)}


def without(name: str, option: str, words: list[object]) -> list[object]:
    """The words without that option, by any of its names, and its value: it may be given once."""
    command: Any = typer.main.get_command(app)
    params = command.get_command(None, name).params
    names = next(param.opts for param in params if option in param.opts)
    places = [i for i, word in enumerate(words) if word in names]
    return [word for i, word in enumerate(words) if not {i, i - 1} & set(places)]


OPTIONS = {name: options_of(name) for name in COMMANDS}


def check_refused(arguments: list[object]) -> None:
    done = CliRunner().invoke(app, [str(one) for one in arguments], input="hi\n")
    told = f"{' '.join(map(str, arguments))}: {done.exception!r} {done.output}"
    assert done.exception is None or isinstance(done.exception, SystemExit), told
    assert done.exit_code == 2, told
    assert done.stdout == "", told
    assert "Error" in done.stderr or done.stderr.count("\n") == 1, told


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_values_end_with_2(
    name: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them at the first command that has the option, one at the others."""
    monkeypatch.chdir(tmp_path)
    before = {option for one in COMMANDS[: COMMANDS.index(name)] for option in OPTIONS[one]}
    for option in sorted(OPTIONS[name] - ANY):
        values = APART.get((name, option)) or WRONG.get(option)
        assert values, f"{name} {option}: this table lacks its wrong values"
        for value in values[:1] if option in before else values:
            start = [] if option == "--hf" else without(name, option, begin(name, path))
            spelled = [f"{option}={value}"]
            check_refused([name, *start, *spelled])
    assert not list(tmp_path.iterdir())


CONTRADICTIONS: list[list[object]] = [
    ["run", "MODEL", "-hf", "user/repo", "-p", "x"],
    ["run", "MODEL", "--raw", "--system", "x", "-p", "x"],
    ["run", "MODEL", "--raw", "--template", __file__, "-p", "x"],
    ["run", "MODEL", "--raw", "--chat-template-kwargs", '{"x": 1}', "-p", "x"],
    ["run", "MODEL", "-p", "x", "--capture", "layers.0.q"],
    ["run", "MODEL", "-p", "x", "--captured", "x.npz"],
    ["run", "MODEL", "-p", "x", "--beams", 2, "--best-of", 2],
    ["run", "MODEL", "-p", "x", "--beams", 2, "--temp", 1],
    ["run", "MODEL", "-p", "x", "--beams", 2, "--overflow", "shift"],
    ["run", "MODEL", "-p", "x", "--raw", "--heal", "--guidance-scale", 2],
    ["run", "MODEL", "-p", "x", "--heal"],  # behind a chat template
    ["run", "MODEL", "-p", "x", "--raw", "--heal", "--suffix", "y"],
    ["run", "MODEL", "-p", "x", "--best-of", 2, "--capture", "layers.0.q", "--captured", "x.npz"],
    ["run", "MODEL", "-p", "x", "--raw", "--beams", 2, "--system", "x"],
    ["run", "MODEL", "-p", "x", "--diffusion-visual"],
    ["run", "MODEL", "-p", "x", "--beams", "2", "--diffusion-visual"],
    ["run", "MODEL", "-p", "x", "--diffusion-steps", 4],
    ["run", "MODEL", "-p", "x", "--diffusion-eps", 0.1, "--diffusion-block-length", 4],
    ["chat", "MODEL", "--diffusion-visual"],
    ["chat", "--server", "http://127.0.0.1:9", "--diffusion-visual"],
    ["chat", "MODEL", "--yes"],
    ["chat", "MODEL", "--server", "http://127.0.0.1:9"],
    ["chat", "--server", "http://127.0.0.1:9", "--ctx", 64],
    ["chat", "--server", "http://127.0.0.1:9", "--backend", "cpu"],
    ["chat", "--server", "http://127.0.0.1:9", "--overflow", "shift"],
    ["chat", "--server", "http://127.0.0.1:9", "--chat-template", "chatml"],
    ["chat", "--server", "http://127.0.0.1:9", "--api-key", "@/dev/null/no"],
    ["chat", "--server", "http://127.0.0.1:9", "--choice", "yes"],
    ["pull", "smollm2", "-hf", "user/repo"],
    ["embed", "MODEL", "-p", "x", "--query", "y", "--embd-normalize", 2],
    ["embed", "MODEL", "-p", "x", "--query", "y", "--pooling", "mean"],
    ["embed", "MODEL", "-p", "x", "--query", "y", "--similarity"],
    ["embed", "MODEL", "-p", "x", "--query", "y", "--prompt-name", "query"],
    ["embed", "MODEL", "-p", "x", "--query", "y", "--prompt", "z"],
    ["embed", "MODEL", "-f", __file__, "-o", "x.npy"],
    ["embed", "MODEL", "-f", "TEXTS"],
    ["embed", "MODEL", "-f", "TEXTS", "-o", "no/folder.npy"],
    ["embed", "MODEL", "-f", "TEXTS", "-o", "x.bin"],
    ["embed", "MODEL", "-f", "TEXTS", "-o", "x.npy", "-p", "x"],
    ["embed", "MODEL", "-f", "TEXTS", "-o", "x.npy", "--similarity"],
    ["embed", "MODEL", "-f", "TEXTS", "-o", "x.npy", "--query", "y"],
    ["embed", "MODEL", "-f", "TEXTS", "-o", "x.npy", "--column", "y"],
    ["embed", "MODEL", "-f", "TEXTS", "-o", "x.npy", "--embd-output-format", "raw"],
    ["embed", "MODEL", "-p", "x", "--truncate"],
    ["rerank", "MODEL", "-q", "x", "-p", "y", "--truncate"],
    ["embed", "MODEL", "-p", "x", "--query", "y", "--dimensions", 4],
    ["embed", "MODEL", "-p", "x", "--prompt-name", "query", "--prompt", "z"],
    ["tokenize", "MODEL", "x", "--ids", "--json"],
    ["tokenize", "MODEL", "1 x", "--decode"],
    ["tokenize", "MODEL", "999999", "--decode"],
    ["tokenize", "MODEL", "9" * 5000, "--decode"],
    ["graph", "MODEL", "--layer", 0, "--collapse"],
    ["diff", "MODEL"],
    ["profile", "MODEL", "--by", "op,layer", "--format", "csv"],
    ["profile", "MODEL", "-p", 0, "-n", 0],
    ["compare", "MODEL", "--save", "x.npz", "--worst", 3],
    ["bisect", "MODEL", "--saved", __file__, "--fuse-a", "none"],
    ["bisect", "MODEL", "--saved", __file__, "--place", "cpu:layers.0"],
    ["new-arch", "mine", "--like", "llama", "--from-hf", __file__],
    ["import", "hf:nowhere", "-o", "x.py"],
    ["import", "nonsense", "-o", "x.py"],
    ["import", "module:nowhere.py:make", "-o", "x.py", "--weights", "x.gguf"],
    ["import", "module:nowhere.py", "-o", "x.py", "--weights", "x.gguf"],
    ["import", "module:nowhere.py:make", "-o", "x.py"],
    ["import", "hf:nowhere", "-o", __file__],
    ["bench", "-m", "MODEL", "--server", "http://127.0.0.1:9"],
    ["bench", "--server", "http://127.0.0.1:9", "--api-key", "@/dev/null/no"],
    ["bench", "--server", "http://127.0.0.1:9", "-p", "1,2"],
    ["bench", "--server", "http://127.0.0.1:9", "-o", "csv"],
    ["bench", "-m", "MODEL", "-ctk", "f16", "-ctv", "q9", "-p", 4, "-n", 0, "-r", 1],
    ["verify", "MODEL"],
    ["test-backend", "nonsense"],
    ["test-backend", "nonsense.py"],
    ["info", "."],
    ["info", ""],
    ["nonsense"],
    ["run", "MODEL", "--nonsense"],
]


@pytest.mark.parametrize("arguments", CONTRADICTIONS, ids=lambda value: " ".join(map(str, value))[:60])
def test_what_does_not_go_together_ends_with_2(arguments: list[object], path: Path) -> None:
    files = {"MODEL": path, "TEXTS": path.with_name("texts.txt")}
    with_model = [files.get(str(one), one) for one in arguments]
    check_refused(with_model)
