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

import llvmlite.ir as ir
from numba.core import cgutils, compiler, cpu, types
from numba.core.codegen import Codegen, CodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.descriptors import TargetDescriptor
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError, new_error_context  # type: ignore[attr-defined]
from numba.core.funcdesc import PythonFunctionDescriptor
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_override,
    target_registry,
)
from numba.core.typed_passes import NoPythonBackend
from numba.core.untyped_passes import DeadBranchPrune, FixupArgs

from graphml.errors import BackendError
from graphml_cpu.frontend_passes import AssignOnce, ConstantOperands, InferTypes, StripPhis, Translate
from graphml_cpu.lowering_of_loops import KernelLower
from graphml_cpu.only_once import only_once
from graphml_cpu.typing_memo import KnownFunction, TypingContext

P = ParamSpec("P")
R = TypeVar("R")

TARGET = "graphml_cpu"


class _KernelTarget(CPU):  # type: ignore[misc]  # numba is untyped
    """The name under which numba's registries know this target; it inherits all that the CPU can do."""


class _IrLibrary(CodeLibrary):  # type: ignore[misc]  # numba is untyped
    """A numba code library that stops at the text of its own function, and knows whom that calls.

    Numba links all that a function calls into its library, and so on for those that call it: that is copied
    and checked again for every helper on the way to a kernel. And no text is parsed here: llvmlite works for
    one thread at a time, and another one may optimise a kernel meanwhile.
    """

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self._called: list[_IrLibrary] = []
        self._text = ""

    def add_ir_module(self, ir_module: ir.Module) -> None:
        self._raise_if_finalized()
        self._text += cgutils.normalize_ir_text(str(ir_module))

    def add_linking_library(self, library: _IrLibrary) -> None:
        library._ensure_finalized()
        self._called.append(library)

    def finalize(self) -> None:
        self._finalized = True

    def get_function(self, name: str) -> Any:
        raise NotImplementedError("kernels are not run by numba")

    def get_llvm_str(self) -> str:
        return self._text

    def get_asm_str(self) -> str:
        raise NotImplementedError("kernels are compiled by graphml_cpu.machine_code")

    def texts(self) -> tuple[str, ...]:
        """The modules of the function and of all that it calls, once each, callers first."""
        found = [self]
        for library in found:
            found += [one for one in dict.fromkeys(library._called) if one not in found]
        return tuple(one._text for one in found)


class _IrCodegen(Codegen):  # type: ignore[misc]
    """Makes `_IrLibrary`s; has no execution engine."""

    _library_class = _IrLibrary

    def _create_empty_module(self, name: str) -> ir.Module:
        return ir.Module(cgutils.normalize_ir_text(name))  # whom it is for, the back half says

    def _add_module(self, module: Any) -> None:
        raise NotImplementedError("kernels are not run by numba")


class _Kernel:
    """Stands where numba keeps the compiled function: a key that is unique to one overload."""


class _KernelContext(cpu.CPUContext):  # type: ignore[misc]
    @global_compiler_lock  # type: ignore[untyped-decorator]
    def init(self) -> None:
        self.is32bit = False
        self._internal_codegen = _IrCodegen()
        self._found: dict[Any, Any] = {}

    def get_function(self, fn: Any, sig: Any, _firstcall: bool = True) -> Any:
        """The code generator of a builtin for these argument types: looked for once.

        A kernel has thousands of operators of a few types, and before each numba looks for one whose operands
        are constants, which numbers and vectors do not have.
        """
        if not isinstance(fn, KnownFunction):
            return super().get_function(fn, sig, _firstcall)
        key = fn, sig
        if key not in self._found:
            try:
                self._found[key] = super().get_function(fn, sig, _firstcall)
            except NotImplementedError as error:
                if not any(isinstance(one, types.Literal) for one in sig.args):
                    raise  # a module that is imported later may bring it
                self._found[key] = str(error)
        found = self._found[key]
        if isinstance(found, str):
            raise NotImplementedError(found)
        return found

    def pair_first(self, builder: ir.IRBuilder, val: ir.Value, ty: Any) -> ir.Value:
        return builder.extract_value(val, 0)

    def pair_second(self, builder: ir.IRBuilder, val: ir.Value, ty: Any) -> ir.Value:
        return builder.extract_value(val, 1)

    def post_lowering(self, mod: ir.Module, library: _IrLibrary) -> None:
        """Leave numba's reference-counting runtime out."""

    def get_executable(self, library: _IrLibrary, fndesc: Any, env: Any) -> _Kernel:
        return _Kernel()


class _Descriptor(TargetDescriptor):  # type: ignore[misc]
    options = cpu.CPUTargetOptions

    @functools.cached_property
    def typing_context(self) -> TypingContext:
        return TypingContext()

    @functools.cached_property
    def target_context(self) -> _KernelContext:
        return _KernelContext(self.typing_context, TARGET)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(LoweringPass):  # type: ignore[misc]
    """Numba's lowering pass without wrappers, and without its statistics of reference counting.

    These are asked of LLVM before and after each function, and would wait for the thread that optimises.
    """

    _name = "graphml_cpu_lowering"

    def __init__(self) -> None:  # numba's is abstract
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        context, flags, library = state.targetctx, state.flags, state.library
        if library is None:
            library = state.library = context.codegen().create_library(state.func_id.func_qualname)
        described = PythonFunctionDescriptor.from_specialized_function(
            state.func_ir, state.typemap, state.return_type, state.calltypes,
            mangler=context.mangler, inline=flags.forceinline, noalias=flags.noalias, abi_tags=(),
        )  # fmt: skip
        with context.push_code_library(library):
            lower = KernelLower(context, library, described, state.func_ir, metadata=state.metadata)
            lower.lower()
        key = context.get_executable(library, described, lower.env)
        context.insert_user_function(key, described, [library])
        state["cr"] = compiler._LowerResult(described, lower.call_helper, cfunc=key, env=lower.env)
        return True


class _PassManager(PassManager):  # type: ignore[misc]
    """Numba's pass manager without events, timings, and without analysing the function anew after each pass.

    Passes that need the analysis make it themselves.
    """

    def _runPass(self, index: int, one: Any, state: Any) -> None:  # noqa: N802 - numba's name
        one.analysis = self._analysis
        with new_error_context("Pass {name}", name=one.name()):
            one.run_pass(state)


class _KernelCompiler(compiler.CompilerBase):  # type: ignore[misc]
    """Numba's passes less those that are for arrays, closures, lists, exceptions and reports."""

    PASSES = (
        Translate, FixupArgs, DeadBranchPrune, ConstantOperands, AssignOnce, DeadBranchPrune, InferTypes,
        StripPhis, _Lowering, NoPythonBackend,
    )  # fmt: skip

    def define_pipelines(self) -> list[PassManager]:
        passes = _PassManager(TARGET)
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


def _compile_overload(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How numba compiles the implementations of its own overloads (range, min, ...) for this target."""
    return inline


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


def lower(function: Callable[..., None], argument_types: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """`function`, returning nothing, as (texts of LLVM modules, name of the function in the first of them).

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
    # Numba keeps it for calls from other functions.
    _descriptor.target_context.remove_user_function(result.entry_point)
    return result.library.texts(), result.fndesc.llvm_func_name
