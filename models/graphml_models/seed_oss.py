"""Seed-OSS (ByteDance 2025): llama with a rope of halves; its second norm goes by another name."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import llama
from graphml_models._config import Config as Config
from graphml_models._samples import transformer

attention, feed_forward = partial(llama.attention, mode="neox"), partial(llama.feed_forward, scaled=False)
build = partial(llama.build, attention=attention, feed_forward=feed_forward, ffn_norm="post_attention_norm")


def sample(name: str) -> list[SampleModel]:
    """Tiny models for tests."""
    norm = {"post_attention_norm.weight": (64,)}
    biases = ("attn_q", "attn_k", "attn_v")
    return [transformer(name, biases=biases, layer=norm, without=("ffn_norm.weight",))]
