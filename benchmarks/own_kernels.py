"""A kernel of an op of one's own beside the same loop in C and beside a built-in op of equal traffic.

    python benchmarks/own_kernels.py [--rounds 200] [--rows 16 64 512] [--n 4096]

Two ops, one thread. `product`, x * y, has the traffic of the built-in `mul`. `sums`, the sum of squares of
each row added to each of its elements, is a loop that no built-in op has. C: `cc -O3 -march=native`, with
-ffast-math where the kernel may reorder sums. All run in turns, a call each in a round; the medians of the
seconds of a call, and their ratios with the quartiles over rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from graphml.compiler.compile import compile_graph
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.op import Op
from graphml.ir.ops.elementwise import mul
from graphml.loading import discovery
from graphml.ops import ROWS, f32, op, sample

PAIR = [sample(f32(ROWS, 64), f32(ROWS, 64))]
C = """
typedef const float *restrict in;
#define ARGUMENTS float *restrict out, in x, in y, long begin, long end, long n
void product(ARGUMENTS) {
    for (long row = begin; row < end; row++)
        for (long i = 0; i < n; i++) out[row * n + i] = x[row * n + i] * y[row * n + i];
}
void sums(ARGUMENTS) {
    for (long row = begin; row < end; row++) {
        float total = 0;
        for (long i = 0; i < n; i++) total += x[row * n + i] * x[row * n + i];
        for (long i = 0; i < n; i++) out[row * n + i] = y[row * n + i] + total;
    }
}
"""


@op(shape=lambda x, y: x, samples=PAIR)
def product(x, y):
    """x * y."""
    return x * y


@product.kernel("cpu")
def product_rows(out, x, y, begin, end):
    for row in range(begin, end):
        for i in range(x.shape[1]):
            out[row, i] = x[row, i] * y[row, i]


@op(shape=lambda x, y: x, samples=PAIR)
def sums(x, y):
    """y + sum(x * x) over the last dimension."""
    return y + np.square(x, dtype=np.float64).sum(-1, keepdims=True)


@sums.kernel("cpu", fastmath={"reassoc", "contract"})
def sums_rows(out, x, y, begin, end):
    for row in range(begin, end):
        total = np.float32(0)
        for i in range(x.shape[1]):
            total += x[row, i] * x[row, i]
        for i in range(x.shape[1]):
            out[row, i] = y[row, i] + total


def of_c(name: str, fast: bool, folder: Path) -> ctypes._CFuncPtr:
    """The function of C, compiled."""
    source, library = folder / "loops.c", folder / f"{name}.so"
    source.write_text(C)
    flags = ["-O3", "-march=native", *(["-ffast-math"] if fast else [])]
    subprocess.run(["cc", *flags, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    found = ctypes.CDLL(str(library))[name]
    found.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 3
    return found


def step_of(one: Op, x: np.ndarray, y: np.ndarray) -> Callable[[], float]:
    """A call that runs the op in a program of its own; returns the seconds of its kernel."""
    backend = discovery.backend("cpu")
    device = backend.open(1)
    g = Builder(max_tokens=len(x))
    shape = (g.n_tokens, x.shape[1])
    graph = g.finish(result=g.call(one, g.input("x", F32, shape), g.input("y", F32, shape)))
    program = compile_graph(graph, backend, device, {}).program
    dims = {"T": len(x)}
    state, taken = device.state(graph, dims), []
    program.inputs["x"][...], program.inputs["y"][...] = x, y
    program.time_steps(lambda dims, times: taken.append(times()))

    def call() -> float:
        taken.clear()
        program.run(dims, state)
        return sum(max(step.work_s) for step in taken[0])

    call.kept = device  # type: ignore[attr-defined]
    return call


def c_call(function: ctypes._CFuncPtr, x: np.ndarray, y: np.ndarray) -> Callable[[], float]:
    """A call of the function of C; returns its seconds."""
    out = np.zeros_like(x)
    given = (out.ctypes.data, x.ctypes.data, y.ctypes.data, 0, *x.shape)

    def call() -> float:
        begin = time.perf_counter()
        function(*given)
        taken = time.perf_counter() - begin
        return taken if len(out) else 0.0  # which keeps the memory of the addresses

    return call


def measure(calls: dict[str, Callable[[], float]], rounds: int) -> None:
    """Run in turns and print."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 5):
        for name, call in calls.items():
            seconds = call()
            if turn >= 5:
                taken[name].append(seconds)
    own = taken["own"]
    for name, seconds in taken.items():
        ratios = sorted(mine / other for mine, other in zip(own, seconds, strict=True))
        low, middle, high = (ratios[int(len(ratios) * q)] for q in (0.25, 0.5, 0.75))
        shown = "" if name == "own" else f"  own / {name}: {middle:.3f} ({low:.3f} to {high:.3f})"
        print(f"    {name:9} {1e6 * statistics.median(seconds):9.2f} us{shown}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both ops."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 512])
    parser.add_argument("--n", type=int, default=4096)
    given = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for own, fast, built_in in ((product, False, mul), (sums, True, None)):
            function = of_c(own.name, fast, Path(folder))
            for rows in given.rows:
                x, y = (random.standard_normal((rows, given.n)).astype(np.float32) for _ in "xy")
                calls = {"own": step_of(own, x, y), "C": c_call(function, x, y)}
                if built_in is not None:
                    calls["built-in"] = step_of(built_in, x, y)
                print(f"{own.name}, {rows} rows of {given.n}")
                measure(calls, given.rounds)


if __name__ == "__main__":
    main()
