"""Records what transformers computes for tiny models that have no golden of llama.cpp: a tool for developers.

    python -m venv VENV; VENV/bin/pip install torch==2.13.0 transformers gguf
    PYTHONPATH=.:quant:models VENV/bin/python -m tests.transformers_records [NAME ...]

The models are the architectures' own samples with the weights that the tests give them (`tests/golden.py`);
what is recorded, in float64 and then rounded, lies in `tests/data/transformers`, so that the tests need
neither package. Made with transformers 5.23.0, Chameleon's with 5.24.0.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests import golden

FOLDER = Path(__file__).parent / "data" / "transformers"
TOKENS = np.random.default_rng(3).integers(0, 80, 40)
SOURCE = TOKENS[::-3].copy()  # what an encoder reads, where the tokens are the decoder's
N_GREEDY = 12
SIZES = {"vocab_size": 80, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 96, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
Weights = Mapping[str, Any]


@dataclass(frozen=True)
class Record:
    """A sample of an architecture and its counterpart.

    make: the class of transformers and the arguments of its configuration. names: parameter of transformers
    -> tensor of the sample, or of its rows [first:end] or [number], `{i}` standing for each layer that has
    it. of: the architecture, if the record is called otherwise. prepare: what else of the model depends on
    the weights. start: with an encoder, which then reads `SOURCE`, the id that its decoder begins with.
    """

    sample: str
    make: Callable[[Any], Any]
    names: Mapping[str, str]
    of: str = ""
    prepare: Callable[[Any, Weights], None] = lambda model, weights: None
    start: int | None = None


def _pairs(theirs: str, ours: str, kinds: str = "weight bias") -> dict[str, str]:
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for kind in kinds.split()}


def _layers(parts: Mapping[str, str], theirs: str, kinds: str = "weight bias") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, ours in parts.items():
        found |= _pairs(f"{theirs}.{name}", f"blk.{{i}}.{ours}", kinds)
    return found


def _thirds(theirs: str, kinds: str) -> dict[str, str]:
    return {
        f"{theirs}.{part}_proj.{kind}": f"blk.{{i}}.attn_qkv.{kind}[{n * 64}:{n * 64 + 64}]"
        for n, part in enumerate("qkv")
        for kind in kinds.split()
    }


_EMBEDDED = {"embeddings.word_embeddings.weight": "token_embd.weight",
             "embeddings.token_type_embeddings.weight": "token_types.weight",
             **_pairs("embeddings.LayerNorm", "token_embd_norm")}  # fmt: skip
_NORMS = _layers(
    {"post_attention_layernorm": "attn_output_norm", "post_mlp_layernorm": "layer_output_norm"}, "layers.{i}"
)


def _gemma4(tf: Any, **more: Any) -> Any:
    return tf.Gemma4ForCausalLM(
        tf.Gemma4TextConfig(**{**SIZES, "num_hidden_layers": 4}, num_key_value_heads=2, head_dim=16,
                            global_head_dim=32, sliding_window=20, num_kv_shared_layers=2,
                            layer_types=["sliding_attention", "full_attention"] * 2, rms_norm_eps=1e-5,
                            final_logit_softcapping=3.0, hidden_size_per_layer_input=8,
                            vocab_size_per_layer_input=80, **more)
    )  # fmt: skip


def _gemma4_rope(model: Any, ours: Weights) -> None:
    """Frequencies of layers without a window, divided by the file's factors."""
    import torch

    frequencies = 1e6 ** (-np.arange(16) / 16) / ours["rope_freqs.weight"]
    model.model.rotary_emb.full_attention_inv_freq = torch.from_numpy(frequencies)


def _chameleon(tf: Any, swin_norm: bool) -> Any:
    """Chameleon without what makes ids of pictures, of which its ids have none."""
    model = tf.ChameleonForConditionalGeneration(
        tf.ChameleonConfig(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, swin_norm=swin_norm,
                           tie_word_embeddings=False, vocabulary_map={})
    )  # fmt: skip
    del model.model.vqmodel
    return model


