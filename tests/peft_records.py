"""Records what PEFT computes with adapters of tiny folders: a tool for developers.

    python -m venv VENV; VENV/bin/pip install torch==2.13.0 transformers peft
    PYTHONPATH=.:quant:models VENV/bin/python -m tests.peft_records [NAME ...]

A record holds adapter_config.json, names and shapes of the adapter's tensors, and the logits; the weights
follow from the names, so that the tests need none of these packages. The models are those of
`folder_records`. Made with peft 0.21.2 and transformers 5.24.0, float32, eager attention.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.folder_records import RECORDS, TOKENS, about, values, write_folder

FOLDER = Path(__file__).parent / "data" / "peft"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEAR = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
# Name -> the folder's record, and fields of `LoraConfig`.
ADAPTERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {"target_modules": [*LINEAR, "lm_head"], "r": 4, "lora_alpha": 6}),
    "llama-ranks": ("llama", {
        "target_modules": LINEAR, "r": 4, "lora_alpha": 6, "use_rslora": True,
        "rank_pattern": {"k_proj": 5, r"layers\.1\.self_attn\.[kv]_proj": 2, "q_proj": 3},
        "alpha_pattern": {r".*\.1\..*\.down_proj": 9, "^model.layers.0.mlp.up_proj": 2, "o_pro": 50}}),
    "llama-biases": ("llama", {
        "target_modules": ["q_proj", "v_proj", "down_proj"], "r": 4, "lora_bias": True, "bias": "all",
        "layers_to_transform": [1], "layers_pattern": "layers"}),
    "llama-targeted": ("llama", {
        "target_modules": ["q_proj", "down_proj"], "r": 2, "bias": "lora_only", "layers_to_transform": 0}),
    "llama-tied": ("llama-linear", {"target_modules": ["embed_tokens", "k_proj"], "r": 4}),
    "qwen2": ("qwen2", {"target_modules": r"model\.layers\.\d+\.(self_attn|mlp)\.(?:q|v|gate)_pro\w",
                        "exclude_modules": ["1.self_attn.v_proj"], "r": 8, "lora_alpha": 16}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True, "r": 4}),
    "gpt2-biases": ("gpt2", {"target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True, "r": 4,
                             "lora_bias": True, "bias": "lora_only"}),
    "gpt_neox": ("gpt_neox", {"target_modules": ["query_key_value", "dense"], "r": 4, "lora_bias": True}),
    "falcon": ("falcon-new", {"target_modules": ["query_key_value", "dense_h_to_4h"], "r": 4}),
    "phi3": ("phi3", {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], "r": 4}),
    "gemma3": ("gemma3", {"target_modules": [*LINEAR, "embed_tokens"], "r": 4}),
    "qwen3_5": ("qwen3_5", {"target_modules": [*LINEAR, "in_proj_qkv", "in_proj_z"], "r": 4}),
    "granitemoehybrid": ("granitemoehybrid-dense", {
        "target_modules": ["input_linear", "q_proj", "k_proj"], "r": 4}),
    "hrm_text": ("hrm_text", {"target_modules": ["q_proj", "gate_proj", "down_proj"], "r": 4}),
    "sarvam_moe": ("sarvam_moe", {"target_modules": ["k_proj", "o_proj", "gate_proj"], "r": 4}),
    "nemotron_h": ("nemotron_h", {"target_modules": ["q_proj", "o_proj", "in_proj", "down_proj"], "r": 4}),
}  # fmt: skip


def tensor(name: str, shape: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The weights of an adapter's tensor; of a matrix of the model that is saved, too, the model's."""
    own = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
    return values(own if own.endswith(".weight") and ".lora_" not in own else name, tuple(shape))


def write_peft(path: Path, config: Mapping[str, Any], tensors: Mapping[str, list[int]]) -> Path:
    """A folder with adapter_config.json and adapter_model.safetensors, float32."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(config))
    of_names = {name: tensor(name, shape) for name, shape in tensors.items()}
    save_file(of_names, path / "adapter_model.safetensors", metadata={"format": "pt"})
    return path


def about_peft(name: str) -> tuple[dict[str, Any], dict[str, list[int]], np.ndarray[Any, Any]]:
    """Config, tensors and logits of a record."""
    with np.load(FOLDER / f"{name}.npz") as found_arrays:
        stated = json.loads(found_arrays["about"].tobytes())
        return stated["config"], stated["tensors"], found_arrays["logits"]


def record_peft(name: str) -> None:
    """Write a record."""
    import peft
    import torch
    import transformers
    from safetensors import safe_open

    folder_name, fields = ADAPTERS[name]
    prefix = RECORDS[folder_name][0]
    config, tensors, base_logits = about(folder_name)
    of_class = getattr(transformers, config["architectures"][0])
    with tempfile.TemporaryDirectory() as folder:
        base, path = write_folder(Path(folder) / "base", config, tensors), Path(folder) / "adapter"
        wanted = {"attn_implementation": "eager", "dtype": torch.float32}
        model = peft.get_peft_model(of_class.from_pretrained(base, **wanted), peft.LoraConfig(**fields))
        model.save_pretrained(path)
        adapter_config = json.loads((path / "adapter_config.json").read_text())
        adapter_config["base_model_name_or_path"] = prefix
        if isinstance(adapter_config["target_modules"], list):
            adapter_config["target_modules"].sort()
        with safe_open(path / "adapter_model.safetensors", "np") as file:
            shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
        write_peft(path, adapter_config, shapes)
        model = peft.PeftModel.from_pretrained(of_class.from_pretrained(base, **wanted), path).eval()
        with torch.no_grad():
            logits = model(torch.tensor(TOKENS)[None], use_cache=False).logits[0].numpy()
    assert float(((logits - base_logits) ** 2).sum() / (base_logits**2).sum()) > 1e-3, name
    text = json.dumps({"config": adapter_config, "tensors": shapes}, sort_keys=True)
    of_text = np.frombuffer(text.encode(), np.uint8)
    np.savez_compressed(FOLDER / f"{name}.npz", about=of_text, logits=logits)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for argument in sys.argv[1:] or ADAPTERS:
        record_peft(argument)
        print(argument)
