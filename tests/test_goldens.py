"""Every golden on every backend, on GPUs those that give them other work: llama.cpp's logits.

In one batch and step by step.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import graphml_quant
import numpy as np
import pytest

from graphml.compiler.compile import prepare
from graphml.ir.text import parse, write
from graphml.loading import discovery
from graphml.passes.fusion import all_ops
from graphml.passes.plan import plan_memory
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import fusion_counts, golden, transformers_records
from tests.backend_pairs import BACKENDS, GPUS, by_forms
from tests.compiler.parted import NO_KERNEL
from tests.golden import Floats, nmse
from tests.one_text import OneText

LIMIT = 1e-6
NAMES = golden.names()
PAIRS = by_forms(NAMES)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("goldens")


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def told(request: pytest.FixtureRequest) -> Iterator[tuple[golden.Golden, Executor]]:
    """A golden, open on a backend. Tests come pair by pair: what one compiles the others use."""
    name, backend = request.param
    with opened(golden.file(name), backend) as executor:
        yield golden.read(name), executor


def on(backend: str) -> pytest.MarkDecorator:
    """On one backend alone."""
    return pytest.mark.parametrize("told", [(name, backend) for name in NAMES], indirect=True, ids="-".join)


@contextmanager
def opened(path: Path, backend: str) -> Iterator[Executor]:
    executor = open_executor(path, LoadOptions(backend, kv="f32", n_batch=32))
    try:
        yield executor
    finally:
        executor.close()


def evaluate(executor: Executor, pieces: list[list[int]]) -> Floats:
    """Logits after every token, fed piece by piece to a fresh cache."""
    text = OneText(executor)
    steps = [text.step(piece) for piece in pieces]
    return np.concatenate(steps)


# llama.cpp made no golden of them: see test_transformers_records.py, models/test_encoders.py;
# mistral is of folders: see tests/folders.
WITHOUT = {
    "mistral",
    "jina-bert-v2",
    "nomic-bert-moe",
    *map(transformers_records.architecture, transformers_records.RECORDS),
}


def test_there_are_goldens() -> None:
    assert {"llama-dense", "llama-moe"} <= set(NAMES)
    proved = {golden.read(name).architecture.replace("_", "-") for name in NAMES}
    assert proved == set(discovery.architecture_names()) - WITHOUT
    assert "reference" in BACKENDS


def test_each_golden_meets_the_processors_and_some_each_gpu() -> None:
    """tests/test_model_forms.py checks that each kind of node and of kernel meets a GPU, each fusion both."""
    gpus = set(BACKENDS) & set(GPUS)
    assert set(PAIRS) >= {(name, backend) for name in NAMES for backend in set(BACKENDS) - gpus}
    assert set(PAIRS) >= {(name, backend) for name in golden.FEW for backend in BACKENDS}
    assert all(sum(backend == gpu for _, backend in PAIRS) >= 8 for gpu in gpus)


def ways(one: golden.Golden, executor: Executor) -> list[list[list[int]]]:
    """The pieces that a golden's tokens are fed in: one batch, and 16 tokens and single steps.

    One batch where tokens see later ones. Off the CPU, which takes every step, single steps are four and a
    batch between them; GPUs, whose drivers run here without optimising, have these alone.
    """
    before, after = one.tokens[:16], one.tokens[16:]
    steps = [before, after[:1], after[1:2], after[2:-2], after[-2:-1], after[-1:]]
    if executor.backend.name == "cpu":
        steps = [before, *([token] for token in after)]
    if not executor.architecture.causal:
        return [[one.tokens]]
    return [steps] if executor.backend.name in GPUS else [[one.tokens], steps]


def test_in_one_batch_and_step_by_step(told: tuple[golden.Golden, Executor]) -> None:
    one, executor = told
    for pieces in ways(one, executor):
        assert nmse(evaluate(executor, pieces), one.logits) <= LIMIT
    if executor.backend.name == "cpu":
        fallbacks = executor.compiled(1, 1).program.fallbacks  # type: ignore[attr-defined]
        assert {node.op.name for node in fallbacks} <= NO_KERNEL


@on("reference")
def test_a_poisoned_weight_is_noticed(told: tuple[golden.Golden, Executor]) -> None:
    """The sign turned of a layer's last matrix that surely matters.

    Experts may go unchosen, and an index of the text may choose all of it.
    """
    one, executor = told
    unused = OTHERWISE_UNUSED.get(one.name, set())
    matrices = [tensor for tensor, sizes in one.tensors.items() if len(sizes) > 1]
    of_layers = [tensor for tensor in matrices if re.match(r"(blk|convnext)\.\d+\.(?!ffn|indexer)", tensor)]
    poison = [tensor for tensor in of_layers if tensor.split(".", 2)[2] not in unused][-1]
    weights = executor.programs.weights
    stored = weights[poison]
    weights[poison] = -stored
    executor.programs.forget()  # which hold the weight as it was
    try:
        assert nmse(evaluate(executor, [one.tokens]), one.logits) > 10 * LIMIT
    finally:
        weights[poison] = stored
        executor.programs.forget()


@on("reference")
def test_graphs(told: tuple[golden.Golden, Executor]) -> None:
    """What goes unused, how often each fusion is found, and that the text form gives the same graph."""
    one, executor = told
    name, graph = one.name, executor.build(1, 1)
    unused = [name for name in executor.unused_tensors if not name.endswith(("input_scale", ".scale"))]
    others = {re.sub(r"blk\.\d+\.", "", tensor) for tensor in unused}
    assert others == OTHERWISE_UNUSED.get(name, set())
    assert fusion_counts.counts(graph) == fusion_counts.recorded()[name], fusion_counts.HOW
    text = write(graph)
    assert write(parse(text, all_ops())) == text


# llama.cpp reads an `input_scale` for NVFP4 weights alone and many a `.scale` not at all; what else it loads
# and does not use for logits
_RERANKER, _OUTPUT_BIAS = {"cls.output.weight"}, {"attn_output.bias"}
_BIASES = {f"attn_{part}.bias" for part in "qkv"}  # any that a file has are loaded, by graphs that add none
_PICTURES = {f"vis_{part}.weight" for part in ("attn_qkv", "attn_output", "gate", "up", "down")}
_INDEXER = {
    f"indexer.{part}"
    for part in ("k_norm.weight", "k_norm.bias", "proj.weight", "attn_k.weight", "attn_q_b.weight")
}
_DENSE = {"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"}
_BLOCK_INDEXER = {f"indexer.{part}.weight" for part in ("q_proj", "k_proj", "q_norm", "k_norm")}
_GROUPS = {f"indexer_compressor_{part}.weight" for part in ("kv", "gate", "ape", "norm")}
_POOLS = {f"indexer_compressor_{part}.weight" for part in ("gate", "ape")}
_MIXED_WITH_FIRST = {f"time_mix_v{i}.weight" for i in range(3)}  # the first layer's, which mixes with none
OTHERWISE_UNUSED = {
    "arwkv7-dense": _MIXED_WITH_FIRST,
    "arwkv7-gated": _MIXED_WITH_FIRST,
    "bailingmoe3-moe": _BIASES,
    "cogvlm-dense": {"rope_freqs.weight", *_PICTURES},
    "deepseek4-yarn": {"indexer.proj.weight", "indexer.attn_q_b.weight", *_GROUPS},  # which would choose all
    "dots3note-moe": _INDEXER,
    "dream-dense": {"output.bias"},
    "falcon-h1-dense": {*_OUTPUT_BIAS, "rope_freqs.weight"},
    "ernie4_5-moe": _OUTPUT_BIAS,
    "ernie4_5-moe-moe": _OUTPUT_BIAS,
    "hy_v3-moe": _DENSE,  # beside its experts
    "kimi-k3-moe": {*_BIASES, "attn_res_score.weight"},  # layer 0 has one residual alone to choose from
    "kimi-linear-moe": _BIASES,
    "llada-dense": {"rope_freqs.weight"},  # its biases, which llama.cpp leaves out, are not in the golden
    "mimo2-moe": {*_DENSE, *_BIASES},
    "glm5-next-moe": {*_INDEXER, *_POOLS, *_BIASES},
    "mpt-dense": {"attn_k_norm.weight", "attn_k_norm.bias"},  # without one of queries
    "pangu-embedded-dense": {"rope_freqs.weight"},
    "qwen2vl-dense": {"output.bias"},
    "qwen3-dense": _RERANKER,
    "qwen3next-moe": {"ssm_in.weight"},  # of older files, whose attn_qkv and attn_gate it holds together
    "qwen3tts-dense": _RERANKER,
    "qwen3vl-dense": _RERANKER,
    "qwen4exp-moe": {*_BIASES, *_BLOCK_INDEXER},  # which would choose all of so short a text
    "refact-dense": {*_OUTPUT_BIAS, "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias"},
    "refact-moe": {*_OUTPUT_BIAS, "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"},
    "rwkv7-dense": _MIXED_WITH_FIRST,
}


@pytest.mark.parametrize(
    "told", [pair for pair in PAIRS if pair[1] != "reference"], indirect=True, ids="-".join
)
def test_the_arena_is_about_as_small_as_can_be(told: tuple[golden.Golden, Executor]) -> None:
    """Where there is one: the reference follows no plan."""
    _, executor = told
    for graph in (
        executor.compiled(1, 1).graph,
        prepare(executor.build(32, 1), executor.backend, executor.device).graph,
    ):
        plan = plan_memory(graph, executor.device)  # without the slack of programs of one token
        assert plan.lower_bound <= plan.peak <= 1.1 * plan.lower_bound


def test_weights_follow_the_formula() -> None:
    """The formula worked out once in Python's own integers."""
    key = int.from_bytes(hashlib.sha256(b"1:blk.0.attn_q.weight").digest()[:16], "little")
    raw = int(np.random.Philox(key=key).random_raw(1)[0])
    parts = sum((raw >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
    wanted = (parts / 65536 - 2) * 3**0.5 / 256**0.5
    assert golden.weights("blk.0.attn_q.weight", (256, 256), 1)[0, 0] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_norms_and_biases_may_be_half_precision_too(backend: str, kind: str, folder: Path) -> None:
    """Against the same model with every number rounded to half precision and stored in full."""
    one = golden.read("llama-dense")
    tensors = {name: golden.weights(name, sizes, one.seed) for name, sizes in one.tensors.items()}
    form = graphml_quant.by_name(kind)
    rounded = {
        name: graphml_quant.dequantize(form, graphml_quant.quantize(form, array), array.shape)
        for name, array in tensors.items()
    }
    halves, full = folder / f"{kind}-{backend}.gguf", folder / f"{kind}-{backend}-full.gguf"
    golden.write_gguf(halves, one.architecture, one.metadata, tensors, kind, vectors=True)
    golden.write_gguf(full, one.architecture, one.metadata, rounded)
    logits = []
    for path in (halves, full):
        with opened(path, backend) as executor:
            logits.append(evaluate(executor, [one.tokens[:9], one.tokens[9:10]]))
    # What is stored as BF16 meets rounded activations, where float32 does not.
    assert nmse(*logits) <= {"f16": 1e-11, "bf16": 1e-4}[kind]
