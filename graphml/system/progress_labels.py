"""What a progress report is about, for people: a label for each kind of work, and what is counted of it.

Knows names and counts; nothing of terminals or of the work.
"""

from __future__ import annotations

from typing import Final

WORK: Final = {
    "download": ("Downloading", ""),
    "mapping": ("Mapping the file", ""),
    "converting": ("Converting the weights", ""),
    "copying": ("Copying the weights", ""),
    "upload": ("Weights to the device", ""),
    "making": ("Making the model", ""),
    "checksum": ("Checksum", ""),
    "compile": ("Compiling kernels", "kernels"),
    "record": ("Compiling kernels", "dispatches"),
    "prefill": ("Reading the prompt", "tokens"),
    "generate": ("Generating", "results"),
    "embed": ("Embedding", "texts"),
    "batch": ("Answering", "lines"),
    "perplexity": ("Perplexity", "chunks"),
    "tasks": ("Scoring", "tasks"),
    "imatrix": ("Importance", "chunks"),
    "checking": ("Checking tensors", ""),
    "cvector": ("Control vectors", "pairs"),
    "quantize": ("Quantising", ""),
    "gradients": ("Reading the text", "pieces"),
    "types": ("Trying types", "matrices"),
    "comparing logits": ("Comparing logits", "engines"),
    "bench": ("Measuring", "rounds"),
    "testing": ("Testing ops", "groups of cases"),
    "trying": ("Trying mistakes", "mistakes"),
    "tune": ("Tuning kernels", "products"),
    "training": ("Training", "steps"),
    "graphs": ("Random graphs", "graphs"),
    "nodes": ("Measuring", "nodes"),
    "speed": ("Measuring", "types"),
    "steps": ("Measuring steps", "steps"),
    "simulate": ("Simulating", "requests"),
}
"""Name of the work -> its label, and the unit of its counts; "" for bytes."""


def label(what: str) -> str:
    """The label of work of this name; of an unknown one the name itself."""
    return WORK[what][0] if what in WORK else what.capitalize()


def amount(what: str, done: int, total: int) -> str:
    """How far it is: "1.0 MiB of 4.0 MiB", "3 of 12 chunks"; without an end where `total` is 0."""
    unit = WORK[what][1] if what in WORK else None
    done_text, total_text = (size(done), size(total)) if unit == "" else (str(done), str(total))
    return f"{done_text}{f' of {total_text}' if total else ''}{f' {unit}' if unit else ''}"


def size(n_bytes: float) -> str:
    """Return a size to read: "93.8 MiB"."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
