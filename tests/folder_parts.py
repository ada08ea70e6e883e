"""Parts of larger models in tiny folders, and names of their classes: data of `folder_records`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VQ = {"embed_dim": 4, "num_embeddings": 8, "latent_channels": 4, "resolution": 16, "base_channels": 32,
      "channel_multiplier": [1], "num_res_blocks": 1}  # fmt: skip
SEEING = (
    "Ernie4_5_VLMoe",
    "Glm4v",
    "Glm4vMoe",
    "Glm5Next",
    "GlmOcr",
    "Granite4Vision",
    "GraniteDocling",
    "HYV4VL",
    "HunYuanVL",
    "MuseGlimmer",
    "PaddleOCRVL",
    "Qwen2VL",
    "Qwen2_5_VL",
    "Qwen3VL",
    "Qwen3VLMoe",
    "Qwen3OmniMoeThinker",
    "Step3p7",
    "UnlimitedOcr",
    "DeepseekOcr2",
)  # classes with a part that sees
# Classes whose language model has a config of its own.
NESTED = (
    "Gemma3",
    "Gemma3n",
    "Llama4",
    "Gemma4",
    "Gemma4Unified",
    "Qwen3_5",
    "Qwen3_5Moe",
    "Qwen4Exp",
    "Dots3Note",
    "MiniMaxM3VL",
)
OF_OTHERS = {
    **dict.fromkeys(("Exaone", "InternLM3", "IQuestCoder"), "Llama"),
    "SarvamMLA": "DeepseekV3",
    "SarvamMoE": "Glm4Moe",
}  # configs of another's class
VISION = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "intermediate_size": 16, "num_heads": 2,
          "out_hidden_size": 32, "fullatt_block_indexes": [0], "deepstack_visual_indexes": [0],
          "num_position_embeddings": 16, "patch_size": 4, "mlp_ratio": 2}  # fmt: skip
OF_CLIP = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 16,
           "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}  # fmt: skip
VISIONS = {"Ernie4_5_VLMoe": {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2},
           "Granite4Vision": {**OF_CLIP, "hidden_size": 64},
           "GraniteDocling": {**OF_CLIP, "model_type": "granite_docling_vision", "out_hidden_size": 32,
                              "image_size": 32, "deepstack_visual_indexes": [0]},
           "HYV4VL": {**OF_CLIP, "model_type": "hy_v4_vl_vision", "out_hidden_size": 32},
           "HunYuanVL": {**OF_CLIP, "model_type": "hunyuan_vl_vision", "out_hidden_size": 32},
           "MuseGlimmer": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                           "num_attention_heads": 2, "max_position_embeddings": 16},
           "PaddleOCRVL": {**OF_CLIP, "model_type": "paddleocr_vl_vision"},
           "Step3p7": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8,
                       "patch_size": 4, "mlp_ratio": 2.0},
           "DeepseekOcr2": {
               "sam_config": {"hidden_size": 16, "output_channels": 8, "num_hidden_layers": 1,
                              "image_size": 64, "num_attention_heads": 2, "window_size": 2, "mlp_dim": 16,
                              "global_attn_indexes": [0], "downsample_channels": [8, 16]},
               "encoder_config": {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16,
                                  "num_hidden_layers": 1, "num_attention_heads": 2,
                                  "num_key_value_heads": 2}}}  # fmt: skip
VISIONS["UnlimitedOcr"] = {
    "sam_config": VISIONS["DeepseekOcr2"]["sam_config"],
    "encoder_config": {**OF_CLIP, "model_type": "unlimited_ocr_vision_encoder"},
}
OTHER_PARTS: Mapping[str, Mapping[str, Any]] = {
    "Qwen3OmniMoeThinker": {"audio_config": {
        "d_model": 16, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "encoder_layers": 1,
        "output_dim": 32, "max_source_positions": 8, "num_mel_bins": 8,
        "downsample_hidden_size": 16, "n_window": 4}},
    "Granite4Vision": {"deepstack_layer_map": [], "downsample_rate": "1/2",
                       "qformer_config": {"model_type": "blip_2_qformer", "intermediate_size": 16,
                                          "num_hidden_layers": 1, "vocab_size": 8}},
}  # fmt: skip
OF_WINDOWS: Mapping[str, Any] = {"use_sliding_window": True, "sliding_window": 8}
ROUTED = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
OF_EXPERTS: Mapping[str, Any] = {**OF_WINDOWS, **ROUTED}
# With windows in layers from one on, in every other one, in all, and in those without positions.
QWEN_WINDOWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qwen2-windows": ("Qwen2", {**OF_WINDOWS, "max_window_layers": 1}),
    "qwen2_moe-windows": ("Qwen2Moe", {**OF_EXPERTS, "shared_expert_intermediate_size": 24,
                          "max_window_layers": 3, "num_hidden_layers": 4, "norm_topk_prob": True}),
    "qwen3-windows": ("Qwen3", {**OF_WINDOWS, "head_dim": 16, "max_window_layers": 0,
                      "layer_types": ["sliding_attention", "full_attention"]}),
    "qwen3_moe-windows": ("Qwen3Moe", {**OF_EXPERTS, "head_dim": 16}),
    "smollm3-windows": ("SmolLM3", {**OF_WINDOWS, "num_hidden_layers": 4}),
}  # fmt: skip
