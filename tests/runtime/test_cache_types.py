"""Keys and values kept in blocks, of one type or of two: a batch is its steps, a backend is the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from graphml_models._samples import transformer

import graphml
from graphml.errors import UsageError
from graphml.ir.cache_types import cache_form, cache_types, read_cache_types
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.golden import Floats, nmse
from tests.one_text import OneText
from tests.sample_models import write_model

TOKENS = np.random.default_rng(5).integers(0, 80, 40)
# The error of the logits that the type brings, at least and at most; and what of it may hang on the last bit
# of a key or a value, which decides between two neighbours of a coarse grid.
COSTS = {
    "q8_0": (2e-6, 1e-4, 1e-6),
    **dict.fromkeys(("q5_1", "q5_0"), (2e-4, 4e-3, 1e-4)),
    **dict.fromkeys(("q4_1", "q4_0", "iq4_nl"), (2e-3, 3e-2, 1e-4)),
    "q8_0/q4_0": (5e-4, 1e-2, 1e-4),
    "q4_0/q8_0": (5e-4, 1e-2, 1e-4),
    "f16/q5_1": (2e-4, 4e-3, 1e-4),
    "q5_1/q4_1": (1e-3, 2e-2, 1e-4),
    "q4_1/iq4_nl": (2e-3, 3e-2, 1e-4),
    "iq4_nl/f32": (2e-4, 1e-2, 1e-4),
    "q8_0,1=q4_0/q5_0": (1e-4, 2e-2, 1e-4),
    "f32/q8_0,0=q4_1": (1e-4, 2e-2, 1e-4),
}
BITS = {"f32": 32, "f16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "iq4_nl": 4.5}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with heads of 32 elements: one block of a quantised cache."""
    wide = transformer(
        "llama", "wide", n_head_kv=2, metadata={"attention.head_count": 2, "attention.head_count_kv": 1}
    )
    return write_model(tmp_path_factory.mktemp("cache_types") / "wide.gguf", "llama", wide)


@pytest.fixture(scope="module", params=COSTS)
def kept(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pair(path: Path, kept: str) -> Iterator[tuple[Executor, Executor]]:
    both = tuple(
        open_executor(path, LoadOptions(name, 2, kv=kept, n_batch=len(TOKENS)))
        for name in ("cpu", "reference")
    )
    yield both[0], both[1]
    for executor in both:
        executor.close()


def logits(executor: Executor, piece: int = len(TOKENS)) -> Floats:
    text = OneText(executor)
    parts = [TOKENS[i : i + piece] for i in range(0, len(TOKENS), piece)]
    return np.concatenate([text.step(part) for part in parts])


def test_a_batch_is_its_steps_and_the_reference(pair: tuple[Executor, Executor], kept: str) -> None:
    cpu, reference = pair
    together = logits(cpu)
    *_, limit = COSTS[kept]
    assert nmse(logits(cpu, 1), together) < limit
    assert nmse(logits(cpu, 7), together) < limit
    assert nmse(together, logits(reference)) < limit
    assert not [node.op.name for node in cpu.compiled(1, 1).program.fallbacks]  # type: ignore[attr-defined]


def test_a_type_costs_what_its_grid_does(path: Path, pair: tuple[Executor, Executor], kept: str) -> None:
    exact = open_executor(path, LoadOptions("reference", kv="f32", n_batch=len(TOKENS)))
    cost = nmse(logits(pair[0]), logits(exact))
    exact.close()
    least, most, _ = COSTS[kept]
    assert least < cost < most


def test_each_cache_has_its_own_type(pair: tuple[Executor, Executor], kept: str) -> None:
    graph = pair[1].compiled(1, 1).graph
    states = {name: node.dtype for name, node in graph.leaves("state").items()}
    types = cache_types(kept)
    wanted = {i: dict(zip("kv", types.of(i).dtypes, strict=True)) for i in (0, 1)}
    assert states == {f"cache.{i}.{name}": kind for i in (0, 1) for name, kind in wanted[i].items()}


def test_the_state_takes_what_the_type_says(pair: tuple[Executor, Executor], kept: str) -> None:
    types = cache_types(kept)
    bits = sum(BITS[kind.name] for i in (0, 1) for kind in types.of(i).dtypes)
    for executor in pair:
        assert OneText(executor).state.n_bytes == 64 * 32 * bits / 8


@pytest.mark.parametrize(
    ("written", "shortest"),
    [
        ("q8_0,3=q4_0,4=q4_0,5=q8_0,7=f16/q4_0", "q8_0,3-4=q4_0,7=f16/q4_0"),
        ("q8_0/q8_0,0-2=q8_0", "q8_0"),
        ("f16,9=q4_0,0-1=q4_0/q4_0", "f16,0-1=q4_0,9=q4_0"),
    ],
)
def test_types_of_layers_are_written_in_one_way(written: str, shortest: str) -> None:
    assert read_cache_types("kv", written) == shortest
    assert str(cache_types(written)) == shortest
    assert cache_form(shortest) == re.sub(r"(q\d_0)", r"\1+hadamard", shortest)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("q8_0,x=q4_0", "wanted LAYER=TYPE or FIRST-LAST=TYPE behind a comma; got 'x=q4_0'"),
        ("q8_0,", "wanted LAYER=TYPE"),
        ("q8_0,3-1=q4_0", "wanted layers below 10000, the first first"),
        ("q8_0,0-99999=q4_0", "wanted layers below 10000"),
        ("q8_0,1-3=q4_0,2=f16", "layer 2 has types twice"),
        ("q8_0,1=q4_2", "wanted one of f16, f32"),
        (",1=q4_0", "wanted one of f16, f32"),
    ],
)
def test_wrong_types_of_layers_are_named(written: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LoadOptions(kv=written)


def test_a_layer_that_there_is_not_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match=r"wide\.gguf: kv: wanted layers below 2, .*; got layer 2"):
        open_executor(path, LoadOptions("reference", kv="f16,2=q8_0"))


@pytest.mark.parametrize(("kv", "kind", "cache"), [("q8_0", "q8_0", "k"), ("f16/iq4_nl", "iq4_nl", "v")])
def test_heads_that_are_no_whole_blocks_are_an_error_that_names_the_option(
    tmp_path: Path, kv: str, kind: str, cache: str
) -> None:
    model = write_model(tmp_path / "narrow.gguf", "llama", transformer("llama", "narrow"))
    wanted = rf"narrow.gguf: kv: {kind} keeps blocks of 32 .* cache.0.{cache} has heads of 16"
    with (
        graphml.load(model, "reference", kv=kv) as opened,
        pytest.raises(UsageError, match=wanted),
    ):
        opened.session().eval([1])
