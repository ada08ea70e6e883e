"""A process that records the values of transformers: the other end is `verify.record`.

Knows nothing of graphml, so that it runs with any Python that has torch and transformers. Values come from
hooks on every linear module and every layer; weights in float32, attention in its eager form.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from peer_talk import RefusedError, serve

LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d+)$")


def load(path: str) -> Any:
    """The model of a folder, a name of the hub, or a GGUF file (its weights decoded by transformers)."""
    import torch
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"torch_dtype": torch.float32, "attn_implementation": "eager"}
    if path.endswith(".gguf"):
        options["gguf_file"] = Path(path).name
        path = str(Path(path).parent)
    try:
        return AutoModelForCausalLM.from_pretrained(path, **options).eval()
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        problem = "transformers cannot load it; name the original checkpoint: --against hf:FOLDER"
        raise RefusedError(f"{path}: {problem} ({str(error).splitlines()[0][:200]})") from None


def rows(value: Any, count: int) -> Any:
    """An input or output of a module as f32 [T, n]; None for another kind or shape."""
    import torch

    if isinstance(value, tuple | list):
        value = value[0] if value else None
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    if value.dim() == 3 and value.shape[0] == 1:
        value = value[0]
    return value.detach().float().numpy().copy() if value.dim() == 2 and len(value) == count else None


def watch(model: Any, count: int) -> dict[str, Any]:
    """Hook all linear modules and layers; their values are collected in the returned dictionary."""
    values: dict[str, Any] = {}

    def keep(name: str, value: Any) -> None:
        array = rows(value, count)
        if array is not None:
            values[name] = array

    def linear(name: str) -> Any:
        def hook(module: Any, args: Any, outputs: Any) -> None:
            keep(f"{name}.in", args)
            keep(f"{name}.out", outputs)

        return hook

    def layer(index: int) -> Any:
        def hook(module: Any, args: Any, named: Any, outputs: Any) -> None:
            if index == 0:
                keep("stream.0", args or named.get("hidden_states"))
            keep(f"stream.{index + 1}", outputs)

        return hook

    for name, module in model.named_modules():
        if type(module).__name__ in ("Linear", "Conv1D"):
            module.register_forward_hook(linear(name))
        layer_match = LAYER.search(name)
        if layer_match:
            module.register_forward_hook(layer(int(layer_match[1])), with_kwargs=True)
    return values


def record(request: dict[str, Any]) -> dict[str, Any]:
    """Run the tokens in one batch and write the record to the path `out`; returns the package's version."""
    try:
        import numpy
        import torch
        import transformers
    except ImportError as error:
        problem = (
            "torch and transformers are wanted: install them, or name a Python that has them with --python"
        )
        raise RefusedError(f"{problem} ({error})") from None

    ids = request["ids"]
    model = load(request["model"])
    values = watch(model, len(ids))
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
    with Path(request["out"]).open("wb") as file:
        numpy.savez(file, logits=logits, **values)
    return {"by": f"transformers {transformers.__version__}"}


if __name__ == "__main__":
    serve(record)
