"""Kernels that use the whole kernel language, what they are given, and what NumPy makes of it.

`python -m tests.gpu.language.examples` writes the golden texts in `tests/data/kernels` anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from graphml_gpu.language import (
    PORTABLE,
    Array,
    Features,
    Kernel,
    Read,
    Specialised,
    Update,
    Write,
    atomic_add,
    atomic_max,
    barrier,
    bitcast,
    byte_at,
    clamp,
    cluster_max,
    cluster_sum,
    dot,
    dot4_i8,
    exp,
    f16,
    f16x2,
    f16x4,
    f32,
    f32x4,
    floor,
    fma,
    function,
    global_id,
    group_id,
    group_max,
    group_sum,
    half_at,
    i32,
    isinf,
    isnan,
    kernel,
    local_id,
    num_groups,
    pack_half2,
    private_array,
    select,
    shared_array,
    sqrt,
    subgroup_broadcast,
    subgroup_count,
    subgroup_id,
    subgroup_lane,
    subgroup_max,
    subgroup_sum,
    subgroup_xor,
    table,
    tanh,
    u32,
    uniform,
    unpack_half2,
    unroll,
    word_at,
)

FOLDER = Path(__file__).parents[2] / "data" / "kernels"
Arrays = dict[str, np.ndarray[Any, Any]]
EVERYTHING = Features(subgroups=True, subgroup_min=4, subgroup_max=32, f16=True, dot4=True)
"""What a device may offer; the emulator has it all."""


@function
def silu(x: f32) -> f32:
    return x / (1.0 + exp(-x))


@kernel
def rms_norm(
    x: Read[f32], weight: Read[f32], out: Write[f32], n: u32, eps: f32,
    *, GROUP: int = 16, HAS_WEIGHT: bool = True,
) -> None:  # fmt: skip
    """A row a workgroup. x, out [rows, n], weight [n]."""
    row = group_id(0) + group_id(1) * num_groups(0)
    total = f32(0.0)
    for i in range(local_id(0), n, GROUP):
        total += x[row * n + i] * x[row * n + i]
    total = group_sum(total)
    scale = 1.0 / sqrt(total / f32(n) + eps)
    for i in range(local_id(0), n, GROUP):
        if HAS_WEIGHT:
            out[row * n + i] = x[row * n + i] * scale * weight[i]
        else:
            out[row * n + i] = silu(x[row * n + i] * scale)


@kernel
def flow(x: Read[u32], out: Write[i32], n: u32, *, GROUP: int = 8, STEPS: int = 3) -> None:
    """Loops and decisions."""
    i = global_id(0)
    if i >= n:
        return
    steps: i32 = 0
    value = x[i]
    while value != 1 and steps < 40:
        value = value // 2 if value % 2 == 0 else 3 * value + 1
        steps += 1
    for j in range(10, 0, -STEPS):
        if j == 4:
            continue
        steps += j
    for j in range(100):
        if j * j > i:
            break
        steps -= 1
    for j in unroll(STEPS):
        if j % 2 == 0:
            steps = steps * 2 + j
        elif i > 3 or (i == 2 and not steps > 5):
            steps -= i32(x[i - 2])
    out[i] = steps // -3 + steps % 5


@kernel
def memory(
    x: Read[f32], counts: Update[u32], out: Write[f32x4], scale: f32, *, GROUP: int = 8, KEPT: int = 4
) -> None:
    """Shared and private arrays, tables, vectors, atomics."""
    me = local_id(0)
    i = group_id(0) * GROUP + me
    neighbours = shared_array(f32, GROUP)
    kept = private_array(f32, KEPT)
    weights = table(f32, (0.5, -1.0, 2.0, 0.25))
    for j in range(local_id(0), GROUP, GROUP):  # one turn for each
        neighbours[j] = x[group_id(0) * GROUP + j]
    for j in range(local_id(0), KEPT, GROUP):  # one turn for some
        atomic_add(counts, 4, j + 1)
    for j in range(KEPT, KEPT):  # none
        neighbours[j] = 0.0
    barrier()
    for k in unroll(KEPT):
        kept[k] = neighbours[(me + k) % GROUP]
    total = f32(0.0)
    for k in range(KEPT):
        total = fma(kept[k], weights[(k + me) % 4], total)
    atomic_add(counts, me % 3, 2)
    atomic_max(counts, 3, i * 5)
    vector = f32x4(total, x[i], f32(i), scale) * scale + 1.0
    vector.w = vector.y - vector[2]
    largest = group_max(total)
    out[i] = max(vector, f32x4(dot(vector, vector))) - f32x4(
        largest, cluster_sum(x[i], 4), 0.0, cluster_max(x[i], 2)
    )


@kernel
def packed(words: Read[u32], out: Write[f32], *, GROUP: int = 8) -> None:
    """Bytes, halves and four signed bytes at once."""
    i = global_id(0)
    word = words[i]
    pair = unpack_half2(word)
    out[6 * i] = f32(byte_at(words, i)) + half_at(words, 2 * i)
    out[6 * i + 1] = f32(word_at(words, i + 1) >> 12)
    out[6 * i + 2] = f32(dot4_i8(word, word_at(words, 2), -7))
    out[6 * i + 3] = pair.x - pair.y
    out[6 * i + 4] = bitcast(f32, pack_half2(pair) ^ 0x80008000)
    out[6 * i + 5] = f32(i32(bitcast(i32, word) >> 9) ^ 5)


@kernel
def halves(a: Read[f16], b: Read[f16x4], out: Write[f16x2], *, GROUP: int = 8) -> None:
    """Half precision: computed in f32 where the device has no arithmetic for it."""
    i = global_id(0)
    out[i] = f16x2(a[i] * f16(2.0) + 0.5, b[i].z * 2.0)


@kernel
def no_numbers(x: Read[f32], out: Write[f32], *, GROUP: int = 8) -> None:
    """What is no number stays what it is."""
    i = global_id(0)
    infinity = f32(float("inf"))
    value = x[i]
    kinds = select(isnan(value), 1.0, 0.0) + select(isinf(value), 2.0, 0.0)
    out[4 * i] = kinds
    out[4 * i + 1] = infinity - value
    out[4 * i + 2] = f32(float("nan")) if value > 2.0 else tanh(value)
    out[4 * i + 3] = clamp(floor(f32(i)), 1.0, 3.0) + subgroup_sum(0.0)


@kernel
def across(out: Write[u32], *, GROUP: int = 12) -> None:
    """What spans a subgroup, of whatever size: the last one may be filled in part."""
    me = local_id(0)
    first, lanes = subgroup_broadcast(me, 0), subgroup_sum(u32(1))
    last = subgroup_max(me)
    out[6 * me] = 1 if first <= me and me <= last else 0
    out[6 * me + 1] = subgroup_sum(u32(select(subgroup_lane() == 0, 1, 0)))
    out[6 * me + 2] = subgroup_xor(subgroup_xor(me, 1), 1) if lanes > 1 else me
    out[6 * me + 3] = group_sum(u32(select(subgroup_lane() == 0, 1, 0))) - subgroup_count()
    out[6 * me + 4] = group_max(subgroup_id()) + 1 - subgroup_count()
    out[6 * me + 5] = cluster_sum(me, 4)


@function
def bump(counts: Array[u32], by: u32) -> u32:
    counts[0] = counts[0] + by
    return counts[0]


@function
def two(x: u32) -> tuple[u32, u32]:
    x += 1
    return x, x * 2


@kernel
def order(x: Read[u32], counts: Update[u32], out: Write[u32], n: u32, *, GROUP: int = 1) -> None:
    """What is worked out first, and where variables live."""
    out[0] = counts[0] + bump(counts, 3) * 10 + counts[0] * 100
    a, b = x[0], x[1]
    a, b = b, a
    out[1] = a * 10 + b
    if n > 2:
        found = x[n - 1]
    elif n > 1:
        found = x[0]
    else:
        found = 7
    out[2] = found
    out[3] = x[n] if n < 3 else 9
    out[4] = 1 if n < 3 and x[n] > 0 and bump(counts, 1) > 0 else 0
    out[5] = 1 if n == 3 or bump(counts, 1) > 0 else 0
    kept = counts[0]
    counts[0] += 5
    out[6] = kept
    n += 1
    first, second = two(n)
    out[7] = n * 10000 + first * 100 + second
    previous = u32(0)
    for i in range(3):
        if i > 0:
            out[7 + i] = previous
        previous = x[i]
    index = 10
    while bump(counts, 1) < 13:
        index += 1
    out[index] = counts[0]


@kernel
def counts_up(x: Read[u32], out: Write[f32x4], *, GROUP: int = 8, TOLD: bool = True) -> None:
    """A loop with barriers that goes as far as shared memory says; TOLD: compilers are told that all do."""
    most, some = shared_array(u32, 2), shared_array(f32, GROUP)
    me = local_id(0)
    if me < 2:
        most[me] = x[me]
    barrier()
    end = uniform(most[0]) if TOLD else most[0]
    some[me] = f32(me)
    for _ in range(end):
        barrier()
        next_one = some[(me + 1) % GROUP]
        barrier()
        some[me] = next_one
    limits = uniform(f32x4(f32(most[0]), f32(most[1]), 0.5, f32(end)))
    out[me] = limits + some[me]


@dataclasses.dataclass(frozen=True)
class Example:
    """A kernel with its arguments; wanted: what NumPy says that its outputs hold."""

    kernel: Kernel
    buffers: Arrays
    scalars: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    groups: tuple[int, int, int] = (1, 1, 1)
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    wanted: Mapping[str, np.ndarray[Any, Any]] = dataclasses.field(default_factory=dict)
    limit: float = 2e-6

    def specialise(self, features: Features = PORTABLE) -> Specialised:
        return self.kernel.specialise(features, **self.constants)

    def check(self, made: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Floats within the limit, NaN and infinities in place, integers equal."""
        for name, want in self.wanted.items():
            got = made[name].reshape(want.shape)
            if want.dtype.kind == "f":
                limit = self.limit if want.dtype == np.float32 else 2e-3
                np.testing.assert_allclose(
                    got, want, rtol=limit, atol=limit, err_msg=f"{self.kernel.name}.{name}"
                )
            else:
                np.testing.assert_array_equal(got, want, err_msg=f"{self.kernel.name}.{name}")


