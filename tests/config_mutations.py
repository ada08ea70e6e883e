"""Changes each field of each recorded config.json and adds others, beside transformers: for developers.

    PYTHONPATH=.:backends:models:quant VENV/bin/python -m tests.config_mutations [NAME ...] [--keep N]

VENV has torch, transformers and what graphml needs. Each field is left out, made null and given other values,
of the language model and of its rope. transformers builds the class of what is left, with weights by the
names of its tensors; graphml opens the same config.json and the same tensors. The logits agree, or graphml
refuses with an error of its own. What transformers does not compute either counts as nothing.

--keep N: try only some of each name, by chance, and write N cases of changed and N of added fields to
`tests/data/config_mutations` for tests.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import random
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from graphml.loading.huggingface.config import class_fields
from tests import folder_records
from tests.folder_records import TOKENS, about, write_folder

FOLDER = Path(__file__).parent / "data" / "config_mutations"
LIMIT = 1e-8
SHOWN = np.s_[-2:, :64]
"""Of the logits a case holds."""
OTHERS = ("gelu", "relu", "silu", "gelu_pytorch_tanh", "nothing")
SAVED_BY = {"architectures", "dtype", "torch_dtype", "transformers_version", "model_type", "_name_or_path"}
"""Fields that say what wrote the file; a model's type is another family."""
DROP = object()
NESTED = ("rope_parameters", "attn_config", "compress_rates", "per_layer_config", "text_config")
DETAILS = ("id2label", "label2id")
RIGHT = ("agrees", "refused")
KNOWN = {
    ("mpt", ("attn_config", "alibi_bias_max")): "the class takes 8, whatever the field says",
    ("dots3_note", ("hidden_size",)): "latents times 16: the class's float32 is 1e-7 from its own float64",
    ("falcon_mamba", ("num_hidden_layers",)): "the sums of 64 layers differ by more than the limit",
}
"""Where graphml differs from transformers, and why."""


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
        if isinstance(value, dict) and (key in NESTED or path[-1:] == ("rope_parameters",)):
            yield from mutations(value, at)
        if key in ("text_config", "vision_config"):  # without it the class has its own size, of billions
            continue
        yield Mutation(at, DROP)
        for other in (None, *others(value)):
            if other != value or type(other) is not type(value):
                yield Mutation(at, other)


ROPE_FIELDS = {"partial_rotary_factor": 0.5, "rotary_pct": 0.5, "original_max_position_embeddings": 24}


def foreign_fields(kind: str, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of other families that a config lacks, with values of theirs: of its class's, and others."""
    reads = class_fields().get(kind, {})
    lacking = {name: value for name, value in recorded_fields().items() if name not in config}
    own = {name: value for name, value in lacking.items() if name in reads}
    return own, {name: value for name, value in lacking.items() if name not in own}


@functools.cache
def recorded_fields() -> Mapping[str, Any]:
    """All fields of all records, each with the value of the first that has it."""
    values: dict[str, Any] = dict(ROPE_FIELDS)
    for name in folder_records.RECORDS:
        config = about(name)[0]
        for field, value in {**config, **config.get("text_config", {})}.items():
            is_plain = isinstance(value, bool | int | float | str) or field == "layer_types"
            if is_plain and field not in SAVED_BY:
                values.setdefault(field, value)
    return values


def additions(config: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[Mutation]:
    """Fields of others that a config lacks and its class reads, and those of a rope, inside and beside it."""
    if isinstance(config.get("text_config"), dict):
        yield from additions(config["text_config"], ("text_config",))
        return
    own, _ = foreign_fields(str(config.get("model_type")), config)
    beside = {name: value for name, value in ROPE_FIELDS.items() if name not in config}
    yield from (Mutation((*path, field), value) for field, value in {**own, **beside}.items())
    if isinstance(rope := config.get("rope_parameters"), dict):
        ropes = [(key,) for key, inner in rope.items() if isinstance(inner, dict)] or [()]
        for inner in ropes:
            for field, value in ROPE_FIELDS.items():
                yield Mutation((*path, "rope_parameters", *inner, field), value)


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


@dataclass(frozen=True)
class Case:
    """A mutation, and what came of it; tensors: those that differ from the record's, None: not there."""

    mutation: Mutation
    said: str
    tensors: dict[str, list[int] | None]
    logits: np.ndarray[Any, np.dtype[np.float32]]


def cases(name: str, chosen: Iterable[Mutation]) -> Iterator[Case | None]:
    """What came of each of these mutations of a record; None where transformers computes nothing."""
    config, base, _ = about(name)
    for mutation in chosen:
        theirs = by_transformers(name, mutation.on(config))
        if theirs is None:
            yield None
            continue
        tensors, logits = theirs
        said = verdict(by_graphml(mutation.on(config), tensors), logits)
        if said not in RIGHT and (why := KNOWN.get((name, mutation.path))):
            said = why
        other = {key: tensors.get(key) for key in {*base, *tensors} if base.get(key) != tensors.get(key)}
        yield Case(mutation, said, other, logits[SHOWN])


def try_all(name: str) -> Counter[str]:
    """Counts of what came of a record's mutations; those that are wrong are printed."""
    counts: Counter[str] = Counter()
    config = about(name)[0]
    for case in cases(name, (*mutations(config), *additions(config))):
        said = "not computed" if case is None else case.said
        if case is not None and said not in (*RIGHT, *KNOWN.values()):
            print(f"{name}: {case.mutation}: {said}", flush=True)
            said = "wrong"
        counts[said] += 1
    return counts


def write_sample(name: str, count: int) -> None:
    """Some cases of a record, chosen by chance: of changed fields, and as many of added ones."""
    config, kept = about(name)[0], []
    for some in (mutations(config), additions(config)):
        chosen = list(some)
        random.Random(zlib.crc32(name.encode())).shuffle(chosen)
        chosen.sort(key=lambda mutation: mutation.path[-1] not in ROPE_FIELDS)
        right = (case for case in cases(name, chosen) if case is not None and case.said in RIGHT)
        kept += islice(right, count)
    told = [
        {"path": case.mutation.path, "said": case.said, "tensors": dict(sorted(case.tensors.items()))}
        | ({} if case.mutation.value is DROP else {"value": case.mutation.value})
        for case in kept
    ]
    text = np.frombuffer(json.dumps(told, sort_keys=True).encode(), np.uint8)
    logits = {f"logits_{i}": case.logits for i, case in enumerate(kept)}
    np.savez_compressed(FOLDER / f"{name}.npz", about=text, **logits)


def sample(name: str) -> list[Case]:
    """The cases that were written of a record."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return [
            Case(
                Mutation(tuple(fact["path"]), fact.get("value", DROP)), fact["said"], fact["tensors"],
                arrays[f"logits_{i}"],
            )
            for i, fact in enumerate(json.loads(arrays["about"].tobytes()))
        ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--keep", type=int, default=0)
    options = parser.parse_args()
    total: Counter[str] = Counter()
    FOLDER.mkdir(exist_ok=True)
    for name in options.names or folder_records.RECORDS:
        if options.keep:
            write_sample(name, options.keep)
            continue
        counts = try_all(name)
        total += counts
        print(f"{name}: {dict(counts)}", file=sys.stderr, flush=True)
    print(f"all: {dict(total)}")


if __name__ == "__main__":
    main()
