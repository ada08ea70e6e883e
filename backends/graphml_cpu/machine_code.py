"""LLVM IR text -> object code for the level of this process -> addresses of functions in memory.

Knows llvmlite only: no front end, no cache, no kernels. One execution engine serves the process.
"""

from __future__ import annotations

import functools
import os
import re
import struct
import threading
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm

from graphml.errors import BackendError
from graphml_cpu import target

_lock = threading.Lock()
_loaded: dict[str, tuple[int, Any]] = {}


_TRIPLES = {"x86": "x86_64-unknown-linux-gnu", "arm": "aarch64-unknown-linux-gnu"}


@functools.cache
def _triple() -> str:
    """Whom code is made for: this process, or a Linux on the other architecture that the level is of."""
    architecture = target.current().architecture
    if architecture in ("generic", target.host_architecture()):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        return str(llvm.get_process_triple())
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return _TRIPLES[architecture]


def _target_machine() -> Any:
    """A new target machine for the level (an execution engine takes ownership of its own)."""
    level = target.current()
    # Code and its constants are loaded side by side, so relative addresses of 32 bits reach; Windows' loader
    # only takes ELF objects, which LLVM makes for the large model.
    windows = os.name == "nt"
    return llvm.Target.from_triple(_triple()).create_target_machine(
        cpu=level.cpu,
        features=level.features,
        opt=3,
        reloc="default" if windows else "pic",
        codemodel="jitdefault" if windows else "small",
        jit=windows,
    )


@functools.cache
def _compiling_machine() -> Any:
    return _target_machine()


_DEFINITION = re.compile(r"^(define .*)\n?\{$", re.MULTILINE)


def _linked(texts: Sequence[str]) -> Any:
    """One module of several; a function that several of them need comes once."""
    machine = _compiling_machine()
    linked = None
    for text in texts:
        # A loop that clears or copies memory must stay one: nothing outside may be called.
        module = llvm.parse_assembly(_DEFINITION.sub(r'\1"no-builtins" {', text))
        module.data_layout = str(machine.target_data)
        module.triple = machine.triple
        if linked is None:
            linked = module
        else:
            linked.link_in(module)
    return linked


def _simplification() -> Any:
    """The passes that kernels need, whose front end emits values and whole vectors (decision 92).

    Without LICM, unrolling and unswitching: what must not be done in each round stands before the loop.
    """
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.add_new_gvn_pass()
    passes.add_loop_rotate_pass()
    passes.add_instruction_combine_pass()
    passes.add_dead_store_elimination_pass()
    passes.add_simplify_cfg_pass()
    return passes


def _optimised(texts: Sequence[str]) -> Any:
    machine = _compiling_machine()
    module = _linked(texts)
    for function in module.functions:
        # Only the entry is called from outside; what is inlined everywhere need not be kept.
        if not function.is_declaration and not function.name.startswith("graphml_"):
            function.linkage = "internal"
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    inlining = llvm.create_new_module_pass_manager()
    inlining.add_always_inliner_pass()
    inlining.add_global_dead_code_eliminate_pass()
    inlining.run(module, builder)
    simplification = _simplification()
    for function in module.functions:
        if not function.is_declaration:
            simplification.run(function, builder)
    return module


def compile_texts(texts: Sequence[str], name: str) -> tuple[bytes, tuple[str, ...]]:
    """Object code of IR modules, and the external symbols that it needs (none); `name` is for errors only.

    Raises `BackendError` for code that calls a function outside, such as one of the C library.
    """
    return _object(_optimised(texts), name)


def compile_and_list(texts: Sequence[str], name: str) -> tuple[bytes, tuple[str, ...], str]:
    """As `compile_texts`, and the assembly of the same code."""
    module = _optimised(texts)
    listed = module.clone()  # making code of a module changes it
    return *_object(module, name), str(_compiling_machine().emit_assembly(listed))


_CALL = re.compile(r"^\s+(?:bl?|callq?|jmp)\s+([A-Za-z_]\w*)(?:@PLT)?\s*$", re.MULTILINE)
_LABEL = re.compile(r"^([A-Za-z_][\w.]*):", re.MULTILINE)


def list_texts(texts: Sequence[str], name: str) -> str:
    """The assembly alone, in half the time: for levels that this host lacks, whose code nobody runs.

    Raises `BackendError` as `compile_texts`.
    """
    listing = str(_compiling_machine().emit_assembly(_optimised(texts)))
    _check_externals(tuple(sorted(set(_CALL.findall(listing)) - set(_LABEL.findall(listing)))), name)
    return listing


def _object(module: Any, name: str) -> tuple[bytes, tuple[str, ...]]:
    code = bytes(_compiling_machine().emit_object(module))
    declared = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")}
    externals = tuple(sorted(declared | set(_undefined_symbols(code))))
    _check_externals(externals, name)
    return code, externals


def _check_externals(externals: tuple[str, ...], name: str) -> None:
    """Refuse what llvmlite's memory manager would end the process over: it has no room for a call's stub."""
    if externals:
        raise BackendError(
            f"kernel {name} calls {', '.join(externals)}; a kernel may call no function outside"
        )


@functools.cache
def _engine() -> Any:
    missing = target.missing_features(target.current().name)
    if missing:
        raise BackendError(
            f"kernels compiled for {target.current().name} do not run here: this processor lacks "
            f"{', '.join(missing)}"
        )
    module = llvm.parse_assembly("")
    # llvmlite's memory manager keeps the sections of one object together, as the small code model needs.
    return llvm.create_mcjit_compiler(module, _target_machine(), use_lmm=os.name != "nt")


def load(code: bytes, symbol: str, externals: tuple[str, ...]) -> int:
    """Put an object into memory; the address of its function `symbol`. The same symbol is loaded once."""
    with _lock:
        if symbol in _loaded:
            return _loaded[symbol][0]
        _check_externals(externals, symbol)
        engine = _engine()
        reference = llvm.ObjectFileRef.from_data(code)
        engine.add_object_file(reference)
        engine.finalize_object()
        address = int(engine.get_function_address(symbol))
        if not address:
            raise BackendError(f"the compiled object has no function {symbol}")
        _loaded[symbol] = (address, code)
        return address


def _undefined_symbols(code: bytes) -> list[str]:
    """Names that an ELF object of 64 bits leaves to others; other kinds of object give none."""
    if code[:5] != b"\x7fELF\x02":
        return []
    table, entry_size, count = struct.unpack_from("<Q", code, 40)[0], *struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + entry_size * i) for i in range(count)]
    symbols = []
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != 2:  # the symbol table
            continue
        names = sections[link][4]
        for at in range(offset, offset + size, 24):
            name, _, _, section = struct.unpack_from("<IBBH", code, at)
            if name and section == 0:
                symbols.append(code[names + name : code.index(b"\0", names + name)].decode())
    # What position-independent code calls its own table of addresses is no function.
    return [name for name in symbols if name != "_GLOBAL_OFFSET_TABLE_"]
