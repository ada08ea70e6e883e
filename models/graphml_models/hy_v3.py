"""Hunyuan V3 (Tencent 2026): the graph of dots.llm1; the bias of its router goes by another name."""

from dataclasses import replace
from functools import partial
from typing import Self

from graphml.loading.architecture import Keys, SampleModel
from graphml_models import _ahead, _config, _routing, llama, qwen3
from graphml_models._routing import SIGMOID, Routing, shared_and_chosen
from graphml_models._samples import HEAD_NORMS, dense_layers, shared_expert, transformer


class Config(_routing.Config):
    """As of every decoder with experts."""

    @classmethod
    def read(cls, keys: Keys) -> Self:
        """From the file's metadata."""
        known = _config.read(keys)
        routing = replace(Routing.read(keys, SIGMOID), bias="exp_probs_b", scaled=True)
        return cls(**vars(known), routing=routing)


build = partial(llama.build, attention=qwen3.attention, feed_forward=shared_and_chosen)
ahead = partial(_ahead.build, attention=qwen3.attention, feed_forward=shared_and_chosen)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: experts whose gate and up are one tensor, and two."""
    layer = {**shared_expert(), **HEAD_NORMS, "exp_probs_b": (5,)}
    keys = {"expert_weights_norm": True, "expert_weights_scale": 2.5}
    split = dense_layers(0, without=("blk.0.exp_probs_b",))
    both = {**layer, "ffn_gate_up_exps.weight": (5, 192, 64)}
    gone = ("blk.0.ffn_gate_up_exps.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight")
    fused = dense_layers(0, without=("blk.0.exp_probs_b", *gone))
    split_sample = transformer(name, "split", n_expert=5, layer=layer, metadata=keys, **split)
    return [
        transformer(name, n_expert=5, layer=both, metadata=keys, **fused),
        split_sample,
        _ahead.sample(name, split_sample),
    ]
