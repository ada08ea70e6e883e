"""Reads damaged files, case by case: each opens, or one error of graphml that names it refuses it.

    python -m tests.hostile.attacks [TARGET ...] --cases 2000 --first 0

A case is a number: it is the seed of what is done to the file. Knows targets, limits and what counts as
refused.
"""

from __future__ import annotations

import argparse
import logging
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphml.errors import GraphmlError
from tests.hostile.mutations import damage
from tests.hostile.targets import TARGETS, Target

HANGS_S = 20
LONGEST = 2000  # characters of an error
MOST_MEMORY = 200 << 20
ADDRESSES = 4 << 30  # of address space, beyond what the process has: a huge array fails at once


class HungError(BaseException):
    """A reader did not end; no `except Exception` takes it for an error of the file."""


@contextmanager
def within_limits(seconds: float = HANGS_S) -> Iterator[None]:
    """Within, warnings are errors, a call ends after so many seconds, and address space is bounded."""

    def hung(number: int, frame: object) -> None:
        raise HungError

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, limits = signal.signal(signal.SIGALRM, hung), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESSES, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


class Attack:
    """A target's files, written once; `case` damages and reads a copy."""

    def __init__(self, target: Target, folder: Path) -> None:
        self.target, self._valid, self._copies = target, folder / "valid", folder / "cases"
        self._valid.mkdir(parents=True)
        target.write(self._valid)
        target.read(self._copy("whole"))  # what is valid opens

    def _copy(self, name: str) -> Path:
        shutil.copytree(self._valid, self._copies / name)
        return self._copies / name / self.target.file

    def case(self, number: int, measured: bool = True) -> str:
        """How a case ended: `opened` or `refused`; an AssertionError says what is wrong otherwise."""
        path = self._copy(str(number))
        done, wrong = damage(path, self.target.kind, random.Random(number)), ""
        if measured:
            tracemalloc.start()
        begin = time.process_time()
        try:
            with within_limits():
                self.target.read(path)
            ended = "opened"
        except GraphmlError as error:
            ended = "refused"
            name = str(path.parent) if self.target.of_folder else path.name
            wrong = _wrong_refusal(name, error)
        except (Exception, HungError) as error:
            text = "".join(traceback.format_exception(error)[-12:])
            raise AssertionError(f"case {number} ({done}): {text[-3000:]}") from None
        finally:
            peak = tracemalloc.get_traced_memory()[1] if measured else 0
            tracemalloc.stop()
            self.seconds = time.process_time() - begin
            shutil.rmtree(self._copies / str(number))
        if peak > MOST_MEMORY:
            wrong = f"{peak >> 20} MiB"
        if wrong:
            raise AssertionError(f"case {number} ({done}): {wrong}")
        return ended


def _wrong_refusal(name: str, error: BaseException | None) -> str:
    """What is wrong with an error for a file of this name; "" for nothing."""
    text = str(error)
    if name not in text:
        return f"no name of the file: {text}"
    if len(text) > LONGEST:
        return f"an error of {len(text)} characters: {text[:500]}"
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__
    of_parser = error is None or traceback.extract_tb(error.__traceback__)[-1].name == "parse"
    return (
        "" if of_parser else f"wanted more memory than there is: {text}"
    )  # Python's parser says so of depth


def main() -> None:
    """Print for each target how its cases ended, and what failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", default=[])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    logging.disable()
    for name in asked.targets or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            attack, ended, slowest = Attack(TARGETS[name], Path(folder)), Counter[str](), 0.0
            for number in range(asked.first, asked.first + asked.cases):
                try:
                    ended[attack.case(number)] += 1
                except AssertionError as error:
                    ended["WRONG"] += 1
                    if ended["WRONG"] <= 4:
                        print(error, flush=True)
                slowest = max(slowest, attack.seconds)
            print(f"{name}: {dict(ended)}, slowest {slowest:.2f} s", flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
