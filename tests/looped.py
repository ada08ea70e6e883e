"""Small cases as one test that names each case that fails: pytest's own work on a test is 2 ms.

Knows pytest alone.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

MOST = 10  # failures are shown with their tracebacks; of the others the names


def looped(
    names: str | tuple[str, ...],
    cases: Collection[Any],
    ids: Sequence[str] | Callable[[Any], str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, for cases that need no fixture of their own; all are tried.

    The test's fixtures are those of all cases together. A case may not skip: it would end the others unseen.
    """
    arguments = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    assert cases, f"no cases of {arguments}"

    def of_all(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def loop(**fixtures: Any) -> None:
            def case_of(values: tuple[Any, ...]) -> Callable[[], None]:
                return lambda: test(**fixtures, **dict(zip(arguments, values, strict=True)))

            try_all(
                (_name(case, at, ids), case_of(case if len(arguments) > 1 else (case,)))
                for at, case in enumerate(cases)
            )

        others = [one for name, one in signature.parameters.items() if name not in arguments]
        loop.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return loop

    return of_all


def try_all(cases: Iterable[tuple[str, Callable[[], None]]]) -> None:
    """Try all cases, each with its name, and fail with the names and errors of those that fail."""
    failed, count = [], 0
    for name, case in cases:
        count += 1
        try:
            case()
        except (Exception, pytest.fail.Exception, pytest.skip.Exception):
            failed.append((name, traceback.format_exc(limit=-3)))
    if failed:
        told = [f"[{name}]\n{error}" for name, error in failed[:MOST]]
        told += [f"[{name}]" for name, _ in failed[MOST:]]
        pytest.fail(f"{len(failed)} of {count} cases:\n" + "\n".join(told), pytrace=False)


def _name(case: Any, at: int, ids: Sequence[str] | Callable[[Any], str] | None) -> str:
    if ids is None:
        return "-".join(map(str, case)) if isinstance(case, tuple) else str(case)
    return ids(case) if callable(ids) else ids[at]
