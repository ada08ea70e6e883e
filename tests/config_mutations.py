"""Changes each field of each recorded config.json, and holds graphml beside transformers: for developers.

    PYTHONPATH=.:backends:models:quant VENV/bin/python -m tests.config_mutations [NAME ...] [--keep N]

VENV has torch, transformers and what graphml needs. Each field is left out, made null and given other values,
of the language model and of its rope. transformers builds the class of what is left, with weights by the
names of its tensors; graphml opens the same config.json and the same tensors. The logits agree, or graphml
refuses with an error of its own. What transformers does not compute either counts as nothing.

--keep N: write of each name N cases, chosen by chance, to `tests/data/config_mutations`, for the tests.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests import folder_records
from tests.folder_records import TOKENS, about, write_folder

FOLDER = Path(__file__).parent / "data" / "config_mutations"
LIMIT = 1e-8
SHOWN = 2
"""Of the last tokens' logits a record holds."""
OTHERS = ("gelu", "relu", "silu", "gelu_pytorch_tanh", "nothing")
SAVED_BY = {"architectures", "dtype", "torch_dtype", "transformers_version", "model_type", "_name_or_path"}
"""Fields that say what wrote the file; a model's type is another family."""
DROP = object()
NESTED = ("rope_parameters", "attn_config", "per_layer_config", "text_config")
DETAILS = ("id2label", "label2id")


@dataclass(frozen=True)
class Mutation:
    """A field by its path of keys, and its new value; `DROP`: it is left out."""

    path: tuple[str, ...]
    value: Any

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} {'left out' if self.value is DROP else json.dumps(self.value)}"

    def on(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config with it."""
        changed = copy.deepcopy(dict(config))
        inner = changed
        for key in self.path[:-1]:
            inner = inner[key]
        if self.value is DROP:
            del inner[self.path[-1]]
        else:
            inner[self.path[-1]] = self.value
        return changed


def mutations(config: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Mutation]:
    """All of a config."""
    for key, value in config.items():
        if key in SAVED_BY or key in DETAILS:
            continue
        at = (*path, key)
        if isinstance(value, dict) and (
            key in NESTED or key == "text_config" or path[-1:] == ("rope_parameters",)
        ):
            yield from mutations(value, at)
        if key == "vision_config":
            continue
        yield Mutation(at, DROP)
        for other in (None, *others(value)):
            if other != value or type(other) is not type(value):
                yield Mutation(at, other)


def others(value: Any) -> list[Any]:
    """Other values of a field of that kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value * 2, value // 2, 0]
    if isinstance(value, float):
        return [value * 1.7, 0.0, -value, int(value) + 1]
    if isinstance(value, str):
        return list(OTHERS)
    if isinstance(value, list):
        return [value[::-1], value[:-1], [*value, *value[-1:]]]
    if value is None:
        return [True, 3, 0.5]
    return []


Computed = tuple[dict[str, list[int]], "np.ndarray[Any, np.dtype[np.float32]]"]


def by_transformers(name: str, config: Mapping[str, Any]) -> Computed | None:
    """Shapes of the tensors and logits; None where it computes none."""
    import torch
    import transformers

    prefix, _ = folder_records.RECORDS[name]
    of_class = folder_records.class_of(transformers, prefix)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        try:
            settings = folder_records.config_of(transformers, prefix).from_pretrained(path)
            of_class(settings).save_pretrained(path)
            tensors = folder_records.shapes(path / "model.safetensors")
            write_folder(path, config, tensors)
            model = of_class.from_pretrained(
                path, config=settings, attn_implementation="eager", dtype=torch.float32
            ).eval()
            with torch.no_grad():
                logits = model(torch.tensor(TOKENS)[None], use_cache=False).logits[0].numpy()
        except Exception:
            return None
    if not np.isfinite(logits).all() or not 0 < np.abs(logits).max() < 1e6:
        return None
    return tensors, logits


def by_graphml(config: Mapping[str, Any], tensors: Mapping[str, list[int]]) -> Any:
    """The logits; the error where it is refused."""
    import graphml

    with tempfile.TemporaryDirectory() as folder:
        path = write_folder(Path(folder) / "model", config, tensors)
        try:
            with graphml.load(path, backend="reference", kv="f32", quant="fp32") as model:
                return np.asarray(model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True))
        except Exception as error:
            return error


def verdict(ours: Any, theirs: Any) -> str:
    """agrees, refused, or what is wrong."""
    from graphml.errors import GraphmlError

    if isinstance(ours, GraphmlError):
        return "refused"
    if isinstance(ours, Exception):
        return f"{type(ours).__name__}: {ours}"
    if ours.shape != theirs.shape:
        return f"logits {ours.shape}, wanted {theirs.shape}"
    wide = theirs.astype(np.float64)
    error = float(((ours - wide) ** 2).sum() / (wide**2).sum())
    return "agrees" if error <= LIMIT else f"NMSE {error:.1e}"


def try_all(name: str, chosen: random.Random, keep: int) -> Counter[str]:
    """Verdicts of a record's config, of which those that are neither are printed."""
    config, _, _ = about(name)
    counts: Counter[str] = Counter()
    kept: list[tuple[Mutation, str, Any, Any]] = []
    for mutation in mutations(config):
        changed = mutation.on(config)
        theirs = by_transformers(name, changed)
        if theirs is None:
            counts["not computed"] += 1
            continue
        result = by_graphml(changed, theirs[0])
        said = verdict(result, theirs[1])
        counts[said if said in ("agrees", "refused") else "wrong"] += 1
        if said not in ("agrees", "refused"):
            print(f"{name}: {mutation}: {said}", flush=True)
        kept.append((mutation, said, *theirs))
    if keep:
        write_record(name, chosen.sample(kept, min(keep, len(kept))))
    return counts


def write_record(name: str, cases: list[tuple[Mutation, str, Any, Any]]) -> None:
    """Cases with what came of them."""
    _, base, _ = about(name)
    told = [
        {
            "path": mutation.path, **({} if mutation.value is DROP else {"value": mutation.value}),
            "said": said,
            "tensors": {
                tensor: tensors.get(tensor)
                for tensor in sorted({*base, *tensors})
                if base.get(tensor) != tensors.get(tensor)
            },
        }
        for mutation, said, tensors, _ in cases
    ]  # fmt: skip
    text = np.frombuffer(json.dumps(told, sort_keys=True).encode(), np.uint8)
    logits = {f"logits_{i}": case[3][-SHOWN:] for i, case in enumerate(cases)}
    np.savez_compressed(FOLDER / f"{name}.npz", about=text, **logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keep", type=int, default=0)
    options = parser.parse_args()
    total: Counter[str] = Counter()
    FOLDER.mkdir(exist_ok=True)
    for name in options.names or folder_records.RECORDS:
        counts = try_all(name, random.Random(zlib.crc32(name.encode())), options.keep)
        total += counts
        print(f"{name}: {dict(counts)}", file=sys.stderr, flush=True)
    print(f"all: {dict(total)}")


if __name__ == "__main__":
    main()
