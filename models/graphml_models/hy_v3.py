"""Hunyuan V3 (Tencent 2026): the graph of dots.llm1; the bias of its router goes by another name."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama, qwen3
from graphml_models._routing import shared_and_chosen
from graphml_models._samples import HEAD_NORMS, dense_layers, shared_expert, transformer
from graphml_models.glm4moe import Config as Config

feed_forward = partial(shared_and_chosen, scaled=True, bias="exp_probs_b")
build = partial(llama.build, attention=qwen3.attention, feed_forward=feed_forward)


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests: experts whose gate and up are one tensor, and two."""
    layer = {**shared_expert(), **HEAD_NORMS, "exp_probs_b": (5,)}
    keys = {"expert_weights_norm": True, "expert_weights_scale": 2.5}
    split = dense_layers(0, without=("blk.0.exp_probs_b",))
    both = {**layer, "ffn_gate_up_exps.weight": (5, 192, 64)}
    gone = ("blk.0.ffn_gate_up_exps.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight")
    fused = dense_layers(0, without=("blk.0.exp_probs_b", *gone))
    return [transformer(name, n_expert=5, layer=both, metadata=keys, **fused),
            transformer(name, "split", n_expert=5, layer=layer, metadata=keys, **split)]  # fmt: skip
