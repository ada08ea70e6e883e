"""Attachments of a bug report, as files by name: the graph, its compilation, and profiles.

Knows private data, which it omits: weights, vocabulary, templates, prompts, folders.
"""

from __future__ import annotations

import json
import traceback
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from graphml.api.model import Model
from graphml.inspect.dumps.document import Document, versions
from graphml.inspect.dumps.dump import text as graph_text
from graphml.inspect.dumps.node_names import printable
from graphml.inspect.dumps.selection import select
from graphml.inspect.dumps.without_weights import describe_model
from graphml.inspect.profile.measured import overlays
from graphml.inspect.profile.profile import WARM_UP_TOKENS, profile
from graphml.inspect.profile.profile_table import as_json, markdown
from graphml.loading.own_ops import op_files
from graphml.runtime.programs.memory_needed import arena_bytes
from graphml.weights import open_model

README = """What `graphml report` wrote. It holds no weights, vocabulary, template, prompt or answer.

model.json             architecture, its metadata, names, dtypes and shapes of the tensors
doctor.json            the machine and the backends, as `graphml doctor --json`
versions.json          versions of what made this
graph/PASS.txt         the graph of one token after each pass; it parses back
graph.json             the same and all that is known of nodes, for `graphml graph`, `diff` and `explain`
plan.txt               where each value is in the arena
placement.txt          node -> backend, and why a node has no kernel
fusions.txt            fusions made, near misses and their reasons
profile.md, .json      where the time of a short prompt and of some tokens goes
ops/FILE.py            only where the architecture has ops of its own: the files that declare them
errors.txt             only where something went wrong
"""
# Besides the architecture's own keys; all others may contain private data.
_METADATA = ("general.architecture", "general.name", "general.file_type", "general.quantization_version",
             "general.size_label", "tokenizer.ggml.model", "tokenizer.ggml.pre")  # fmt: skip
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Sizes:
    """Sizes of the profile: tokens of the prompt, tokens after it, and rounds of the prompt."""

    n_prompt: int = 64
    n_gen: int = 16
    rounds: int = 2


DEFAULT_SIZES = Sizes()


