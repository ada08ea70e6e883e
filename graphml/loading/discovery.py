"""Discovery of backends and architectures through entry points, for built-in and third-party ones alike.

Groups: `graphml.backends` (each entry a `graphml.backend.Backend`), `graphml.architectures` (each entry a
package with one module per architecture, or one such module).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from graphml.backend import Backend
from graphml.errors import ArchitectureError, BackendError, GraphmlError, UsageError, did_you_mean
from graphml.ir import op_table
from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.ir.op import Op
from graphml.loading.architecture import OUTPUTS, Architecture, Tensors, described
from graphml.loading.huggingface.family import Family
from graphml.loading.rank import PLAIN, Rank
from graphml.options.argument_checks import whole_number


@functools.cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group; they are read once, which takes milliseconds where many packages are."""
    return tuple(entry_points(group=group))


def backend_names() -> list[str]:
    """The installed backends by name."""
    return sorted(entry.name for entry in installed("graphml.backends"))


def is_backend(name: str) -> bool:
    """Whether a backend has this name, or is one of a kind: KIND.NAME."""
    kind, _, of_kind = name.partition(".")
    kinds = {entry.name for entry in installed("graphml.backend_kinds")}
    return name in backend_names() or (kind in kinds and of_kind.isidentifier())


@functools.cache
def backend(name: str) -> Backend:
    """The backend called `name`; a `BackendError` lists the installed ones.

    KIND.NAME is one of several of a kind: the entry KIND of the group is a function from NAME to a backend.
    """
    kind, _, of_kind = name.partition(".")
    for entry in installed("graphml.backend_kinds") if of_kind.isidentifier() else ():
        if entry.name == kind:
            return _loaded(entry, name, lambda function: function(of_kind))
    for entry in installed("graphml.backends"):
        if entry.name == name:
            return _loaded(entry, name, lambda value: value)
    raise BackendError(
        f"no backend {name!r} is installed; installed: {', '.join(backend_names())}. "
        "docs/gpu.md says what to install for a GPU"
    )


def _loaded(entry: EntryPoint, name: str, backend_of: Callable[[Any], Any]) -> Backend:
    try:
        loaded = backend_of(entry.load())
    except (ImportError, OSError) as error:  # a dependency is not installed or cannot be loaded
        raise BackendError(f"backend {name!r} cannot be imported: {error}") from error
    if not isinstance(loaded, Backend):
        raise BackendError(f"entry point {entry.value!r} of backend {name!r} is no Backend: {loaded!r}")
    return loaded


@dataclass(frozen=True)
class _Ran:
    """A file that was run: the hash of its content, its module, and the ops that it declared."""

    digest: str
    module: ModuleType
    ops: tuple[Op, ...]


_ran: dict[Path, _Ran] = {}
FILE_MODULE = "graphml_file_"
"""What the name of the module of a file begins with."""


def run_file(path: Path, what: str, error: type[GraphmlError]) -> ModuleType:
    """The module of a Python file, which is run, so it must be trusted; `error` if it cannot be run.

    A file that was run already and has not changed is not run again: an op has one declaration. What it
    declared is forgotten before it is run anew.
    """
    if not path.is_file():
        raise error(f"{path}: no such {what}")
    place, content = path.resolve(), path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    known = _ran.get(place)
    if known and known.digest == digest and all(op_table.own_op(op.name) is op for op in known.ops):
        return known.module
    op_table.forget_file(place)
    module = _run(path, content, error)
    _ran[place] = _Ran(digest, module, tuple(op_table.declared_in(place)))
    return module


