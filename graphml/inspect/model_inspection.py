"""Inspection of an open model in one call each: what `Model.graph`, `profile`, `explain` and such return.

Knows models and the parts of inspection, and how a notebook shows results.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from graphml.api.capture import Patches
from graphml.api.load_model import load_model
from graphml.api.model import Model
from graphml.api.perplexity import Perplexity, chunk_of, perplexity
from graphml.api.prompt_encoder import Prompt
from graphml.errors import UsageError, did_you_mean
from graphml.inspect.compare.compare import compare as compare_runs
from graphml.inspect.compare.comparison import Comparison
from graphml.inspect.compare.observe import observe
from graphml.inspect.dumps import dump, explain
from graphml.inspect.dumps.selection import select
from graphml.inspect.dumps.without_weights import describe_model, prepare_model
from graphml.inspect.profile import profile_table
from graphml.inspect.profile.measured import Profile
from graphml.inspect.profile.profile import profile
from graphml.inspect.viewer import render
from graphml.ir.graph import Graph
from graphml.ir.op import Array, Floats
from graphml.loading import discovery, fetch
from graphml.options.argument_checks import text_of
from graphml.options.option_fields import options_of
from graphml.other_attributes import NamesOthers
from graphml.runtime.programs.load_options import LoadOptions
from graphml.system.notebook_html import html_frame, html_page, html_table

_OF_GRAPH = (
    "kv", "swa_full", "quant", "n_batch", "arch", "pre", "offline", "override_kv",
    *(name for name, option in options_of(LoadOptions).items() if option.key),
)  # fmt: skip
"""Options that decide what a model computes, whatever computes it."""


class Explanation(dict[str, Any]):
    """The facts about a node by their names; as a text, lines to read."""

    def __repr__(self) -> str:
        return explain.text(self)


class ModelProfile(Profile, NamesOthers):
    """A profile as `Model.profile` returns it: as a text, tables by op in Markdown, in milliseconds."""

    _same: ClassVar = dict.fromkeys(("to_dict", "as_dict", "to_json"), "as_json")

    def as_json(self) -> dict[str, Any]:
        """All of it as values for JSON, as `graphml profile --format json` prints it."""
        return profile_table.as_json(self, 0.0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to FILE.html as a page, to FILE.json as values, or to FILE.md as tables."""
        contents = {
            ".html": lambda: html_page(f"profile of {self.model}", self._repr_html_()),
            ".json": lambda: json.dumps(self.as_json(), allow_nan=False) + "\n",
            ".md": lambda: str(self),
        }
        file = Path(path)
        if file.suffix not in contents:
            raise UsageError(f"path: wanted one that ends with {', '.join(contents)}; got {str(path)!r:.80}")
        _write(file, contents[file.suffix]())

    def __str__(self) -> str:
        return profile_table.markdown(self, 0.0, ("op",))

    def __repr__(self) -> str:
        stages = "; ".join(f"{stage.name}: {profile_table.summary(stage)}" for stage in self.stages)
        return f"Profile({profile_table.headline(self, 0.0)}; {stages})"

    def __enter__(self) -> NoReturn:
        raise UsageError("profile: it runs what it measures, no block: model.profile(prompt, max_tokens)")

    def __exit__(self, *error: object) -> None:
        """See `__enter__`."""

    def _repr_html_(self) -> str:
        tables = []
        for stage in self.stages:
            rows = profile_table.table(stage, "op", 0.0).rows
            cells = [
                (row["op"], row["calls"] or "", f"{row['ms']:.3f}", f"{row['share']:.1%}") for row in rows
            ]
            about = f"{profile_table.headline(self, 0.0)}; {stage.name}: {profile_table.summary(stage)}"
            tables.append(html_table(about, ("op", "calls", "ms", "share"), cells))
        return "".join(tables)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"path: {path}: cannot be written: {error.strerror or error}") from None


