"""Kernels whose author wrote their text: WGSL or OpenCL C, declared as the texts made of `@kernel`s are.

A text that `Specialised.wgsl()` or `.opencl()` returns works unchanged. In WGSL:

    struct Params { rows: u32, n: u32, eps: f32, x_at: u32, out_at: u32 }
    @group(0) @binding(0) var<storage, read> x: array<f32>;
    @group(0) @binding(1) var<storage, read_write> out: array<f32>;
    @group(0) @binding(2) var<uniform> params: Params;

    @compute @workgroup_size(64, 1, 1)
    fn softpick(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(num_workgroups) num_groups: vec3<u32>,
                @builtin(local_invocation_index) local_index: u32) {
        let row = group_id.x + group_id.y * num_groups.x;
        if (row < params.rows) { ... x[params.x_at + row * params.n + i] ... }
    }

In OpenCL C:

    typedef struct { uint rows; uint n; float eps; uint x_at; uint out_at; } Params;

    __kernel __attribute__((reqd_work_group_size(64, 1, 1)))
    void softpick(__global const float *x, __global float *out, __constant Params *params) {
        x += params->x_at;
        out += params->out_at;
        const uint row = get_group_id(0) + get_group_id(1) * get_num_groups(0);
        if (row < params->rows) { ... x[row * params->n + i] ... }
    }

Bindings: the names and the order that were declared, as 0, 1, ... of group 0, or as the first arguments.
    Operands are only read, results are written. Elements are f32, i32, u32, f16, or vectors of two or four.
Scalars: a struct in the next binding, or a pointer to one as the last argument: those that were declared, in
    their order, as u32, i32 or f32; then a u32 `<binding>_at` for every binding.
Indices: a value begins at the element `<binding>_at` of its binding, which has to be added to every index.
In place: where a device forbids two bindings of the same memory, a result has the binding of the operand that
    it replaces. For this, graphml writes declarations of bindings in WGSL again, and one name for the other:
    a function there that uses a binding may call nothing else by the name of another. OpenCL C: no `restrict`
    where an op runs in place.
Grids: by rows or elements, a long one is folded (`group_id.y`) and has a few groups too many: what is beyond
    the last row or element must be left alone.

The text is compiled as it is: GRAPHML_VERIFY=1 has wgpu check every index and loop. It cannot be run in
Python, by `run_python` or `graphml_gpu.plain_driver`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from graphml.errors import BackendError
from graphml_gpu.language.features import PORTABLE, Features
from graphml_gpu.language.kernels import BufferArgument, ScalarArgument, Specialised, shown
from graphml_gpu.language.opencl_header import read_opencl
from graphml_gpu.language.text_header import TextError, TextHeader, line_of, uses, without_comments
from graphml_gpu.language.tree import ArrayVariable, Tree
from graphml_gpu.language.types import SCALARS
from graphml_gpu.language.wgsl_header import bound_wgsl, read_wgsl


@dataclass(frozen=True)
class TextLanguage:
    """A language of texts. read: text and entry point -> what it declares; raises `TextError`."""

    name: str
    read: Callable[[str, str], TextHeader]


WGSL = TextLanguage("WGSL", read_wgsl)
OPENCL_C = TextLanguage("OpenCL C", read_opencl)


@dataclass(frozen=True)
class TextDeclaration:
    """What an author says of a text beside it.

    entry: the function. bindings: names of the buffers. scalars: names of the scalars. group: the size of the
    workgroup. writes: the bindings that are written. shared_bytes: of shared memory, of one workgroup; None:
    as the text declares it.
    """

    entry: str
    bindings: tuple[str, ...]
    scalars: tuple[str, ...]
    group: tuple[int, int, int]
    writes: frozenset[str]
    shared_bytes: int | None = None


class TextKernel:
    """A text as a kernel; see `kernels.Kernel`. Raises `TextError` where text and declaration disagree.

    owner: what it belongs to, for errors. values: names that may be bindings, to find those that are missing.
    """

    def __init__(
        self,
        text: str,
        language: TextLanguage,
        declared: TextDeclaration,
        owner: str = "",
        values: Collection[str] = (),
    ) -> None:
        self.name, self.text, self.language, self.declared = declared.entry, text, language, declared
        self.title = f"{self.name} of {owner}" if owner else self.name
        self.header = language.read(text, self.name)
        self._made: dict[Features, SpecialisedText] = {}
        _check(text, self.header, declared, values)

    def __repr__(self) -> str:
        return f"<text kernel {self.title}>"

    @property
    def buffers(self) -> frozenset[str]:
        """Names of its buffer arguments."""
        return frozenset(self.declared.bindings)

    @property
    def arguments(self) -> Sequence[BufferArgument]:
        """Its buffers, in the order of their bindings."""
        writes = self.declared.writes
        return [
            BufferArgument(buffer.name, "write" if buffer.name in writes else "read", buffer.element, False)
            for buffer in self.header.buffers
        ]

    @property
    def scalars(self) -> Sequence[ScalarArgument]:
        """Its scalars, without those that say where values begin."""
        return [ScalarArgument(*scalar) for scalar in self.header.fields[: len(self.declared.scalars)]]

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a workgroup."""
        return self.header.shared_bytes or self.declared.shared_bytes or 0

    def specialise(self, features: Features = PORTABLE, **constants: Any) -> SpecialisedText:
        """What a driver is given; a text has no constants."""
        if constants:
            raise BackendError(f"kernel {self.title}: a text has no constants; got {', '.join(constants)}")
        if features not in self._made:
            self._made[features] = _specialised(self, features)
        return self._made[features]


