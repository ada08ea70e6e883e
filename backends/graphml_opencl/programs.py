"""Kernels as OpenCL programs, each text once; their binaries are kept on disk for later processes.

Texts that are new together are built together: to build a program takes PoCL 0.2 s whatever it holds, sixteen
kernels or one.

A driver runs a binary as it is: it is only taken from a folder that nobody else can write, and where it was
made from this very text, with these options, for this device and driver.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graphml_gpu.driver import Facts, compile_error
from graphml_gpu.language import Features, Specialised
from graphml_gpu.language.opencl import joined

from graphml import settings
from graphml.settings import TEXT, Setting
from graphml.system import cache_access

OPTIONS = Setting(
    "GRAPHML_OPENCL_OPTIONS",
    TEXT,
    None,
    "More options for OpenCL compilers; -cl-opt-disable compiles faster, runs slower.",
    shown="none",
)
_DIGEST = hashlib.sha256().digest_size
_TOGETHER = 16  # texts of a program at most: progress is reported in between
# PoCL keeps them itself, and makes every kernel once more, for any workgroup, for who asks for a binary.
_KEEPS_PROGRAMS = "Portable Computing Language"


def standard(features: Features) -> str:
    """The compiler's option for the version of OpenCL C that texts for these features need."""
    return "-cl-std=CL3.0" if features.subgroups or features.dot4 else "-cl-std=CL1.2"


class Programs:
    """The programs of a device."""

    def __init__(self, context: Any, device: Any, facts: Facts) -> None:
        _without_pickles()
        self._context, self._device = context, device
        self._options = [
            standard(facts.features()),
            *(OPTIONS() or "").split(),
        ]
        self._keeps = device.platform.name != _KEEPS_PROGRAMS
        self._by_kernel: dict[Specialised, tuple[Any, str]] = {}
        self._by_text: dict[str, tuple[Any, str]] = {}
        self._texts: dict[Specialised, str] = {}  # of those without a program yet: a layer's come again

    def kernel(self, kernel: Specialised) -> Any:
        """A kernel object of its own, whose arguments are not set."""
        import pyopencl

        if kernel not in self._by_kernel:
            text = self._text(kernel)
            if text not in self._by_text:
                try:
                    self._by_text[text] = self._program(text, self._options_of(kernel)), kernel.name
                except pyopencl.Error as error:
                    raise compile_error(kernel, text, str(error)) from error
            self._by_kernel[kernel] = self._by_text[text]
            self._texts.pop(kernel, None)
        return pyopencl.Kernel(*self._by_kernel[kernel])

    def make(self, kernels: Iterable[Specialised]) -> None:
        """Build the first of some kernels if it is new, and the next new ones with it.

        Where the compiler refuses a text all are left to `kernel`, which names it.
        """
        import pyopencl

        left: dict[str, Specialised] = {}
        for kernel in kernels:
            is_new = kernel.joinable and kernel not in self._by_kernel
            if is_new and (text := self._text(kernel)) not in self._by_text:
                left[text] = kernel
            if len(left) in (0, _TOGETHER):
                break
        if len(left) > 1:
            names = {text: f"{kernel.name}_{i}" for i, (text, kernel) in enumerate(left.items())}
            with contextlib.suppress(pyopencl.Error):
                together = joined({text: left[text].name for text in left}, names)
                program = self._program(together, self._options)
                self._by_text.update({text: (program, name) for text, name in names.items()})

    def _text(self, kernel: Specialised) -> str:
        if kernel not in self._texts:
            self._texts[kernel] = kernel.opencl()
        return self._texts[kernel]

    def _options_of(self, kernel: Specialised) -> list[str]:
        """Without the optimiser where the text is its author's and may negate what would be lost."""
        own = not kernel.joinable and not kernel.features.keeps_negated
        return [*self._options, "-cl-opt-disable"] if own else self._options

    def _program(self, text: str, options: list[str]) -> Any:
        import pyopencl

        identity = self._identity(text, options)
        path = self._path(identity) if self._keeps else None
        program = self._kept(path, identity, options) if path else None
        if program is None:
            program = self._built(pyopencl.Program(self._context, text), options)
            if path:
                with contextlib.suppress(OSError):  # a folder that cannot be written costs time only
                    _keep(path, identity, program.get_info(pyopencl.program_info.BINARIES)[0])
        return program

    def _kept(self, path: Path, identity: bytes, options: list[str]) -> Any:
        """The program of an earlier process; None if there is none, or none that the driver takes."""
        import pyopencl

        try:
            whole = cache_access.read_private(path)
        except OSError:
            return None
        digest, data = whole[:_DIGEST], whole[_DIGEST:]
        if _digest(identity, data) != digest:  # drivers crash on damaged binaries
            return None
        try:
            return self._built(pyopencl.Program(self._context, [self._device], [data]), options)
        except pyopencl.Error:
            return None

    def _built(self, program: Any, options: list[str]) -> Any:
        import pyopencl

        with warnings.catch_warnings():  # many drivers say something about every program
            warnings.simplefilter("ignore", pyopencl.CompilerWarning)
            return program.build(options=options, devices=[self._device], cache_dir=False)

    def _identity(self, text: str, options: list[str]) -> bytes:
        """All that decides about the binary of a text."""
        device = self._device
        of = (device.name, device.vendor, device.driver_version, device.version, *options, text)
        return hashlib.sha256("\0".join(of).encode()).digest()

    def _path(self, identity: bytes) -> Path | None:
        folder = settings.cache_folder() / "opencl"
        usable = cache_access.is_private(folder, "binaries of OpenCL kernels are not kept or loaded")
        return folder / identity.hex() if usable else None


def _without_pickles() -> None:
    """Switch off the cache of pyopencl itself, as PYOPENCL_NO_CACHE does: it unpickles files nobody checks.

    What it keeps there is Python code that sets the arguments of a kernel; it is kept in memory instead.
    """
    import pyopencl

    pyopencl._PYOPENCL_NO_CACHE = True
    from pyopencl import invoker  # it makes the file of the cache as it is imported, unless that is off

    make = invoker._generate_enqueue_and_set_args_module
    if not hasattr(make, "cache_info"):
        invoker._generate_enqueue_and_set_args_module = functools.cache(make)


def _digest(identity: bytes, data: bytes) -> bytes:
    """Of a binary and what it was made from: another program's file under this name is not this one's."""
    return hashlib.sha256(identity + data).digest()


def _keep(path: Path, identity: bytes, data: bytes) -> None:
    """Write a file that other processes see whole or not at all."""
    cache_access.make_private(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_digest(identity, data) + data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
