"""`@kernel` and its specialisations: what a driver is given. Knows no device.

A kernel's positional arguments are buffers (`Read[T]`, `Write[T]`, `Update[T]`), then scalars (`u32`,
`i32`, `f32`); its keyword-only arguments are compile-time constants. `GROUP` (or `GROUP_X`, `GROUP_Y`) is
the size of its workgroup.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from graphml.errors import BackendError
from graphml.settings import debug_kernels
from graphml_gpu.language.context import Frame, KernelContext
from graphml_gpu.language.declare import declare
from graphml_gpu.language.emulator import NEIGHBOURS, Lanes, compiled, run
from graphml_gpu.language.expressions import lower_expression
from graphml_gpu.language.features import PORTABLE, AskedFeatures, Features
from graphml_gpu.language.functions import sites
from graphml_gpu.language.opencl import opencl
from graphml_gpu.language.reserved import RESERVED
from graphml_gpu.language.rolled import rolled
from graphml_gpu.language.source import FunctionSource, read
from graphml_gpu.language.statements import lower_block
from graphml_gpu.language.tree import Across, ArrayVariable, Expression, Index, Scalar, Statement, Tree
from graphml_gpu.language.types import SCALARS, BufferType, ValueType
from graphml_gpu.language.walk import all_expressions, all_statements, touched
from graphml_gpu.language.wgsl import wgsl


@dataclass(frozen=True)
class BufferArgument:
    """A buffer of a kernel. access: "read", "write" or "update"; atomic: changed by atomics."""

    name: str
    access: str
    element: ValueType
    atomic: bool

    @property
    def writes(self) -> bool:
        """Whether the kernel may change it."""
        return self.access != "read"


@dataclass(frozen=True)
class ScalarArgument:
    """A scalar: a word of four bytes in the struct. kind: "u32", "i32" or "f32"."""

    name: str
    kind: str


@dataclass(frozen=True, eq=False)
class Specialised:
    """A kernel with its constants: text for both languages, and a run in Python.

    name: the kernel's, the entry point of the texts. constants: all of them. group: x, y, z. buffers: the
    bindings in their order; an argument that these constants leave untouched has none. shares: argument ->
    that whose binding it is in, see `sharing`. scalars: the words of the struct in order, last a
    `<buffer>_at` (u32, in elements) of each buffer. shared_bytes: of one workgroup. subgroups: whether the
    text needs that feature.
    """

    name: str
    constants: Mapping[str, Any]
    features: Features
    group: tuple[int, int, int]
    buffers: tuple[BufferArgument, ...]
    scalars: tuple[ScalarArgument, ...]
    shared_bytes: int
    subgroups: bool
    tree: Tree
    shares: Mapping[str, str] = field(default_factory=dict)
    _sharing: dict[frozenset[tuple[str, str]], Specialised] = field(
        default_factory=dict, init=False, repr=False
    )

    @property
    def title(self) -> str:
        """The kernel with its constants, for a person."""
        return ", ".join([self.name, *(f"{name} = {value}" for name, value in self.constants.items())])

    @property
    def joinable(self) -> bool:
        """Whether what its OpenCL C declares can be renamed, as `opencl.joined` does."""
        return True

    def wgsl(self, writable: Collection[str] = (), stored: bool = False, rolls: bool = False) -> str:
        """WGSL. writable: buffers bound as read_write though the kernel only reads them.

        stored: its scalars are bound as a storage buffer. rolls: see `rolled`.
        """
        tree = rolled(self.tree) if rolls else self.tree
        return shown(wgsl(tree, self.features, self.title, writable, self.shares, stored))

    def opencl(self) -> str:
        """OpenCL C."""
        return shown(opencl(self.tree, self.features, self.title, self.shares))

    def sharing(self, shares: Mapping[str, str]) -> Specialised:
        """The same with fewer bindings; the same value for the same ones.

        shares: an argument -> the one whose binding it is in, of the same elements, or words as it is; its
        `_at` then counts from the beginning of that.
        """
        key = frozenset(shares.items())
        if not key:
            return self
        if key not in self._sharing:
            self._sharing[key] = self._with_shares(shares)
        return self._sharing[key]

    def _with_shares(self, shares: Mapping[str, str]) -> Specialised:
        writes = {shares.get(buffer.name, buffer.name) for buffer in self.buffers if buffer.writes}
        kept = (
            replace(buffer, access="update" if buffer.name in writes else buffer.access)
            for buffer in self.buffers
            if buffer.name not in shares
        )
        return replace(self, buffers=tuple(kept), shares=dict(shares))

    def words(self, scalars: Mapping[str, int | float]) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The struct of the scalars as words; a buffer's `_at` is 0 where it is not given."""
        words = np.zeros(len(self.scalars), np.uint32)
        for i, scalar in enumerate(self.scalars):
            value = scalars[scalar.name] if not scalar.name.endswith("_at") else scalars.get(scalar.name, 0)
            kind = {"u32": np.uint32, "i32": np.int32, "f32": np.float32}[scalar.kind]
            words[i] = np.asarray(value, kind).view(np.uint32)
        return words

    @cached_property
    def _python(self) -> Callable[..., Any]:
        return compiled(self.tree, self.title, self.features)

    def run_python(
        self,
        buffers: Mapping[str, np.ndarray[Any, Any]],
        scalars: Mapping[str, int | float],
        groups: Sequence[int],
        lanes: Lanes = NEIGHBOURS,
        nan_holds: bool | None = None,
    ) -> None:
        """Run in Python, slowly: NumPy arrays are the buffers, written in place; groups: x, y, z.

        Raises `BackendError` for an index out of bounds, a race in shared memory or a barrier that only some
        invocations reach. lanes, nan_holds: what devices may do differently, see `emulator`.
        """
        every = {**buffers, **{name: buffers[other] for name, other in self.shares.items()}}
        run(self.tree, self._python, self.features, every, scalars, groups, lanes, nan_holds)