_CHAMELEON = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    **_layers({"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}, "model.layers.{i}"),
    **_layers({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
               "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
               "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
               "mlp.down_proj": "ffn_down"}, "model.layers.{i}", "weight"),
}  # fmt: skip


def _halves(model: Any, ours: Weights) -> None:
    """Rows of heads as transformers rotates them: in halves, where the sample has pairs of neighbours."""
    for layer in model.model.layers:
        attention = layer.self_attn
        for part in (attention.q_proj, attention.k_proj, attention.q_norm, attention.k_norm):
            for rows in part.parameters():
                pairs = rows.data.reshape(-1, 8, 2, 64 if rows.shape[1] == 64 else 1)
                rows.data = pairs.transpose(1, 2).reshape(rows.shape)


def _t5(tf: Any, **more: Any) -> Any:
    """T5, whose output matrix is one of its own unless it is told to scale rows."""
    from torch.nn import Parameter

    model = tf.T5ForConditionalGeneration(
        tf.T5Config(vocab_size=80, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, pad_token_id=0,
                    layer_norm_epsilon=1e-5, relative_attention_num_buckets=8, **more)
    )  # fmt: skip
    if not model.config.scale_decoder_outputs:
        model.lm_head.weight = Parameter(model.lm_head.weight.detach().clone())
    return model


def _t5_names(gated: bool) -> dict[str, str]:
    ffn = {"wo": "ffn_down", "wi_0": "ffn_gate", "wi_1": "ffn_up"}
    if not gated:
        ffn = {"wo": "ffn_down", "wi": "ffn_up"}
    found = {"shared.weight": "token_embd.weight"}
    for side, last in (("encoder", 1), ("decoder", 2)):
        ours = side[:3]
        found |= {
            f"{side}.final_layer_norm.weight": f"{ours}.output_norm.weight",
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight":
                f"{ours}.blk.0.attn_rel_b.weight",
        }  # fmt: skip
        parts = {"0.layer_norm": "attn_norm", f"{last}.layer_norm": "ffn_norm",
                 **{f"0.SelfAttention.{x}": f"attn_{x}" for x in "qkvo"},
                 **{f"{last}.DenseReluDense.{theirs}": name for theirs, name in ffn.items()}}  # fmt: skip
        if last == 2:
            parts |= {"1.layer_norm": "cross_attn_norm"}
            parts |= {f"1.EncDecAttention.{x}": f"cross_attn_{x}" for x in "qkvo"}
        found |= {
            f"{side}.block.{{i}}.layer.{theirs}.weight": f"{ours}.blk.{{i}}.{name}.weight"
            for theirs, name in parts.items()
        }
    return found


_GEMMA4 = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "model.layers.{i}.layer_scalar": "blk.{i}.layer_output_scale.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    **_layers({"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
               "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
               "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
               "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
               "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm", "per_layer_input_gate": "inp_gate",
               "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"},
              "model.layers.{i}", "weight"),
}  # fmt: skip
RECORDS = {
    "bert": Record(
        "plain",
        lambda tf: tf.BertModel(tf.BertConfig(**SIZES, layer_norm_eps=1e-5), add_pooling_layer=False),
        {**_EMBEDDED, "embeddings.position_embeddings.weight": "position_embd.weight",
         **_layers({"attention.self.query": "attn_q", "attention.self.key": "attn_k",
                    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
                    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
                    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"},
                   "encoder.layer.{i}")},
    ),
    "nomic-bert": Record(
        "plain",
        lambda tf: tf.NomicBertModel(
            tf.NomicBertConfig(**SIZES, layer_norm_eps=1e-5), add_pooling_layer=False
        ),
        {**_EMBEDDED, **_NORMS, **_thirds("layers.{i}.self_attn", "weight"),
         **_layers({"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
                    "mlp.down_proj": "ffn_down"}, "layers.{i}", "weight")},
    ),
    "jina-bert-v3": Record(
        "plain",
        lambda tf: tf.JinaEmbeddingsV3Model(
            tf.JinaEmbeddingsV3Config(**SIZES, layer_norm_eps=1e-5, type_vocab_size=2,
                                      rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}),
            add_pooling_layer=False,
        ),
        {**_EMBEDDED, **_NORMS, **_thirds("layers.{i}.self_attn", "weight bias"),
         **_layers({"self_attn.o_proj": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
                   "layers.{i}")},
    ),
    "modern-bert": Record(
        "plain",
        lambda tf: tf.ModernBertModel(
            tf.ModernBertConfig(**SIZES, norm_eps=1e-5, local_attention=16, cls_token_id=1, sep_token_id=2)
        ),
        {"embeddings.tok_embeddings.weight": "token_embd.weight",
         "embeddings.norm.weight": "token_embd_norm.weight", "final_norm.weight": "output_norm.weight",
         "layers.1.attn_norm.weight": "blk.1.attn_norm.weight",
         **_layers({"attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm",
                    "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down"}, "layers.{i}", "weight")},
    ),
    "bitnet": Record(
        "plain",
        lambda tf: tf.BitNetForCausalLM(
            tf.BitNetConfig(**SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, hidden_act="silu",
                            tie_word_embeddings=True,
                            rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
        ),
        {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
         **_layers({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
                    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
                    "self_attn.o_proj": "attn_output", "self_attn.attn_sub_norm": "attn_sub_norm",
                    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
                    "mlp.ffn_sub_norm": "ffn_sub_norm"}, "model.layers.{i}", "weight")},
    ),
    "t5encoder": Record(
        "plain",
        lambda tf: tf.T5EncoderModel(
            tf.T5Config(vocab_size=80, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4,
                        feed_forward_proj="gated-gelu", layer_norm_epsilon=1e-5, pad_token_id=0,
                        relative_attention_num_buckets=8)
        ),
        {"shared.weight": "token_embd.weight", "encoder.final_layer_norm.weight": "enc.output_norm.weight",
         "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight":
             "enc.blk.0.attn_rel_b.weight",
         **{f"encoder.block.{{i}}.layer.{theirs}.weight": f"enc.blk.{{i}}.{ours}.weight"
            for theirs, ours in (
                ("0.layer_norm", "attn_norm"), ("0.SelfAttention.q", "attn_q"),
                ("0.SelfAttention.k", "attn_k"), ("0.SelfAttention.v", "attn_v"),
                ("0.SelfAttention.o", "attn_o"), ("1.layer_norm", "ffn_norm"),
                ("1.DenseReluDense.wi_0", "ffn_gate"), ("1.DenseReluDense.wi_1", "ffn_up"),
                ("1.DenseReluDense.wo", "ffn_down"))}},
    ),
    "t5": Record(
        "plain",
        lambda tf: _t5(tf, num_decoder_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        {**_t5_names(gated=True), "lm_head.weight": "output.weight"},
        start=3,
    ),
    "t5-tied": Record(
        "tied", lambda tf: _t5(tf, feed_forward_proj="relu"), _t5_names(gated=False), of="t5", start=0
    ),
    "chameleon": Record("plain", lambda tf: _chameleon(tf, False), _CHAMELEON, prepare=_halves),
    "chameleon-behind": Record(
        "behind", lambda tf: _chameleon(tf, True), _CHAMELEON, of="chameleon", prepare=_halves
    ),
    "gemma3n": Record(
        "plain",
        lambda tf: tf.Gemma3nForCausalLM(
            tf.Gemma3nTextConfig(**{**SIZES, "num_hidden_layers": 4}, num_key_value_heads=2, head_dim=16,
                                 sliding_window=20, layer_types=["sliding_attention", "full_attention"] * 2,
                                 hidden_size_per_layer_input=8, vocab_size_per_layer_input=80,
                                 num_kv_shared_layers=2, final_logit_softcapping=3.0, rms_norm_eps=1e-5,
                                 laurel_rank=12, activation_sparsity_pattern=[0.95] * 4)
        ),
        {**{theirs: ours for theirs, ours in _GEMMA4.items() if "layer_scalar" not in theirs},
         **{f"model.altup_{theirs}.{i}.weight": f"altup_{ours}.weight[{i}]" for i in range(3)
            for theirs, ours in (("projections", "proj"), ("unembed_projections", "unembd_proj"))},
         "model.layers.{i}.altup.correct_output_scale": "blk.{i}.altup_correct_scale.weight",
         **_layers({"altup.correction_coefs": "altup_correct_coef", "laurel.linear_left": "laurel_l",
                    "altup.prediction_coefs": "altup_predict_coef", "laurel.linear_right": "laurel_r",
                    "altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm",
                    "laurel.post_laurel_norm": "laurel_post_norm"}, "model.layers.{i}", "weight")},
    ),
    "gemma4": Record("dense", _gemma4, _GEMMA4, prepare=_gemma4_rope),
    "gemma4-experts": Record(
        "experts",
        lambda tf: _gemma4(
            tf, enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=96
        ),
        {**_GEMMA4, "model.layers.{i}.router.scale": "blk.{i}.ffn_gate_inp.scale",
         "model.layers.{i}.router.per_expert_scale": "blk.{i}.ffn_down_exps.scale",
         "model.layers.{i}.experts.gate_up_proj": "blk.{i}.ffn_gate_up_exps.weight",
         "model.layers.{i}.experts.down_proj": "blk.{i}.ffn_down_exps.weight",
         **_layers({"router.proj": "ffn_gate_inp", "post_feedforward_layernorm_1": "post_ffw_norm_1",
                    "post_feedforward_layernorm_2": "post_ffw_norm_2",
                    "pre_feedforward_layernorm_2": "pre_ffw_norm_2"}, "model.layers.{i}", "weight")},
        of="gemma4", prepare=_gemma4_rope,
    ),
}  # fmt: skip


def architecture(name: str) -> str:
    """The architecture that a record is of."""
    return RECORDS[name].of or name


def sample_of(name: str) -> str:
    """The sample model that a record is of, see `sample_models.MODELS`."""
    return f"{architecture(name)}-{RECORDS[name].sample}"


def weights(name: str) -> Weights:
    """The weights of a record's sample by GGUF's names."""
    module: Any = importlib.import_module(f"graphml_models.{architecture(name).replace('-', '_')}")
    model = next(one for one in module.sample(architecture(name)) if one.name == RECORDS[name].sample)
    return {tensor: golden.weights(tensor, shape[::-1], seed=7) for tensor, shape in model.tensors.items()}


def _tensor(ours: Weights, name: str) -> Any:
    whole, _, rows = name.partition("[")
    first, _, end = rows.rstrip("]").partition(":")
    if rows and not end:
        return ours[whole][int(first)]
    return ours[whole][int(first) : int(end)] if rows else ours[whole]


def record(name: str) -> dict[str, Any]:
    """Arrays by name; every parameter must have a counterpart.

    rows: the last hidden rows or logits of `TOKENS`, float32 [T, n]; greedy: with an encoder, the likeliest
    ids from the start token on, [N_GREEDY].
    """
    import torch
    import transformers

    one, ours = RECORDS[name], weights(name)
    model = one.make(transformers).double().eval()
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")  # grouped products know no float64
    given = {}
    for theirs, tensor in one.names.items():
        for i in range(8) if "{i}" in theirs else [0]:
            if "{i}" not in theirs or tensor.format(i=i).partition("[")[0] in ours:
                values = _tensor(ours, tensor.format(i=i)).astype(np.float64)
                given[theirs.format(i=i)] = torch.from_numpy(values)
    missing, unknown = model.load_state_dict(given, strict=False)
    tied = {"lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    if unknown or {key for key in missing if "inv_freq" not in key} - tied:
        raise SystemExit(f"{name}: without counterpart: {missing}, {unknown}")
    one.prepare(model, ours)
    tokens, source = torch.from_numpy(TOKENS)[None], torch.from_numpy(SOURCE)[None]
    if one.start is None:
        with torch.no_grad():
            out = model(tokens)
        rows = out.logits if hasattr(out, "logits") else out.last_hidden_state
        return {"rows": rows[0].numpy().astype(np.float32)}
    with torch.no_grad():
        rows = model(input_ids=source, decoder_input_ids=tokens).logits
        ids = [one.start]
        while len(ids) <= N_GREEDY:
            last = model(input_ids=source, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(last.argmax()))
    return {"rows": rows[0].numpy().astype(np.float32), "greedy": np.array(ids[1:])}


def read(name: str, array: str = "rows") -> Any:
    """What was recorded."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return arrays[array]


if __name__ == "__main__":
    for asked in sys.argv[1:] or RECORDS:
        np.savez_compressed(FOLDER / f"{asked}.npz", **record(asked))
