"""How far a bisection looks: faults of some lengths, places and values are named, or it says what is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphml_cpu.lowering.step import HostConstant

from graphml.inspect.bisect.findings import as_json
from graphml.inspect.compare.route import TOKENS, wide
from graphml.ir.node import Node
from graphml.ir.op import Array
from tests.authoring.planted_models import HERE, write_model
from tests.inspect import faults
from tests.inspect.bisected import Opened, opened, stories
from tests.inspect.test_bisect import quantised

Fault = Callable[[], AbstractContextManager[None]]
N_CTX, WINDOW = 400, 90


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with windows, caps and sinks, whose context is longer than what is run of it."""
    path = tmp_path_factory.mktemp("reach") / "gated.gguf"
    return write_model(path, "gated", context_length=N_CTX, **{"attention.sliding_window": WINDOW})


def attention(chosen: Callable[[Mapping[str, Array], int], Any]) -> Fault:
    return lambda: faults.wrong_values("attention", faults.off_where(chosen))


def rope(chosen: Callable[[int], bool]) -> Fault:
    return lambda: faults.wrong_values("rope", faults.off_where(lambda given, n: chosen(n)))


def table(chosen: Callable[[Array], Array]) -> Fault:
    wrong = faults.off_where(lambda given, n: chosen(given["positions"]))
    return lambda: faults.wrong_values("rope_table", wrong)


def argument(op: str, **changed: Any) -> Fault:
    return lambda: faults.wrong_lowering(op, faults.with_arguments(**changed))


def wider(node: Node) -> int:
    return int(node.attributes["window"]) + 1 if node.attributes["window"] else 0


def read_behind(node: Node, right: Array, operands: Mapping[str, Array]) -> Array:
    """What an earlier step left in the arena behind this step's rows counts, too."""
    x = next(array for array in operands.values() if array.dtype == np.float32)
    behind = np.lib.stride_tricks.as_strided(x, (len(x) + 1, *x.shape[1:]), x.strides)[-1]
    wrong = right.copy()
    wrong[-1] += np.float32(0.01) * np.nan_to_num(behind)
    return wrong


