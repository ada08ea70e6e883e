"""Several updates of a delta net in one token (DeltaProduct, arXiv:2502.10297), on every backend.

Wanted is a loop over Householder matrices, written here; steps of some tokens give what one step gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from graphml.backend import Device, Program, State
from graphml.compiler.compile import Compiled, compile_graph
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.loading import discovery
from tests.backend_pairs import BACKENDS

T, N, G, K, V, SCALE = 9, 4, 2, 12, 8, 0.5
# Text 1 goes on from its state, text 0 begins in the middle of the step, text 7 has no state.
SEQUENCES, POSITIONS = np.repeat(np.int32([1, 0, 7]), (4, 3, 2)), np.int32([5, 6, 7, 8, 0, 1, 2, 0, 1])


def operands(updates: int, each: bool) -> dict[str, Array]:
    rng = np.random.default_rng(updates)
    k = rng.standard_normal((T, updates, G, K))
    found = {
        "q": rng.standard_normal((T, G, K)), "k": k / np.linalg.norm(k, axis=-1, keepdims=True),
        "v": rng.standard_normal((T, updates, N, V)), "beta": rng.uniform(0, 2, (T, updates, N, 1)),
        "decay": rng.uniform(0.3, 1, (T, N, K if each else 1)),
    }  # fmt: skip
    return {name: array.astype(np.float32) for name, array in found.items()}


def by_matrices(x: dict[str, Array], state: Array, grouped: bool) -> Array:
    """S <- S diag(decay), then S <- S (I - beta k k^T) + beta v k^T for each update; y = scale S q."""
    memory, y = state.astype(np.float64), np.zeros((T, N, V))
    for t in range(T):
        sequence = SEQUENCES[t]
        if sequence >= len(state):
            continue
        for n in range(N):
            group = n // (N // G) if grouped else n % G
            held = np.zeros((V, K)) if POSITIONS[t] == 0 else memory[sequence, n]
            held = held @ np.diag(np.broadcast_to(x["decay"][t, n], K).astype(np.float64))
            for key, value, beta in zip(
                x["k"][t, :, group], x["v"][t, :, n], x["beta"][t, :, n], strict=True
            ):
                reflection = np.eye(K) - float(beta[0]) * np.outer(key, key.astype(np.float64))
                held = held @ reflection + float(beta[0]) * np.outer(value, key)
            memory[sequence, n], y[t, n] = held, SCALE * held @ x["q"][t, group]
    state[...] = memory
    return y


def compiled(x: dict[str, Array], grouped: bool, backend: str, device: Device) -> Compiled:
    g = Builder(max_tokens=T, max_sequences=2)
    nodes = [
        g.input(name, F32, (g.n_tokens, *x[name].shape[1:])) for name in ("q", "k", "v", "decay", "beta")
    ]
    graph = g.finish(y=g.gated_delta_net(*nodes, layer=0, scale=SCALE, grouped=grouped))
    return compile_graph(graph, discovery.backend(backend), device, {})


def stepped(program: Program, x: dict[str, Array], state: State, cuts: Sequence[int]) -> Array:
    values, parts = {**x, "sequences": SEQUENCES, "positions": POSITIONS}, []
    for first, end in pairwise(cuts):
        for name, array in program.inputs.items():
            array[: end - first] = values[name][first:end]
        parts.append(np.array(program.run({"T": end - first, "S": 2}, state)["y"]))
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("updates", "grouped", "each"), [(1, False, True), (2, True, False), (3, False, True)]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_updates_are_products_of_householder_matrices(
    backend: str, updates: int, grouped: bool, each: bool
) -> None:
    x, device = operands(updates, each), discovery.backend(backend).open(2)
    made = compiled(x, grouped, backend, device)
    assert not getattr(made.program, "fallbacks", ())
    before = np.random.default_rng(9).standard_normal((2, N, V, K)).astype(np.float32)
    after = before.copy()
    wanted = by_matrices(x, after, grouped)
    assert np.abs(wanted).max() < 100
    whole: Array | None = None
    for cuts in ([0, T], [0, 1, 3, 6, T], list(range(T + 1))):
        state = device.state(made.graph, {"T": T, "S": 2})
        held = state.array("cache.0.memory")
        held[...] = before
        got = stepped(made.program, x, state, cuts)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(state.array("cache.0.memory"), after, rtol=1e-4, atol=1e-4)
        whole = got if whole is None else whole
        if backend != "reference":  # which computes a step in float64
            np.testing.assert_array_equal(got, whole)
    device.close()
