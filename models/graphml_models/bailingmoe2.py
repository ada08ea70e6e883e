"""Ling 2.0 (Ling Team 2025, arXiv:2510.22115): the same graph as dots.llm1."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import _ahead, qwen3
from graphml_models._routing import Config as Config
from graphml_models._routing import shared_and_chosen
from graphml_models._samples import DENSE_FIRST, HEAD_NORMS, shared_expert, transformer
from graphml_models.dots1 import build as build

ahead = partial(_ahead.build, attention=qwen3.attention, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    qkv = {"attn_qkv.weight": (128, 64), "exp_probs_b.bias": (5,)}
    keys = {"expert_gating_func": 2, "expert_weights_norm": True, "rope.dimension_count": 8}
    without = (*DENSE_FIRST["without"], "attn_q.weight", "attn_k.weight", "attn_v.weight")
    layer = {**shared_expert(), **HEAD_NORMS, **qkv}
    top = DENSE_FIRST["top"]
    plain = transformer(name, n_expert=5, layer=layer, metadata=keys, top=top, without=without)
    return [plain, _ahead.sample(name, plain)]
