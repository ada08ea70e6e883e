"""Python function -> LLVM IR: numba's front half on a target of its own, without numba's code generation.

Kernels and the helpers they call are typed and lowered by numba, linked, and handed on as IR that no
optimiser has touched: the back half (`graphml_cpu.machine_code`) alone decides which instructions are used.
The target has no reference counting, no object mode, no exceptions: kernels work on addresses and numbers.
Importing this module imports numba; the warm path never does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import llvmlite.binding as llvm
import llvmlite.ir as ir
from numba.core import compiler, cpu, types, typing
from numba.core.codegen import CPUCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager
from numba.core.descriptors import TargetDescriptor
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_override,
    target_registry,
)
from numba.core.typed_passes import (
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    TranslateByteCode,
)

from graphml.errors import BackendError
from graphml_cpu.only_once import only_once

P = ParamSpec("P")
R = TypeVar("R")

TARGET = "graphml_cpu"


class _KernelTarget(CPU):  # type: ignore[misc]  # numba is untyped
    """The name under which numba's registries know this target; it inherits all that the CPU can do."""


class _IrLibrary(CPUCodeLibrary):  # type: ignore[misc]
    """A numba code library that stops at unoptimised IR, each with its own function alone.

    Numba links all that a function calls into its library, and so on for those that call it: that is copied
    and checked again for every helper on the way to a kernel.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        self._raise_if_finalized()
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        """The module itself: no copy is kept beside it, since nobody runs what it has."""
        self._ensure_finalized()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"  # may come several times into one module
        return self._final_module

    def linked(self) -> str:
        """The text of a module with the function and all that it calls, once each."""
        found = [self]
        for library in found:  # callers first: what nobody in the module calls is not linked
            found += [one for one in dict.fromkeys(library._linking_libraries) if one not in found]
        for library in found[1:]:
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        return str(self._final_module)


class _IrCodegen(JITCPUCodegen):  # type: ignore[misc]
    """Makes `_IrLibrary`s, and never hands a module to numba's execution engine."""

    _library_class = _IrLibrary

    def _add_module(self, module: Any) -> None:
        pass


class _Kernel:
    """Stands where numba keeps the compiled function: a key that is unique to one overload."""


class _KernelContext(cpu.CPUContext):  # type: ignore[misc]
    @global_compiler_lock  # type: ignore[untyped-decorator]
    def init(self) -> None:
        self.is32bit = False
        self._internal_codegen = _IrCodegen(TARGET)

    def post_lowering(self, mod: ir.Module, library: _IrLibrary) -> None:
        """Leave numba's reference-counting runtime out."""

    def get_executable(self, library: _IrLibrary, fndesc: Any, env: Any) -> _Kernel:
        return _Kernel()


class _Descriptor(TargetDescriptor):  # type: ignore[misc]
    options = cpu.CPUTargetOptions

    @functools.cached_property
    def typing_context(self) -> typing.Context:
        return typing.Context()

    @functools.cached_property
    def target_context(self) -> _KernelContext:
        return _KernelContext(self.typing_context, TARGET)


class _KernelCompiler(compiler.CompilerBase):  # type: ignore[misc]
    """Numba's passes less those that are for arrays, closures, lists, exceptions and reports."""

    PASSES = (
        TranslateByteCode, FixupArgs, IRProcessing, DeadBranchPrune, GenericRewrites, ReconstructSSA,
        DeadBranchPrune, NopythonTypeInference, PreLowerStripPhis, IRLegalization, NativeLowering,
        NoPythonBackend,
    )  # fmt: skip

    def define_pipelines(self) -> list[PassManager]:
        passes = PassManager(TARGET)
        for one in self.PASSES:
            passes.add_pass(one, one._name)
        passes.finalize()
        return [passes]


_descriptor = _Descriptor(TARGET)


class _KernelDispatcher(Dispatcher):
    targetdescr = _descriptor

    def compile(self, sig: Any) -> Any:
        with target_override(TARGET):
            return super().compile(sig)

    def add_overload(self, cres: Any) -> None:
        """Remember what was compiled, without numba's table for calls from Python and what typed it."""
        cres.fndesc.typemap = cres.fndesc.calltypes = None
        self.overloads[tuple(cres.signature.args)] = cres._replace(type_annotation=None, metadata=None)


target_registry[TARGET] = _KernelTarget
dispatcher_registry[_KernelTarget] = _KernelDispatcher

_OPTIONS: dict[str, Any] = {
    "nopython": True,
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
}


def _compile_overload(**options: Any) -> Callable[[Callable[..., Any]], _KernelDispatcher]:
    """How numba compiles the implementations of its own overloads (range, min, ...) for this target."""
    return lambda function: _KernelDispatcher(function, targetoptions={**_OPTIONS, "forceinline": True})


jit_registry[_KernelTarget] = _compile_overload


@only_once
def inline(function: Callable[P, R]) -> Callable[P, R]:
    """Make `function` callable from kernels; it is inlined wherever it is called.

    Its argument types are inferred per call, so one helper serves scalars and vectors of every width.
    """
    options = {**_OPTIONS, "forceinline": True}
    return cast(
        "Callable[P, R]",
        _KernelDispatcher(function, targetoptions=options, pipeline_class=_KernelCompiler),
    )


def lower(function: Callable[..., None], argument_types: tuple[str, ...]) -> tuple[str, str]:
    """`function`, returning nothing, as (text of an LLVM module, name of the function in it).

    `argument_types` are numba's names: `int64`, `float32`.
    Raises `BackendError` with numba's own words if the function cannot be typed or lowered.
    """
    flags = compiler.Flags()
    cpu.CPUTargetOptions.parse_as_flags(flags, _OPTIONS)
    try:
        with target_override(TARGET):
            result = compiler.compile_extra(
                _descriptor.typing_context,
                _descriptor.target_context,
                function,
                args=tuple(getattr(types, name) for name in argument_types),
                return_type=types.none,
                flags=flags,
                locals={},
                pipeline_class=_KernelCompiler,
            )
    except NumbaError as error:
        raise BackendError(f"kernel {function.__qualname__} ({function.__module__}): {error}") from error
    with global_compiler_lock:
        result.library.finalize()
        text = result.library.linked()
    # Numba keeps it for calls from other functions.
    _descriptor.target_context.remove_user_function(result.entry_point)
    return text, result.fndesc.llvm_func_name
