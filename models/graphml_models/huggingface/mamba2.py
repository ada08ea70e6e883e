"""Mamba 2: `Mamba2ForCausalLM`."""

from __future__ import annotations

import math

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import (
    Family,
    Names,
    To,
    calculated,
    column,
    minus_exp,
    squeezed,
)
from graphml.weights import Tensor
from graphml_models.huggingface import mamba


def grouped(config: HfConfig, name: str, tensor: Tensor, field: str = "n_groups") -> Tensor:
    """The norm before the output projection, a row for each group; field: of their number."""
    groups = config.size(field)
    shape = (groups, tensor.n_elements // max(groups, 1))
    return calculated(tensor, name, lambda values: values, shape)


MIXER: Names = {
    "layers.{}.mamba.conv1d.weight": To("blk.{}.ssm_conv1d.weight", squeezed),
    "layers.{}.mamba.conv1d.bias": "blk.{}.ssm_conv1d.bias",
    "layers.{}.mamba.dt_bias": "blk.{}.ssm_dt.bias",
    "layers.{}.mamba.A_log": To("blk.{}.ssm_a", minus_exp),
    "layers.{}.mamba.D": To("blk.{}.ssm_d", column),
    "layers.{}.mamba.norm": To("blk.{}.ssm_norm", lambda c, n, t: grouped(c, n, t, "mamba_n_groups")),
}
"""Of models that have Mamba 2 beside attention: what is between the projections."""


def check_time_steps(config: HfConfig) -> None:
    """Refuse dt that is clamped."""
    low, high = config.get("time_step_limit") or (0.0, math.inf)
    if isinstance(high, dict):  # transformers 5 writes infinity so, which JSON lacks
        high = math.inf if high.get("__float__") == "Infinity" else 0.0
    if (low, high) != (0.0, math.inf):
        raise config.error(f"time_step_limit: wanted 0 to infinity; got {str((low, high))[:60]}")


def keys(config: HfConfig) -> dict[str, Value]:
    """The sizes of heads, groups, state and convolution; dt must not be clamped, norms must be there."""
    check_time_steps(config)
    config.only("rms_norm", True)
    config.only("use_bias", False)
    inner = config.size("expand") * config.size("embedding_length")
    if inner != config.size("num_heads") * config.size("head_dim"):
        raise config.error("num_heads, head_dim: wanted heads that fill expand * hidden_size")
    return {
        **mamba.shared_keys(config),
        "ssm.inner_size": inner,
        "ssm.time_step_rank": config.size("num_heads"),
        "ssm.group_count": config.size("n_groups"),
    }


FAMILY = Family(
    model_types=("mamba2",),
    architecture="mamba2",
    keys=keys,
    names={
        **mamba.NAMES,
        "layers.{}.mixer.D": To("blk.{}.ssm_d", column),
        "layers.{}.mixer.dt_bias": "blk.{}.ssm_dt.bias",
        "layers.{}.mixer.norm": To("blk.{}.ssm_norm", grouped),
    },
    defaults={"tie_word_embeddings": False},
    ignored=("time_step_floor", "time_step_max", "time_step_min", "use_conv_bias", "chunk_size",
             "time_step_rank"),
)  # fmt: skip