@dataclass
class _Files:
    """The files so far, and the errors."""

    path: Path
    texts: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def add(self, what: str, make: Callable[[], Mapping[str, str]]) -> None:
        """Add the files of `make`; any error is recorded, since reports are about failures."""
        try:
            self.texts |= {name: self._without_folders(text) for name, text in make().items()}
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [f"  {PurePath(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames]
            message = [f"{what}: {type(error).__name__}: {error}", *lines]
            self.errors.append(self._without_folders("\n".join(message)))

    def _without_folders(self, text: str) -> str:
        """The text without the model's folder and the user's home, plain or escaped for JSON."""
        names = {str(self.path): self.path.name, str(self.path.resolve()): self.path.name}
        home = Path.home()
        if home != Path(home.anchor):
            names[str(home)] = "~"
        for folder, name in names.items():
            if len(folder) > 1 and folder != name:
                text = text.replace(folder, name).replace(json.dumps(folder)[1:-1], name)
        return text


def report(
    path: Path,
    load: Callable[[], Model],
    doctor: Callable[[], Mapping[str, Any]],
    sizes: Sizes = DEFAULT_SIZES,
) -> dict[str, str]:
    """File name -> text. path: of the model; load: opens it; doctor: facts of the machine.

    A part that fails is omitted and recorded in `errors.txt`; nothing is raised.
    """
    files = _Files(path, {"README.txt": README})
    facts: dict[str, Any] = {}

    def machine() -> dict[str, str]:
        facts.update(doctor())
        known = {name: value for name, value in facts.items() if name != "cache_folder"}
        return {"doctor.json": _json(known), "versions.json": _json(versions())}

    def with_model() -> dict[str, str]:
        with load() as model:
            _model_files(files, model, float(facts.get("bandwidth", 0.0)), sizes)
        return {}

    files.add("machine", machine)
    files.add("file", lambda: {"model.json": _json(_model_facts(path))})
    files.add("opening", with_model)
    if files.errors:
        files.texts["errors.txt"] = "\n".join(files.errors) + "\n"
    return files.texts


def write_zip(files: Mapping[str, str], target: Path) -> None:
    """Write the files into a zip without times or user names."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_TIME), text, zipfile.ZIP_DEFLATED)


def _model_files(files: _Files, model: Model, bandwidth: float, sizes: Sizes) -> None:
    document: Document = {}
    laid_over: dict[str, dict[str, float]] = {}

    def graphs() -> dict[str, str]:
        document.update(describe_model(model.executor))
        names = [pass_["name"] for pass_ in document["passes"]]
        return {f"graph/{name}.txt": graph_text(select(document, name)) for name in names}

    def profiles() -> dict[str, str]:
        room = model.n_ctx - WARM_UP_TOKENS
        n_gen = min(sizes.n_gen, room // 2) if model.executor.architecture.causal else 0
        measured = profile(model, min(sizes.n_prompt, room - n_gen), n_gen, sizes.rounds)
        laid_over.update(overlays(measured.stages[-1]))
        text = markdown(measured, bandwidth, ("phase", "op", "layer"))
        return {"profile.md": text, "profile.json": _json(as_json(measured, bandwidth))}

    def ops() -> dict[str, str]:
        paths = op_files(model.executor.build(1, 1))
        return {f"ops/{path.name}": path.read_text(encoding="utf-8") for path in paths}

    files.add("ops", ops)
    files.add("graph", graphs)
    files.add("profile", profiles)
    if document:
        files.add("graph.json", lambda: {"graph.json": _json({**document, "overlays": laid_over})})
        files.add("plan", lambda: {"plan.txt": _plan(document, arena_bytes(model.executor))})
        files.add("placement", lambda: {"placement.txt": _placement(document)})
        files.add("fusions", lambda: {"fusions.txt": _fusions(document)})


def _model_facts(path: Path) -> dict[str, Any]:
    with open_model(path) as file:
        architecture = file.metadata.text("general.architecture")
        shown = [
            key
            for key in file.metadata
            if key in _METADATA or (key.startswith(f"{architecture}.") and "template" not in key)
        ]
        return {
            "file": path.name,
            "bytes": file.n_bytes,
            "architecture": architecture,
            "metadata": {key: file.metadata.describe(key).preview for key in shown},
            "tensors": [
                {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
                for tensor in file.tensors.values()
            ],
        }


def _plan(document: Document, arenas: Mapping[str, int]) -> str:
    peak, bound = document["plan"]["peak"], document["plan"]["lower_bound"]
    lines = [f"{name}: arena of {size} bytes" for name, size in arenas.items()]
    lines += [
        f"one token: peak {peak} bytes; the largest set of live values takes {bound}"
        f"{f', {peak / bound:.3f} times as much is used' if bound else ''}",
        "",
        f"{'offset':>10} {'bytes':>10}  node",
    ]
    for node in document["passes"][-1]["nodes"]:
        for kind in ("buffer", "workspace"):
            place = node[kind]
            if place is not None:
                note = "" if kind == "buffer" else " (workspace)"
                lines.append(f"{place['offset']:10} {place['size']:10}  {node['name']}{note}")
    return _text(lines)


def _placement(document: Document) -> str:
    nodes = document["passes"][-1]["nodes"]
    rows = [(node["name"], node["op"], node["backend"] or "", node["fallback"] or "") for node in nodes]
    fallbacks = sum(1 for row in rows if row[3])
    lines = [f"{len(rows)} nodes, {fallbacks} without a kernel on their backend"]
    return _text([*lines, "", *("  ".join(row).rstrip() for row in rows)])


def _fusions(document: Document) -> str:
    fusions = document["fusions"]
    counts: dict[str, int] = {}
    for entry in fusions["applied"]:
        counts[entry["fusion"]] = counts.get(entry["fusion"], 0) + 1
    lines = ["made:", *(f"  {count:5} x {name}" for name, count in sorted(counts.items()))]
    lines += ["", "which:"]
    lines += [
        f"  {entry['fusion']}  {entry['node']}  {', '.join(entry['covered'])}" for entry in fusions["applied"]
    ]
    lines += ["", "near misses:"]
    lines += [
        f"  {entry['fusion']}  {entry['node']}  {entry['reason']}"
        + (f" at {entry['at']}" if entry["at"] else "")
        for entry in fusions["refused"]
    ]
    return _text(lines)


def _text(lines: Sequence[str]) -> str:
    """Join lines; line breaks within them (in names of nodes, say) are removed."""
    return "".join(f"{printable(line)}\n" for line in lines)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n"
