"""Opened with `deterministic`, a model says the same bits alone, in chunks, beside others, on any threads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.errors import BackendError, UsageError
from graphml.ir.cells import BLOCK_SIZE
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.drafting import DRAFT_ROWS
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.sessions.evaluation import drafted_logits
from graphml.runtime.steps.runner import Runner
from tests import golden
from tests.golden import Floats
from tests.model_forms import distinct
from tests.one_text import OneText, logits_of

NAMES = golden.names()
N_TOKENS = 40  # more than one block of the cache


def opened(path: Path, threads: int = 2, **options: object) -> Executor:
    given = {"kv": "f32", "n_batch": N_TOKENS, "deterministic": True, **options}
    return open_executor(path, LoadOptions("cpu", threads=threads, **given))  # type: ignore[arg-type]


def tokens_of(name: str) -> list[int]:
    return (golden.read(name).tokens * 2)[:N_TOKENS]


def chunks(ids: list[int], sizes: tuple[int, ...]) -> list[list[int]]:
    """The ids in chunks of these sizes, one after the other, over and over."""
    found, at = [], 0
    while at < len(ids):
        size = sizes[len(found) % len(sizes)]
        found.append(ids[at : at + size])
        at += size
    return found


def fed(executor: Executor, pieces: list[list[int]]) -> Floats:
    """Logits after each token, fed piece by piece to a fresh cache."""
    text = OneText(executor, 2 * BLOCK_SIZE)
    return np.concatenate([text.step(piece) for piece in pieces])


def drafted(executor: Executor, ids: list[int], first: int) -> Floats:
    """Logits after the first ids, and after each of as many more as a step with a draft computes."""
    text = OneText(executor, 2 * BLOCK_SIZE)
    before = text.step(ids[:first])
    draft = np.array(ids[first : first + DRAFT_ROWS], np.int32)
    return np.concatenate([before, drafted_logits(text.sequence, draft, 0, executor.options)])


def in_company(executor: Executor, ids: list[int], n_blocks: int = 4) -> tuple[list[tuple[int, Floats]], int]:
    """(place of a token, logits after it) of sequences that share steps, prefixes and too few blocks.

    Also how often one was preempted.
    """
    runner = Runner(executor, n_blocks, 3)
    pool = BlockPool(n_blocks, BLOCK_SIZE, keep=not executor.recurrent)
    n_ctx = n_blocks * BLOCK_SIZE
    scheduler = Scheduler(pool, 3, n_ctx, prompt_cap=9, recurrent=executor.recurrent)
    for order, length in enumerate((28, 27, 5, 38)):
        scheduler.add(Sequence(Request(np.array(ids[:length], np.int32)), order))
    found, preempted = [], 0
    while scheduler:
        plan = scheduler.schedule(14)
        assert plan is not None
        preempted += len(plan.preempted)
        logits = logits_of(runner, plan)
        scheduler.computed(plan)
        for sequence, row in zip(plan.sampled.values(), logits, strict=True):
            found.append((len(sequence.ids) - 1, row))
            if len(sequence.ids) == len(ids):
                scheduler.remove(sequence)
            else:
                sequence.ids.append(ids[len(sequence.ids)])
    return found, preempted


def check_company(executor: Executor, ids: list[int], alone: Floats) -> None:
    found, preempted = in_company(executor, ids)
    assert len(found) == 13 + 14 + 36 + 3
    assert preempted > 0
    for place, row in found:
        np.testing.assert_array_equal(row, alone[place], err_msg=str(place))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("same-bits")


@pytest.mark.parametrize("name", distinct(NAMES))
def test_a_text_has_the_same_logits_however_it_is_fed(name: str) -> None:
    """At once, token by token, in odd chunks; beside others, from shared blocks, preempted, on one thread."""
    path, ids = golden.file(name), tokens_of(name)
    executor, single = opened(path), opened(path, threads=1)
    try:
        if not executor.architecture.causal or executor.encodes:
            np.testing.assert_array_equal(fed(single, [ids]), fed(executor, [ids]))
            return
        alone = fed(executor, [ids])
        assert np.ptp(alone) > 0
        for sizes in ((1,), (3, 1, 7, 2, 5)):
            np.testing.assert_array_equal(fed(executor, chunks(ids, sizes)), alone, err_msg=str(sizes))
        for first in (5, 20):
            np.testing.assert_array_equal(drafted(executor, ids, first), alone[: first + DRAFT_ROWS])
        check_company(executor, ids, alone)
        np.testing.assert_array_equal(fed(single, chunks(ids, (6, 1, 11))), alone)
    finally:
        executor.close()
        single.close()


@pytest.mark.parametrize("kv", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["llama-dense", "mamba-dense"])
def test_of_any_type_of_cache(name: str, kv: str, folder: Path) -> None:
    ids = tokens_of(name)
    executor = opened(golden.build(golden.read(name), folder / f"{name}-{kv}.gguf"), kv=kv)
    alone = fed(executor, [ids])
    np.testing.assert_array_equal(fed(executor, chunks(ids, (1, 5))), alone)
    check_company(executor, ids, alone)
    executor.close()


def test_an_option_of_the_cpu_backend(folder: Path) -> None:
    """It is of the whole model: an engine is as the model was opened. Other backends refuse it."""
    path = golden.build(golden.read("llama-dense"), folder / "option.gguf")
    for backend in ("reference", "cpu,reference"):
        with pytest.raises(BackendError, match=f"deterministic: wanted the backend 'cpu'.*got '{backend}'"):
            graphml.load(path, backend, deterministic=True)
    for given in (False, True):
        with graphml.load(path, deterministic=given) as model:
            assert bool(model.executor.order_of_sums) == given  # part of what a store's blocks are found by
            for same in (None, given):
                model.engine(max_sequences=2, n_ctx=64, deterministic=same).close()
            with pytest.raises(UsageError, match=f"deterministic: wanted {given}, as .* got {not given}"):
                model.engine(max_sequences=2, n_ctx=64, deterministic=not given)
            with pytest.raises(UsageError, match="deterministic: wanted True, False, or None; got 1"):
                model.engine(max_sequences=2, n_ctx=64, deterministic=1)  # type: ignore[arg-type]


def test_an_engine_answers_alike_in_any_company(folder: Path) -> None:
    """Greedy ids of many requests at once, and of each alone."""
    one = golden.read("llama-moe")
    prompts = [one.tokens[first : first + 9] for first in range(6)]
    with graphml.load(golden.build(one, folder / "engine.gguf"), threads=2, deterministic=True) as model:
        together = [list(result.tokens) for result in model.generate(prompts, max_tokens=12)]
        alone = [list(model.generate([prompt], max_tokens=12)[0].tokens) for prompt in prompts]
    assert together == alone


@pytest.mark.parametrize("form", ["f16", "bf16", "q4_1", "q8_0"])
@pytest.mark.parametrize("name", ["llama-dense", "llama-moe"])
def test_of_weights_of_any_format(name: str, form: str, folder: Path) -> None:
    """Products and experts of int8, bfloat16 and float32; tests/cpu/test_one_order.py has all formats."""
    one, ids = golden.read(name), tokens_of(name)
    tensors = {tensor: golden.weights(tensor, sizes, one.seed) for tensor, sizes in one.tensors.items()}
    path = folder / f"{name}-{form}.gguf"
    executor = opened(golden.write_gguf(path, one.architecture, one.metadata, tensors, form))
    alone = fed(executor, [ids])
    for sizes in ((1,), (2, 4, 9, 3)):
        np.testing.assert_array_equal(fed(executor, chunks(ids, sizes)), alone, err_msg=str(sizes))
    check_company(executor, ids, alone)
    executor.close()