@dataclass(frozen=True)
class GraphPage:
    """The viewer of a model's graphs: `html` is its page; a notebook shows it in a frame."""

    title: str
    html: str = field(repr=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file."""
        _write(Path(path), self.html)

    def _repr_html_(self) -> str:
        return html_frame(self.html, self.title)


def graph_page(model: Model, n_tokens: int) -> GraphPage:
    """See `Model.viewer`."""
    return GraphPage(f"graphs of {model.path.name}", render(describe_model(model.executor, n_tokens)))


_ENDINGS = {".dot": "dot", ".gv": "dot", ".mmd": "mermaid", ".graphml": "graphml", ".txt": "text"}


def save_graph(model: Model, path: str | os.PathLike[str], n_tokens: int) -> None:
    """See `ModelGraph.save`."""
    ending = Path(path).suffix.lower()
    if ending in (".html", ".htm"):
        graph_page(model, n_tokens).save(path)
    elif ending in _ENDINGS:
        drawn = dump.DRAWINGS[_ENDINGS[ending]](select(describe_model(model.executor, n_tokens)))
        _write(Path(path), drawn)
    else:
        wanted = ", ".join((".html", *_ENDINGS))
        raise UsageError(f"path: wanted one that ends with {wanted}; got {str(path)!r:.80}")


def graph_after(model: Model, after: str | None, n_tokens: int) -> Graph:
    """See `Model.graph`."""
    prepared = prepare_model(model.executor, n_tokens)
    if after is None:
        return prepared.graph
    if after not in prepared.snapshots:
        known = ", ".join(prepared.snapshots)
        raise UsageError(
            f"after: wanted one of {known}; got {after!r}.{did_you_mean(after, prepared.snapshots)}"
        )
    return prepared.snapshots[after]


def profiled(model: Model, prompt: Prompt | int, max_tokens: int | None, rounds: int) -> ModelProfile:
    """See `Model.profile`."""
    if isinstance(prompt, int):
        return ModelProfile(**vars(profile(model, prompt, max_tokens, rounds)))
    ids = model.prompt_ids(prompt)
    return ModelProfile(**vars(profile(model, len(ids), max_tokens, rounds, ids)))


def perplexity_of(model: Model, text: str, n_ctx: int | None, chunks: int | None) -> Perplexity:
    """See `Model.perplexity`."""
    ids = model.encode(text_of("text", text))
    assert model.tokenizer is not None  # encode has raised
    begins = model.tokenizer.bos if ids[:1] == [model.tokenizer.bos] else None
    with model.session(chunk_of(len(ids), n_ctx, model.n_ctx)) as session:
        *_, last = perplexity(session, ids, session.n_ctx, chunks, begins)
    return last


def logits_of(model: Model, prompt: Prompt, patches: Patches | None = None) -> Floats:
    """See `Model.logits` and `Model.patch`."""
    ids = model.prompt_ids(prompt)
    with model.session(len(ids) or 1, patch=patches) as session:
        return session.eval(ids, all_logits=True)


def captured(model: Model, prompt: Prompt, patterns: Sequence[str]) -> dict[str, Array]:
    """See `Model.capture`."""
    if not patterns:
        raise UsageError("capture: wanted names or patterns behind the prompt, such as 'layers.*.attention'")
    ids = model.prompt_ids(prompt)
    with model.session(len(ids) or 1, capture=patterns) as session:
        session.eval(ids, all_logits=True)
        return dict(session.captured)


def explained(model: Model, node: str, n_tokens: int) -> Explanation:
    """See `Model.explain`."""
    return Explanation(explain.explain(describe_model(model.executor, n_tokens), text_of("node", node)))


def of_model(method: str, model: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """What a model's method returns; model: the model, or its path or name, which is opened meanwhile."""
    with _opened("model", model) as opened:
        return getattr(opened, method)(*args, **keywords)


def _opened(name: str, model: Any, backend: str | None = None) -> AbstractContextManager[Model]:
    """A model as it is, or the one of a path or name; by another backend it is opened anew."""
    if isinstance(model, Model) and backend is None:
        return nullcontext(model)
    if isinstance(model, Model):
        opened_by = model.opened_by or LoadOptions(
            n_batch=model.executor.n_batch, kv=model.executor.cache_dtype
        )
        of_graph = {name: getattr(opened_by, name) for name in _OF_GRAPH}
        return load_model(model.path, LoadOptions(backend=backend or "", **of_graph))
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f"{name}: wanted a model, or its path or name; got {type(model).__name__}")
    return load_model(model, LoadOptions() if backend is None else LoadOptions(backend=backend))


def compared(a: Any, b: Any, prompt: Prompt, backends: Sequence[str] | None = None) -> Comparison:
    """See `graphml.compare`."""
    if backends is not None:
        if isinstance(backends, str) or len(backends) != 2:
            raise UsageError(f"backends: wanted two names of backends; got {backends!r:.80}")
        with _opened("a", a, backends[0]) as first:
            return compared(first, backends[1], prompt)
    if not isinstance(a, Model):
        with _opened("a", a) as first:
            return compared(first, b, prompt)
    ids = a.prompt_ids(prompt)
    if isinstance(b, str) and (b in discovery.backend_names() or not fetch.names_model(b)):
        with _opened("b", a, b) as other:
            return compared(a, other, ids)
    if isinstance(b, str | os.PathLike):
        with _opened("b", b) as other:
            return compared(a, other, ids)
    if not isinstance(b, Model):
        raise UsageError(f"b: wanted a model or the name of a backend; got {type(b).__name__}")
    if a.executor.file.fingerprint != b.executor.file.fingerprint:
        raise UsageError(
            f"b: wanted a model of the same file and values of its metadata, {a.path}; got one of {b.path}"
        )
    if a.executor.options.added or b.executor.options.added:
        raise UsageError("compare: wanted models without adapters and control vectors")
    return _compared(a, b, ids)


def _compared(a: Model, b: Model, ids: list[int]) -> Comparison:
    run, other = observe(a.executor, ids), observe(b.executor, ids)
    names = a.executor.backend.name, b.executor.backend.name
    return Comparison(a.path.name, *names, len(ids), tuple(compare_runs(run, other)))
