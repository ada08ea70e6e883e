"""NeoBERT (Le Breton et al. 2025, arXiv:2502.19587): llama whose tokens see all of a text, matrices fused."""

from functools import partial

from graphml.loading.architecture import SampleModel
from graphml_models import chatglm, llama
from graphml_models._config import Config as Config
from graphml_models._samples import FUSED_QKV, N_EMBD, N_FF, SPLIT_QKV, transformer

CAUSAL, OUTPUT = False, "embeddings"

build = partial(
    llama.build, feed_forward=chatglm.feed_forward, output_norm="enc.output_norm", head=llama.hidden_rows
)


def sample(name: str) -> list[SampleModel]:
    """A tiny model for tests."""
    layer = {"attn_qkv.weight": FUSED_QKV["attn_qkv.weight"], "ffn_up.weight": (2 * N_FF, N_EMBD)}
    without = (*SPLIT_QKV, "ffn_gate.weight", "output_norm.weight")
    top = {"enc.output_norm.weight": (N_EMBD,)}
    model = transformer(name, n_head_kv=4, tied=True, layer=layer, without=without)
    return [SampleModel(model.name, model.metadata, {**model.tensors, **top})]
