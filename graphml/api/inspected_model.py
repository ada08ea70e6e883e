"""Inspection as methods of a model. What they do is `graphml.inspect`'s, which is imported at the first call.

Inspection reads models, so it is above them; here are its names, types of arguments and errors alone.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from graphml.api.capture import Patches
from graphml.api.open_model import OpenModel
from graphml.api.perplexity import Perplexity
from graphml.api.prompt_encoder import Prompt
from graphml.ir.graph import Graph
from graphml.ir.op import Array, Floats
from graphml.options.keyword_arguments import named_arguments

AnyPath = str | os.PathLike[str]


class InspectedModel(OpenModel):
    """A model that can be looked into."""

    @property
    def graph(self) -> ModelGraph:
        """The graph of a step: `model.graph.nodes`; called, that after a pass: `model.graph("build")`."""
        return ModelGraph(self)

    @named_arguments
    def viewer(self, n_tokens: int = 1) -> Any:
        """The viewer of the graph after every pass, for a step of at most `n_tokens` tokens.

        A notebook shows it; `html` is the page as a text. It is complete: nothing else is read.
        """
        return _inspection().graph_page(self, n_tokens)

    @named_arguments
    def profile(self, prompt: Prompt | int = 512, max_tokens: int | None = None, rounds: int = 3) -> Any:
        """Where the time goes of a prompt, evaluated `rounds` times, and of max_tokens tokens after it.

        prompt: a text, messages, ids, or a number of tokens of some text. Returns a
        `graphml.inspect.profile.measured.Profile`; print it for tables, milliseconds by op. Errors as of
        `graphml.inspect.profile.profile.profile`.
        """
        return _inspection().profiled(self, prompt, max_tokens, rounds)

    @named_arguments
    def perplexity(self, text: str, n_ctx: int | None = None, chunks: int | None = None) -> Perplexity:
        """How well the model predicts a text, by the method of llama-perplexity; less is better.

        n_ctx: tokens of a chunk, whose second half is scored; None: 512, or the model's context or half of
        the text if that is less (`Perplexity.n_ctx` says it). chunks: at most so many; None: all.
        UsageError for a text of fewer than 2 * n_ctx tokens; TokenizerError without a vocabulary.
        """
        estimate: Perplexity = _inspection().perplexity_of(self, text, n_ctx, chunks)
        return estimate

    @named_arguments
    def logits(self, prompt: Prompt) -> Floats:
        """The logits after each token of a prompt (a text, messages or ids), float32 [n_tokens, n_vocab]."""
        rows: Floats = _inspection().logits_of(self, prompt)
        return rows

    def capture(self, prompt: Prompt, *patterns: str) -> dict[str, Array]:
        """Values of a prompt's evaluation by name, a row a token where the value has one.

        patterns: names, or patterns such as "layers.*.attention", as of `Model.session`; UsageError for one
        that no value has, with the nearest.
        """
        arrays: dict[str, Array] = _inspection().captured(self, prompt, patterns)
        return arrays

    @named_arguments
    def patch(self, prompt: Prompt, patches: Patches) -> Floats:
        """The logits as of `logits`, with values changed: name or pattern -> function of an array, or rows.

        So `model.patch(text, {"layers.2.attention": lambda x: 0 * x})`; see `Model.session`, `PatchRows`.
        """
        rows: Floats = _inspection().logits_of(self, prompt, patches)
        return rows

    @named_arguments
    def explain(self, node: str, n_tokens: int = 1) -> Any:
        """What became of a node, such as "layers.3.up": source line, passes, fusions, backend, storage.

        Returns a dict that prints as lines, with the keys of `graphml.inspect.dumps.explain.explain`.
        UsageError for a name that no node has, with the nearest.
        """
        return _inspection().explained(self, node, n_tokens)


class ModelGraph:
    """The graph of a model's step of one token, after the last pass; called, another one of its graphs."""

    def __init__(self, model: InspectedModel) -> None:
        self._model = model

    @named_arguments
    def __call__(self, after: str | None = None, n_tokens: int = 1) -> Graph:
        """The graph of a step of at most `n_tokens` tokens; no weights are read.

        after: name of a pass, as `graphml graph --pass` has it: "build" is the graph as the architecture
        builds it; None: the last pass. UsageError for another name.
        """
        graph: Graph = _inspection().graph_after(self._model, after, n_tokens)
        return graph

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # copies and the like ask for methods that a graph need not have
        return getattr(self(), name)

    def __getitem__(self, name: str) -> Any:
        """The node of that name."""
        return self().node(name)

    def save(self, path: AnyPath, n_tokens: int = 1) -> None:
        """Write the graphs to FILE.html as the viewer, or the last to FILE.dot, .mmd, .graphml or .txt."""
        _inspection().save_graph(self._model, path, n_tokens)

    def __repr__(self) -> str:
        return repr(self())

    def __str__(self) -> str:
        return str(self())


def profile(model: InspectedModel | AnyPath, *args: Any, **kwargs: Any) -> Any:
    """`Model.profile` of a model, or of the one that a path or name means."""
    return _inspection().of_model("profile", model, args, kwargs)


def perplexity(model: InspectedModel | AnyPath, *args: Any, **kwargs: Any) -> Perplexity:
    """`Model.perplexity` of a model, or of the one that a path or name means."""
    estimate: Perplexity = _inspection().of_model("perplexity", model, args, kwargs)
    return estimate


def explain(model: InspectedModel | AnyPath, *args: Any, **kwargs: Any) -> Any:
    """`Model.explain` of a model, or of the one that a path or name means."""
    return _inspection().of_model("explain", model, args, kwargs)


@named_arguments
def compare(
    a: InspectedModel | AnyPath,
    b: InspectedModel | AnyPath = "reference",
    prompt: Prompt = "Once upon a time",
    *,
    backends: Sequence[str] | None = None,
) -> Any:
    """Every value of a run of one model beside that of another: of a prompt, and its last token as a step.

    a: a model, or its path or name. b: a model, or the name of a backend that opens a's file here;
    "reference" computes by the ops' NumPy references. backends: two names, of the backend that opens a's file
    for each side, in place of b. prompt: a text, messages or ids, at most `n_batch` of them. Returns a
    `graphml.inspect.compare.comparison.Comparison`; print it for its tables. UsageError for models of
    different files, and as of `graphml.inspect.compare.observe.observe`.
    """
    return _inspection().compared(a, b, prompt, backends)


def _inspection() -> Any:
    return importlib.import_module("graphml.inspect.model_inspection")
