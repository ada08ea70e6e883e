"""Names of fields in config.json of Hugging Face transformers, and GGUF's names for the same facts.

Data alone. Who reads them decides what a missing or an unknown one means.
"""

from __future__ import annotations

from collections.abc import Mapping

SIZES: Mapping[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length",
                       "max_seq_len"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "embedding_length": ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "dff"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num",
                                "num_attention_groups"),
    "attention.key_length": ("head_dim", "attention_head_dim", "kv_channels"),
    "attention.sliding_window": ("sliding_window", "sliding_window_size", "local_attn_window"),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "rope.dimension_count": ("rotary_dim", "qk_rope_head_dim"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k",
                          "moe_top_k"),
    "expert_shared_count": ("n_shared_experts", "num_shared_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size", "expert_hidden_dim"),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "hrm.layers_per_stack": ("num_layers_per_stack",),
    "ssm.conv_kernel": ("mamba_d_conv", "conv_kernel"),
    "ssm.group_count": ("mamba_n_groups", "n_groups"),
}  # fmt: skip
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "rms_norm_epsilon"),
    "attention.layer_norm_epsilon": (
        "layer_norm_eps",
        "layer_norm_epsilon",
        "layernorm_epsilon",
        "norm_epsilon",
    ),
    "rope.freq_base": ("rope_theta", "rotary_emb_base", "rope_base"),
    "rope.freq_base_swa": ("rope_local_base_freq",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "embedding_scale": ("embedding_multiplier", "scale_emb", "embedding_scale"),
    "residual_scale": ("residual_multiplier",),
    "attention.scale": ("attention_multiplier",),
    "logit_scale": ("logit_scale",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "ssm.time_step_min": ("mamba_dt_min", "time_step_min"),
}
SCALES = frozenset((
    "attention_multiplier", "embedding_multiplier", "embedding_scale", "logit_scale", "residual_multiplier",
    "route_scale", "routed_scaling_factor", "router_scaling_factor", "scale_emb",
))  # fmt: skip
"""Of which 0 is a factor to transformers, and none to GGUF."""
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "swiglu": "silu", "gelu": "gelu_erf", "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu", "gelu_tanh": "gelu", "gelu_fast": "gelu", "quick_gelu": "gelu_quick",
    "relu": "relu", "relu2": "relu_squared", "relu_squared": "relu_squared",
    "xielu": "xielu",
}  # fmt: skip
# Fields without influence on the numbers of a text, whatever the class; biases are tensors of the file.
HARMLESS = frozenset((
    "_attn_implementation_autoset", "_name_or_path", "activation_dropout", "architectures", "attention_bias",
    "attention_dropout", "attention_probs_dropout_prob", "attn_implementation", "attn_pdrop", "auto_map",
    "aux_loss_alpha", "bias", "bos_token_id", "cache_implementation", "classifier_dropout",
    "decoder_layerdrop", "decoder_start_token_id", "dropout", "dtype", "embd_pdrop", "embedding_dropout",
    "encoder_layerdrop", "eos_token_id", "ep_size", "ffn_dropout", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout", "hidden_dropout_prob", "id2label",
    "image_token_id", "image_token_index", "init_std", "initializer_factor", "initializer_range",
    "is_decoder", "keys_to_ignore_at_inference", "label2id", "layerdrop", "mlp_bias", "mlp_dropout",
    "model_max_length", "model_type", "output_attentions", "output_hidden_states", "output_router_logits",
    "pad_token_id", "pretraining_tp", "qkv_bias", "resid_dropout", "resid_pdrop", "residual_dropout",
    "return_dict", "router_aux_loss_coef", "router_jitter_noise", "sep_token_id", "seq_aux",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "task_specific_params", "text_config", "tokenizer_class", "torch_dtype",
    "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bias", "use_cache",
    "use_qkv_bias", "vision_config",
))  # fmt: skip
