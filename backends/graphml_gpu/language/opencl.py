"""A kernel's tree as OpenCL C 1.2. Knows nothing of devices; text that needs an extension says so.

The kernel's arguments are its buffers in order, then a pointer to the struct of its scalars, in which
`<buffer>_at` is the element that each buffer's value begins at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from graphml_gpu.language import tree as nodes
from graphml_gpu.language.features import Features
from graphml_gpu.language.intrinsics import CONVERSIONS, INTRINSICS, OPENCL_PREAMBLE
from graphml_gpu.language.text import Dialect, lines
from graphml_gpu.language.types import ValueType
from graphml_gpu.language.walk import all_expressions, all_statements, negated

_DECLARED = re.compile(r"^(?:__constant|static inline) \w+ (\w+)[\[(]", re.MULTILINE)

_NAMES = {"f32": "float", "f16": "half", "i32": "int", "u32": "uint", "bool": "bool"}
_POSITIONS = {
    "group_id": "get_group_id",
    "local_id": "get_local_id",
    "global_id": "get_global_id",
    "num_groups": "get_num_groups",
}
_PLACES = {
    "subgroup_lane": "get_sub_group_local_id()",
    "subgroup_id": "get_sub_group_id()",
    "subgroup_count": "get_num_sub_groups()",
}
_ACROSS = {
    "sum": "sub_group_reduce_add({0})",
    "max": "sub_group_reduce_max({0})",
    "xor": "sub_group_shuffle_xor({0}, {1})",
    "broadcast": "sub_group_broadcast({0}, {1})",
}


def opencl(tree: nodes.Tree, features: Features, title: str, shares: Mapping[str, str]) -> str:
    """The text. shares: buffers that are in the binding of another."""
    used = list(all_expressions(tree.body))
    calls = {part.name for part in used if isinstance(part, nodes.Call)}
    places = {part.which for part in used if isinstance(part, nodes.Index)}
    across = {s.operator for s in all_statements(tree.body) if isinstance(s, nodes.Across)}
    dialect = _OpenclDialect(tree, features)
    body = list(lines(dialect, tree.body))
    parts = [f"// {title}"]
    parts += [
        f"#pragma OPENCL EXTENSION {name} : enable"
        for name in _extensions(features, used, places, across, calls)
    ]
    parts += [OPENCL_PREAMBLE[name].rstrip() for name in OPENCL_PREAMBLE if name in calls]
    if not features.keeps_negated:
        parts += _without_negations(dialect, used)
    fields = [*tree.scalars, *((f"{b.name}_at", ValueType("u32")) for b in tree.buffers)]
    parts += [
        "typedef struct {",
        *(f"    {dialect.type(kind)} {name};" for name, kind in fields),
        "} Params;",
    ]
    parts += [dialect.table(table) for table in tree.tables]
    x, y, z = tree.group
    written = {shares.get(b.name, b.name) for b in tree.buffers if b.access != "read"}
    arguments = [
        f"__global {dialect.pointer(buffer, buffer.name in written)}{buffer.name}"
        for buffer in tree.buffers
        if buffer.name not in shares
    ]
    arguments.append("__constant const Params *params")
    parts += ["", f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z})))"]
    parts += [f"void {tree.name}(", *(f"    {a}," for a in arguments[:-1]), f"    {arguments[-1]}) {{"]
    named = {part.name for part in used if isinstance(part, nodes.Scalar)}
    parts += [f"    const {dialect.type(k)} {n} = params->{n};" for n, k in tree.scalars if n in named]
    apart = sorted(tree.buffers, key=lambda buffer: buffer.name not in shares)
    of = {buffer.name: buffer for buffer in tree.buffers}
    parts += [dialect.begin(buffer, of.get(shares.get(buffer.name, ""))) for buffer in apart]
    parts += [_position(tree, which) for which in sorted(places)]
    parts += [dialect.array(array) for array in tree.arrays]
    return "\n".join([*parts, *body, "}", ""])


def _extensions(
    features: Features, used: list[nodes.Expression], places: set[str], across: set[str], calls: set[str]
) -> list[str]:
    names = []
    if features.f16 and any(part.type.kind == "f16" for part in used):
        names.append("cl_khr_fp16")
    if across or any(place.startswith("subgroup") for place in places):
        names.append("cl_khr_subgroups")
    if "xor" in across:
        names.append("cl_khr_subgroup_shuffle")
    if "dot4_i8" in calls:
        names.append("cl_khr_integer_dot_product")
    return names


def _without_negations(dialect: Dialect, used: list[nodes.Expression]) -> Iterator[str]:
    """A pragma, since `a - b * c` is else compiled as `fma(-b, c, a)`, and functions in place of `-`.

    Compilers make a negation of 0 - x, -1 * x and the sign's bit turned, but not of `copysign`.
    """
    yield "#pragma OPENCL FP_CONTRACT OFF"
    for kind in dict.fromkeys(part.type for part in used if negated(part)):
        name = dialect.type(kind)
        bits = "short" if kind.kind == "f16" and dialect.features.f16 else "int"
        other = f"as_{name}(~as_{bits}{kind.lanes if kind.lanes > 1 else ''}(x))"
        yield f"static inline {name} negated_{name}({name} x) {{ return copysign(x, {other}); }}"


def _position(tree: nodes.Tree, which: str) -> str:
    if which in _POSITIONS:
        name = _POSITIONS[which]
        values = ", ".join(f"(uint){name}({i})" for i in range(3))
        return f"    const uint3 {which} = (uint3)({values});"
    if which in _PLACES:
        return f"    const uint {which} = {_PLACES[which]};"
    x, y, _ = tree.group
    return (
        f"    const uint {which} = (uint)(get_local_id(0) + {x} * (get_local_id(1) + {y} * get_local_id(2)));"
    )


class _OpenclDialect(Dialect):
    forever, adds_to_index = "while (true)", False
    least_i32, i32_suffix = "(-2147483647 - 1)", ""

    def __init__(self, tree: nodes.Tree, features: Features) -> None:
        super().__init__(tree, features)
        self.keeps_negated = features.keeps_negated

    def type(self, kind: ValueType) -> str:
        name = "float" if kind.kind == "f16" and not self.features.f16 else _NAMES[kind.kind]
        return name if kind.lanes == 1 else f"{name}{kind.lanes}"

    def vector(self, kind: ValueType, texts: Sequence[str]) -> str:
        return f"(({self.type(kind)})({', '.join(texts)}))"

    def not_finite(self, value: float, is_half: bool) -> str:
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"

    def convert(self, kind: ValueType, values: Sequence[nodes.Expression], texts: Sequence[str]) -> str:
        if len(values) == 1 and values[0].type.lanes == kind.lanes:
            name = self.type(kind)
            return f"convert_{name}({texts[0]})" if kind.lanes > 1 else f"({name})({texts[0]})"
        return self.vector(kind, texts)

    def call(self, value: nodes.Call, texts: Sequence[str]) -> str:
        intrinsic = INTRINSICS.get(value.name)
        if intrinsic is None:
            form = CONVERSIONS[value.name][1]
        else:
            integer = intrinsic.opencl_integer and value.type.is_integer
            form = intrinsic.opencl_integer if integer else intrinsic.opencl
        return form.format(*texts, type=self.type(value.type))

    def select(self, condition: str, yes: str, no: str) -> str:
        return f"({condition} ? {yes} : {no})"

    def packed(self, array: nodes.ArrayVariable) -> bool:
        """Whether a buffer of halves is read by the core functions that convert."""
        return array.space == "buffer" and array.element.kind == "f16" and not self.features.f16

    def load(self, array: nodes.ArrayVariable, index: str) -> str:
        if not self.packed(array):
            return f"{array.name}[{index}]"
        lanes = "" if array.element.lanes == 1 else array.element.lanes
        return f"vload_half{lanes}({index}, {array.name})"

    def store(self, array: nodes.ArrayVariable, index: str, value: str) -> str:
        if not self.packed(array):
            return f"{array.name}[{index}] = {value};"
        lanes = "" if array.element.lanes == 1 else array.element.lanes
        return f"vstore_half{lanes}_rte({value}, {index}, {array.name});"

    def declare(self, variable: nodes.Variable, value: str | None) -> str:
        name = f"{self.type(variable.type)} {variable.name}"
        if value is None:
            return f"{name} = {self.literal(nodes.LiteralValue(0, variable.type))};"
        return f"{'' if variable.mutable else 'const '}{name} = {value};"

    def count(self, variable: nodes.Variable, begin: str) -> str:
        return f"{self.type(variable.type)} {variable.name} = {begin}"

    def special(self, statement: nodes.SpecialStatement, texts: Sequence[str]) -> str:
        if isinstance(statement, nodes.Uniform):
            return texts[0]  # OpenCL needs no proof that it is uniform
        if isinstance(statement, nodes.Barrier):
            return f"barrier(CLK_LOCAL_MEM_FENCE{' | CLK_GLOBAL_MEM_FENCE' if self.fence else ''});"
        if isinstance(statement, nodes.Across):
            return _ACROSS[statement.operator].format(*texts)
        return f"atomic_{statement.operator}(&{statement.array.name}[{texts[0]}], {texts[1]})"

    def negated(self, kind: ValueType, value: str) -> str:
        return f"negated_{self.type(kind)}({value})"

    def pointer(self, buffer: nodes.ArrayVariable, written: bool) -> str:
        element = "half" if self.packed(buffer) else self.type(buffer.element)
        return f"{'volatile ' if buffer.atomic else ''}{'' if written else 'const '}{element} *"

    def begin(self, buffer: nodes.ArrayVariable, base: nodes.ArrayVariable | None) -> str:
        packed_lanes = buffer.element.lanes if self.packed(buffer) else 1
        at = f"params->{buffer.name}_at{f' * {packed_lanes}' if packed_lanes > 1 else ''}"
        if base is None:
            return f"    {buffer.name} += {at};"
        kind = f"__global {self.pointer(buffer, buffer.access != 'read')}"
        begin = base.name if base.element == buffer.element else f"({kind}){base.name}"
        return f"    {kind}{buffer.name} = {begin} + {at};"

    def array(self, array: nodes.ArrayVariable) -> str:
        space = "__local " if array.space == "shared" else ""
        volatile = "volatile " if array.atomic else ""
        return f"    {space}{volatile}{self.type(array.element)} {array.name}[{array.length}];"

    def table(self, table: nodes.ArrayVariable) -> str:
        values = self.values(table)
        return f"__constant {self.type(table.element)} {table.name}[{table.length}] = {{{values}}};"


def declared(text: str) -> tuple[str, ...]:
    """The names that a text has for its whole file, but for the kernel's."""
    return ("Params", *_DECLARED.findall(text))


def joined(kernels: Mapping[str, str], names: Mapping[str, str]) -> str:
    """One text of several. kernels, names: text -> its kernel's name, and that which it gets here.

    What else a text declares gets a name of its own too: its struct, its tables, its functions.
    """
    parts = []
    for i, (text, kernel) in enumerate(kernels.items()):
        new = {name: f"{name}_{i}" for name in declared(text)} | {kernel: names[text]}
        parts += [f"#define {old} {name}" for old, name in new.items()]
        parts += [text, *(f"#undef {old}" for old in new)]
    return "\n".join(parts) + "\n"
