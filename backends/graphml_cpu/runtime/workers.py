"""A team of worker threads that walk tapes together.

Knows Python's threads and the compiled walker; knows nothing of kernels or graphs. Between runs the workers
stay in compiled code: they spin for a while, then sleep in the system; no run needs the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref

import numpy as np
from numpy.typing import NDArray

from graphml import settings
from graphml.errors import BackendError, UsageError
from graphml_cpu.compiler import KernelRef, LoadedKernel, compile_kernels
from graphml_cpu.processors import core_order, physical_cores, usable_processors
from graphml_cpu.runtime import sync
from graphml_cpu.runtime.shares import ALL_SHARE
from graphml_cpu.runtime.tape import Tape
from graphml_cpu.runtime.team_size import TeamSize

MAX_THREADS = 256

_WALKER = "graphml_cpu.runtime.tape_walker"
_REFS = [
    KernelRef("tape-lead", _WALKER, "make_lead"),
    KernelRef("tape-serve", _WALKER, "make_serve"),
    KernelRef("tape-close", _WALKER, "make_close"),
]
_entry_type = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def _serve(address: int, block: NDArray[np.int64], words: NDArray[np.int64], ith: int, nth: int) -> None:
    """A worker thread: it keeps the shared memory alive, not the team, which may be collected meanwhile."""
    _entry_type(address)(block.ctypes.data, ith, nth)
    del words


def _shut_down(
    close: LoadedKernel, words: NDArray[np.int64], threads: list[threading.Thread], process: int
) -> None:
    if os.getpid() == process and threads:
        close(close.block(words=words.ctypes.data))
        for thread in threads:
            thread.join(timeout=1.0)
        threads.clear()


class Team:
    """`n_threads` threads: the caller's own and n_threads - 1 workers.

    Default: `GRAPHML_THREADS`, else the physical cores that this process may use. Threads that run tapes on
    one team take turns. A team does not survive a fork: `run` then raises `BackendError`.
    """

    def __init__(self, n_threads: int | None = None) -> None:
        wanted = n_threads or settings.threads() or physical_cores()
        if not 1 <= wanted <= MAX_THREADS:
            raise UsageError(f"threads: {wanted} is not between 1 and {MAX_THREADS}")
        self.n_threads = wanted
        self._lock = threading.Lock()
        self._process = os.getpid()
        words = sync.new_sync_memory(
            wanted, crowded=wanted > len(usable_processors()), shows_open=wanted > ALL_SHARE
        )
        # A memoryview: single words are read around each run, for which an array takes several times as long.
        self._words = words.data
        self._team_size = TeamSize(wanted)
        lines = range(sync.CLAIMS, sync.CLAIMS + wanted * sync.CLAIM_BYTES, sync.CLAIM_BYTES)
        self._late = [(line + sync.LATE) // 8 for line in lines]
        kernels = compile_kernels(_REFS)
        lead_block = kernels["tape-lead"].block(words=words.ctypes.data, table=0)
        self._lead_block, self._lead_address = lead_block.data, lead_block.ctypes.data
        self._lead = _entry_type(kernels["tape-lead"].address)
        serve = kernels["tape-serve"]
        block = serve.block(words=words.ctypes.data)
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(
            self, _shut_down, kernels["tape-close"], words, self._threads, self._process
        )
        for ith in range(1, wanted):
            thread = threading.Thread(
                target=_serve,
                args=(serve.address, block, words, ith, wanted),
                name=f"graphml-worker-{ith}",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError as error:  # the system's limit of threads, or of memory for their stacks
                self._finalizer()
                raise BackendError(
                    f"threads: wanted {wanted}, and the system gives {ith} ({error}); give fewer"
                ) from None
            self._threads.append(thread)

    def run(self, tape: Tape) -> bool:
        """Walk `tape` with all threads and return when it is finished; False if `stop` ended it early.

        Raises `BackendError` if the team is closed, is another process's, or has not the tape's threads.
        """
        if tape.n_threads != self.n_threads:
            raise BackendError(f"a tape for {tape.n_threads} threads on a team of {self.n_threads}")
        with self._lock:
            if os.getpid() != self._process:
                raise BackendError(
                    "the worker threads stayed in the parent process: after a fork, load the model anew"
                )
            if not self._finalizer.alive:
                raise BackendError("this team is closed")
            self._words[sync.STOP // 8] = 0
            self._lead_block[1] = tape.address
            free = self.n_threads > 1 and tape.anyone
            self._words[sync.LIMIT // 8] = self._team_size.limit if free else self.n_threads
            # One call does it all: an interrupt (Ctrl-C) waits until it is back; no worker is left waiting.
            self._lead(self._lead_address, 0, self.n_threads)
            if free:
                late = max(self._words[at] for at in self._late)
                self._team_size.ran(self._words[sync.TAKEN // 8], late, time.perf_counter())
            return not self._words[sync.STOPPED // 8]

    def pin(self) -> None:
        """Keep each worker on one processor, as `core_order` deals them out; the first is left to the caller.

        The caller's thread stays free. With more threads than processors several workers share one. Raises
        `BackendError` where the system has no such thing, or refuses it.
        """
        if not hasattr(os, "sched_setaffinity"):
            raise BackendError("pin: wanted Linux, which alone keeps a thread on one processor")
        places = core_order(usable_processors(), self.n_threads)
        for ith, worker in enumerate(self._threads, 1):
            try:
                os.sched_setaffinity(worker.native_id or 0, {places[ith % len(places)]})
            except OSError as error:
                raise BackendError(f"pin: {worker.name}: the system refuses it ({error})") from None

    def stop(self) -> None:
        """Ask the run of another thread to end at its next barrier; without effect between runs."""
        self._words[sync.STOP // 8] = 1

    def close(self) -> None:
        """End the worker threads. Also happens when the team is collected and when the interpreter exits."""
        with self._lock:
            self._finalizer()
