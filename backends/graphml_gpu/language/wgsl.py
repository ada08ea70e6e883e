"""A kernel's tree as WGSL. Knows nothing of devices.

Buffers are bindings 0, 1, ... of group 0 in the order of the kernel's arguments, then comes the struct of
its scalars, mostly uniform, in which `<buffer>_at` is the element that each buffer's value begins at.
Halves are said with `enable f16`; subgroups are not, for the compiler in wgpu 0.32 knows no word for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from graphml.errors import BackendError
from graphml_gpu.language import tree as nodes
from graphml_gpu.language.features import Features
from graphml_gpu.language.intrinsics import CONVERSIONS, INTRINSICS
from graphml_gpu.language.text import Dialect, lines
from graphml_gpu.language.types import ValueType
from graphml_gpu.language.walk import all_expressions, all_statements

_POSITIONS = {
    "group_id": ("workgroup_id", "vec3<u32>"),
    "local_id": ("local_invocation_id", "vec3<u32>"),
    "global_id": ("global_invocation_id", "vec3<u32>"),
    "num_groups": ("num_workgroups", "vec3<u32>"),
    "local_index": ("local_invocation_index", "u32"),
    "subgroup_lane": ("subgroup_invocation_id", "u32"),
    "subgroup_id": ("subgroup_id", "u32"),
    "subgroup_count": ("num_subgroups", "u32"),
}
_ACROSS = {
    "sum": "subgroupAdd({0})",
    "max": "subgroupMax({0})",
    "xor": "subgroupShuffleXor({0}, {1})",
    "broadcast": "subgroupBroadcast({0}, {1})",
}
_NOT_NUMBERS = "var<private> not_a_constant: u32 = 0u;"
"""Infinity and NaN are made from its bits: WGSL has no such constants, and refuses to compute them."""


def wgsl(
    tree: nodes.Tree,
    features: Features,
    title: str,
    writable: Collection[str],
    shares: Mapping[str, str],
    stored: bool = False,
) -> str:
    """The text. writable: bindings that are read_write though the kernel only reads them.

    shares: buffers that are in the binding of another. stored: the scalars are in a storage buffer.
    """
    used = list(all_expressions(tree.body))
    uniform = {s.held: s.result.type for s in all_statements(tree.body) if isinstance(s, nodes.Uniform)}
    places = {part.which for part in used if isinstance(part, nodes.Index)}
    if uniform:
        places.add("local_index")
    dialect = _WgslDialect(tree, features, shares)
    body = list(lines(dialect, tree.body))
    parts = [f"// {title}"]
    if features.f16 and any(part.type.kind == "f16" for part in used):
        parts.append("enable f16;")
    parts.append("")
    fields = [*tree.scalars, *((f"{b.name}_at", ValueType("u32")) for b in tree.buffers)]
    parts += ["struct Params {", *(f"    {name}: {dialect.type(kind)}," for name, kind in fields), "}"]
    written = {shares.get(b.name, b.name) for b in tree.buffers if b.access != "read" or b.atomic}
    bindings = [buffer for buffer in tree.buffers if buffer.name not in shares]
    for i, buffer in enumerate(bindings):
        access = "read_write" if buffer.name in {*writable, *written} else "read"
        parts.append(
            f"@group(0) @binding({i}) var<storage, {access}> {buffer.name}: {dialect.binding(buffer)};"
        )
    space = "storage, read" if stored else "uniform"
    parts.append(f"@group(0) @binding({len(bindings)}) var<{space}> params: Params;")
    parts += [f"var<workgroup> {a.name}: {dialect.sized(a)};" for a in tree.arrays if a.space == "shared"]
    parts += [f"var<workgroup> {name}: {dialect.type(kind)};" for name, kind in uniform.items()]
    parts += [f"const {t.name} = {dialect.sized(t)}({dialect.values(t)});" for t in tree.tables]
    if any(isinstance(part, nodes.LiteralValue) and not math.isfinite(part.value) for part in used):
        parts.append(_NOT_NUMBERS)
    x, y, z = tree.group
    arguments = ", ".join(
        f"@builtin({_POSITIONS[place][0]}) {place}: {_POSITIONS[place][1]}"
        for place in _POSITIONS
        if place in places
    )
    parts += ["", f"@compute @workgroup_size({x}, {y}, {z})", f"fn {tree.name}({arguments}) {{"]
    named = {part.name for part in used if isinstance(part, nodes.Scalar)}
    parts += [f"    let {name} = params.{name};" for name, _ in tree.scalars if name in named]
    parts += [f"    let {b.name}_at = params.{b.name}_at;" for b in tree.buffers]
    parts += [f"    var {a.name}: {dialect.sized(a)};" for a in tree.arrays if a.space == "private"]
    return "\n".join([*parts, *body, "}", ""])


class _WgslDialect(Dialect):
    forever, adds_to_index = "loop", True
    least_i32, i32_suffix = "i32(-2147483648)", "i"

    def __init__(self, tree: nodes.Tree, features: Features, shares: Mapping[str, str]) -> None:
        super().__init__(tree, features)
        self._shares = shares
        self._elements = {buffer.name: buffer.element for buffer in tree.buffers}

    def type(self, kind: ValueType) -> str:
        name = "f32" if kind.kind == "f16" and not self.features.f16 else kind.kind
        return name if kind.lanes == 1 else f"vec{kind.lanes}<{name}>"

    def vector(self, kind: ValueType, texts: Sequence[str]) -> str:
        return f"{self.type(kind)}({', '.join(texts)})"

    def not_finite(self, value: float, is_half: bool) -> str:
        bits = 0x7FC00000 if math.isnan(value) else 0x7F800000 if value > 0 else 0xFF800000
        text = f"bitcast<f32>(not_a_constant | {bits:#x}u)"
        return f"f16({text})" if is_half else text

    def convert(self, kind: ValueType, values: Sequence[nodes.Expression], texts: Sequence[str]) -> str:
        return self.vector(kind, texts)

    def call(self, value: nodes.Call, texts: Sequence[str]) -> str:
        intrinsic = INTRINSICS.get(value.name)
        form = intrinsic.wgsl if intrinsic else CONVERSIONS[value.name][0]
        return form.format(*texts, type=self.type(value.type))

    def select(self, condition: str, yes: str, no: str) -> str:
        return f"select({no}, {yes}, {condition})"

    def held(self, array: nodes.ArrayVariable) -> str:
        """The binding that holds an array."""
        return self._shares.get(array.name, array.name)

    def plain(self, array: nodes.ArrayVariable) -> bool:
        """Whether elements are stored as they are computed with: no halves in words."""
        return array.space != "buffer" or array.element.kind != "f16" or self.features.f16

    def load(self, array: nodes.ArrayVariable, index: str) -> str:
        bound, lanes = self._elements.get(self.held(array), array.element), array.element.lanes
        other = bound != array.element
        if other and bound.lanes < lanes:  # a vector of words
            words = [f"{self.held(array)}[({_at(array, index)}) * {lanes}u + {i}u]" for i in range(lanes)]
            text = self.vector(ValueType(bound.kind, lanes), words)
            other = bound.kind != array.element.kind
        else:
            text = self._load(array, self.held(array), _at(array, index))
        return f"bitcast<{self.type(array.element)}>({text})" if other else text

    def _load(self, array: nodes.ArrayVariable, name: str, place: str) -> str:
        if array.atomic:
            return f"atomicLoad(&{name}[{place}])"
        if self.plain(array):
            return f"{name}[{place}]"
        if array.element.lanes == 1:
            return f"unpack2x16float({name}[({place}) >> 1u])[({place}) & 1u]"
        if array.element.lanes == 2:
            return f"unpack2x16float({name}[{place}])"
        halves = (f"unpack2x16float({name}[({place}) * 2u + {i}u])" for i in range(2))
        return f"vec4<f32>({', '.join(halves)})"

    def store(self, array: nodes.ArrayVariable, index: str, value: str) -> str:
        name, place = self.held(array), _at(array, index)
        bound = self._elements.get(name, array.element)
        value = value if bound == array.element else f"bitcast<{self.type(bound)}>({value})"
        if array.atomic:
            return f"atomicStore(&{name}[{place}], {value});"
        if self.plain(array):
            return f"{name}[{place}] = {value};"
        if array.element.lanes == 2:
            return f"{name}[{place}] = pack2x16float({value});"
        raise BackendError(
            f"kernel {self.tree.name}: `{array.name}` is written as {array.element.name}; "
            "without the feature f16 WGSL writes f16x2 only"
        )

    def declare(self, variable: nodes.Variable, value: str | None) -> str:
        if value is None:
            return f"var {variable.name}: {self.type(variable.type)};"
        return f"{'var' if variable.mutable else 'let'} {variable.name} = {value};"

    def count(self, variable: nodes.Variable, begin: str) -> str:
        return f"var {variable.name} = {begin}"

    def special(self, statement: nodes.SpecialStatement, texts: Sequence[str]) -> str:
        if isinstance(statement, nodes.Uniform):
            guarded_store = f"if (local_index == 0u) {{ {statement.held} = {texts[0]}; }}"
            return f"{guarded_store}\nworkgroupUniformLoad(&{statement.held})"
        if isinstance(statement, nodes.Barrier):
            return "workgroupBarrier(); storageBarrier();" if self.fence else "workgroupBarrier();"
        if isinstance(statement, nodes.Across):
            return _ACROSS[statement.operator].format(*texts)
        element = f"{self.held(statement.array)}[{_at(statement.array, texts[0])}]"
        return f"atomic{statement.operator.capitalize()}(&{element}, {texts[1]})"

    def binding(self, buffer: nodes.ArrayVariable) -> str:
        """The type of a buffer."""
        if not self.plain(buffer):
            return "array<u32>"
        element = self.type(buffer.element)
        return f"array<atomic<{element}>>" if buffer.atomic else f"array<{element}>"

    def sized(self, array: nodes.ArrayVariable) -> str:
        """The type of an array of a known length."""
        element = self.type(array.element)
        return f"array<{f'atomic<{element}>' if array.atomic else element}, {array.length}>"


def _at(array: nodes.ArrayVariable, index: str) -> str:
    if array.space != "buffer":
        return index
    return f"{array.name}_at" if index == "0u" else f"{array.name}_at + {index}"
