"""Numba's passes for kernels: what they decide, without the analyses that only other functions need.

After every pass numba finds anew which variables are live where: for generators, for deletions and for loops
that become functions of their own. It rewrites prints and raises, looks for `with`, and types every statement
over and over until no type changes, at least twice. Knows numba; nothing of kernels.
"""

from __future__ import annotations

from typing import Any

from numba.core import ir_utils, ssa, transforms
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.errors import NumbaError
from numba.core.interpreter import Interpreter
from numba.core.rewrites.static_binop import DetectStaticBinops
from numba.core.rewrites.static_getitem import RewriteConstGetitems, RewriteConstSetitems
from numba.core.typed_passes import PreLowerStripPhis
from numba.core.typeinfer import TypeInferer, TypeVarMap

_FOR_OTHERS = {
    f"peep_hole_{what}" for what in ("split_at_pop_block", "delete_with_exit", "fuse_dict_add_updates")
}


class _Interpreter(Interpreter):  # type: ignore[misc]  # numba is untyped
    """Byte code -> numba's intermediate form, of functions without `try`, `with` and dictionaries."""

    def post_process(self, peepholes: Any, func_ir: Any) -> Any:
        return super().post_process([one for one in peepholes if one.__name__ not in _FOR_OTHERS], func_ir)


class _Pass(FunctionPass):  # type: ignore[misc]
    def __init__(self) -> None:  # numba's is abstract
        super().__init__()


@register_pass(mutates_CFG=True, analysis_only=False)
class Translate(_Pass):
    """Read the byte code; each loop gets one jump back to its beginning."""

    _name = "graphml_cpu_translate"

    def run_pass(self, state: Any) -> bool:
        """See numba's `TranslateByteCode` and `IRProcessing`."""
        func_ir = state.func_ir = _Interpreter(state.func_id).interpret(state.bc)
        func_ir.blocks = transforms.canonicalize_cfg(func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class ConstantOperands(_Pass):
    """Mark items of tuples and powers whose index or exponent is known."""

    _name = "graphml_cpu_constant_operands"

    REWRITES = (DetectStaticBinops, RewriteConstGetitems, RewriteConstSetitems)

    def run_pass(self, state: Any) -> bool:
        """See numba's `GenericRewrites`."""
        blocks = state.func_ir.blocks
        for rewrite in (kind(state) for kind in self.REWRITES):
            for key in blocks:
                while rewrite.match(state.func_ir, blocks[key], state.typemap, state.calltypes):
                    blocks[key] = rewrite.apply()
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class AssignOnce(_Pass):
    """Static single assignment: each assignment gets a variable of its own."""

    _name = "graphml_cpu_assign_once"

    def run_pass(self, state: Any) -> bool:
        """See numba's `ReconstructSSA`."""
        state.func_ir = ssa.reconstruct_ssa(state.func_ir)
        state.func_ir._definitions = ir_utils.build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class StripPhis(_Pass):
    """Assign where control comes from what static single assignment joins."""

    _name = "graphml_cpu_strip_phis"

    def run_pass(self, state: Any) -> bool:
        """See numba's `PreLowerStripPhis`."""
        state.func_ir = PreLowerStripPhis._strip_phi_nodes(self, state.func_ir)
        state.func_ir._definitions = ir_utils.build_definitions(state.func_ir.blocks)
        return True


class _Variables(TypeVarMap):  # type: ignore[misc]
    """The types of a function's variables. read: those that were looked at since it was set."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[Any] = set()

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        self.read.add(found)
        return found


class _Inference(TypeInferer):  # type: ignore[misc]
    """Numba's inference; a statement is typed again only once a type that it reads has changed."""

    def __init__(self, context: Any, func_ir: Any) -> None:
        super().__init__(context, func_ir, None)
        self.typevars = _Variables()
        self.typevars.set_context(context)

    def propagate(self, raise_errors: bool = True) -> list[NumbaError]:
        """Type all statements until no type changes; the first error that is left then is raised."""
        done: dict[Any, list[tuple[Any, Any]]] = {}
        before, errors = None, list[NumbaError]()
        while (now := [variable.type for variable in self.typevars.values()]) != before:
            before, errors = now, []
            for one in self.constraints.constraints:
                if one in done and all(variable.type is kind for variable, kind in done[one]):
                    continue
                read = self.typevars.read = set()
                try:
                    one(self)
                except NumbaError as error:
                    errors.append(error)
                else:
                    done[one] = [(variable, variable.type) for variable in read]
        if errors and raise_errors:
            raise errors[0]
        return errors


@register_pass(mutates_CFG=True, analysis_only=False)
class InferTypes(_Pass):
    """Find the type of each variable and of each call."""

    _name = "graphml_cpu_infer_types"

    def run_pass(self, state: Any) -> bool:
        """See numba's `NopythonTypeInference`."""
        context, func_ir = state.typingctx, state.func_ir
        inference = _Inference(context, func_ir)
        with context.callstack.register(state.targetctx.target, inference, func_ir.func_id, state.args):
            for index, (name, kind) in enumerate(zip(func_ir.arg_names, state.args, strict=True)):
                inference.seed_argument(name, index, kind)
            if state.return_type is not None:
                inference.seed_return(state.return_type)
            inference.build_constraint()
            inference.propagate()
            state.typemap, state.return_type, state.calltypes = inference.unify()
        return True
