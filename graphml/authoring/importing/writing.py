"""The text of an imported file: docstring, mapping of the folder, configuration, functions.

Equal models give equal bytes. Knows text; nothing of torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphml.authoring.importing.description import TracedModule
from graphml.authoring.importing.document import config_class
from graphml.authoring.importing.expressions import Expression
from graphml.authoring.importing.function_lines import (
    BuilderFunction,
    after_lines,
    before_lines,
    loop_lines,
    part_lines,
    parts,
)
from graphml.authoring.importing.kept_states import FUNCTIONS, state_of
from graphml.authoring.importing.kinds import Kinds
from graphml.authoring.importing.layers import Layered
from graphml.authoring.importing.naming import ATTENTIONS, RECURRENT, Named
from graphml.authoring.importing.numbers import Fields, literal, near, period
from graphml.authoring.importing.places import tensor_name
from graphml.authoring.importing.printing import (
    WITH_NUMBER,
    add_routing,
    experts_function,
    is_plain,
)
from graphml.errors import ArchitectureError

RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
SWIGLU, ROUTING = "graphml_models._experts", "graphml_models._routing"
PARTS = {
    "attention": '    """Attention with its output projection, [T, D]."""',
    "feed_forward": '    """The feed-forward, [T, D]."""',
}


@dataclass
class Writer:
    """Texts of the parts of a file, and what they import."""

    description: TracedModule
    found: Layered
    named: Named
    fields: Fields
    imports: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attends = [[expr for expr in layer if expr.op == "attend"] for layer in self.found.layers]
        self.attentions = [[expr for expr in layer if expr.op in ATTENTIONS] for layer in self.found.layers]
        everything = [
            *self.found.before,
            *(expr for layer in self.found.layers for expr in layer),
            *self.found.after,
        ]
        self.experts = [expr for expr in everything if expr.op == "experts"]
        self.norms = [expr for expr in everything if expr.op in ("rms_norm", "layer_norm")]
        self.tables = list(dict.fromkeys(map(_table, (expr for expr in everything if expr.op == "rope"))))
        self.imports |= {
            "graphml.ir.language": {"Builder"},
            "graphml.ir.node": {"Node"},
            "graphml.loading.architecture": {"Layer", "Tensors"},
        }
        self.eps = next((expr.numbers["eps"] for expr in self.norms), 1e-5)
        self.eps_key = LAYER_EPS if self.norms and self.norms[0].op == "layer_norm" else RMS_EPS

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Heads, key-value heads, width of heads."""
        mixers = (expr for layer in (*self.attends, *self.attentions) for expr in layer)
        first = next(mixers, None)
        if first is None:  # recurrent layers alone
            return 1, 1, self.found.width
        return first.inputs[0].shape[0], first.inputs[1].shape[0], first.inputs[0].shape[1]

    @property
    def rope_widths(self) -> tuple[int, int] | None:
        """The widths of heads in layers that see all and in those with a window, where they differ."""
        widths: dict[bool, int] = {}
        for layer, window in zip(self.found.layers, self.windows(), strict=True):
            widths |= {bool(window): expr.shape[-1] for expr in layer if expr.op == "rope"}
        return (widths[False], widths[True]) if len({*widths.values()}) > 1 else None

    @property
    def turns_back(self) -> bool:
        """Whether ropes turn pairs the other way."""
        return any(frequencies[0] < 0 for _, _, frequencies in self.tables)

    @property
    def factors_of_one(self) -> bool:
        """Whether the ropes of layers with a window are plain, and the others' are not."""
        plain: dict[bool, bool] = {}
        for layer, window in zip(self.found.layers, self.windows(), strict=True):
            for expr in (expr for expr in layer if expr.op == "rope"):
                steps = np.array(expr.numbers["frequencies"])
                powers = steps[min(1, len(steps) - 1)] ** np.arange(len(steps))
                plain[bool(window)] = bool(np.allclose(steps, powers, rtol=1e-5))
        return plain.get(True, False) and not plain.get(False, True)

    def windows(self) -> list[int]:
        """Of the layers; 0 for all."""
        for layer in self.attends:
            if len({expr.numbers["window"] for expr in layer}) > 1:
                raise ArchitectureError(f"{layer[-1].told}: attentions of one layer with several windows")
        return [max((expr.numbers["window"] for expr in layer), default=0) for layer in self.attends]

    def numbers(self, of: Expression) -> dict[str, str]:
        """The text of each number of an expression of the first layer, or outside the layers."""
        numbers: dict[str, str] = {}
        if of.op in ("rms_norm", "layer_norm"):
            eps = of.numbers["eps"]
            numbers["eps"] = "config.norm_eps" if near(eps, self.eps) else literal(eps)
        elif of.op == "columns" and self.found.beside:
            numbers |= self._columns(of)
        elif of.op in (*FUNCTIONS, "linear_attention", *RECURRENT):
            numbers |= self._keeping(of)
        elif of.op == "l2_norm":
            numbers["eps"] = literal(of.numbers["eps"])
        elif of.op == "reshape" and len(of.shape) == 2:
            numbers["heads"] = self._heads(of)
        elif of.op == "attend":
            numbers |= self._attend(of)
        elif of.op == "scale":
            numbers["factor"] = self._factor(of)
            numbers["offset"] = self._by_layer(of, "offset") or literal(of.numbers["offset"])
        elif of.op == "softcap":
            numbers["limit"] = self.fields.number(of.numbers["limit"], "final_logit_softcapping")
        elif of.op == "experts":
            numbers["used"] = "config.n_expert_used"
            if is_plain(of):
                self.imports.setdefault(SWIGLU, set()).add("swiglu_experts")
        elif of.op in ("clamp", *WITH_NUMBER):
            numbers = {
                name: f'float("{value}")' if abs(value) == float("inf") else literal(value)
                for name, value in of.numbers.items()
            }
        return numbers

    def _keeping(self, of: Expression) -> dict[str, str]:
        """Import the function of an op; the name or number of its state."""
        if of.op in FUNCTIONS:
            module, function = FUNCTIONS[of.op]
            self.imports.setdefault(module, set()).add(function)
        numbers = state_of(self.found, of)
        if of.op == "ssm_scan":
            numbers["d_state"] = self.fields.integer(of.numbers["d_state"], "ssm.state_size")
        if "scale" in of.numbers:
            scale, width = of.numbers["scale"], self.sizes[2]
            numbers["scale"] = "config.head_dim**-0.5" if near(scale, width**-0.5) else literal(scale)
        if of.op == "constant_rows":
            numbers["rows"] = repr([list(row) for row in of.numbers["rows"]])
        return numbers

    def _columns(self, of: Expression) -> dict[str, str]:
        """Of a value beside the stream: each layer's own."""
        for number in self.found.firsts:
            begin = self.found.own_columns(number, of) if of in self.found.layers[number] else None
            if begin is not None:
                width = of.numbers["stop"] - of.numbers["start"]
                more = f" + {begin}" if begin else ""
                return {"start": f"layer.index * {width}{more}", "stop": f"(layer.index + 1) * {width}{more}"}
        return {}

    def _heads(self, of: Expression) -> str:
        for layer in self.attentions:
            for attend in layer:
                for role, x in zip("qkv", attend.inputs, strict=False):
                    while x is not of and x.inputs:
                        x = x.inputs[0]
                    if x is of and of.shape[0] == self.sizes[role != "q"]:
                        return "config.n_head" if role == "q" else "config.n_head_kv"
        return str(of.shape[0])

    def _by_layer(self, of: Expression, number: str) -> str:
        """A number that differs from layer to layer, as a field with one for each; empty for others."""
        for kind, first in enumerate(self.found.firsts):
            if of not in self.found.layers[first]:
                continue
            at = self.found.layers[first].index(of)
            alike = zip(self.found.kinds, self.found.layers, strict=True)
            values = [layer[at].numbers[number] if other == kind else 0.0 for other, layer in alike]
            if all(near(values[i], of.numbers[number]) for i in self._of_kind(kind)):
                return ""
            names = (f"{number}s", *(f"{number}s_{i}" for i in range(2, 99)))
            name = next(name for name in names if self.fields.values.get(name, values) == values)
            read = f'keys.numbers("{name}", known.n_layer, 0.0)'
            field_text = self.fields.add(name, "tuple[float, ...]", read, name, repr(values), values)
            return f"{field_text}[layer.index]"
        return ""

    def _of_kind(self, kind: int) -> list[int]:
        """The numbers of its layers."""
        return [i for i, other in enumerate(self.found.kinds) if other == kind]

    def _factor(self, of: Expression) -> str:
        value = of.numbers["factor"]
        if by_layer := self._by_layer(of, "factor"):
            return by_layer
        x = of.inputs[0]
        if x.op == "sum_rows" and near(value * x.inputs[0].shape[-1], 1.0) and of.shape[-1] == 1:
            if x.inputs[0].shape[-1] == self.found.width:
                return "1.0 / config.n_embd"  # a mean
            if x.inputs[0].shape[-1] == self.sizes[2]:
                return "1.0 / config.head_dim"
        if self.description.config and near(value, self.sizes[2] ** -0.5):
            return "config.head_dim**-0.5"
        where = {"output": "logit_scale", "token_embd": "embedding_scale"}.get(self.named.get(id(x), ""), "")
        return self.fields.number(value, where)

    def _attend(self, of: Expression) -> dict[str, str]:
        numbers = {"scale": self.fields.scale(of.numbers["scale"], self.sizes[2])}
        windows = self.windows()
        kind = next(
            (kind for kind, first in enumerate(self.found.firsts) if of in self.found.layers[first]), 0
        )
        before, which = self.found.cache_of(self.found.firsts[kind], of)
        numbers["cache"] = "layer.index" + (f" - {before}" if before else "")
        numbers["cache"] += " + " + f"{which} * config.n_layer".removeprefix("1 * ") if which else ""
        if any(window for window, other in zip(windows, self.found.kinds, strict=True) if other == kind):
            numbers["window"] = "config.windows[layer.index]"
            self._add_windows(windows)
        if of.numbers["softcap"]:
            numbers["softcap"] = self.fields.number(of.numbers["softcap"], "attn_logit_softcapping")
        if of.numbers["max_bias"]:
            numbers["max_bias"] = literal(of.numbers["max_bias"])
        if of.numbers["chunk"]:
            numbers["chunk"] = self.fields.integer(of.numbers["chunk"], "attention.chunk_size")
        return numbers

    def _add_windows(self, windows: list[int]) -> None:
        key = "attention.sliding_window"
        if len({*windows} - {0}) > 1:
            self.imports.setdefault("graphml_models", set()).add("_config")
            read = f'_config.by_layer(keys, "{key}s", known.n_layer)'
            self.fields.add("windows", "tuple[int, ...]", read, f"{key}s", repr(windows), windows)
            return
        read = "read_windows(keys, known.n_layer, period=0, size=0)"
        self.imports.setdefault("graphml_models._windows", set()).add("read_windows")
        self.fields.add("windows", "tuple[int, ...]", read)
        size, config = max(windows), self.fields.config
        source = 'config.size("sliding_window")' if config.get("sliding_window") == size else repr(size)
        self.fields.values |= {key: size, f"{key}_pattern": [bool(window) for window in windows]}
        self.fields.keys[key] = source
        if all(windows):
            self.fields.keys.pop(f"{key}_pattern", None)
            self.fields.values[f"{key}_pattern"] = 0
        elif isinstance(config.get("layer_types"), list):
            self.imports.setdefault("graphml.loading.huggingface.config", set()).add("window_keys")
            self.fields.keys.pop(key)
            self.fields.keys["*windows"] = "window_keys(config, found)"
        else:
            repeated = period(windows)
            field_name = next(
                (
                    name
                    for name in ("sliding_window_pattern", "_sliding_window_pattern")
                    if repeated and config.get(name) == repeated
                ),
                "",
            )
            pattern = repr([bool(window) for window in windows]) if repeated is None else repr(repeated)
            self.fields.keys[f"{key}_pattern"] = f'config.size("{field_name}")' if field_name else pattern

    def functions(self) -> str:
        """`build` and the functions of the layers' parts."""
        texts: dict[str, str] = {}
        loops = []
        for number in self.found.firsts:
            listed = parts(self.found.layers[number], self.named, self.found.kept)
            calls = {part.name: self._part(part, texts) for part in listed}
            loops.append(loop_lines(self.found, number, self.named, self.numbers, listed, calls))
        kinds = Kinds(self.found.kinds, self._stems(), self.windows(), self.fields)
        tables = self._table_lines()
        chosen = ["table = tables[config.windows[layer.index] > 0]"] if len(self.tables) > 1 else []
        lines = [
            "def build(g: Builder, config: Config, weights: Tensors) -> Node:",
            '    """Logits [O, vocabulary]."""',
            *_indented([*tables, *before_lines(self.found, self.named, self.numbers)], 1),
            f"    for layer in weights.layers({self._blocks()}):",
            *_indented([*chosen, *kinds.lines(loops)], 2),
            *_indented(after_lines(self.found, self.named, self.numbers), 1),
        ]
        return "\n\n\n".join(["\n".join(lines), *texts.values(), *self._experts()])

    def _blocks(self) -> str:
        """The argument of `layers`: their number, or the blocks of layers that share them."""
        repeats = self.found.repeats
        return "config.n_layer" if repeats == 1 else f"[*range(config.n_layer // {repeats})] * {repeats}"

    def _part(self, part: BuilderFunction, texts: dict[str, str]) -> str:
        """Add the text of a part's function to the others by name; returns the text of its call."""
        table = any(expr.op == "rope" for expr in part.inside)
        body = _indented(part_lines(part, self.named, self.numbers), 1)
        typed = "table: Node, " if table else ""
        docstring = PARTS[part.name]
        for name in (part.name, f"other_{part.name}", *(f"{part.name}_{i}" for i in range(3, 9))):
            head = f"def {name}(g: Builder, config: Config, layer: Layer, {typed}x_TD: Node) -> Node:"
            text = "\n".join([head, docstring, *body])
            if texts.setdefault(name, text) == text:
                return f"{name}(g, config, layer, {'table, ' if table else ''}{{}})"
        raise ArchitectureError(f"layers have too many kinds of {part.name}")

    def _stems(self) -> list[frozenset[str]]:
        """Names of the tensors of each kind of layers, as `layer.get` has them."""
        stems = []
        for number in self.found.firsts:
            names = {
                tensor_name(self.named[id(expr)], role)
                for expr in self.found.layers[number]
                for role in ([] if self.found.is_of_model(expr) else expr.weights)
            }
            stems.append(frozenset(name.removesuffix(".weight") for name in names))
        return stems

    def _experts(self) -> list[str]:
        for expr in self.experts:
            if not is_plain(expr):
                self.imports.setdefault(ROUTING, set()).update(("Routing", "choose"))
                if expr.numbers["in_turns"]:
                    self.imports.setdefault("graphml.ir.shape", set()).add("fixed")
                add_routing(self.fields, expr)
                return [experts_function(expr)]
        return []

    def _table_lines(self) -> list[str]:
        if not self.tables:
            return []
        if len(self.tables) == 1:
            return ["table = config.rope.table(g, weights)"]
        self.imports.setdefault("graphml_models._windows", set()).add("read_local_rope")
        self.imports.setdefault("graphml_models._rope", set()).add("Rope")
        read = "read_local_rope(keys, known.rope, scaled=False)"
        if len({n_rot for n_rot, _, _ in self.tables}) > 1:
            self.imports.setdefault("dataclasses", set()).add("replace")
            n_rot = 'keys.integer("rope.dimension_count_swa", known.rope.n_rot)'
            read = f"replace({read}, n_rot={n_rot})"
        self.fields.add("local_rope", "Rope", read)
        if self.factors_of_one:
            return ["tables = {False: config.rope.table(g, weights), True: config.local_rope.table(g)}"]
        self.imports["graphml_models._windows"].add("rope_tables")
        return ["tables = rope_tables(g, weights, config.rope, config.local_rope)"]

    def config_class(self) -> str:
        """The class Config; empty if it is one that stands already."""
        if not self.fields.fields:
            module = "graphml_models._layer_norm" if self.eps_key == LAYER_EPS else "graphml_models._config"
            self.imports.setdefault(module, set()).add("Config")
            return ""
        self.imports["graphml.loading.architecture"].add("Keys")
        for module, name in (("dataclasses", "dataclass"), ("typing", "Self"), ("graphml_models", "_config")):
            self.imports.setdefault(module, set()).add(name)
        return config_class(self.fields.fields, self.eps_key == LAYER_EPS)


def _table(of: Expression) -> tuple[Any, ...]:
    return (
        of.numbers["n_rot"],
        of.numbers["magnitude"],
        tuple(float(f"{x:.6g}") for x in of.numbers["frequencies"]),
    )


def _indented(lines: list[str], by: int) -> list[str]:
    return ["    " * by + line for line in lines]