def shown(text: str) -> str:
    """A text for a driver, which GRAPHML_DEBUG=kernels shows."""
    if debug_kernels():
        print(text, file=sys.stderr)
    return text


class Kernel:
    """A kernel as written; `specialise` makes what a device runs."""

    def __init__(self, python: Callable[..., None]) -> None:
        self.python = python
        self.name = python.__name__
        self.__doc__ = python.__doc__
        self._made: dict[Any, Specialised] = {}
        self._by_answers: dict[Any, list[tuple[Mapping[str, Any], Specialised]]] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name}>"

    @cached_property
    def source(self) -> FunctionSource:
        """Its syntax tree, read when first specialised."""
        return read(self.python)

    @cached_property
    def sites(self) -> Counter[str]:
        """How often each name is given a value in it; see `functions.sites`."""
        return sites(self.source)

    @property
    def constants(self) -> Mapping[str, Any]:
        """The compile-time constants with their defaults (`...` where there is none)."""
        return {p.name: p.default if p.has_default else ... for p in self.source.parameters if p.keyword_only}

    @property
    def buffers(self) -> frozenset[str]:
        """Names of its buffer arguments, whether or not a specialisation touches them."""
        return frozenset(p.name for p in self.source.parameters if isinstance(p.annotation, BufferType))

    def specialise(self, features: Features = PORTABLE, **constants: Any) -> Specialised:
        """The kernel for these constants and this device; the same value for the same ones.

        Raises `BackendError` naming the kernel, the line and what was wanted.
        """
        key_constants = tuple((name, _kind(constants[name]), constants[name]) for name in sorted(constants))
        key = (features, key_constants)
        if key not in self._made:
            self._made[key] = self._for_other_features(features, key_constants) or self._new(
                features, key_constants
            )
        return self._made[key]

    def _for_other_features(self, features: Features, key_constants: Any) -> Specialised | None:
        """One that was made for another device, if all that it asked of that is the same here."""
        for answers, specialised in self._by_answers.get(key_constants, ()):
            if all(getattr(features, name) == answer for name, answer in answers.items()):
                return replace(specialised, features=features)
        return None

    def _new(self, features: Features, key_constants: Any) -> Specialised:
        asked = AskedFeatures(features)
        specialised = _specialise(self, features, asked, {name: value for name, _, value in key_constants})
        self._by_answers.setdefault(key_constants, []).append((asked.answers, specialised))
        return specialised


def _kind(value: Any) -> str:
    """What tells values apart that are equal: 0.0 and -0.0, 1 and True, in tuples too."""
    return f"{type(value).__name__} {value!r}"


