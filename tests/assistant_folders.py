"""Records what transformers drafts by tiny folders of Gemma 4's assistants: a tool for developers.

    PYTHONPATH=.:quant:models VENV/bin/python -m tests.assistant_folders

`assistant-folders.npz` holds config.json, names and shapes of each assistant, and its logits
[text, step, id] and rows behind the first `ENDS` tokens of a text, each step with the id that the one before
found most likely. Made with transformers 5.24.0, float32, eager attention. Texts fit into the windows: behind
these the class sees two tokens more than llama.cpp's graph.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests import golden
from tests.folder_records import TOKENS, about, shapes, write_folder

DATA = golden.FOLDER.parent / "drafting" / "assistant-folders.npz"
ENDS, STEPS, WINDOW = (5, 17), 3, 48
KINDS = {"gemma4_assistant": "gemma4", "gemma4_unified_assistant": "gemma4_unified"}
"""The assistants -> records of models that they draft for."""
SMALL = {"vocab_size": 64, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
         "sliding_window": WINDOW, "max_position_embeddings": 256, "final_logit_softcapping": 3.0,
         "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}  # fmt: skip
OF_GEMMA4 = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}


def write_model(path: Path, kind: str) -> Path:
    """The folder of the model."""
    config, tensors, _ = about(KINDS[kind])
    return write_folder(path, {**config, "sliding_window": WINDOW}, tensors)


def recorded(kind: str) -> tuple[dict[str, Any], dict[str, list[int]], Mapping[str, Any]]:
    """Config, tensors and arrays of an assistant."""
    with np.load(DATA) as arrays:
        record = json.loads(arrays[f"{kind}.about"].tobytes())
        return record["config"], record["tensors"], {
            name: arrays[f"{kind}.{name}"] for name in ("logits", "rows")
        }  # fmt: skip


def record(kind: str, path: Path) -> dict[str, Any]:
    """The arrays of an assistant."""
    import torch
    import transformers

    stem = "Gemma4Unified" if "unified" in kind else "Gemma4"
    of_model, of_class = (
        getattr(transformers, stem + end) for end in ("ForCausalLM", "AssistantForCausalLM")
    )
    model = of_model.from_pretrained(
        write_model(path / "model", kind), attn_implementation="eager", dtype=torch.float32
    ).eval()
    width, heads = model.config.hidden_size, {}
    if KINDS[kind] == "gemma4_unified":
        heads = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    fields = {**SMALL, **heads, **({} if "unified" in kind else OF_GEMMA4)}
    text = getattr(transformers, f"{stem}TextConfig")(**fields)
    config = getattr(transformers, f"{stem}AssistantConfig")(
        text_config=text, backbone_hidden_size=width, use_ordered_embeddings=True, num_centroids=8,
        centroid_intermediate_top_k=2,
    )  # fmt: skip
    of_class(config).save_pretrained(path / "draft")
    config = json.loads((path / "draft" / "config.json").read_text())
    tensors = shapes(path / "draft" / "model.safetensors")
    plain = {**config, "use_ordered_embeddings": False}  # logits of all ids
    held = {name: shape for name, shape in tensors.items() if "masked_embedding" not in name}
    draft = of_class.from_pretrained(
        write_folder(path / "plain", plain, held), attn_implementation="eager", dtype=torch.float32
    ).eval()
    logits, rows = [], []
    with torch.no_grad():
        for end in ENDS:
            out = model.model(torch.tensor(TOKENS[:end])[None], return_shared_kv_states=True, use_cache=True)
            token, row = torch.tensor([[int(TOKENS[end])]]), out.last_hidden_state[:, -1:]
            for _ in range(STEPS):
                both = torch.cat([model.get_input_embeddings()(token), row], dim=-1)
                step = draft(
                    inputs_embeds=both, position_ids=torch.tensor([[end]]),
                    shared_kv_states=out.shared_kv_states, use_cache=False,
                )  # fmt: skip
                token, row = step.logits.argmax(-1), step.last_hidden_state
                logits.append(step.logits[0, 0].numpy())
                rows.append(row[0, 0].numpy())
    about_it = json.dumps({"config": config, "tensors": tensors}, sort_keys=True)
    shape = (len(ENDS), STEPS, -1)
    return {
        f"{kind}.about": np.frombuffer(about_it.encode(), np.uint8),
        f"{kind}.logits": np.reshape(logits, shape),
        f"{kind}.rows": np.reshape(rows, shape),
    }


def main() -> None:
    """Write all records."""
    arrays = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as path:
            arrays |= record(kind, Path(path))
    np.savez_compressed(DATA, **arrays)


if __name__ == "__main__":
    main()
