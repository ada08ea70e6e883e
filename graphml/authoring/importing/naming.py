"""Names of tensors by what the data flow makes of them, whatever the modules are called.

Knows expressions and the names that GGUF files share; nothing of text or files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from graphml.authoring.importing.aten import SHAPES
from graphml.authoring.importing.description import TracedModule
from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.layers import Layered, in_order

_DIGITS = re.compile(r"(?<=\.)\d{1,6}(?=\.|$)")
_EXPERT = re.compile(r"expert\w*\.$")  # what comes before the number of an expert
Named = dict[int, str]
"""id of an expression -> the name of its tensors."""
THROUGH = (
    "reshape", "rope", "rms_norm", "layer_norm", "l2_norm", "columns", "permute", "repeat", "scale", "clamp",
    "softcap", "mul", "add",
)  # fmt: skip
ATTENTIONS = ("attend", "linear_attention")
RECURRENT = ("ssm_scan", "gated_delta_net", "decayed_sum")
ACTIVATIONS = ("silu", "gelu", "gelu_erf", "gelu_quick", "relu", "sigmoid", "tanh", "sqr")


def names(model: Layered, description: TracedModule) -> Named:
    """Of the expressions of the first layer of each kind, and of those before and after the layers."""
    known: dict[int, Named] = {}
    for number in model.firsts:
        layer, own = model.layers[number], Named()
        _attention(layer, own)
        _feed_forward(layer, own)
        _norms(layer, own)
        known[number] = own
    _of_other_kinds(model, known, description)
    _one_name(model, known, description)
    named: Named = {}
    for number, own in known.items():
        _others(model.layers[number], own, description)
        named |= own
    ends: Named = {}
    _ends(model, ends)
    _others([*model.before, *model.after], ends, description)
    return named | _of_model(model, named, ends) | ends


def _of_model(model: Layered, named: Named, ends: Named) -> Named:
    """One name for each tensor that layers read of the model itself."""
    among = [expr for expr in (*model.before, *model.after) if expr.weights]
    names = {_sources(expr): ends[id(expr)] for expr in among}
    renamed: Named = {}
    for expr in (expr for number in model.firsts for expr in model.layers[number]):
        if expr.weights and model.is_of_model(expr):
            stem, i = named[id(expr)], 2
            name = names.get(_sources(expr), stem)
            while name in names.values() and names.get(_sources(expr)) != name:
                name, i = f"{stem}_{i}", i + 1
            renamed[id(expr)] = names[_sources(expr)] = name
    return renamed


def _sources(expr: Expression) -> tuple[tuple[str, str], ...]:
    """The nodes or inputs of an expression's tensors."""
    return tuple((role, weight.source) for role, weight in expr.weights.items())


def _of_other_kinds(model: Layered, known: Mapping[int, Named], description: TracedModule) -> None:
    """Name what has a known use in one kind of layers as well where another kind has no known use of it."""
    uses: dict[tuple[str, ...], str] = {}
    for number, own in known.items():
        for expr in model.layers[number]:
            if id(expr) in own and expr.weights:
                uses.setdefault(_patterns(expr, description), own[id(expr)])
    for number, own in known.items():
        for expr in model.layers[number]:
            name = uses.get(_patterns(expr, description)) if expr.weights and id(expr) not in own else None
            if name is not None and name not in own.values():
                own[id(expr)] = name


def _one_name(model: Layered, known: Mapping[int, Named], description: TracedModule) -> None:
    """One name for what kinds of layers use under several, as the one norm of layers with one part each."""
    names: dict[tuple[str, ...], str] = {}
    for number, own in known.items():
        for expr in model.layers[number]:
            if id(expr) not in own or not expr.weights:
                continue
            name = names.setdefault(_patterns(expr, description), own[id(expr)])
            if name not in own.values():
                own[id(expr)] = name


def _patterns(expr: Expression, description: TracedModule) -> tuple[str, ...]:
    """The parameters of an expression, with {} for the numbers in their names."""
    return tuple(pattern(_source(description, weight.source)) for weight in expr.weights.values())


def pattern(name: str) -> str:
    """A tensor's name with `{}` for the numbers of its layer and its expert; others, as in `ffn.2`, stay."""
    first = _DIGITS.search(name)

    def written(number: re.Match[str]) -> str:
        is_counted = first is not None and number.start() == first.start()
        return "{}" if is_counted or _EXPERT.search(name, 0, number.start()) else number[0]

    return _DIGITS.sub(written, name)


def users(of: Expression, among: Sequence[Expression]) -> list[Expression]:
    """The expressions that read this one."""
    return [expr for expr in among if of in expr.inputs]


def _attention(layer: Sequence[Expression], named: Named) -> None:
    attends = [expr for expr in layer if expr.op in ATTENTIONS]
    for more, attend in ((f"_{i + 1}" if i else "", expr) for i, expr in enumerate(attends)):
        if attend.weights:
            named[id(attend)] = f"attn_sinks{more}"
        for role, x in zip("qkv", attend.inputs, strict=False):
            while x.op in THROUGH and x.inputs:
                if x.op in ("rms_norm", "layer_norm"):
                    named.setdefault(id(x), f"attn_{role}_norm{more}")
                x = x.inputs[0]
            if x.op == "linear":
                named.setdefault(id(x), f"attn_{role}{more}")
        for expr in _below(attend, layer):
            if expr.op == "linear":
                named.setdefault(id(expr), f"attn_output{more}")
                break
            if expr.op in ("rms_norm", "layer_norm"):
                named.setdefault(id(expr), f"attn_sub_norm{more}")