def kernel(python: Callable[..., None]) -> Kernel:
    """Make a kernel of a typed Python function; it is read when it is first specialised."""
    return Kernel(python)


def _specialise(
    kernel: Kernel, features: Features, asked: AskedFeatures, values: Mapping[str, Any]
) -> Specialised:
    source = kernel.source
    constants = _constants(kernel, values)
    group = _group(kernel.name, constants)
    context = KernelContext(
        kernel.name, asked, group, lower_expression, lower_block, taken=set(RESERVED) | {kernel.name}
    )
    context.frames.append(Frame(source, kernel.sites))
    context.frame.names.update(constants)
    buffers, scalars = _arguments(context, source)
    lower_block(context, source.body)
    declare(context.block)
    arrays = tuple(context.arrays.values())
    statements, expressions = list(all_statements(context.block)), list(all_expressions(context.block))
    used = touched(statements, expressions)
    buffers = [buffer for buffer in buffers if buffer.name in used]
    tree = Tree(
        kernel.name,
        tuple(buffers),
        tuple(scalars),
        tuple(array for array in arrays if array.space != "table"),
        tuple(array for array in arrays if array.space == "table"),
        group,
        context.block,
    )
    return Specialised(
        kernel.name,
        constants,
        features,
        group,
        tuple(BufferArgument(b.name, b.access, b.element, b.atomic) for b in buffers),
        (
            *(ScalarArgument(name, kind.kind) for name, kind in scalars),
            *(ScalarArgument(f"{buffer.name}_at", "u32") for buffer in buffers),
        ),
        sum((a.length or 0) * a.element.n_bytes for a in arrays if a.space == "shared")
        + sum(kind.n_bytes for kind in context.uniform),
        _subgroups(statements, expressions),
        tree,
    )


def _subgroups(statements: list[Statement], expressions: list[Expression]) -> bool:
    across = any(isinstance(statement, Across) for statement in statements)
    return across or any(
        isinstance(part, Index) and part.which.startswith("subgroup") for part in expressions
    )


def _constants(kernel: Kernel, values: Mapping[str, Any]) -> dict[str, Any]:
    wanted = kernel.constants
    unknown = set(values) - set(wanted)
    if unknown:
        raise BackendError(
            f"kernel {kernel.name}: has no constant {', '.join(sorted(unknown))}; it has {', '.join(wanted)}"
        )
    constants = {name: values.get(name, default) for name, default in wanted.items()}
    missing = [name for name, value in constants.items() if value is ...]
    if missing:
        raise BackendError(f"kernel {kernel.name}: wanted values for its constants {', '.join(missing)}")
    return constants


def _group(name: str, constants: Mapping[str, Any]) -> tuple[int, int, int]:
    x = constants.get("GROUP", constants.get("GROUP_X", 1))
    y, z = constants.get("GROUP_Y", 1), constants.get("GROUP_Z", 1)
    sizes = (x, y, z)
    if not all(isinstance(size, int) and 1 <= size <= 1024 for size in sizes) or x * y * z > 1024:
        raise BackendError(f"kernel {name}: wanted a workgroup of 1 to 1024 invocations, got {sizes}")
    return sizes


def _arguments(
    context: KernelContext, source: FunctionSource
) -> tuple[list[ArrayVariable], list[tuple[str, ValueType]]]:
    """The kernel's buffers and scalars, and its names for them."""
    buffers: list[ArrayVariable] = []
    scalars: list[tuple[str, ValueType]] = []
    for parameter in source.parameters:
        if parameter.keyword_only:
            continue
        name, kind = parameter.name, parameter.annotation
        if context.unique(name) != name:
            context.fail(f"argument `{name}`: a word of WGSL, OpenCL C or Python; wanted another name")
        if isinstance(kind, BufferType) and not scalars:
            context.unique(f"{name}_at")
            buffers.append(ArrayVariable(name, "buffer", kind.element, None, kind.access))
            context.frame.names[name] = buffers[-1]
        elif isinstance(kind, ValueType) and SCALARS.get(kind.name) == kind:
            scalars.append((name, kind))
            context.frame.names[name] = Scalar(name, kind)
        else:
            context.fail(
                f"argument `{name}`: wanted buffers Read[...], Write[...] or Update[...], then scalars u32, "
                f"i32 or f32, got {kind}"
            )
    return buffers, scalars
