"""Signatures that the pages on generation and on engines print are those of the functions.

Those of three parameters or with `*` or `**` are whole; others are calls, whose keywords are parameters.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphml
from tests.docs.pages import ROOT, name_of

PAGES = [ROOT / "docs" / "generation.md", ROOT / "docs" / "engine.md"]
OWNERS = (
    graphml,
    graphml.Model,
    graphml.Session,
    graphml.Chat,
    graphml.Batch,
    graphml.Engine,
    graphml.Tokenizer,
)
PRINTED = re.compile(r"`(?:\w+\.)*(\w+)\(([^`]*?)\)`")


def printed(text: str) -> Iterator[tuple[str, ast.arguments]]:
    """Names and parameters of code that is the head of a function, and no call of it with values."""
    for name, between in PRINTED.findall(text):
        try:
            (function,) = ast.parse(f"def {name}({between}): ...").body
        except SyntaxError:
            continue
        assert isinstance(function, ast.FunctionDef)
        yield name, function.args


def value_of(default: ast.expr) -> Any:
    """The value, or the text of what is none by itself."""
    try:
        return ast.literal_eval(default)
    except ValueError:
        return ast.unparse(default)


def parameters(arguments: ast.arguments) -> list[tuple[str, str, Any]]:
    """Kind, name and default of each parameter."""
    positional = [*arguments.posonlyargs, *arguments.args]
    lacking = len(positional) - len(arguments.defaults)
    defaults: list[ast.expr | None] = [*[None] * lacking, *arguments.defaults]
    pairs = [("positional", *pair) for pair in zip(positional, defaults, strict=True)]
    pairs += [("keyword", *pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    rows = [
        (kind, one.arg, inspect.Parameter.empty if default is None else value_of(default))
        for kind, one, default in pairs
    ]
    rest = arguments.kwarg
    return rows if rest is None else [*rows, ("rest", rest.arg, inspect.Parameter.empty)]


def own_parameters(function: Any) -> list[tuple[str, str, Any]]:
    kinds = {"KEYWORD_ONLY": "keyword", "VAR_KEYWORD": "rest"}
    own = inspect.signature(inspect.unwrap(function)).parameters.values()
    return [
        (kinds.get(one.kind.name, "positional"), one.name, one.default) for one in own if one.name != "self"
    ]


def by_place(rows: list[tuple[str, str, Any]]) -> list[tuple[str, str, Any]]:
    """Keywords behind the others, by name."""
    return sorted(rows, key=lambda row: (row[0] == "keyword", row[1] if row[0] == "keyword" else ""))


def fits(arguments: ast.arguments, function: Any) -> bool:
    stated, own = parameters(arguments), own_parameters(function)
    if len(stated) > 2 or any(kind != "positional" for kind, _, _ in stated):
        return by_place(stated) == by_place(own)
    names = {name for _, name, default in stated if default is not inspect.Parameter.empty}
    return names <= {name for _, name, _ in own} or any(kind == "rest" for kind, _, _ in own)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_printed_signatures_are_those_of_the_functions(page: Path) -> None:
    n_compared = 0
    for name, arguments in printed(page.read_text(encoding="utf-8")):
        functions = [getattr(owner, name) for owner in OWNERS if callable(getattr(owner, name, None))]
        if not functions:
            continue
        assert any(fits(arguments, function) for function in functions), (
            f"{name_of(page)}: {name}({ast.unparse(arguments)}); it is "
            f"{[str(inspect.signature(inspect.unwrap(function))) for function in functions]}"
        )
        n_compared += 1
    assert n_compared >= 10


def test_another_default_or_kind_is_another_signature() -> None:
    def function(a: int, b: str = "x", *, c: bool = False) -> None: ...

    texts = (
        "f(a, b='x', *, c=False)",
        "f(a, b='y', *, c=False)",
        "f(a, b='x', c=False)",
        "f(1)",
        "f(c=1)",
        "f(d=1)",
    )
    signatures = [arguments for text in texts for _, arguments in printed(f"`{text}`")]
    assert [fits(arguments, function) for arguments in signatures] == [True, False, False, True, False]
