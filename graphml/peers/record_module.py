"""A process that records the values of a plain PyTorch module: the other end is `verify.record`.

Its layers are the modules of its longest list of modules, where these are called one after the other. Knows
nothing of graphml, so that it runs with any Python that has torch. Computes in float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from module_file import made_module
from peer_talk import RefusedError, serve
from watched_module import watch


def layers(module: Any) -> str:
    """The path of the longest list of modules, the outermost of several; empty where there is none."""
    import torch

    named = module.named_modules()
    lists = {name: len(inner) for name, inner in named if isinstance(inner, torch.nn.ModuleList)}
    return max(lists, key=lambda name: (lists[name], -name.count(".")), default="")


def record(request: dict[str, Any]) -> dict[str, Any]:
    """Run the tokens in one batch and write the record to the path `out`; returns torch's version."""
    try:
        import numpy
        import torch
    except ImportError as error:
        problem = "torch is wanted: install it, or name a Python that has it with --python"
        raise RefusedError(f"{problem} ({error})") from None

    ids, module = request["ids"], made_module(request["model"]).float().eval()
    path = layers(module)

    def layer_of(name: str) -> int | None:
        last = name.rpartition(".")[2]
        return int(last) if path and last.isdigit() and name == f"{path}.{last}" else None

    values = watch(module, len(ids), layer_of)
    with torch.no_grad():
        logits = module(torch.tensor([ids]))
    if not isinstance(logits, torch.Tensor) or logits.dim() != 3 or logits.shape[:2] != (1, len(ids)):
        shape = list(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise RefusedError(f"the module: wanted logits [1, {len(ids)}, vocabulary]; got {shape}")
    streams = {name: array for name, array in values.items() if name.startswith("stream.")}
    with Path(request["out"]).open("wb") as file:
        numpy.savez(file, logits=logits[0].float().numpy(), **streams)
    return {"by": f"{type(module).__name__} (torch {torch.__version__})"}


if __name__ == "__main__":
    serve(record)
