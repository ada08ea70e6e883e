"""Every reader of files: a valid small file of its kind, and how it is read.

A target writes its files into a folder once; a copy of the folder is damaged and read for each case.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import graphml
from graphml.api.mcp_servers import servers_in
from graphml.authoring.importing.description import read_description
from graphml.authoring.verify import record
from graphml.backend import tuning_file
from graphml.bench import compared_results
from graphml.cli.conversation.commands import read_messages
from graphml.cli.options import config_file
from graphml.cli.options.checks import key_of, text_of
from graphml.fuzz.campaign import CampaignRecord
from graphml.inspect.bisect import repro
from graphml.inspect.compare import archive, observe
from graphml.inspect.dumps.records import is_dump, read_dump
from graphml.inspect.dumps.without_weights import describe_model
from graphml.ir import text
from graphml.loading.adapter_files import read_adapter, read_control_vectors
from graphml.loading.open_file import open_path
from graphml.runtime.blocks.state_rows import StateRow
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor, read_architecture
from graphml.runtime.store.block_files import BlockFiles
from graphml.sampling.settings.sampling_defaults import sampling_defaults
from graphml.server.options.api_keys import keys_in
from graphml.server.options.model_presets import read_presets
from graphml.text.chat_template import template_text
from graphml.text.tokenizer import load_tokenizer
from graphml.weights import ModelFile, open_model
from graphml.weights.deferred import computed
from tests import adapter_files, tiny_model
from tests.folder_records import about, write_folder
from tests.folders.test_peft_adapters import as_gguf
from tests.import_records import FOLDER as IMPORTS
from tests.peft_records import about_peft, write_peft
from tests.stories import STORIES

Read = Callable[[Path], object]


@dataclass(frozen=True)
class Target:
    """A reader. kind: of its file, as `mutations.KINDS` has them; file: the damaged one, in the folder.

    write: the files into a folder; read: the damaged one.
    """

    kind: str
    file: str
    write: Callable[[Path], object]
    read: Read

    @property
    def of_folder(self) -> bool:
        """Whether errors may name the folder, which is one model."""
        return self.read in (_of_folder, _of_sentencepiece)


TARGETS: dict[str, Target] = {}


def _add(name: str, kind: str, file: str, write: Callable[[Path], object], read: Read) -> None:
    TARGETS[name] = Target(kind, file, write, read)


def _written(file: str, content: str | bytes) -> Callable[[Path], object]:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / file).write_bytes(data)


def _opened(path: Path) -> None:
    """A model file and everything of it that is not computed."""
    with open_path(path) as file:
        architecture, _ = read_architecture(file)
        computed(file)
        if file.metadata.has("tokenizer.ggml.model"):
            load_tokenizer(file.metadata)
        sampling_defaults(file.metadata)
        for key in file.metadata:
            file.metadata.describe(key)
        assert architecture.name


_add("gguf", "bytes", "m.gguf", lambda folder: tiny_model.write(folder / "m.gguf"), _opened)
_add(
    "llama2.c",
    "bytes",
    "m.bin",
    lambda folder: _small_stories(folder / "m.bin"),
    lambda path: open_model(path).close(),
)


def _small_stories(path: Path) -> None:
    """A checkpoint of llama2.c with one layer of width 8."""
    sizes = struct.pack("<7i", 8, 16, 1, 2, 2, 32, 16)
    numbers = 32 * 8 + 8 + 4 * 64 + 8 + 3 * 128 + 8 + 2 * 16 * 2
    path.write_bytes(sizes + bytes(4 * numbers))
    entries = b"".join(struct.pack("<fi", -1.0, 2) + f"{i:02}".encode() for i in range(32))
    path.with_name("tokenizer.bin").write_bytes(struct.pack("<i", 2) + entries)


def _folder(name: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        config, tensors, _ = about(name)
        write_folder(folder, config, tensors)

    return write


def _whole_folder(folder: Path) -> None:
    """A folder with every file that is read beside config.json."""
    from tests.folders.test_folder_tokenizers import made, sentencepiece

    _folder("qwen3")(folder)
    made("pieces").save(str(folder / "tokenizer.json"))
    (folder / "sentencepiece").write_bytes(sentencepiece())
    texts = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}
    template = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    files: dict[str, Any] = {
        "tokenizer_config.json": {
            "add_bos_token": True, "chat_template": template,
            "added_tokens_decoder": {"1": {"content": "<s>", "special": True}},
        },
        "special_tokens_map.json": texts,
        "generation_config.json": {
            "eos_token_id": [2, 30], "temperature": 0.6, "top_k": 20, "do_sample": True,
            "repetition_penalty": 1.1,
        },
        "chat_template.json": {"chat_template": "{{ messages }}"},
    }  # fmt: skip
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))


def _of_folder(path: Path) -> None:
    _opened(path.parent)


def _of_sentencepiece(path: Path) -> None:
    path.with_name("tokenizer.json").unlink(missing_ok=True)
    _opened(path.parent)


def _with_sentencepiece(folder: Path) -> None:
    _whole_folder(folder)
    (folder / "sentencepiece").rename(folder / "tokenizer.model")


def _in_shards(folder: Path) -> None:
    _folder("qwen3")(folder)
    names = list(about("qwen3")[1])
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "model-1.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


_add("safetensors", "safetensors", "model.safetensors", _folder("llama"), _of_folder)
_add("index.json", "json", "model.safetensors.index.json", _in_shards, _of_folder)
for _name in (
    "llama", "falcon", "jamba", "gemma4", "gemma3n", "gpt_oss", "deepseek_v3", "qwen3_next",
    "granitemoehybrid",    "falcon_h1", "mamba2", "phi3", "llama4", "lfm2_moe", "mpt",
):  # fmt: skip
    _add(f"config.json of {_name}", "json", "config.json", _folder(_name), _of_folder)
for _name in (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
):  # fmt: skip
    _add(_name, "json", _name, _whole_folder, _of_folder)
_add("tokenizer.model", "bytes", "tokenizer.model", _with_sentencepiece, _of_sentencepiece)


def _with_template_in_json(folder: Path) -> None:
    _whole_folder(folder)
    (folder / "tokenizer_config.json").unlink()


_add("chat_template.json", "json", "chat_template.json", _with_template_in_json, _of_folder)


def _with_templates(folder: Path) -> None:
    _whole_folder(folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")


_add("chat_template.jinja", "text", "chat_template.jinja", _with_templates, _of_folder)
_add(
    "chat template",
    "text",
    "t.jinja",
    _written("t.jinja", "{% for m in messages %}x{% endfor %}"),
    template_text,
)


@cache
def _model() -> ModelFile:
    return open_model(STORIES)


def _adapter(folder: Path) -> None:
    targets = {"blk.0.attn_q.weight": (64, 64), "token_embd.weight": (512, 64)}
    pairs = adapter_files.random_pairs(targets, 4, 1)
    adapter_files.write_adapter(folder / "lora.gguf", pairs, alpha=8.0, invocation=(1, 2))


@cache
def _llama() -> ModelFile:
    """Opened for the whole run: the files are gone, their map stays."""
    with TemporaryDirectory() as folder:
        config, tensors, _ = about("llama")
        path = write_folder(Path(folder), config, tensors)
        return open_path(as_gguf(path, path))


def _peft(folder: Path) -> None:
    config, tensors, _ = about_peft("llama-biases")
    write_peft(folder, config, tensors)


def _vectors(folder: Path) -> None:
    directions = {layer: np.ones(64, np.float32) for layer in (1, 2)}
    adapter_files.write_vectors(folder / "control.gguf", directions)


_add("LoRA adapter", "bytes", "lora.gguf", _adapter, lambda path: read_adapter(path, _model()))
for _file, _kind in (("adapter_config.json", "json"), ("adapter_model.safetensors", "safetensors")):
    _add(f"PEFT's {_file}", _kind, _file, _peft, lambda path: read_adapter(path.parent, _llama()))
_add(
    "control vectors",
    "bytes",
    "control.gguf",
    _vectors,
    lambda path: read_control_vectors([(path, 0.5)], (1, 4), 64),
)


@cache
def _stories() -> graphml.Model:
    return graphml.load(
        STORIES, backend="reference", template="{% for m in messages %}{{ m.content }}{% endfor %}"
    )


def _session(folder: Path) -> None:
    session = _stories().session(n_ctx=32)
    session.eval([1, 2, 3])
    session.save(folder / "s.session")


def _chat(folder: Path) -> None:
    chat = _stories().chat(max_tokens=2, n_ctx=64)
    chat.ask("Once")
    chat.save(folder / "c.chat")


def _prefix(folder: Path) -> None:
    with _stories().engine(max_sequences=1, n_ctx=64) as engine:
        ids = [*range(1, 40)]
        tokens = engine.submit(ids, max_tokens=2).result().tokens
        engine.prefix_files().save([*ids, *tokens], b"", folder / "slot")


@cache
def _engine() -> graphml.Engine:
    return _stories().engine(max_sequences=1, n_ctx=64)


_add("session", "safetensors", "s.session", _session, lambda path: _stories().restore(path))
_add("chat", "safetensors", "c.chat", _chat, lambda path: _stories().restore(path))
_add("slot", "safetensors", "slot", _prefix, lambda path: _engine().prefix_files().restore(path, b""))

ROWS = {"": {"k": StateRow((2, 3), np.dtype("f4"))}}


def _store(folder: Path) -> None:
    BlockFiles(folder / "store", {"model": "a"}, {}, 1 << 20)


_add(
    "prefix store", "json", "store/graphml-store.json", _store,
    lambda path: BlockFiles(path.parent, {"model": "a"}, {}, 1 << 20),
)  # fmt: skip


def _record(folder: Path) -> None:
    logits = np.ones((3, 8), np.float32)
    record.save(record.PeerRecord("x", (1, 2, 3), logits, {"blk.0": logits}), folder / "r.npz")


def _golden(folder: Path) -> None:
    np.savez(folder / "g.npz", logits=np.ones((3, 8), np.float32))
    (folder / "g.json").write_text(json.dumps({"tokens": [1, 2, 3]}))


_add("record", "npz", "r.npz", _record, record.read)
_add("golden", "npz", "g.npz", _golden, record.read)
_add("golden's JSON", "json", "g.json", _golden, record.read)


@cache
def _run() -> tuple[Any, Any]:
    executor = open_executor(STORIES, LoadOptions(backend="reference"))
    return observe.observe(executor, [1, 2]), executor.weights


def _saved_run(folder: Path) -> None:
    observe.save(_run()[0], folder / "run.npz")


_add("recorded run", "npz", "run.npz", _saved_run, lambda path: observe.restore(path, _run()[1]))
_add(
    "arrays of a repro", "npz", "a.npz",
    lambda folder: archive.write(folder / "a.npz", {"T": 3}, {"inputs/x": np.ones(3, np.float32)}),
    repro.load,
)  # fmt: skip


def _import(folder: Path) -> None:
    described = json.loads(gzip.decompress((IMPORTS / "llama.json.gz").read_bytes()))
    values = {
        name: np.array(numbers, kind).reshape(shape)
        for name, (kind, shape, numbers) in described.pop("constants").items()
    }
    (folder / "description.json").write_text(json.dumps(described))
    np.savez(folder / "values.npz", **values)


_add(
    "description of an import",
    "json",
    "description.json",
    _import,
    lambda path: read_description(path.parent),
)
_add("values of an import", "npz", "values.npz", _import, lambda path: read_description(path.parent))


@cache
def _dump() -> tuple[str, str]:
    executor = open_executor(STORIES, LoadOptions(backend="reference"))
    with closing(executor):
        return json.dumps(describe_model(executor, 1)), text.write(_run()[0].steps[0].plain)


def _read_dump(path: Path) -> None:
    is_dump(path)
    read_dump(path)


_add("graph as JSON", "json", "d.json", lambda folder: (folder / "d.json").write_text(_dump()[0]), _read_dump)
_add("graph as text", "text", "d.txt", lambda folder: (folder / "d.txt").write_text(_dump()[1]), _read_dump)

RESULTS = [
    {"n_prompt": 512, "n_gen": 0, "n_threads": 2, "avg_ts": 10.0, "stddev_ts": 0.1, "samples_ts": [10.0, 9.9]}
]
SERVERS = {"mcpServers": {"a": {"command": "x", "args": ["y"], "env": {"K": "v"}, "timeout": 3},
                          "b": {"url": "http://localhost:1", "headers": {"H": "v"}}}}  # fmt: skip
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "content": "3", "tool_call_id": "1"}]  # fmt: skip
ENTRIES = {"entries": [{"device": "x", "version": "1", "n": 3, "parameters": {"rows": 4}}]}
SETTINGS = '[defaults]\ntemp = 0.5\n[models."a*"]\nctx = 512\n[profiles.p]\nseed = 3\n[run]\ntop-k = 4\n'
_add(
    "results of a benchmark", "json", "b.json", _written("b.json", json.dumps(RESULTS)), compared_results.read
)
_add("MCP servers", "json", "mcp.json", _written("mcp.json", json.dumps(SERVERS)), servers_in)
_add("messages of a chat", "json", "m.json", _written("m.json", json.dumps(MESSAGES)), read_messages)
_add(
    "graphml.toml", "text", "graphml.toml", _written("graphml.toml", SETTINGS),
    lambda path: config_file.chosen_tables(path, ["run"], "run", None, "abc"),
)  # fmt: skip
_add("API keys", "text", "keys", _written("keys", "# keys\nabc weight=2 priority=1\ndef\n"), keys_in)
_add(
    "presets of models",
    "text",
    "presets.ini",
    _written("presets.ini", "version = 1\n[*]\ntemp = 0.5 ; all\n[a]\nmodel = a.gguf\nc = 512\n"),
    read_presets,
)
_add("API key", "text", "key", _written("key", "abc\n"), lambda path: key_of(f"@{path}"))
_add("grammar or text", "text", "g.gbnf", _written("g.gbnf", "root ::= x\n"), text_of)
_add(
    "tuning.json",
    "json",
    "tuning.json",
    _written("tuning.json", json.dumps(ENTRIES)),
    lambda path: _tuned(path),
)
_add(
    "record of a fuzz campaign", "json", "f.json",
    lambda folder: (folder / "f.json").write_text(
        json.dumps(vars(CampaignRecord.read(None, ["cpu"], 0)))
    ),
    lambda path: CampaignRecord.read(path, ["cpu"], 0),
)  # fmt: skip


def _tuned(path: Path) -> None:
    before = tuning_file.path
    try:
        tuning_file.path = lambda: path
        tuning_file.parameters_of({"device": "x"}, lambda entry: int(entry["n"]))
    finally:
        tuning_file.path = before


@contextmanager
def closed_at_the_end() -> Iterator[None]:
    """Models that targets share are closed at the end."""
    try:
        yield
    finally:
        if _engine.cache_info().currsize:
            _engine().close()
        if _stories.cache_info().currsize:
            _stories().close()
        if _model.cache_info().currsize:
            _model().close()
        for kept in (_engine, _stories, _model):
            kept.cache_clear()
