"""Imports tiny checkpoints of the causal classes of transformers, and says what came: a tool for developers.

    PYTHONPATH=.:backends:models:quant VENV/bin/python -m tests.imported_classes [MODEL_TYPE ...] [--rows]

VENV has torch, transformers and what graphml needs. Each model_type is `graphml import hf:FOLDER` of a folder
with random weights, of the fields of the records where one has them; a line of JSON for each goes to stdout:
right with the NMSE, wrong, refused with the reason, or not made. --rows: as rows of the table of
docs/importing.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.folder_records import FOLDER, RECORDS, SIZES, about

SECONDS = 240
DECODER = {"d_model": 32, "decoder_layers": 2, "encoder_layers": 2, "decoder_ffn_dim": 48,
           "encoder_ffn_dim": 48, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
           "decoder_start_token_id": 1}  # fmt: skip
OTHERS: Mapping[str, Mapping[str, Any]] = {
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256, "n_ctx": 256},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 256},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
                "window_size": 8},
    "openai-gpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "kolibri1": {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "sliding_window": 8},
    "axk1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 2,
             "topk_group": 1, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24,
             "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12},
    "axk2": {"num_key_value_heads": 4},
    "helium": {"head_dim": 8},
    "ministral": {"head_dim": 8},
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
    **{kind: {**DECODER} for kind in ("bart", "mbart", "pegasus", "plbart", "marian", "blenderbot", "mvp")},
    **{kind: {"is_decoder": True} for kind in (
        "bert", "roberta", "rembert", "electra", "camembert", "xlm-roberta", "megatron-bert",
        "bert-generation", "data2vec-text", "ernie", "roc_bert", "roformer")},
}  # fmt: skip
"""Sizes of types that no record has, by the fields that their classes have."""


def fields_of(kind: str) -> dict[str, Any]:
    """The fields of a tiny model of a type."""
    for name in RECORDS:
        if (FOLDER / f"{name}.npz").exists() and (config := about(name)[0])["model_type"] == kind:
            return {key: value for key, value in config.items() if key != "architectures"}
    import transformers

    of_config = transformers.CONFIG_MAPPING[kind]
    names = {field.name for field in dataclasses.fields(of_config)} | set(of_config.attribute_map)
    return {name: value for name, value in SIZES.items() if name in names} | dict(OTHERS.get(kind, {}))


def imported(kind: str) -> dict[str, Any]:
    """What came of a type: its name, what was said, and the NMSE or the reason."""
    import torch
    import transformers

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        try:
            path.mkdir()
            (path / "config.json").write_text(json.dumps({**fields_of(kind), "model_type": kind}))
            config = transformers.AutoConfig.from_pretrained(path)
            model = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
            if sum(p.numel() for p in model.parameters()) > 20_000_000:
                raise ValueError("its sizes have other names")
            for parameter in model.parameters():  # norms are alike, routers of zeros choose all
                if parameter.ndim < 2 or not parameter.any():
                    parameter.data += 0.1 * torch.randn(parameter.shape)
            model.save_pretrained(path)
        except Exception as error:
            return {"type": kind, "came": "not made", "what": f"{type(error).__name__}: {error}"[:200]}
        command = [sys.executable, "-m", "graphml", "import", f"hf:{path}", "-o", str(path / "x.py")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return {"type": kind, "came": "refused", "what": f"not done in {SECONDS} seconds"}
        if done.returncode:
            said = done.stderr.strip().splitlines()
            return {"type": kind, "came": "refused", "what": (said or ["no reason"])[-1][:400]}
        errors = re.findall(r"^\| .* \| \d+ \| (\S+) \|$", done.stdout, re.MULTILINE)
        return {"type": kind, "came": "right", "what": f"{max(map(float, errors)):.1e}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    import transformers

    kinds = [config.model_type for config in transformers.MODEL_FOR_CAUSAL_LM_MAPPING]
    for kind in options.types or dict.fromkeys(kinds):
        came = imported(kind)
        row = f"| {kind} | {datetime.date.today()} | {came['came']}: {came['what']} |"
        print(row if options.rows else json.dumps(came), flush=True)


if __name__ == "__main__":
    main()
