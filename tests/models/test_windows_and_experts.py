"""Windows, chunks, chosen blocks and experts, on texts longer than they reach, against float64 NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphml_quant
import numpy as np
import pytest
from graphml_models import dots1, gpt_oss, llama4, minimax_m3, nemotron_h
from graphml_models._samples import transformer
from graphml_models._windows import PATTERN, SIZE, read_windows
from numpy.typing import NDArray

from graphml.ir.op import Op
from graphml.ir.ops.sparse import select_blocks, selected_attention
from graphml.loading.architecture import Keys, SampleModel
from graphml.weights import open_model
from tests import golden
from tests.golden import nmse
from tests.models import paper
from tests.models.paper import TOKENS, Weights, Wide, attention, heads, plain_frequencies, rms_norm, silu
from tests.sample_models import write_model

LIMIT = 1e-10
on_both = pytest.mark.parametrize("backend", ["reference", "cpu"])
AT = np.arange(len(TOKENS))


def layer(w: Weights, i: int) -> Weights:
    return {name.removeprefix(f"blk.{i}."): value for name, value in w.items()}


def times(x: Wide, part: Weights, name: str) -> Wide:
    """A product with a matrix, and its bias if there is one."""
    return np.asarray(x @ part[f"{name}.weight"].T + part.get(f"{name}.bias", 0.0))


def swiglu(h: Wide, part: Weights, suffix: str = "") -> Wide:
    gate, up = times(h, part, f"ffn_gate{suffix}"), times(h, part, f"ffn_up{suffix}")
    return times(silu(gate) * up, part, f"ffn_down{suffix}")


def sigmoid(x: Wide) -> Wide:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def expert(part: Weights, e: int) -> Weights:
    """The tensors of one expert, under the names of a plain feed-forward."""
    return {name.replace("_exps", ""): value[e] for name, value in part.items() if "_exps" in name}


def last(x: Wide, w: Weights) -> Wide:
    return rms_norm(x, w["output_norm.weight"]) @ w["output.weight"].T


def projected(h: Wide, part: Weights) -> list[Wide]:
    return [heads(times(h, part, f"attn_{name}"), n) for name, n in (("q", 4), ("k", 2), ("v", 2))]


def told(folder: Path, backend: str, name: str, model: SampleModel) -> tuple[golden.Floats, Weights]:
    """What graphml says, and the weights for saying it again."""
    tensors = paper.random_weights(model)
    return paper.logits(folder, backend, name, model.metadata, tensors), paper.wide(tensors)


def llama4_logits(w: Weights, chunk: int, weighted_before: bool = True) -> Wide:
    """Meta 2025: layers 0 to 2 in chunks with rope and norms, layer 3 without, its queries growing.

    Layers 1 and 3 have experts, two used; the weight multiplies what goes into one.
    """
    x = w["token_embd.weight"][TOKENS]
    for i in range(4):
        part = layer(w, i)
        q, k, v = projected(rms_norm(x, part["attn_norm.weight"]), part)
        seen = None
        if i < 3:
            q, k = (paper.rotated(one, plain_frequencies(10000.0, 16), "norm") for one in (q, k))
            q, k = (rms_norm(one, np.ones(16)) for one in (q, k))
            seen = AT[:, None] // chunk == AT // chunk
        else:
            q = q * (1.0 + 0.5 * np.log(1.0 + (AT + 1) // 16))[:, None, None]
        x = x + times(attention(q, k, v, 0.25, seen=seen), part, "attn_output")
        h = rms_norm(x, part["ffn_norm.weight"])
        if i % 2 == 0:
            x = x + swiglu(h, part)
            continue
        scores = times(h, part, "ffn_gate_inp")
        y = swiglu(h, part, "_shexp")
        for t in AT:
            for e in np.argsort(-scores[t])[:2]:
                weight, one = sigmoid(scores[t, e]), expert(part, e)
                y[t] += swiglu(weight * h[t], one) if weighted_before else weight * swiglu(h[t], one)
        x = x + y
    return last(x, w)


@on_both
def test_llama4_in_chunks_of_20(backend: str, tmp_path: Path) -> None:
    (model,) = (one for one in llama4.sample("llama4") if one.name == "chunks")
    got, w = told(tmp_path, backend, "llama4", model)
    assert nmse(got, llama4_logits(w, 20)) < LIMIT
    assert nmse(got, llama4_logits(w, 60)) > 1e-4
    assert nmse(got, llama4_logits(w, 20, weighted_before=False)) > 1e-4
    before = slice(0, 20)  # the first chunk knows nothing of chunks
    assert nmse(got[before], llama4_logits(w, 60)[before]) < LIMIT


def gpt_oss_logits(w: Weights, window: int = 11, sunk: bool = True) -> Wide:
    """OpenAI 2025, arXiv:2508.10925: layer 0 sees a window and rotates on another base; sinks and biases."""
    x = w["token_embd.weight"][TOKENS]
    for i, base, seen in ((0, 500.0, AT[:, None] - AT < window), (1, 10000.0, None)):
        part = layer(w, i)
        q, k, v = projected(rms_norm(x, part["attn_norm.weight"]), part)
        q, k = (paper.rotated(one, plain_frequencies(base, 16), "neox") for one in (q, k))
        sinks = part["attn_sinks.weight"] if sunk else None
        x = x + times(attention(q, k, v, 0.25, seen=seen, sinks=sinks), part, "attn_output")
        h = rms_norm(x, part["post_attention_norm.weight"])
        scores = times(h, part, "ffn_gate_inp")
        y = np.zeros_like(x)
        for t in AT:
            chosen = np.argsort(-scores[t])[:2]
            weights = np.exp(scores[t, chosen]) / np.exp(scores[t, chosen]).sum()
            for e, weight in zip(chosen, weights, strict=True):
                one = expert(part, e)
                gate = np.minimum(times(h[t], one, "ffn_gate"), 7.0)
                up = np.clip(times(h[t], one, "ffn_up"), -7.0, 7.0)
                y[t] += weight * times(gate * sigmoid(1.702 * gate) * (up + 1.0), one, "ffn_down")
        x = x + y
    return last(x, w)


@on_both
@pytest.mark.parametrize("form", [None, "mxfp4"])
def test_gpt_oss_with_biases_sinks_and_windows(form: str | None, backend: str, tmp_path: Path) -> None:
    """Also with experts in MXFP4, where activations are rounded too and single tokens may change experts."""
    (model,) = gpt_oss.sample("gpt-oss")
    tensors: dict[str, NDArray[Any]] = {**paper.random_weights(model)}
    decoded = dict(tensors)
    for name, tensor in tensors.items():
        if form is not None and name.endswith("_exps.weight"):
            tensors[name] = mxfp4_blocks(tensor.shape)
            decoded[name] = graphml_quant.dequantize(graphml_quant.by_name(form), tensors[name], tensor.shape)
    got, w = paper.logits(tmp_path, backend, "gpt-oss", model.metadata, tensors, form), paper.wide(decoded)

    def error(wanted: Wide) -> float:
        return float(np.median([nmse(*rows) for rows in zip(got, wanted, strict=True)]))

    assert error(gpt_oss_logits(w)) < (3e-4 if form else LIMIT)
    assert error(gpt_oss_logits(w, sunk=False)) > 1e-3
    assert error(gpt_oss_logits(w, window=8)) > 1e-3


def mxfp4_blocks(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Random blocks (OCP 2023, "Microscaling Formats"): the exponent of 32 numbers, here -5, then they."""
    blocks = np.random.default_rng(8).integers(0, 256, (*shape[:-1], shape[-1] // 32, 17), dtype=np.uint8)
    blocks[..., 0] = 127 - 5
    return blocks.reshape(*shape[:-1], -1)


def dots1_logits(w: Weights, grouped: bool, shared: bool = True) -> Wide:
    """DeepSeek-V3 (2024, arXiv:2412.19437), section 2.1.2: three groups of two experts, two of them allowed.

    Behind qwen3's attention, the first layer without experts.
    """
    x = w["token_embd.weight"][TOKENS]
    for i in range(2):
        part = layer(w, i)
        q, k, v = projected(rms_norm(x, part["attn_norm.weight"]), part)
        q, k = rms_norm(q, part["attn_q_norm.weight"]), rms_norm(k, part["attn_k_norm.weight"])
        q, k = (paper.rotated(one, plain_frequencies(10000.0, 16), "neox") for one in (q, k))
        x = x + times(attention(q, k, v, 0.25), part, "attn_output")
        h = rms_norm(x, part["ffn_norm.weight"])
        if i == 0:
            x = x + swiglu(h, part)
            continue
        scores = sigmoid(times(h, part, "ffn_gate_inp"))
        y = swiglu(h, part, "_shexp") if shared else np.zeros_like(x)
        for t in AT:
            choice = scores[t] + part["exp_probs_b.bias"]
            if grouped:
                worst = np.argmin(choice.reshape(3, 2).sum(axis=1))
                choice[2 * worst : 2 * worst + 2] = -np.inf
            chosen = np.argsort(-choice)[:2]
            for e in chosen:
                weight = 2.5 * scores[t, e] / scores[t, chosen].sum()
                y[t] += weight * swiglu(h[t], expert(part, e))
        x = x + y
    return last(x, w)


@on_both
@pytest.mark.parametrize("name", ["plain", "groups"])
def test_experts_in_groups_beside_a_shared_one(name: str, backend: str, tmp_path: Path) -> None:
    (model,) = (one for one in dots1.sample("dots1") if one.name == name)
    got, w = told(tmp_path, backend, "dots1", model)
    assert nmse(got, dots1_logits(w, grouped=name == "groups")) < LIMIT
    assert nmse(got, dots1_logits(w, grouped=name != "groups")) > 1e-4
    assert nmse(got, dots1_logits(w, grouped=name == "groups", shared=False)) > 1e-4


def chosen_blocks(h: Wide, part: Weights, count: int) -> NDArray[np.bool_]:
    """MiniMax-M3: whether a token sees another by a head, [4, T, T]: the best blocks of 8, and its own.

    Two heads of attention share a head of the index.
    """
    q, k = (heads(times(h, part, f"indexer.{name}_proj"), n) for name, n in (("q", 2), ("k", 1)))
    q, k = (rms_norm(one, part[f"indexer.{name}_norm.weight"]) for name, one in (("q", q), ("k", k)))
    q, k = (paper.rotated(one, plain_frequencies(10000.0, 8), "neox") for one in (q, k))
    seen = np.zeros((4, len(AT), len(AT)), np.bool_)
    for head in range(4):
        scores = q[:, head // 2] @ k[:, 0].T
        for t in AT:
            blocks = [scores[t, start : min(start + 8, t + 1)].max() for start in range(0, t + 1, 8)]
            blocks[-1] = np.inf
            for block in np.argsort(blocks)[-count:]:
                seen[head, t, 8 * block : 8 * block + 8] = True
    return seen


def minimax_m3_logits(w: Weights, count: int) -> Wide:
    """Attention over normed heads of which 8 dimensions rotate; gpt-oss's gates; experts by sigmoid."""

    def ffn(h: Wide, part: Weights, suffix: str = "") -> Wide:
        gate = np.minimum(times(h, part, f"ffn_gate{suffix}"), 7.0)
        up = np.clip(times(h, part, f"ffn_up{suffix}"), -7.0, 7.0)
        return times(gate * sigmoid(1.702 * gate) * (up + 1.0), part, f"ffn_down{suffix}")

    x = w["token_embd.weight"][TOKENS]
    for i in range(2):
        part = layer(w, i)
        h = rms_norm(x, part["attn_norm.weight"])
        q, k, v = projected(h, part)
        q, k = rms_norm(q, part["attn_q_norm.weight"]), rms_norm(k, part["attn_k_norm.weight"])
        q, k = (paper.rotated(one, plain_frequencies(10000.0, 8), "neox") for one in (q, k))
        seen = chosen_blocks(h, part, count) if i == 1 else None
        x = x + times(attention(q, k, v, 0.25, seen=seen), part, "attn_output")
        h = rms_norm(x, part["ffn_norm.weight"])
        if i == 0:
            x = x + ffn(h, part)
            continue
        scores, y = sigmoid(times(h, part, "ffn_gate_inp")), ffn(h, part, "_shexp")
        for t in AT:
            for e in np.argsort(-(scores[t] + part["exp_probs_b.bias"]))[:2]:
                y[t] += 2.0 * scores[t, e] * ffn(h[t], expert(part, e))
        x = x + y
    return last(x, w)


@on_both
def test_minimax_m3_attends_to_the_chosen_blocks(backend: str, tmp_path: Path) -> None:
    (model,) = minimax_m3.sample("minimax-m3")
    got, w = told(tmp_path, backend, "minimax-m3", model)
    assert nmse(got, minimax_m3_logits(w, 3)) < LIMIT
    assert nmse(got, minimax_m3_logits(w, 4)) > 1e-5


def test_an_index_whose_heads_choose_together() -> None:
    """DeepSeek-V3.2 (2025, arXiv:2512.02556), equation 1: the sum over heads of w * relu(q . k).

    Attention to the best, the first of equals, in a cache whose blocks lie in no order, against a mask.
    """
    random, n_chosen, scattered = np.random.default_rng(9), 7, np.random.default_rng(1).permutation(8)
    cells = scattered[AT // 8] * 8 + AT % 8
    inputs = [random.normal(size=(len(AT), *shape)).astype(np.float32) for shape in ((3, 16), (1, 16), (3,))]
    queries, keys, weights = (one.astype(np.float64) for one in inputs)
    scores = np.einsum("th,thc->tc", weights, np.maximum(np.einsum("thd,cd->thc", queries, keys[:, 0]), 0.0))
    seen = np.zeros((len(AT), len(AT)), np.bool_)
    for t in AT:
        seen[t, np.argsort(-scores[t, : t + 1], kind="stable")[:n_chosen]] = True

    def cached(x: NDArray[Any]) -> NDArray[np.float32]:
        cache = np.full((64, *x.shape[1:]), np.nan, np.float32)
        cache[cells] = x
        return cache

    places = [AT.astype(np.int32), np.zeros(len(AT), np.int32), scattered[None].astype(np.int32)]
    attributes = {
        "n": n_chosen,
        "selection_block": 1,
        "local": 0,
        "block_size": 8,
        "k_dtype": "f32",
        "v_dtype": "f32",
        "scale": 0.3,
    }
    chosen = reference(select_blocks, [inputs[0], cached(inputs[1]), *places, inputs[2]], attributes)
    for t in AT:
        assert set(chosen[t, 0][chosen[t, 0] >= 0]) == set(np.flatnonzero(seen[t]))

    q, k, v = (random.normal(size=(len(AT), n, 16)).astype(np.float32) for n in (4, 2, 2))
    sinks = random.normal(size=4).astype(np.float32)
    got = reference(selected_attention, [q, cached(k), cached(v), *places, chosen, sinks], attributes)
    wanted = attention(*(x.astype(np.float64) for x in (q, k, v)), 0.3, seen=seen, sinks=sinks)
    assert nmse(got.reshape(len(AT), -1), wanted) < LIMIT
    assert nmse(wanted, attention(*(x.astype(np.float64) for x in (q, k, v)), 0.3, sinks=sinks)) > 1e-3


def reference(op: Op, inputs: list[NDArray[Any]], attributes: dict[str, Any]) -> NDArray[Any]:
    """What an op means, as its own file says."""
    assert op.reference is not None
    return op.reference(inputs, attributes)


@pytest.mark.parametrize(
    ("pattern", "rule", "wanted"),
    [
        (None, {"period": 3}, [7, 7, 0, 7, 7, 0]),
        (None, {"period": 3, "all_first": True}, [0, 7, 7, 0, 7, 7]),
        (2, {"period": 3}, [7, 0, 7, 0, 7, 0]),
        (None, {"period": 0}, [7] * 6),
        (None, {"period": 1}, [0] * 6),
        ([1, 0, 0, 1, 1, 0], {"period": 3}, [7, 0, 0, 7, 7, 0]),
    ],
)
def test_patterns_of_windows(pattern: Any, rule: Any, wanted: list[int], tmp_path: Path) -> None:
    keys = {SIZE: 7, **({} if pattern is None else {PATTERN: pattern})}
    write_model(tmp_path / "model.gguf", "llama", transformer("llama", metadata=keys, n_layer=6, n_ff=32))
    with open_model(tmp_path / "model.gguf") as file:
        assert list(read_windows(Keys(file.metadata, "llama"), 6, **rule)) == wanted


@on_both
def test_layers_may_use_different_numbers_of_experts(backend: str, tmp_path: Path) -> None:
    """Nemotron 3 Puzzle: the last of three layers has experts, the others' numbers change nothing."""
    plain = nemotron_h.sample("nemotron_h_moe")[1]
    weights = paper.random_weights(plain)

    def logits(name: str, used: int | list[int]) -> golden.Floats:
        metadata = {**plain.metadata, "nemotron_h_moe.expert_used_count": used}
        (tmp_path / name).mkdir()
        return paper.logits(tmp_path / name, backend, "nemotron_h_moe", metadata, weights)

    for count in (1, 2):
        got = logits(f"by-layer-{count}", [3 - count, 0, count])
        assert np.array_equal(got, logits(f"of-all-{count}", count))
    assert nmse(logits("two", 2), logits("one", 1)) > 1e-6
