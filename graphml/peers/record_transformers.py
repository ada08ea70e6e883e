"""A process that records the values of transformers: the other end is `verify.record`.

Knows nothing of graphml, so that it runs with any Python that has torch and transformers. Values come from
hooks on every linear module and every layer; weights in float32, attention in its eager form.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from peer_talk import RefusedError, serve
from watched_module import watch

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


def layer_of(name: str) -> int | None:
    """The number of the layer that a module's path names, as transformers' classes call their layers."""
    match = LAYER.search(name)
    return int(match[1]) if match else None


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
    values = watch(model, len(ids), layer_of)
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
    with Path(request["out"]).open("wb") as file:
        numpy.savez(file, logits=logits, **values)
    return {"by": f"transformers {transformers.__version__}"}


if __name__ == "__main__":
    serve(record)
