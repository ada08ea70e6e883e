"""What the error of a step says besides the driver's words. Knows nothing of drivers and steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphml.errors import BackendError

ADVICE = (
    "the step counts for nothing: what was held before it is still held, and Model.moved goes on with it on"
    " another backend; on the command line, --backend cpu"
)


@contextmanager
def of_a_step() -> Iterator[None]:
    """Raise a `BackendError` of the driver with what can be done then."""
    try:
        yield
    except BackendError as error:
        raise BackendError(f"{error}; {ADVICE}") from error
