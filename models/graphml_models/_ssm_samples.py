"""Tiny models with state-space layers for tests: alone, beside attention, or some layers of each."""

from __future__ import annotations

from collections.abc import Mapping

from graphml.loading.architecture import SampleModel
from graphml_models._samples import HEAD_DIM, N_EMBD, N_HEAD, Metadata, Shapes, transformer

N_INNER, D_CONV, D_STATE, RANK = 128, 4, 16, 4
ATTENTION = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight")
FFN = ("ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")


def sizes(n_group: int = 0) -> Metadata:
    """The keys of state-space layers; n_group 0: without groups."""
    keys: Metadata = {"ssm.conv_kernel": D_CONV, "ssm.inner_size": N_INNER, "ssm.state_size": D_STATE,
                  "ssm.time_step_rank": RANK}  # fmt: skip
    return {**keys, "ssm.group_count": n_group} if n_group else keys


def mamba(norms: bool = False) -> Shapes:
    """The tensors of a Mamba layer; norms: of dt, B and C."""
    more = {"ssm_dt_norm.weight": (RANK,), "ssm_b_norm.weight": (D_STATE,), "ssm_c_norm.weight": (D_STATE,)}
    return {
        "ssm_in.weight": (2 * N_INNER, N_EMBD), "ssm_conv1d.weight": (N_INNER, D_CONV),
        "ssm_conv1d.bias": (N_INNER,), "ssm_x.weight": (RANK + 2 * D_STATE, N_INNER),
        "ssm_dt.weight": (N_INNER, RANK), "ssm_dt.bias": (N_INNER,), "ssm_a": (N_INNER, D_STATE),
        "ssm_d": (N_INNER,), "ssm_out.weight": (N_EMBD, N_INNER), **(more if norms else {}),
    }  # fmt: skip


def mamba2(n_group: int = 2) -> Shapes:
    """The tensors of a Mamba 2 layer."""
    width = N_INNER + 2 * n_group * D_STATE
    return {
        "ssm_in.weight": (N_INNER + width + RANK, N_EMBD), "ssm_conv1d.weight": (width, D_CONV),
        "ssm_conv1d.bias": (width,), "ssm_dt.bias": (RANK,), "ssm_a": (RANK, 1), "ssm_d": (RANK, 1),
        "ssm_norm.weight": (n_group, N_INNER // n_group), "ssm_out.weight": (N_EMBD, N_INNER),
    }  # fmt: skip


def alone(architecture: str, name: str, layer: Shapes, keys: Metadata, tied: bool = False) -> SampleModel:
    """Two layers of nothing else."""
    return transformer(architecture, name, metadata=keys, layer=layer, tied=tied, without=(*ATTENTION, *FFN))


def mixed(
    architecture: str,
    name: str,
    recurrent: Mapping[str, tuple[int, ...]],
    metadata: Mapping[str, int | float | str | list[int]],
    layer: Mapping[str, tuple[int, ...]] | None = None,
    n_expert: int = 0,
    without: tuple[str, ...] = (),
) -> SampleModel:
    """Attention and a feed-forward, then a state-space layer and one; arguments as of `transformer`."""
    keys: Metadata = {"attention.head_count": [N_HEAD, N_HEAD], "attention.head_count_kv": [2, 0],
                  "attention.key_length": HEAD_DIM, **metadata}  # fmt: skip
    own = {f"blk.1.{part}": shape for part, shape in recurrent.items()}
    norms = ("attn_q_norm.weight", "attn_k_norm.weight")
    gone = tuple(f"blk.1.{part}" for part in (*ATTENTION, "attn_qkv.weight", *norms))
    return transformer(
        architecture, name, n_expert=n_expert, metadata=keys, layer=layer, top=own, without=(*gone, *without)
    )
