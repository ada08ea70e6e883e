"""What is refused before a module is traced: encoders, quantised modules, more inputs than the ids.

Knows config.json and classes of modules; nothing of graphs.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from peer_talk import RefusedError

QUANTISED = ("torch.ao.nn", "torch.nn.quantized", "bitsandbytes", "auto_gptq", "awq")
KIND = "ArchitectureError"


def check_config(folder: str) -> dict[str, Any]:
    """The fields of config.json, unless they say that the checkpoint is none that can be imported."""
    fields: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    if fields.get("quantization_config") is not None:
        problem = "its modules are quantised (quantization_config): import the checkpoint in full precision"
        raise RefusedError(f"{folder}: {problem}", KIND)
    if fields.get("is_encoder_decoder"):
        raise RefusedError(f"{folder}: an encoder with a decoder cannot be imported", KIND)
    pickles = sorted(pickle_file.name for pickle_file in Path(folder).glob("*.bin"))
    if pickles and not any(Path(folder).glob("*.safetensors")):
        problem = f"wanted model.safetensors; {pickles[0]} is a pickle, and reading it may run code"
        raise RefusedError(f"{folder}: {problem}: `model.save_pretrained(folder)` writes safetensors", KIND)
    return fields


def check_module(module: Any, source: str) -> None:
    """Refuse what is no module, has quantised parts, or needs more than the ids."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise RefusedError(f"{source}: wanted a torch.nn.Module; got {type(module).__name__}", KIND)
    for path, submodule in module.named_modules():
        home = type(submodule).__module__
        if home.startswith(QUANTISED):
            problem = f"{path or 'the model itself'} is quantised ({home}.{type(submodule).__name__})"
            raise RefusedError(f"{source}: {problem}: import the model in full precision", KIND)
    wanted = [
        name
        for name, parameter in inspect.signature(module.forward).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(wanted) != 1:
        signature = f"{type(module).__name__}.forward({', '.join(wanted)})"
        raise RefusedError(f"{source}: wanted one input, ids [1, T]; got {signature}", KIND)
