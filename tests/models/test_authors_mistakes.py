"""What an author of an architecture is told: the method, the argument, what to write, and the line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphml.errors import ArchitectureError
from graphml.loading import discovery
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.docs.pages import ROOT, blocks
from tests.sample_models import write_model

SMALL = next(
    block.text for block in blocks(ROOT / "docs" / "architectures.md") if block.said("file") == "small.py"
)
TABLE = "g.rope_table(config.head_dim)"
QUERY = 'g.rope(g.heads(layer.linear(x_TD, "attn_q"), config.n_head), table, "norm")'
NORM = 'g.rms_norm(x_TD, layer["ffn_norm"], config.eps)'
GATED = "g.mul(g.silu(gate_TF), up_TF)"
GATE = 'layer.linear(h_TD, "ffn_gate")'
ROOTS = "scale=config.head_dim**-0.5"

# What stands in the file, what the author wrote instead, what must be said.
MISTAKES: list[tuple[str, str, str]] = [
    (TABLE, "g.rope_table(config.head_dim, base=1e6)",
     r"\[g\.rope_table\] has no argument 'base': did you mean 'freq_base'\?"),
    (TABLE, "g.rope_table(config.head_dim, 1e6)",
     r"\[g\.rope_table\] argument 'factors': wanted a node of this graph or None; got 1000000\.0"),
    (TABLE, "g.rope_table(config.head_dim / 1)",
     r"\[g\.rope_table\] argument 'n_rot': wanted a whole number of at least 1; got 16\.0"),
    (QUERY, 'g.rope(table, g.heads(layer.linear(x_TD, "attn_q"), 4), "norm")',
     r"\[rope\] wanted x \[T, head, d\].*they fit in the order %layers\.0\.reshape, %rope_table;"),
    (QUERY, 'g.rope(g.heads(layer.linear(x_TD, "attn_q"), 4), table)',
     r"\[g\.rope\] missing a required argument: 'mode'; it takes x, table, mode, name"),
    (QUERY, 'g.rope(g.heads(layer.linear(x_TD, "attn_q"), 4), table, "half")',
     r"\[g\.rope\] argument 'mode': wanted 'norm' or 'neox'; got 'half'"),
    (QUERY, 'g.heads(layer.linear(x_TD, "attn_q"), 7)',
     r"\[g\.heads\] wanted n_head that divides .*f32\[T<=8, 64\]; got 7; from blk\.0\.attn_q\.weight"),
    (QUERY, 'g.heads(layer.linear(x_TD, "attn_q"), -1)',
     r"\[g\.heads\] argument 'n_head': wanted a whole number of at least 1; got -1"),
    (NORM, 'g.rms_norm(x_TD, config.eps, layer["ffn_norm"])',
     r"\[g\.rms_norm\] argument 'weight': wanted a node of this graph or None; got 9\.99"),
    (NORM, 'g.rms_norm(x_TD, layer["ffn_norm"], "1e-5")',
     r"\[g\.rms_norm\] argument 'eps': wanted a finite number of at least 0; got '1e-5'"),
    (NORM, 'g.rms_norm(x_TD, layer["ffn_norm"])', r"\[g\.rms_norm\] missing a required argument: 'eps'"),
    (NORM, 'g.mul(x_TD, layer.get("ffn_scale"))',
     r"\[g\.mul\] argument 'b': wanted a node.*; got None \(weights\.get gives None for a tensor"),
    (NORM, 'g.mul(x_TD, __import__("numpy").ones(64, "f4"))',
     r"\[g\.mul\] argument 'b': wanted a node.*; got a NumPy array float32\[64\] \(tensors of the"),
    (NORM, 'g.rms_norm(x_TD, layer["ffn_norn"], config.eps)',
     r"tensor blk\.0\.ffn_norn\.weight is wanted and not in the file: "
     r"did you mean blk\.0\.ffn_norm\.weight\?"),
    (GATED, "g.silu(gate_TF) * up_TF", r"nodes have no operator \*: use g\.mul\(a, b\)"),
    (GATED, "g.mul(g.silu(gate_TF), 2.0)",
     r"\[g\.mul\] argument 'b': wanted a node of this graph; got 2\.0 \(for a number g\.scale\(x, factor"),
    (GATED, "g.mul(g.silu(gate_TF), x_TD)",
     r"\[mul\] wanted a second operand that stretches to f32\[T<=8, 96\]; got f32\[T<=8, 64\]; from blk\.0"),
    (GATED, "g.mul(g.silu(gate_TF, 'gate', 3), up_TF)",
     r"\[g\.silu\] takes 2 arguments \(x, name\); got 3"),
    (GATED, "g.mul(g.silu(gate_TF), (up_TF,))", r"argument 'b': wanted a node.*; got a tuple of 1 \(Node\)"),
    (GATED, "g.mul(g.silu(gate_TF), type(g)().tokens)",
     r"argument 'b': wanted a node of this graph; got the node %tokens: i32\[T<=512\] of another graph"),
    (GATED, "g.multiply(gate_TF, up_TF)", r"g has no 'multiply': did you mean g\.mul\?"),
    (GATED, "g.mul(gate_TF.view(8, 12), up_TF)", r"a node has no 'view': use g\.reshape"),
    (GATE, 'layer.linear("ffn_gate", h_TD)',
     r"\[weights\.linear\] argument 'x': wanted a node of this graph; got 'ffn_gate'"),
    (GATE, 'layer["ffn_gate"](h_TD)', r"nodes have no call: use layer\.linear\(x, name\)"),
    (GATE, 'g.mul_mat(h_TD, layer["ffn_gate"])',
     r"\[g\.mul_mat\] wanted weight \[out, in\], then x; got f32\[T<=8, 64\] and f32\[96, 64\]"),
    (GATED, "g.mul(g.clamp(gate_TF, 7.0, -7.0), up_TF)",
     r"\[g\.clamp\] wanted low of at most high; got 7\.0 and -7\.0"),
    (ROOTS, "scale=1.0, window=8, softcap=5.0, selected=g.tokens",
     r"\[g\.attend\] wanted selected without window, softcap: it has its own blocks"),
    (ROOTS, "scale=1.0, causal=False, selected=g.tokens", r"wanted selected without causal=False"),
    ("k_TKH, v_TKH, layer.index", "None, v_TKH, layer.index",
     r"\[g\.attend\] wanted v with its k, or neither"),
    (ROOTS, 'scale=float("nan")', r"\[g\.attend\] argument 'scale': wanted a finite number; got nan"),
    ("v_TKH, layer.index", "v_TKH, layer", r"\[g\.attend\] argument 'layer': wanted a whole .*; got a Layer"),
    ("g.tokens)", "g.rows)", r"\[g\.embed\] argument 'tokens': wanted a node.*; got the function rows,"),
    ('(weights["token_embd"], g.tokens)', '(g.tokens, weights["token_embd"])',
     r"\[get_rows\] wanted row indices of i32; .*they fit in the order %token_embd\.weight, %tokens"),
    ("weights.layers(config.n_layer)", 'weights.layers("2")',
     r"\[weights\.layers\] argument 'blocks': wanted a whole number or a list .*; got '2'"),
    ("weights.logits(x_TD)", "weights.logits(x_TD[0])", r"nodes have no operator \[\]: use g\.columns"),
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    architecture = discovery.architecture("llama")
    assert architecture.sample is not None
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", "llama", architecture.sample("llama")[0])


def refusal(model: Path, arch: Path) -> str:
    with pytest.raises(ArchitectureError) as error:
        open_executor(model, LoadOptions("reference", arch=arch)).build(8, 8)
    return str(error.value)


@pytest.mark.parametrize(("right", "wrong", "text"), MISTAKES, ids=[wrong for _, wrong, _ in MISTAKES])
def test_a_mistake_is_named_with_its_line(
    right: str, wrong: str, text: str, model: Path, tmp_path: Path
) -> None:
    assert SMALL.count(right) >= 1
    arch = tmp_path / "mine.py"
    arch.write_text(SMALL.replace(right, wrong, 1))
    line = arch.read_text().partition(wrong)[0].count("\n") + 1
    assert re.search(text + rf".*\(at {re.escape(str(arch))}:{line}\)$", refusal(model, arch))


def test_a_tensor_that_was_left_out_is_not_called_missing(model: Path, tmp_path: Path) -> None:
    arch = tmp_path / "mine.py"
    arch.write_text(SMALL.replace("weights.layers(", 'weights.without("*.ffn_norm.weight").layers('))
    told = "tensor blk.0.ffn_norm.weight is left out by without('*.ffn_norm.weight') in layers.0 (at "
    assert told in refusal(model, arch)


def test_an_error_in_a_shared_part_names_the_line_that_called_it(model: Path, tmp_path: Path) -> None:
    wrong = "_attention.rotate(g, x_TD, 'norm', x_TD, x_TD)[0]"
    arch = tmp_path / "mine.py"
    arch.write_text(SMALL.replace(QUERY, wrong) + "\n\nfrom graphml_models import _attention\n")
    line = arch.read_text().partition(wrong)[0].count("\n") + 1
    lines = rf"\(at .*_attention\.py:\d+, called from {re.escape(str(arch))}:{line}\)$"
    assert re.search(rf"\[rope\] wanted x .*{lines}", refusal(model, arch))


def test_an_error_inside_graphml_names_the_authors_line(model: Path, tmp_path: Path) -> None:
    """`keys` are not checked as `g` is: the line is the author's all the same."""
    arch = tmp_path / "mine.py"
    arch.write_text(SMALL.replace('keys.integer("block_count")', 'keys.integer("block_count", length=2)'))
    with pytest.raises(ArchitectureError, match=r"TypeError: .*'length' \(at .*mine\.py:\d+\)$"):
        open_executor(model, LoadOptions("reference", arch=arch))
    arch.write_text(SMALL.replace('keys.integer("block_count")', 'keys.integers("head_count", "2", 1)[0]'))
    with pytest.raises(ArchitectureError, match=r"TypeError: .* \(at .*mine\.py:\d+\)$"):
        open_executor(model, LoadOptions("reference", arch=arch))