BLOCKS = HostConstant(lambda weights: (np.arange(1 << 17) % 4).astype(np.int32))
# What is broken; the step, node and op that must be named.
NAMED: dict[str, tuple[Fault, str, str, str]] = {
    "attention from position 40 on": (
        attention(lambda given, n: given["positions"] >= 40), "long", "layers.0.attention", "attention"
    ),
    "attention in the second cache block": (
        attention(lambda given, n: given["positions"] // 32 == 1), "long", "layers.0.attention", "attention"
    ),
    "cache blocks where their numbers would put them": (
        argument("attention", block_table=BLOCKS), "prefill", "layers.0.attention", "attention"
    ),
    "no window": (argument("attention", window=0), "far", "layers.0.attention", "attention"),
    "a token more in the window": (
        argument("attention", window=wider), "far", "layers.0.attention", "attention"
    ),
    "a window where there is none": (
        argument("attention", window=lambda node: node.attributes["window"] or 300),
        "far", "layers.1.attention", "attention",
    ),
    "attention of one token behind a chunk": (
        attention(lambda given, n: (given["positions"] >= 64) & (n == 1)),
        "long decode", "layers.0.attention", "attention",
    ),
    "attention at the border of a tile": (
        attention(lambda given, n: given["positions"] == 64), "long", "layers.0.attention", "attention"
    ),
    "attention in the last row of a tile": (
        attention(lambda given, n: np.arange(n) == 63), "long", "layers.0.attention", "attention"
    ),
    "attention of the second sequence": (
        attention(lambda given, n: given["sequences"] > 0),
        "two sequences", "layers.0.attention", "attention",
    ),
    "attention without its cap": (
        argument("attention", softcap=0.0), "prefill", "layers.0.attention", "attention"
    ),
    "rope from position 300 on": (table(lambda at: at >= 300), "far", "rope_table", "rope_table"),
    "rope at the last position": (
        table(lambda at: at == N_CTX - 1), "far decode", "rope_table", "rope_table"
    ),
    "rope of odd numbers of rows": (
        rope(lambda n: n % 2 == 1 and n > 1), "long", "layers.0.rope", "rope"
    ),
    "rope of two rows": (rope(lambda n: n == 2), "two sequences decode", "layers.0.rope", "rope"),
    "what an earlier step left": (
        lambda: faults.wrong_values("rope", read_behind), "far", "layers.0.rope", "rope"
    ),
}  # fmt: skip


def examined(model: Path, until: str | None = None) -> Any:
    with opened(model, arch=HERE / "gated.py", n_batch=TOKENS) as both:
        return both.examine(until=until)


@pytest.mark.parametrize("name", NAMED)
def test_a_fault_of_some_lengths_and_places_is_named(name: str, gated: Path) -> None:
    fault, step, node, op = NAMED[name]
    with fault():
        found = examined(gated, step)
    assert found.first is not None
    named = found.first.kind, found.first.step, found.first.node.name, found.first.made_by.name
    assert named == ("kernel", step, node, op)
    if name in PLACES:
        assert (found.first.token, found.first.position) == PLACES[name]
        assert as_json(found)["findings"][0]["position"] == PLACES[name][1]


def off_in_q8_0(node: Node, right: Array, operands: Mapping[str, Array]) -> Array:
    return right * 2 if node.attributes["k_dtype"] == "q8_0" else right


# Of some faults: the first wrong token in the step, and its position.
PLACES = {
    "attention of one token behind a chunk": (0, 78),
    "attention at the border of a tile": (57, 64),
    "attention in the second cache block": (25, 32),
    "rope at the last position": (0, N_CTX - 1),
}


# Faults that nothing shows; what has to be said.
OPEN: dict[str, tuple[Fault, str]] = {
    "rope in between": (table(lambda at: (at >= TOKENS) & (at < N_CTX - 4)), "tokens at other positions"),
    "rope of many rows": (rope(lambda n: n > 71), "steps of more than 71 tokens or 2 sequences"),
    "another cache": (
        lambda: faults.wrong_values("attention", off_in_q8_0),
        "caches of f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl (--kv)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("names", [[], list(OPEN)], ids=["nothing", "faults"])
def test_what_was_not_looked_at_is_said(names: list[str], gated: Path) -> None:
    with ExitStack() as planted:
        for name in names:
            planted.enter_context(OPEN[name][0]())
        found = examined(gated)
    assert not found.findings
    for said in (*(OPEN[name][1] for name in names), "kernels for other processors"):
        assert any(said in line for line in found.coverage.not_looked_at)
    seen = found.coverage
    assert (seen.positions, seen.n_ctx, seen.windows) == (
        f"0-78,{N_CTX - 4}-{N_CTX - 1}",
        N_CTX,
        {WINDOW: True},
    )
    assert (seen.rows, seen.blocks) == ({1: (6, 1, 71, 3), 2: (70, 2, 1)}, 13)
    assert as_json(found)["coverage"]["not_looked_at"] == seen.not_looked_at


def eps_ignored(op: str) -> Fault:
    return argument(op, eps=0.0)


# The norms of which eps is ignored, and where that shows first.
NORMS = {
    "rms_norm_mul_quantize": "prefill with extreme values",
    "add_rms_norm": "decode before int8",
    "rms_norm_mul": "prefill before int8",
}


@pytest.mark.parametrize("op", NORMS)
def test_eps_that_is_ignored_shows_behind_int8(op: str, tmp_path: Path) -> None:
    with eps_ignored(op)(), opened(quantised("llama-dense", tmp_path, "q4_1"), n_batch=TOKENS) as both:
        found = both.examine(until="decode")
    assert found.first is not None
    assert found.first.step == NORMS[op]
    assert op in {node.op.name for node in found.first.unit}
    assert found.coverage.apart


def test_values_that_are_rounded_to_either_side_are_no_fault(tmp_path: Path) -> None:
    """One row of few blocks: a value half way between two steps moves a product by more than 1e-5."""
    with opened(quantised("afmoe-moe", tmp_path, "q8_0"), n_batch=TOKENS) as both:
        found = both.examine()
    assert not found.findings
    assert max(one.limit for one in found.readings) > 1e-5


def test_values_beyond_a_clamp_are_tried(gated: Path, tmp_path: Path) -> None:
    """Values are held at 50, which usual ones do not reach."""
    text = (HERE / "gated.py").read_text()
    arch = tmp_path / "gated.py"
    arch.write_text(text.replace("g.gelu(gate_TF), up_TF", "g.gelu(gate_TF), g.clamp(up_TF, -50.0, 50.0)"))
    fault = faults.wrong_values("clamp", lambda node, right, operands: next(iter(operands.values())))
    with fault, opened(gated, arch=arch) as both:
        found = both.examine(8)
    assert found.first is not None
    assert (found.first.step, found.first.node.name) == ("prefill with extreme values", "layers.0.clamp")


def test_a_short_run_says_that_it_is_short() -> None:
    with opened(stories()) as both:
        found = both.bisect()
    told = " ".join(found.coverage.not_looked_at)
    assert "contexts of 9 to 512 tokens" in told
    assert "contexts that cross a cache block" in told
    assert "steps that cross a tile of 64 rows" in told
    assert "more than 7 tokens or one sequence" in told


def test_one_backend_does_not_judge_its_own_kernels() -> None:
    with opened(stories(), "cpu", "cpu") as both:
        told = both.bisect().coverage.not_looked_at
    assert any("kernels that are wrong on both sides" in line for line in told)


def test_nodes_without_kernels_are_said() -> None:
    """NumPy on both sides agrees whatever the op means."""
    with faults.wrong_values("rope", lambda node, right, operands: right), opened(stories()) as both:
        found = both.bisect()
    assert found.coverage.in_numpy[0] == "layers.0.q_rope"
    assert any(line.startswith("layers.0.q_rope, layers.") for line in found.coverage.not_looked_at)


def test_steps_fit_the_context(tmp_path: Path) -> None:
    def steps(both: Opened, tokens: int) -> list[str]:
        return [leg.name for leg in wide(both.a, tokens)]

    short = write_model(tmp_path / "m.gguf", "gated", context_length=40)
    with opened(short, arch=HERE / "gated.py", n_batch=TOKENS) as both:
        assert steps(both, 1) == ["decode", "far", "far decode"]
        assert steps(both, 8) == [
            "prefill", "decode", "far", "far decode", "two sequences", "two sequences decode",
            "second sequence alone",
        ]  # fmt: skip
        found = both.examine()
    assert not found.findings
    assert (found.coverage.positions, found.coverage.context) == ("0-39", 40)
