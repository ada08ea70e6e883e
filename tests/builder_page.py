"""docs/builder.md: every method of `g` and of `weights`, from their signatures and docstrings.

`python -m tests.builder_page` writes the page anew.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from graphml.ir import argument_kinds, builder, methods, step
from graphml.loading.architecture import Layer, Tensors

FOLDER = Path(methods.__path__[0])
PAGE = Path(__file__).parents[1] / "docs" / "builder.md"
HOW = "write the page anew: python -m tests.builder_page"
EXAMPLE = """\
from graphml.ir.dtype import F32, dtype
from graphml.ir.language import Builder

g = Builder(max_tokens=8, max_outputs=4)
x = g.input("x", F32, (g.n_tokens, 64))
q = g.input("q", F32, (g.n_tokens, 4, 16))
k, v = (g.input(name, F32, (g.n_tokens, 2, 16)) for name in ("k", "v"))
bias = g.weight("bias", F32, (64,))
w = g.weight("w", F32, (96, 64))
experts = g.weight("experts", F32, (8, 96, 64))
"""
TOLD = """\
[g.rope_table] has no argument 'base': did you mean 'freq_base'? It has n_rot, factors, freq_base, \
freq_scale, ext_factor, attn_factor, beta_fast, beta_slow, n_ctx_orig, positions, name
[g.rope] argument 'mode': wanted 'norm' or 'neox'; got 'half'
[g.mul] argument 'b': wanted a node of this graph; got 2.0 \
(for a number g.scale(x, factor, offset), or g.constant)
nodes have no operator +: use g.add(a, b), or for a number g.scale(a, 1.0, number); \
got %x: f32[T<=8, 64] = input()
"""
INTRODUCTION = f"""\
# The builder: every method of `g`

What an architecture's `build(g, config, weights)` may call. `help(g.rope)` shows the same, editors too.
After `import graphml`, `graphml.Builder()` is such a `g` for a graph of one's own. A dtype is "f32", a type
of NumPy or PyTorch, or one of `graphml.ir.dtype`.
`{HOW.partition(": ")[2]}` writes this page from the code.

Every method checks its arguments. An error names the method, the argument, what was wanted, what came, the
layer and the line of the architecture's file:

```python
from graphml.errors import GraphError
{EXAMPLE}

def told(call):
    try:
        call()
    except GraphError as error:
        print(str(error).partition(" (at ")[0])


told(lambda: g.rope_table(16, base=500000.0))
told(lambda: g.rope(q, g.rope_table(16), "half"))
told(lambda: g.mul(x, 2.0))
told(lambda: x + x)
```
<!-- prints -->
```text
@@```

Nodes have no operators. A node is true and equal to itself alone: `if layer.get("attn_q_norm"):` asks whether
the file has a tensor. The examples below use the nodes made above, each in a graph of its own.

""".replace("@@", TOLD)
FAMILIES = {
    "elementwise": "Element by element",
    "norm": "Over the last dimension, or over rows",
    "linear": "Matrices",
    "position": "Positions",
    "layout": "Shapes",
    "index": "By index",
    "attention": "Attention",
    "recurrent": "With a state of each sequence",
}


def is_method(value: object) -> bool:
    """Whether it checks its arguments, as what architectures call does."""
    return inspect.isfunction(value) and hasattr(value, "__wrapped__")


def family(name: str) -> ModuleType:
    """The file of a family."""
    return importlib.import_module(f"{methods.__name__}.{name}")


def methods_of(one: ModuleType | type) -> dict[str, Callable[..., Any]]:
    """Name -> method of those that a file or a class defines, in its order."""
    home = one.__name__ if isinstance(one, ModuleType) else one.__module__
    return {name: value for name, value in vars(one).items() if is_method(value) and value.__module__ == home}


def signature(spoken: str, name: str, method: Callable[..., Any]) -> str:
    """As it is called: `g.rope(x: Node, ...) -> Node`."""
    whole = inspect.signature(method)
    _, *parameters = map(_parameter, whole.parameters.values())
    if name == "__getitem__":
        return f"{spoken}[{parameters[0]}] -> {whole.return_annotation}"
    line = f"{spoken}.{name}({', '.join(parameters)}) -> {whole.return_annotation}"
    if len(line) <= 100:
        return line
    rows = "".join(f"    {one},\n" for one in parameters)
    return f"{spoken}.{name}(\n{rows}) -> {whole.return_annotation}"


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    default = "" if one.default is one.empty else f" = {one.default!r}"
    return f"{stars}{one.name}: {one.annotation}{default}"


def entry(spoken: str, name: str, method: Callable[..., Any]) -> str:
    """A method's part of the page."""
    words, _, examples = (inspect.getdoc(method) or "").partition(">>> ")
    title = f"{spoken}[name]" if name == "__getitem__" else f"{spoken}.{name}"
    text = f"### {title}\n```text\n{signature(spoken, name, method)}\n```\n{words.strip()}\n"
    return text + (f"\n```pycon\n>>> {examples.strip()}\n```\n\n" if examples else "\n")


def kinds() -> str:
    """What the names in signatures mean that are no types of Python's."""
    rows = "".join(
        f"| `{name}` | {argument_kinds.kind_of(kind).words} |\n"
        for name, kind in argument_kinds.NAMED.items()
    )
    return (
        "## How to read a signature\n| kind | is |\n|---|---|\n| `Node` | a node of this graph |\n"
        "| `float` | a finite number |\n" + rows + "\n" + legend() + "\n\n"
    )


def legend() -> str:
    """What the letters of shapes mean."""
    return (methods.__doc__ or "").partition("\n\n")[2].strip()


def inputs() -> str:
    """The table of what is given at every step."""
    found = {name: value for name, value in vars(step.StepBuilder).items() if isinstance(value, property)}
    rows = "".join(f"| `g.{name}` | {value.__doc__} |\n" for name, value in found.items())
    return (
        f"## Inputs of a step\n| input | is |\n|---|---|\n{rows}\n"
        "For shapes: `g.n_tokens` (T), `g.n_outputs` (O), `g.n_sequences` (S), `g.n_blocks` (B), "
        "`g.n_cells` (C).\n\n"
    )


def sections() -> dict[str, list[tuple[str, str, Callable[..., Any]]]]:
    """Title -> methods: what they are called on, their names, they themselves."""
    found = {"Nodes, leaves and names": [("g", *one) for one in methods_of(builder.BaseBuilder).items()]}
    for name, title in FAMILIES.items():
        found[title] = [("g", *one) for one in methods_of(family(name)).items()]
    of_layer = [("layer", *one) for one in methods_of(Layer).items()]
    return found | {
        "Tensors of the file": [*(("weights", *one) for one in methods_of(Tensors).items()), *of_layer]
    }


def page() -> str:
    """The whole page."""
    found = sections()
    rows = "".join(
        f"| [{title}](#{title.lower().replace(',', '').replace(' ', '-')}) "
        f"| {', '.join(f'`{name}`' for _, name, _ in some)} |\n"
        for title, some in found.items()
    ).replace("`__getitem__`", "`[name]`")
    text = INTRODUCTION + f"| methods | names |\n|---|---|\n{rows}\n" + kinds() + inputs()
    for title, some in found.items():
        text += f"## {title}\n" + "".join(entry(*one) for one in some)
    return text.rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
