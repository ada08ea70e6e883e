"""Every architecture, found by itself, on every backend: tiny models say the same however they are fed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from graphml.compiler.options import CompileOptions
from graphml.ir.cells import BLOCK_SIZE
from graphml.ir.verify import verify
from graphml.loading import discovery
from graphml.passes.fusion import fusions
from graphml.runtime.blocks.block_pool import BlockPool
from graphml.runtime.blocks.request import Request
from graphml.runtime.blocks.sequence import Sequence as RunningSequence
from graphml.runtime.loop.scheduler import Scheduler
from graphml.runtime.plans.checkpoints import Checkpoints
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from graphml.runtime.sessions.pinned import Room
from graphml.runtime.steps.runner import Runner
from tests import fusion_counts
from tests.backend_pairs import BACKENDS, GPUS, in_turn
from tests.golden import Floats, nmse
from tests.looped import looped, try_all
from tests.model_forms import distinct
from tests.one_text import OneText
from tests.one_text import logits_of as rows_of
from tests.sample_models import MODELS, write_model

N_BATCH = 24
TOKENS = np.random.default_rng(3).integers(0, 80, 70)  # three blocks of the cache
# Steps of one token where one differs from the last: at the beginning, at the ends of blocks of the cache,
# behind batches and before them. In between come batches, each of which costs as much as a step of one.
STEPS = (1, 1, 1, N_BATCH, 3, 1, 1, 1, 1, 1, N_BATCH, 3, 1, 1, 1, 1, 1, 1, 1, 1)
CAUSAL = {name for name, (of, _) in MODELS.items() if discovery.architecture(of).causal}
LLAMAS = [name for name in MODELS if name.startswith("llama-")]
# What hangs on the cache and not on the layers is tried on some.
SOME = [*LLAMAS, *[name for name in MODELS if name not in LLAMAS][::6]]
# The reference runs a graph's nodes one by one, whatever the number of tokens: how it goes on from its cache
# is tried on few, as all goldens go step by step on it, and all models are compared with it.
ON_REFERENCE = {*LLAMAS, *SOME[len(LLAMAS) :: 6], "mamba-plain", "qwen3next-plain"}
# Compilers of GPUs take seconds for a model: there kinds of nodes are in goldens, and some models are here.
ON_GPUS = [*LLAMAS, *[name for name in MODELS if name not in LLAMAS][::48]]
_IN_TURN = in_turn(ON_GPUS, everywhere=LLAMAS[:1])
PAIRS = [(m, b) for m in MODELS for b in BACKENDS if b not in GPUS or (m, b) in _IN_TURN]
STEPWISE_ON = [(m, b) for m, b in PAIRS if b != "reference" or m in ON_REFERENCE]
CAUSAL_STEPWISE_ON = [pair for pair in STEPWISE_ON if pair[0] in CAUSAL]


# What is checked of an open executor, and for which models and backends: all of it in one test of each.
CHECKS: dict[Callable[..., None], frozenset[tuple[str, str]]] = {}


def on(pairs: list[tuple[str, str]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A check of these models on these backends."""

    def checked(check: Callable[..., None]) -> Callable[..., None]:
        CHECKS[check] = frozenset(pairs)
        return check

    assert pairs
    return checked


on_some = on([pair for pair in CAUSAL_STEPWISE_ON if pair[0] in SOME])
WITH_STATES = [
    f"{name}-plain"
    for name in ("mamba", "jamba", "falcon-h1", "lfm2", "qwen3next", "rwkv6", "rwkv7", "kimi-linear")
] + ["mamba2-groups", "nemotron-h-plain"]  # and those among SOME
on_some_and_recurrent = on([pair for pair in CAUSAL_STEPWISE_ON if pair[0] in {*SOME, *WITH_STATES}])
DISTINCT = set(distinct(list(MODELS)))
QUANTISED = ("llama-grouped", "llama-experts")
FORMS = ("f16", "bf16", "q8_0", "q4_0", "q4_1")
on_backends_if_causal = on(CAUSAL_STEPWISE_ON)
unless_causal = on([pair for pair in PAIRS if pair[0] not in CAUSAL])


# How far logits of tokens fed in pieces may lie from those of all at once. Gemma 4's attention has no scale:
# where its embeddings move by half a float32 step, its logits move by 6e-11 (llama's: by 1e-13).
STEPWISE, STEPWISE_OF = 1e-10, {"gemma4": 1e-9}
# A single row of gemma4's may lie farther: one of cpu's lies 4e-9 from the reference's, where all lie 1e-10.
ROW_OF = {"gemma4": 6e-9}