def _below(of: Expression, layer: Sequence[Expression]) -> Iterator[Expression]:
    """What is computed from a value, nearest first, as long as one expression reads it."""
    while True:
        readers = users(of, layer)
        if len(readers) != 1:
            return
        of = readers[0]
        yield of


def _feed_forward(layer: Sequence[Expression], named: Named) -> None:
    for expr in layer:
        if expr.op == "experts":
            named[id(expr)] = "experts"
        if expr.op == "mul" and len(expr.inputs) == 2:
            _gated(expr, layer, named)
    for expr in layer:
        free = expr.op in ACTIVATIONS and expr.inputs[0].op == "linear" and id(expr.inputs[0]) not in named
        below = next((each for each in _below(expr, layer) if each.op == "linear"), None) if free else None
        if below is not None and id(below) not in named and "ffn_up" not in named.values():
            named[id(expr.inputs[0])], named[id(below)] = "ffn_up", "ffn_down"


def _gated(product: Expression, layer: Sequence[Expression], named: Named) -> None:
    for gate, up in (product.inputs, product.inputs[::-1]):
        inner = gate
        while inner.op in (*ACTIVATIONS, "clamp"):
            inner = inner.inputs[0]
        if (
            inner is not gate
            and inner.op == "linear"
            and up.op == "linear"
            and not {id(inner), id(up)} & set(named)
        ):
            named[id(inner)], named[id(up)] = "ffn_gate", "ffn_up"
            _down(product, layer, named)
            return


def _down(of: Expression, layer: Sequence[Expression], named: Named) -> None:
    for expr in _below(of, layer):
        if expr.op == "linear":
            named.setdefault(id(expr), "ffn_down")
            return


def _norms(layer: Sequence[Expression], named: Named) -> None:
    for expr in layer:
        if expr.op not in ("rms_norm", "layer_norm") or id(expr) in named:
            continue
        read = {named.get(id(each), "") for each in _readers(expr, layer)}
        source = expr.inputs[0]
        while source.op in ("scale", "reshape"):
            source = source.inputs[0]
        summed = [named.get(id(each), "") for each in source.inputs] if source.op == "add" else []
        producer = "experts" if "experts" in summed else named.get(id(source), "")
        if read & {"attn_q", "attn_k", "attn_v"}:
            name = "attn_norm"
        elif read & {"ffn_up", "ffn_gate", "experts"}:
            name = "ffn_norm"
        elif producer == "attn_output":
            name = "post_attention_norm"
        elif producer in ("ffn_down", "experts"):
            name = "post_ffw_norm"
        else:
            continue
        if name not in named.values():
            named[id(expr)] = name


def _readers(of: Expression, layer: Sequence[Expression]) -> list[Expression]:
    readers = users(of, layer)
    return readers + [
        each
        for reader in readers
        if reader.op in ("reshape", "columns", "scale")
        for each in _readers(reader, layer)
    ]


def _ends(layered: Layered, named: Named) -> None:
    of_stream = set(map(id, in_order(layered.stream)))
    for expr in layered.before:
        is_as_wide = expr.shape[-1:] == (layered.width,)  # else it is a factor of the embedding
        if expr.op == "embed" and is_as_wide and id(expr) in of_stream and "token_embd" not in named.values():
            named[id(expr)] = "token_embd"
        elif expr.op == "position_rows":
            named[id(expr)] = "position_embd"
        elif expr.op in ("rms_norm", "layer_norm"):
            named.setdefault(id(expr), "token_embd_norm")
    heads = [expr for expr in layered.after if expr.op == "linear"]
    if heads:
        named[id(heads[-1])] = "output"
    for expr in layered.after:
        if expr.op in ("rms_norm", "layer_norm") and "output_norm" not in named.values():
            named.setdefault(id(expr), "output_norm")


def _others(among: Sequence[Expression], named: Named, description: TracedModule) -> None:
    """Tensors of no known use: by the last names of their parameters or modules, without their layers."""
    taken = set(named.values())
    for expr in among:
        if not expr.weights or id(expr) in named:
            continue
        sources = [_source(description, each.source) for each in expr.weights.values()]
        of = next((each for each in sources if each), expr.path)
        parts = of.removesuffix(".weight").removesuffix(".bias").split(".")
        inside = max((i + 1 for i, part in enumerate(parts) if part.isdigit()), default=0)
        path = parts[inside:] or [part for part in parts if not part.isdigit()]
        stem = re.sub(r"[^a-z0-9_]+", "_", "_".join(path[-2:]).lower()).strip("_") or "weight"
        name, i = stem, 2
        while name in taken:
            name, i = f"{stem}_{i}", i + 1
        taken.add(name)
        named[id(expr)] = name


def _source(description: TracedModule, name: str) -> str:
    """The parameter that a tensor is, or, with the last op, is computed from; empty if it is not one."""
    parameters = description.parameters_of(name)
    if len(parameters) != 1:
        return ""
    while name in description.nodes and op_name(description.nodes[name]) in SHAPES:
        name = next(iter(description.nodes[name].operands))
    path, _, last = description.inputs[parameters[0]].name.rpartition(".")
    if name in description.nodes and last not in ("weight", "bias"):
        last = f"{op_name(description.nodes[name])}_{last}"
    return f"{path}.{last}" if path else last
