"""What wgpu-native reports, as `BackendError`s.

wgpu-py raises what a call of its own reports; for calls past its wrappers (`encode`) it would only log it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphml.errors import BackendError


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Raise what goes wrong within as a `BackendError` that begins with `what`."""
    import wgpu

    try:
        yield
    except wgpu.GPUOutOfMemoryError as error:
        raise BackendError(f"{what}: the device has no memory left: {error}") from error
    except (wgpu.GPUError, RuntimeError) as error:
        raise BackendError(f"{what}: {error}") from error


@contextmanager
def captured(handler: Any) -> Iterator[None]:
    """Raise the error that direct calls of the library within report to wgpu-py's error handler."""
    handler.capture("graphml")
    try:
        yield
    finally:
        found = handler.release("graphml")
    if found is not None:
        raise BackendError(f"wgpu: {found[0]}: {found[1]}")