def _numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def _rms_norm(has_weight: bool) -> Example:
    x, weight, out = _numbers(3, 50), _numbers(50), np.zeros((3, 50), np.float32)
    scaled = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)
    wanted = scaled * weight if has_weight else scaled / (1 + np.exp(-scaled))
    return Example(
        rms_norm, {"x": x, "weight": weight, "out": out}, {"n": 50, "eps": 1e-5}, (3, 1, 1),
        {"HAS_WEIGHT": has_weight}, {"out": wanted},
    )  # fmt: skip


def _flow() -> Example:
    x = np.arange(1, 14, dtype=np.uint32)
    wanted = np.zeros(16, np.int32)
    for i, value in enumerate(map(int, x)):
        steps = 0
        while value != 1 and steps < 40:
            value, steps = (value // 2 if value % 2 == 0 else 3 * value + 1), steps + 1
        steps += 10 + 7 + 1
        steps -= sum(j * j <= i for j in range(100))
        steps = steps * 2
        steps = (steps - int(x[i - 2]) if i > 3 or (i == 2 and steps <= 5) else steps) * 2 + 2
        wanted[i] = steps // -3 + steps % 5
    buffers: Arrays = {"x": x, "out": np.zeros(16, np.int32)}
    return Example(flow, buffers, {"n": 13}, (2, 1, 1), wanted={"out": wanted})


def _memory() -> Example:
    x, weights = _numbers(16), np.array([0.5, -1.0, 2.0, 0.25], np.float32)
    out, counts = np.zeros((16, 4), np.float32), np.array([1, 1, 1, 1, 9], np.uint32)
    i = np.arange(16)
    group, me = i // 8 * 8, i % 8
    total = sum(x[group + (me + k) % 8] * weights[(k + me) % 4] for k in range(4))
    vector = np.stack([total, x, i, np.full(16, 0.3)], 1).astype(np.float32) * np.float32(0.3) + 1
    vector[:, 3] = vector[:, 1] - vector[:, 2]
    largest = np.maximum(vector, (vector * vector).sum(1, keepdims=True))
    taken = np.stack([
        np.repeat(total.reshape(2, 8).max(1), 8), np.repeat(x.reshape(4, 4).sum(1), 4),
        np.zeros(16), np.repeat(x.reshape(8, 2).max(1), 2),
    ], 1)  # fmt: skip
    return Example(
        memory, {"x": x, "counts": counts, "out": out}, {"scale": 0.3}, (2, 1, 1),
        wanted={"out": np.float32(largest - taken), "counts": np.uint32([13, 13, 9, 75, 9 + 2 * 10])},
        limit=1e-5,
    )  # fmt: skip


def _packed() -> Example:
    words = _numbers(40).astype(np.float16).view(np.uint32)
    raw, pairs = words.view(np.uint8), words.view(np.float16).astype(np.float32).reshape(-1, 2)
    eight = np.arange(8)
    unaligned = np.array([raw[k : k + 4].copy().view(np.uint32)[0] for k in range(10)])
    signed = words.view(np.int8).astype(np.int32).reshape(-1, 4)
    fixed = unaligned[2:3].view(np.int8).astype(np.int32)
    swapped = pairs[:8].astype(np.float16).view(np.uint32)[:, 0] ^ np.uint32(0x80008000)
    wanted = np.stack([
        raw[eight] + words.view(np.float16)[eight].astype(np.float32),
        unaligned[eight + 1] >> 12,
        signed[:8] @ fixed - 7,
        pairs[:8, 0] - pairs[:8, 1],
        swapped.view(np.float32),
        (words[:8].view(np.int32) >> 9) ^ 5,
    ], 1).astype(np.float32)  # fmt: skip
    return Example(packed, {"words": words, "out": np.zeros((8, 6), np.float32)}, wanted={"out": wanted})


def _halves() -> Example:
    a, b = _numbers(8).astype(np.float16), _numbers(8, 4).astype(np.float16)
    wanted = np.stack([a * np.float16(2) + np.float16(0.5), b[:, 2] * np.float16(2)], 1)
    return Example(halves, {"a": a, "b": b, "out": np.zeros((8, 2), np.float16)}, wanted={"out": wanted})


def _no_numbers() -> Example:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1e-30, -2.5, 3.0, 200.0], np.float32)
    wanted = np.stack([
        np.isnan(x) + 2.0 * np.isinf(x), np.inf - x,
        np.where(x > 2.0, np.nan, np.tanh(x)), np.clip(np.arange(8), 1, 3),
    ], 1).astype(np.float32)  # fmt: skip
    return Example(no_numbers, {"x": x, "out": np.zeros((8, 4), np.float32)}, wanted={"out": wanted})