def _check(text: str, header: TextHeader, declared: TextDeclaration, values: Collection[str]) -> None:
    code = without_comments(text)
    names = tuple(buffer.name for buffer in header.buffers)
    for name in sorted(set(values) - set(declared.bindings)):
        used = next((use for use in uses(code, name) if re.match(r"\s*\[", code[use.end() :])), None)
        if used is not None or name in names:
            line = line_of(text, used.start()) if used else None
            raise TextError(f"it uses {name}, which is not among the bindings {declared.bindings}", line)
    if names != declared.bindings:
        raise TextError(f"its bindings are {names}; wanted those that were declared: {declared.bindings}")
    for buffer in header.buffers:
        if buffer.name in declared.writes and not buffer.written:
            raise TextError(f"{buffer.name} is declared as one that is only read; the kernel has to write it")
    wanted = (*declared.scalars, *(f"{name}_at" for name in names))
    fields = tuple(name for name, _ in header.fields)
    if fields != wanted:
        raise TextError(f"the struct of the scalars has {', '.join(fields)}; wanted {', '.join(wanted)}")
    if any(kind != "u32" for name, kind in header.fields[len(declared.scalars) :]):
        raise TextError("wanted u32 for the fields that say where values begin")
    if header.shared_bytes is None and declared.shared_bytes is None:
        raise TextError("its shared memory cannot be counted here; wanted the option shared_bytes")
    if header.shared_bytes is not None and declared.shared_bytes not in (None, header.shared_bytes):
        raise TextError(
            f"it has {header.shared_bytes} bytes of shared memory; declared: {declared.shared_bytes}"
        )
    if header.group not in (None, declared.group):
        raise TextError(
            f"its workgroup is {header.group}; wanted the one that was declared: {declared.group}"
        )


@dataclass(frozen=True, eq=False)
class SpecialisedText(Specialised):
    """A text for a device; see `Specialised`."""

    of: TextKernel = field(kw_only=True)

    @property
    def title(self) -> str:
        """The entry point, with what it belongs to."""
        return self.of.title

    @property
    def joinable(self) -> bool:
        """False: what a text declares is not known by name."""
        return False

    def wgsl(self, writable: Collection[str] = (), stored: bool = False, rolls: bool = False) -> str:
        """See `Specialised.wgsl`; loops are as they are."""
        self._is_in(WGSL)
        written = {*writable, *(buffer.name for buffer in self.buffers if buffer.writes)}
        return shown(bound_wgsl(self.of.text, self.of.header, written, self.shares, stored))

    def opencl(self) -> str:
        """OpenCL C. One text with several entry points is another one for each."""
        self._is_in(OPENCL_C)
        return shown(f"{self.of.text}\n// {self.name}\n")

    def _is_in(self, language: TextLanguage) -> None:
        if self.of.language is not language:
            self._fail(f"its text is {self.of.language.name}; the device wants {language.name}")

    def _with_shares(self, shares: Mapping[str, str]) -> Specialised:
        elements = {buffer.name: buffer.element for buffer in self.buffers}
        for name, other in shares.items():
            if self.of.language is OPENCL_C or elements[name] != elements[other]:
                self._fail(f"{name} and {other} cannot have one binding, which the device wants")
        return super()._with_shares(shares)

    def run_python(self, *arguments: Any, **more: Any) -> NoReturn:
        """A `BackendError`: nothing here knows the language."""
        self._fail(
            f"its text is {self.of.language.name}, which cannot be run in Python; a kernel in the language of"
            " graphml_gpu.language can"
        )

    def _fail(self, reason: str) -> NoReturn:
        raise BackendError(f"kernel {self.title}: {reason}")


def _specialised(kernel: TextKernel, features: Features) -> SpecialisedText:
    arguments, fields = tuple(kernel.arguments), kernel.header.fields
    tree = Tree(
        kernel.name,
        tuple(
            ArrayVariable(argument.name, "buffer", argument.element, None, argument.access)
            for argument in arguments
        ),
        tuple((scalar.name, SCALARS[scalar.kind]) for scalar in kernel.scalars),
        (),
        (),
        kernel.declared.group,
        [],
    )
    return SpecialisedText(
        kernel.name,
        {},
        features,
        kernel.declared.group,
        arguments,
        tuple(ScalarArgument(*scalar_field) for scalar_field in fields),
        kernel.shared_bytes,
        False,
        tree,
        of=kernel,
    )
