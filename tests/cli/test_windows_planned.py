"""`graphml plan` of models whose layers see windows: keys and values of Gemma 3 1B and gpt-oss 20B."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from graphml_models._samples import HEAD_NORMS, POST_NORMS, transformer
from typer.testing import CliRunner

from graphml.cli.main import app
from graphml.loading.architecture import SampleModel
from tests.sample_models import write_model

N_CTX, KEPT = 32768, 512


def widths(n_head_kv: int, head: int, biases: bool) -> dict[str, tuple[int, ...]]:
    """Four query heads, and keys and values of `n_head_kv` heads, of a model 64 wide."""
    rows = {"attn_q": 4 * n_head_kv * head, "attn_k": n_head_kv * head, "attn_v": n_head_kv * head}
    found: dict[str, tuple[int, ...]] = {f"{name}.weight": (count, 64) for name, count in rows.items()}
    found |= {f"{name}.bias": (count,) for name, count in rows.items() if biases}
    return {**found, "attn_output.weight": (64, rows["attn_q"])}


def keys_of(n_head_kv: int, head: int, window: int) -> dict[str, int | float | str | list[int]]:
    heads = {"attention.head_count": 4 * n_head_kv, "attention.head_count_kv": n_head_kv}
    lengths = {"attention.key_length": head, "attention.value_length": head, "rope.dimension_count": head}
    return {**heads, **lengths, "context_length": N_CTX, "attention.sliding_window": window}


def gemma3_1b() -> SampleModel:
    norms = dict.fromkeys(HEAD_NORMS, (256,))
    layer = {**POST_NORMS, **norms, **widths(1, 256, biases=False)}
    return transformer("gemma3", tied=True, metadata=keys_of(1, 256, 512), layer=layer, n_layer=26)


def gpt_oss_20b() -> SampleModel:
    more = {"post_attention_norm.weight": (64,), "attn_sinks.weight": (32,), **widths(8, 64, biases=True)}
    return transformer(
        "gpt-oss", n_expert=3, biases=True, metadata=keys_of(8, 64, 128), layer=more, n_layer=24,
        without=("ffn_norm.weight",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "n_layer", "n_windowed", "window", "of_a_layer"),
    [(gemma3_1b, 26, 22, 512, 2 * 256 * 2), (gpt_oss_20b, 24, 12, 128, 2 * 8 * 64 * 2)],
    ids=["gemma3", "gpt-oss"],
)
def test_windows_take_no_more_than_they_see(
    model: Callable[[], SampleModel],
    n_layer: int,
    n_windowed: int,
    window: int,
    of_a_layer: int,
    tmp_path: Path,
) -> None:
    """of_a_layer: bytes of one token's keys and values."""
    made = model()
    path = write_model(tmp_path / "model.gguf", next(iter(made.metadata)).partition(".")[0], made)

    def plan(*options: str) -> str:
        told = CliRunner().invoke(app, ["plan", str(path), "-c", str(N_CTX), *options])
        assert told.exit_code == 0, told.output
        return told.stdout

    whole, found = json.loads(plan("--json", "--swa-full")), json.loads(plan("--json"))
    assert whole["cache"] == n_layer * N_CTX * of_a_layer
    assert (whole["cache_windows"], whole["cache_per_token"]) == (0, n_layer * of_a_layer)
    blocks = -(-(window - 1 + KEPT) // 32) + 1
    assert found["cache_windows"] == n_windowed * blocks * 32 * of_a_layer
    assert found["cache"] == found["cache_windows"] + (n_layer - n_windowed) * N_CTX * of_a_layer
    assert found["total"] < whole["total"]
    assert "of them in windows" in plan()