def _run(path: Path, content: bytes, error: type[GraphmlError]) -> ModuleType:
    spec = importlib.util.spec_from_file_location(FILE_MODULE + path.stem, path)
    if spec is None or spec.loader is None:
        raise error(f"{path}: wanted a Python file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses resolve annotations that are texts there
    try:
        # The content itself: Python's own cache takes a file for the same if it has the same size and second.
        exec(compile(content, str(path), "exec", dont_inherit=True), vars(module))
    except Exception as reason:
        del sys.modules[spec.name]
        op_table.forget_file(path.resolve())
        raise error(f"{path}: cannot be run: {described(reason)}") from reason
    return module


def backend_from_file(path: Path) -> Backend:
    """The `BACKEND` of a Python file; the file is run, so it must be trusted."""
    module = run_file(path, "file of a backend", BackendError)
    backend = getattr(module, "BACKEND", None)
    if not isinstance(backend, Backend):
        raise BackendError(f"{path}: wanted BACKEND, a graphml.backend.Backend; got {backend!r}")
    return backend


def function_from_file(path: Path, name: str) -> Callable[..., Any]:
    """The function of this name of a Python file; the file is run, so it must be trusted."""
    function = getattr(run_file(path, "file of a function", UsageError), name, None)
    if not callable(function):
        raise UsageError(f"{path}: wanted a function {name!r}, got {function!r}")
    return cast("Callable[..., Any]", function)


def functions_from_file(path: Path) -> tuple[Callable[..., Any], ...]:
    """The public functions that a Python file defines, in their order; the file is run, as above."""
    module = run_file(path, "file of functions", UsageError)
    functions = [
        function
        for name, function in vars(module).items()
        if isfunction(function) and not name.startswith("_")
    ]
    own = tuple(function for function in functions if function.__module__ == module.__name__)
    if not own:
        raise UsageError(f"{path}: wanted functions whose names do not begin with _, got none")
    return own


@functools.cache
def _architecture_modules() -> Mapping[str, str]:
    """GGUF's architecture name -> module path; modules that begin with `_` are shared parts."""
    modules = {}
    for entry in installed("graphml.architectures"):
        spec = importlib.util.find_spec(entry.value)
        if spec is None:
            raise ArchitectureError(
                f"entry point {entry.name!r} names {entry.value!r}, which cannot be imported"
            )
        if spec.submodule_search_locations is None:
            modules[entry.name] = entry.value
            continue
        for module in pkgutil.iter_modules(spec.submodule_search_locations):
            if not module.name.startswith("_") and not module.ispkg:
                modules[module.name.replace("_", "-")] = f"{entry.value}.{module.name}"
    return modules


def _modules_within(folder: str) -> Iterator[str]:
    """Paths of the modules of a package within each package of architectures."""
    for entry in installed("graphml.architectures"):
        package = importlib.util.find_spec(entry.value)
        if package is None or package.submodule_search_locations is None:
            continue
        inner = importlib.util.find_spec(f"{entry.value}.{folder}")
        for info in pkgutil.iter_modules(inner.submodule_search_locations or [] if inner else []):
            if not info.name.startswith("_"):
                yield f"{entry.value}.{folder}.{info.name}"


@functools.cache
def families() -> Mapping[str, Family]:
    """The mappings of folders of Hugging Face transformers, by model_type.

    They are in the package `huggingface` of a package of architectures, one module each.
    """
    by_model_type: dict[str, Family] = {}
    for path in _modules_within("huggingface"):
        module = importlib.import_module(path)
        family = _family_of(module)
        if family is None and hasattr(module, "REFUSED"):
            continue
        if family is None:
            raise ArchitectureError(f"{path} has no FAMILY")
        by_model_type |= dict.fromkeys(family.kinds, family)
    return by_model_type


@functools.cache
def refused_folders() -> Mapping[str, str]:
    """Model_types of folders that cannot be opened -> why, by the `REFUSED` of modules beside `families`."""
    modules = map(importlib.import_module, _modules_within("huggingface"))
    return {kind: why for module in modules for kind, why in getattr(module, "REFUSED", {}).items()}


@functools.cache
def drafters() -> Mapping[str, str]:
    """Name -> module of the architectures that draft for another model from its hidden rows.

    They are in the package `drafters` of a package of architectures, with `Config` and `ahead`, no `build`.
    """
    return {path.rpartition(".")[2].replace("_", "-"): path for path in _modules_within("drafters")}


class DraftingArchitecture(NamedTuple):
    """One of `drafters`: of `architecture` `ahead` is all; the others: see `graphml_models.drafters`.

    correcting: as an architecture, of files with one of the tensors `corrects`.
    """

    architecture: Architecture
    form: str
    unread: tuple[str, ...]
    correcting: Architecture | None
    corrects: tuple[str, ...]


def drafter(name: str) -> DraftingArchitecture:
    """One of `drafters` by name."""
    module = importlib.import_module(drafters()[name])

    def build(g: Builder, config: Any, weights: Tensors) -> Node:
        raise ArchitectureError(_why_not(name))

    architecture = Architecture(name, module.Config.read, build, ahead=module.ahead)
    correct = getattr(module, "correct", None)
    correcting = None if correct is None else replace(architecture, ahead=correct)
    unread, corrects = getattr(module, "UNREAD", ()), getattr(module, "CORRECTS", ())
    return DraftingArchitecture(architecture, module.FORM, unread, correcting, corrects)


def _why_not(name: str) -> str:
    return (
        f"architecture {name!r} is no model of its own: it drafts for another one, from its hidden rows; "
        "open that one with draft_model (--model-draft)"
    )


def family_from_file(path: Path) -> Family | None:
    """The `FAMILY` of an architecture file, if it has one; the file is run, so it must be trusted."""
    return _family_of(run_file(path, "architecture file", ArchitectureError))


def _family_of(module: ModuleType) -> Family | None:
    family = getattr(module, "FAMILY", None)
    if family is not None and not isinstance(family, Family):
        raise ArchitectureError(
            f"{module.__file__}: FAMILY: wanted a graphml.loading.huggingface.family.Family; got {family!r}"
        )
    return family


IMPORTED = "imported"
"""What files of `graphml import` call their architecture, and what its name begins with."""
DEFINITION = "graphml.definition.sha256"
"""The key of the definition, an architecture file, that the tensors of a file are laid out for."""


def architecture_names() -> list[str]:
    """The known architectures."""
    return sorted(_architecture_modules())


def architecture(name: str) -> Architecture:
    """The architecture that GGUF calls `name`; an `ArchitectureError` names the nearest and all known."""
    modules, called = _architecture_modules(), name
    name = name.replace("_", "-")  # a few are written with `_`: seed_oss
    if name in drafters():
        raise ArchitectureError(_why_not(name))
    if name == IMPORTED or name.startswith(f"{IMPORTED}-"):
        raise ArchitectureError(
            f"architecture {called!r}: its definition is the file that `graphml import` wrote with this one: "
            "give that as arch (--arch FILE.py)"
        )
    if name not in modules:
        hint = did_you_mean(name, modules, 1)
        raise ArchitectureError(
            f"unknown architecture {called!r}.{hint} Known: {', '.join(architecture_names())}. To add one, "
            "write a file with Config and build (docs/architectures.md) and give it as arch (--arch FILE.py)."
        )
    return _from_module(name, importlib.import_module(modules[name]))


def architecture_from_file(path: Path) -> Architecture:
    """The architecture that a Python file defines; the file is run, so it must be trusted."""
    module = run_file(path, "architecture file", ArchitectureError)
    return _from_module(path.stem.replace("_", "-"), module)


def _from_module(name: str, module: ModuleType) -> Architecture:
    missing = [wanted for wanted in ("Config", "build") if not hasattr(module, wanted)]
    if missing:
        raise ArchitectureError(f"{module.__file__}: architecture {name!r} has no {missing[0]}")
    if not callable(getattr(module.Config, "read", None)):
        raise ArchitectureError(f"{module.__file__}: Config of architecture {name!r} has no read(keys)")
    output, rank = getattr(module, "OUTPUT", OUTPUTS[0]), getattr(module, "RANK", PLAIN)
    if output not in OUTPUTS:
        raise ArchitectureError(
            f"{module.__file__}: OUTPUT: wanted one of {', '.join(OUTPUTS)}; got {output!r}"
        )
    if not isinstance(rank, Rank):
        raise ArchitectureError(f"{module.__file__}: RANK: wanted a graphml.loading.rank.Rank; got {rank!r}")
    diffusion, causal = getattr(module, "DIFFUSION", None), bool(getattr(module, "CAUSAL", True))
    if diffusion is not None and (causal or whole_number(diffusion) is None or diffusion < 0):
        raise ArchitectureError(
            f"{module.__file__}: DIFFUSION: wanted the length of a block, or 0, with CAUSAL = False; "
            f"got {diffusion!r} and CAUSAL = {causal}"
        )
    return Architecture(
        name, module.Config.read, module.build, getattr(module, "sample", None),
        causal, output, rank, getattr(module, "encode", None),
        getattr(module, "ahead", None), diffusion,
    )  # fmt: skip