def _order() -> Example:
    x = np.array([4, 6, 8], np.uint32)
    # counts[0]: 2, then 5 and 10, then 11, 12, 13.
    wanted = np.array([2 + 50 + 500, 64, 8, 9, 0, 1, 5, 40510, 4, 6, 0, 0, 13], np.uint32)
    buffers: Arrays = {"x": x, "counts": np.array([2], np.uint32), "out": np.zeros(13, np.uint32)}
    return Example(order, buffers, {"n": 3}, wanted={"out": wanted, "counts": np.array([13], np.uint32)})


def _across() -> Example:
    me = np.arange(12)
    wanted = np.stack([me * 0 + 1, me * 0 + 1, me, me * 0, me * 0, me // 4 * 16 + 6], 1).astype(np.uint32)
    return Example(across, {"out": np.zeros((12, 6), np.uint32)}, wanted={"out": wanted})


def _counts_up() -> Example:
    turned = (np.arange(8)[:, None] + 3) % 8
    wanted = (turned + np.array([3.0, 9.0, 0.5, 3.0])).astype(np.float32)
    x = np.array([3, 9], np.uint32)
    return Example(counts_up, {"x": x, "out": np.zeros((8, 4), np.float32)}, wanted={"out": wanted})


with np.errstate(invalid="ignore"):
    EXAMPLES = {
        "rms_norm": _rms_norm(True),
        "rms_norm_silu": _rms_norm(False),
        "flow": _flow(),
        "order": _order(),
        "memory": _memory(),
        "packed": _packed(),
        "halves": _halves(),
        "no_numbers": _no_numbers(),
        "across": _across(),
        "counts_up": _counts_up(),
    }

GOLDENS = {
    "rms_norm": (rms_norm, PORTABLE),
    "rms_norm.subgroups": (rms_norm, EVERYTHING),
    "memory": (memory, PORTABLE),
    "packed": (packed, PORTABLE),
    "packed.dot4": (packed, EVERYTHING),
    "halves": (halves, PORTABLE),
    "halves.f16": (halves, EVERYTHING),
    "flow": (flow, PORTABLE),
    "order": (order, PORTABLE),
    "across": (across, EVERYTHING),
    "counts_up": (counts_up, PORTABLE),
}
"""Name of a text -> kernel and features."""


def texts(name: str) -> dict[str, str]:
    """File name -> text of a golden."""
    made, features = GOLDENS[name]
    specialised = made.specialise(features)
    return {f"{name}.wgsl": specialised.wgsl(), f"{name}.cl": specialised.opencl()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in GOLDENS:
        for file, text in texts(name).items():
            (FOLDER / file).write_text(text)
