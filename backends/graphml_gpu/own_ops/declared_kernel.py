"""A kernel as its author declared it, checked against its op before anything is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from graphml.errors import BackendError
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.own_op import OwnKernel, OwnOp
from graphml.ir.own_signature import place_of
from graphml_gpu.language import Kernel
from graphml_gpu.language import ValueType as Element
from graphml_gpu.language.kernels import BufferArgument, ScalarArgument
from graphml_gpu.language.text_header import TextError
from graphml_gpu.language.text_kernels import OPENCL_C, WGSL, TextDeclaration, TextKernel
from graphml_gpu.language.types import SCALARS, BufferType
from graphml_gpu.own_ops.named_values import (
    WIDTH,
    result_names,
    scalar_kinds,
    size_names,
    unfit_element,
    value_types,
)

GROUPS = ("row", "element")
_LANGUAGES = {"wgpu": WGSL, "opencl": OPENCL_C}
"""Backend -> the language of its texts."""
_OPTIONS = ("groups", "refuses")
_TEXT_OPTIONS = ("bindings", "scalars", "workgroup", "groups", "entry", "shared_bytes", "refuses")
_SIZES = ("GROUP", "GROUP_X", "GROUP_Y", "GROUP_Z")


@dataclass(frozen=True)
class DeclaredKernel:
    """A kernel of an op, of which all names have a meaning.

    place: file and line. buffers, scalars: by name. constants: names of those that are worked out for each
    node. group: invocations of a workgroup. groups: see `own_kernels`. refuses: the author's own reasons.
    """

    op: OwnOp
    place: str
    kernel: Kernel | TextKernel
    buffers: Mapping[str, BufferArgument]
    scalars: Mapping[str, str]
    constants: tuple[str, ...]
    group: int
    groups: str | Callable[[Node], Any]
    refuses: Callable[[Node], str | None]


def declared_kernel(op: OwnOp, own_kernel: OwnKernel, backend: str) -> DeclaredKernel:
    """The kernel of an op for a backend; a `BackendError` names what is wrong in its declaration."""
    return _Declaration(op, own_kernel, backend).made()


class _Declaration:
    def __init__(self, op: OwnOp, own_kernel: OwnKernel, backend: str) -> None:
        self._op, self._options, self._backend = op, own_kernel.options, backend
        self._function = (
            own_kernel.function.python if isinstance(own_kernel.function, Kernel) else own_kernel.function
        )
        self._kernel = own_kernel.function if isinstance(own_kernel.function, Kernel) else None
        self._is_text = isinstance(self._function, str)
        is_function = inspect.isfunction(self._function)
        self._place = str(
            place_of(self._function) if is_function else own_kernel.source or op.declared.source
        )
        if not self._is_text and not is_function:
            self._fail(
                "wanted a typed function of the language of graphml_gpu.language, or a text of WGSL or"
                f" OpenCL C; got {self._function!r}"
            )
        self._values = _types_of_samples(op)
        self._results = frozenset(result_names(_kind_of_samples(op)))
        twice = self._results & set(op.declared.operands)
        if twice:
            self._fail(f"an operand has the name of the result {min(twice)}")

    def _fail(self, reason: object) -> NoReturn:
        raise BackendError(
            f"op {self._op.name!r}: its kernel for {self._backend} ({self._place}): {reason}"
        ) from None

    def made(self) -> DeclaredKernel:
        """The kernel, after all checks."""
        known = _TEXT_OPTIONS if self._is_text else _OPTIONS
        unknown = [name for name in self._options if name not in known]
        if unknown:
            self._fail(f"it has no option {unknown[0]!r}; wanted some of {', '.join(known)}")
        groups = self._options.get("groups")
        if groups not in GROUPS and not callable(groups):
            self._fail(f"groups: wanted {_quoted(GROUPS)} or a function of the node; got {groups!r}")
        refuses = self._options.get("refuses", lambda node: None)
        if not callable(refuses):
            self._fail(f"refuses: wanted a function of the node; got {refuses!r}")
        kernel, buffers, scalars, constants, group = self._of_text() if self._is_text else self._of_language()
        self._check_buffers(buffers)
        self._check_scalars(scalars)
        return DeclaredKernel(
            self._op,
            self._place,
            kernel,
            {buffer.name: buffer for buffer in buffers},
            {scalar.name: scalar.kind for scalar in scalars},
            constants,
            group,
            groups,
            refuses,
        )

    def _of_language(self) -> _Parts:
        kernel = self._kernel or Kernel(self._function)
        try:
            parameters = kernel.source.parameters
        except BackendError as error:
            self._fail(error)
        buffers, scalars, constants = [], [], []
        for parameter in parameters:
            kind = parameter.annotation
            if parameter.keyword_only:
                if parameter.name in self._op.declared.kinds or parameter.name == WIDTH:
                    constants.append(parameter.name)
                elif parameter.name in _SIZES and not (parameter.has_default and _is_size(parameter.default)):
                    self._fail(f"constant {parameter.name}: wanted the size of the workgroup as its default")
                elif not parameter.has_default:
                    wanted = ", ".join([*_SIZES, WIDTH, *self._op.declared.kinds])
                    self._fail(f"constant {parameter.name}: wanted a default, or one of {wanted}")
            elif isinstance(kind, BufferType):
                buffers.append(BufferArgument(parameter.name, kind.access, kind.element, False))
            elif isinstance(kind, Element) and SCALARS.get(kind.name) == kind:
                scalars.append(ScalarArgument(parameter.name, kind.kind))
            else:
                self._fail(
                    f"argument {parameter.name}: wanted a type, Read[...] or Write[...] for a buffer, u32,"
                    f" i32 or f32 for a scalar; got {kind}"
                )
        group = prod(int(value) for name, value in kernel.constants.items() if name in _SIZES)
        return kernel, buffers, scalars, tuple(constants), group

    def _of_text(self) -> _Parts:
        language = _LANGUAGES.get(self._backend)
        if language is None:
            self._fail(
                f"a text is for {' or '.join(_LANGUAGES)}; {self._backend} wants a kernel in the language of"
                " graphml_gpu.language"
            )
        bindings, scalars = self._names("bindings", ...), self._names("scalars", ())
        missing = [name for name in bindings if name not in self._values]
        if missing:
            self._fail(f"no value is called {missing[0]!r}; wanted some of {', '.join(self._values)}")
        unknown = next((name for name in scalars if scalar_kinds(self._op, name) is None), None)
        if unknown is not None:
            self._fail_scalar(unknown)
        workgroup, shared_bytes = self._options.get("workgroup"), self._options.get("shared_bytes")
        sizes = (workgroup,) if isinstance(workgroup, int) else workgroup
        if not isinstance(sizes, tuple) or not 1 <= len(sizes) <= 3 or not all(map(_is_size, sizes)):
            self._fail(f"workgroup: wanted its size, one to three whole numbers; got {workgroup!r}")
        if shared_bytes is not None and (not isinstance(shared_bytes, int) or shared_bytes < 0):
            self._fail(f"shared_bytes: wanted a number of bytes; got {shared_bytes!r}")
        entry = self._options.get("entry", self._op.name)
        x, y, z = (*sizes, 1, 1)[:3]
        declared = TextDeclaration(
            str(entry), bindings, scalars, (x, y, z), self._results & set(bindings), shared_bytes
        )
        owner = f"op {self._op.name!r} ({self._place})"
        try:
            kernel = TextKernel(str(self._function), language, declared, owner, tuple(self._values))
        except TextError as error:
            self._fail(error)
        return kernel, kernel.arguments, kernel.scalars, (), x * y * z

    def _names(self, option: str, default: Any) -> tuple[str, ...]:
        names = self._options.get(option, default)
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            self._fail(
                f"{option}: wanted the names of its {option}; got {'none' if names is ... else names!r}"
            )
        if len(set(names)) < len(names):
            self._fail(f"{option}: a name is there twice: {', '.join(names)}")
        return tuple(names)

    def _check_buffers(self, buffers: Sequence[BufferArgument]) -> None:
        for buffer in buffers:
            if buffer.name not in self._values:
                self._fail(f"no value is called {buffer.name!r}; wanted some of {', '.join(self._values)}")
            if buffer.writes != (buffer.name in self._results):
                said = "written" if buffer.writes else "read"
                self._fail(
                    f"{buffer.name} is {said}; wanted operands that are read, and results that are written"
                )
            unfit = [unfit_element(buffer.element, kind) for kind in self._values[buffer.name]]
            if all(unfit):
                self._fail(f"{buffer.name} has elements of {buffer.element.name}; wanted {unfit[0]}")
        missing = sorted(self._results - {buffer.name for buffer in buffers})
        if missing:
            self._fail(f"it does not write the result {missing[0]}; wanted a binding of that name")

    def _check_scalars(self, scalars: Sequence[ScalarArgument]) -> None:
        for scalar in scalars:
            kinds = scalar_kinds(self._op, scalar.name)
            if kinds is None:
                self._fail_scalar(scalar.name)
            if not kinds:
                self._fail(
                    f"the attribute {scalar.name} is no number, so it is no scalar; a kernel in the language"
                    " can have it behind `*`"
                )
            if scalar.kind not in kinds:
                self._fail(f"scalar {scalar.name} is {scalar.kind}; wanted {' or '.join(kinds)}")

    def _fail_scalar(self, name: str) -> NoReturn:
        known = [*size_names(self._op), *self._op.declared.kinds]
        self._fail(f"no scalar is called {name!r}; wanted some of {', '.join(known)}")


_Parts = tuple[Kernel | TextKernel, Sequence[BufferArgument], Sequence[ScalarArgument], tuple[str, ...], int]
"""A kernel, its buffers and scalars, the constants that depend on the node, invocations of a workgroup."""


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _quoted(words: Sequence[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _samples(op: OwnOp) -> Iterator[tuple[tuple[Type, ...], Type]]:
    """The types of the operands and of the result, of each sample."""
    for sample in op.samples():
        values = {**op.attributes, **sample.attributes}
        attributes = op.fitted({name: value for name, value in values.items() if value is not None})
        yield sample.inputs, op.infer(sample.inputs, attributes)


def _kind_of_samples(op: OwnOp) -> Type:
    return next(kind for _, kind in _samples(op))


def _types_of_samples(op: OwnOp) -> Mapping[str, list[Type]]:
    """The types that each value has, by name."""
    by_name: dict[str, list[Type]] = {}
    for inputs, kind in _samples(op):
        for name, value_type in value_types(op, inputs, kind).items():
            by_name.setdefault(name, []).append(value_type)
    return by_name