def stepwise(executor: Executor, of: dict[str, float] = STEPWISE_OF) -> float:
    return of.get(executor.architecture.name, STEPWISE)


class Models:
    """Open executors by model, backend and weights' format."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executors: dict[tuple[str, str, str | None], Executor] = {}

    def __call__(self, model: str, backend: str, form: str | None = None) -> Executor:
        key = model, backend, form
        if key not in self.executors:
            path = self.folder / f"{model}-{form}.gguf"
            if not path.exists():
                write_model(path, *MODELS[model], form)
            # Barriers are between kinds of nodes, and goldens have the threads of the machine.
            threads = 2 if model in DISTINCT or model in SOME or form is not None else 1
            self.executors[key] = open_executor(
                path, LoadOptions(backend, threads=threads, kv="f32", n_batch=N_BATCH)
            )
        return self.executors[key]

    def close(self, model: str, backend: str) -> None:
        self.executors.pop((model, backend, None)).close()


def text_with_rings(executor: Executor, longest: int, n_ctx: int) -> OneText:
    """A text whose layers with a window keep it and as many tokens more."""
    before, executor.n_batch = executor.n_batch, longest
    try:
        return OneText(executor, n_ctx)
    finally:
        executor.n_batch = before


class Sequence:
    """A sequence with cells of its own, whose blocks may be in any order."""

    def __init__(self, executor: Executor, order: list[int] | None = None) -> None:
        self.text = OneText(executor, 128) if order is None else text_with_rings(executor, 128, 128)
        if order is not None:  # of all blocks, of windows too
            self.text.sequence._table = np.array(order, np.int32)

    def feed(self, tokens: Any, piece: int = N_BATCH, all_logits: bool = True) -> Floats:
        """Logits of the tokens, fed in pieces."""
        return self.feed_parts([tokens[i : i + piece] for i in range(0, len(tokens), piece)], all_logits)

    def feed_parts(self, parts: list[Any], all_logits: bool = True) -> Floats:
        return np.concatenate([self.text.step(part, all_logits) for part in parts])

    def feed_in_steps(self) -> Floats:
        """Logits of `TOKENS`, fed in `STEPS`."""
        return self.feed_parts(np.split(TOKENS, np.cumsum(STEPS)[:-1]))


_LOGITS: WeakKeyDictionary[Executor, Floats] = WeakKeyDictionary()


def logits_of(executor: Executor) -> Floats:
    """What it says to the tokens in batches: what the tests compare with, worked out once."""
    if executor not in _LOGITS:
        _LOGITS[executor] = Sequence(executor).feed(TOKENS)
    return _LOGITS[executor]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    models = Models(tmp_path_factory.mktemp("architectures"))
    yield models
    for executor in models.executors.values():
        executor.close()


@looped("name", discovery.architecture_names())
def test_every_architecture_has_samples(name: str) -> None:
    assert any(of == name for of, _ in MODELS.values()), (
        f"write sample(name) beside Config and build of {name}"
    )


@on(PAIRS)
def every_tensor_of_a_sample_is_used_and_the_graph_is_well_formed(executor: Executor) -> None:
    verify(executor.build(1, 1))
    verify(executor.compiled(N_BATCH, N_BATCH).graph)
    assert not executor.unused_tensors


@on_backends_if_causal
def in_pieces_is_step_by_step(executor: Executor) -> None:
    together = logits_of(executor)
    assert np.isfinite(together).all()
    assert nmse(Sequence(executor).feed_in_steps(), together) < stepwise(executor)
    if executor.backend.name not in GPUS:  # which have met pieces of three and of a batch
        assert nmse(Sequence(executor).feed(TOKENS, piece=7), together) < stepwise(executor)


@on([pair for pair in PAIRS if pair[1] != "reference" or pair[0] in ON_REFERENCE])
def the_last_logits_are_the_last_of_all(executor: Executor) -> None:
    if executor.architecture.output != "logits":
        return  # which rows of embeddings there are, their pooling says
    all_logits = logits_of(executor)[:N_BATCH]
    last = Sequence(executor).feed(TOKENS[:N_BATCH], all_logits=False)
    assert last.shape == (1, all_logits.shape[1])
    assert nmse(last[0], all_logits[-1]) < 1e-10


def it_is_what_the_reference_says(executor: Executor, reference: Executor) -> None:
    assert nmse(logits_of(executor), logits_of(reference)) < 1e-9


@on([(m, b) for m, b in PAIRS if b in ("reference", *GPUS) or m in DISTINCT])
def fused_is_unfused(executor: Executor) -> None:
    """Of each architecture on the reference, which others are compared with; elsewhere each kind of node."""
    plain = CompileOptions(fuse="none")
    assert executor.options.fusions() == frozenset(fusions())
    for count in (7,) if executor.backend.name == "reference" else (1, 7):
        compiled = executor.programs.compiled_for(count, 1, all_logits=True, options=plain)
        assert not [node for node in compiled.graph.nodes if node.op.decompose is not None]
        got, want = (
            OneText(executor, 32, options).step(TOKENS[:count]) for options in (executor.options, plain)
        )
        assert nmse(got, want) <= 1e-9, f"{count} tokens"


@on_backends_if_causal
def layers_with_a_window_need_no_more_than_it(executor: Executor) -> None:
    """Their cells are used again as the text goes on, which changes no bit; on GPUs once."""
    if not executor.cell_groups:
        return
    tokens, found = np.tile(TOKENS, 3), []
    singly, end = (120, 136) if executor.backend.name in GPUS else (168, 200)
    for longest in (224, executor.n_batch):
        text = text_with_rings(executor, longest, 224)
        batches = (tokens[i : i + N_BATCH] for i in range(0, singly, N_BATCH))
        pieces = [*batches, *np.split(tokens[singly:end], end - singly)]
        found.append(np.concatenate([text.step(one) for one in pieces]))
    sizes = executor.pinned_sizes(224)
    assert max(sizes[group.symbol] for group in executor.cell_groups) <= 96 < sizes["C"]
    np.testing.assert_array_equal(*found)


@on([pair for pair in PAIRS if pair[1] == "cpu"])
def earlier_tokens_matter(executor: Executor) -> None:
    """So that the comparisons above can fail: another first token changes the last logits, on any backend.

    RWKV with random weights forgets a token in some ten: there one of the last batch changes the next.
    """
    fades = "rwkv" in executor.architecture.name
    changed, seen = (N_BATCH - 2, N_BATCH) if fades else (0, -1)
    other = TOKENS.copy()
    other[changed] = (other[changed] + 1) % 80
    first, second = logits_of(executor), Sequence(executor).feed(other)
    assert nmse(first[seen], second[seen]) > 1e-8


@unless_causal
def later_tokens_matter_and_other_sequences_do_not(executor: Executor) -> None:
    texts = [TOKENS[:9], TOKENS[40:47]]
    alone = [Sequence(executor).feed(text) for text in texts]
    other = np.append(texts[0][:-1], (texts[0][-1] + 1) % 80)
    assert nmse(Sequence(executor).feed(other)[0], alone[0][0]) > 1e-8
    room = Room(executor, executor.options, 128, 2)
    both = room.step(dict(zip(room.all_pinned(), texts, strict=True)), all_logits=True)
    assert nmse(both, np.concatenate(alone)) < 1e-10


@on_some
def sequences_that_take_turns_do_not_disturb_each_other(executor: Executor) -> None:
    texts = TOKENS, TOKENS[::-1].copy()
    alone = [logits_of(executor), Sequence(executor).feed(texts[1])]
    both = [Sequence(executor), Sequence(executor)]
    turns: list[list[Floats]] = [[], []]
    for start in range(0, len(TOKENS), 10):
        for i, text in enumerate(texts):
            turns[i].append(both[i].feed(text[start : start + 10], piece=10 if start % 20 else 5))
    for i in range(2):
        assert nmse(np.concatenate(turns[i]), alone[i]) < stepwise(executor)


@on_some
def rewinding_and_going_on_is_like_going_on(executor: Executor) -> None:
    plain = logits_of(executor)
    sequence = Sequence(executor)
    sequence.feed(TOKENS[:60])
    for length in (45, 3, 33, 0):
        sequence.text.sequence.rewind(min(length, sequence.text.sequence.n_computed))
        at = sequence.text.sequence.n_computed
        assert nmse(sequence.feed(TOKENS[at : at + 20]), plain[at : at + 20]) < 1e-10


@on_some
def the_order_of_cache_blocks_does_not_matter(executor: Executor) -> None:
    """Of one order that no mistake turns into itself: neither backwards nor from blocks to places."""
    plain, order = logits_of(executor), [3, 0, 2, 1]
    sequence = Sequence(executor, order)
    assert nmse(sequence.feed(TOKENS), plain) < 1e-10
    assert sequence.text.sequence.table(96).tolist() == order[:3]
    assert nmse(Sequence(executor, order).feed_in_steps(), plain) < 1e-10


@on_some_and_recurrent
def sequences_that_share_steps_and_blocks_say_what_each_says_alone(executor: Executor) -> None:
    """Prompts in chunks beside single tokens, prefixes found in blocks, and too few blocks for all."""
    if executor.encodes:
        return  # an encoder's source text is in no plan
    plain, n_blocks = logits_of(executor), 7
    n_copies = 4 if executor.recurrent else 0
    runner = Runner(executor, n_blocks, 3, n_copies)
    checkpoints = Checkpoints(n_copies, BLOCK_SIZE, runner.has_cells, BLOCK_SIZE) if n_copies else None
    pool, n_ctx = BlockPool(n_blocks, BLOCK_SIZE), n_blocks * BLOCK_SIZE
    scheduler = Scheduler(pool, 3, n_ctx, 9, recurrent=executor.recurrent, checkpoints=checkpoints)
    for order, length in enumerate((40, 66, 5, 66)):
        scheduler.add(RunningSequence(Request(TOKENS[:length].astype(np.int32)), order))
    found, rows_at, n_restored = [], [], 0
    while scheduler:
        plan = scheduler.schedule(14)
        assert plan is not None
        logits = rows_of(runner, plan)
        scheduler.computed(plan)
        n_restored += sum(rows.restore is not None for rows in plan.rows)
        for at, sequence in plan.sampled.items():
            found.append(logits[at])
            rows_at.append(len(sequence.ids) - 1)
            if len(sequence.ids) == len(TOKENS):
                scheduler.remove(sequence)
            else:
                sequence.ids.append(int(TOKENS[len(sequence.ids)]))
    assert len(found) >= 31 + 5 + 66 + 5
    assert (n_restored > 0) == executor.recurrent
    for row, at in zip(found, rows_at, strict=True):
        assert nmse(row, plain[at]) < stepwise(executor, ROW_OF)


@pytest.mark.parametrize(("model", "backend"), PAIRS)
def test_it_says_the_same_however_it_is_fed(model: str, backend: str, models: Models) -> None:
    """All checks of a model on a backend; what was compiled for them goes when the next model begins."""
    executor = models(model, backend)
    checks = [partial(check, executor) for check, pairs in CHECKS.items() if (model, backend) in pairs]
    if backend != "reference":
        checks.append(partial(it_is_what_the_reference_says, executor, models(model, "reference")))
    try:
        try_all((check.func.__name__, check) for check in checks)
    finally:
        models.close(model, backend)


@looped("model", MODELS)
def test_golden_counts_of_fusions(model: str, models: Models) -> None:
    found = fusion_counts.counts(models(model, "reference").build(1, 1))
    assert found == fusion_counts.recorded()[model], fusion_counts.HOW


@pytest.mark.parametrize(
    ("form", "model", "backend"),
    [
        (form, model, backend)
        for i, form in enumerate(FORMS)
        for model, backend in in_turn(QUANTISED, first=i // 2)
        if backend != "reference" and (backend not in GPUS or model == QUANTISED[i % 2])
    ],
)
def test_quantised_weights_mean_what_the_reference_says(
    model: str, backend: str, form: str, models: Models
) -> None:
    """Others than F16 within what converting activations costs, which backends need not do alike.

    On GPUs a format is that of one model: products of plain rows and of experts read it by the same function,
    which tests/gpu/test_products.py tries for each format, and so does the conformance suite.

    Rounding may turn a near tie between two experts, so single tokens may differ by more.
    """
    limit = {"f16": 1e-9, "bf16": 1e-4}.get(form, 1e-3)
    reference = logits_of(models(model, "reference", form))
    executor = models(model, backend, form)
    for got in (logits_of(executor), Sequence(executor).feed_in_steps()):
        errors = [nmse(*rows) for rows in zip(got, reference, strict=True)]
        assert np.median(errors) < limit
        assert np.mean(errors) < 20 * limit
    assert nmse(reference, logits_of(models(model, "reference"))) > 1e-8
