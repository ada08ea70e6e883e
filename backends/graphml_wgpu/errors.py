"""What wgpu-native reports, as `BackendError`s.

wgpu-py raises what a call of its own reports; for calls past its wrappers (`encode`) it would only log it.
Two calls of wgpu-native report nothing and end the process instead: submitting, and waiting. So commands are
checked before they are submitted (`Queue.encode`), buffers that are gone are found first
(`graphml_gpu.buffers.Used`), and a device known to be lost refuses the first call of every submit. A loss
that shows itself within one of the two calls ends the process, with wgpu-native's words on stderr.
"""

from __future__ import annotations

import logging
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
    except (wgpu.GPUError, RuntimeError, ValueError) as error:
        raise BackendError(f"{what}: {error}") from error


@contextmanager
def captured(handler: Any) -> Iterator[None]:
    """Raise the error that direct calls of the library within report to wgpu-py's error handler."""
    handler.capture("graphml")
    try:
        yield
    finally:
        error = handler.release("graphml")
    if error is not None:
        raise BackendError(f"wgpu: {error[0]}: {error[1]}")


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep wgpu from logging that a device is lost where we give it back ourselves."""

    def wanted(record: logging.LogRecord) -> bool:
        return "lost" not in record.getMessage().lower()

    logger = logging.getLogger("wgpu")
    logger.addFilter(wanted)
    try:
        yield
    finally:
        logger.removeFilter(wanted)
