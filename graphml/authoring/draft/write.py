"""Drafts an architecture file: its source, its text, and the values that it omits.

Knows the parts of this folder; writes no file.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from graphml.authoring.draft.huggingface import DraftedConfig, read_config
from graphml.authoring.draft.standalone import standalone
from graphml.authoring.draft.traits import Traits, differences, nearest, traits_known
from graphml.errors import UsageError
from graphml.loading import discovery

NAMES = {  # transformers' model_type -> GGUF's name, where they differ by more than _ and -
    "mistral": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "phi": "phi2",
    "gemma3_text": "gemma3", "gpt_neox": "gptneox", "gpt_bigcode": "starcoder", "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2", "cohere": "command-r", "glm4_moe": "glm4moe", "phimoe": "phimoe",
    "hunyuan_v1_dense": "hunyuan-dense", "hunyuan_v1_moe": "hunyuan-moe", "minimax_m2": "minimax-m2",
}  # fmt: skip
LONGEST = 100  # columns of the draft's comments
PLAIN_KEYS = {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16}


@dataclass(frozen=True)
class Draft:
    """name: the file's, without .py. left: values that the draft does not use, a line each."""

    name: str
    text: str
    like: str
    left: tuple[str, ...]


def draft(name: str, like: str | None = None, config: Path | None = None) -> Draft:
    """Draft an architecture: after a known one, from a config.json, or a plain decoder."""
    module = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise UsageError(
            f"NAME: wanted letters, digits, - and _, such as GGUF names architectures; got {name!r}"
        )
    if config is None:
        return _after(name, module, like) if like else _plain(name, module)
    read = read_config(config)
    called = NAMES.get(read.model_type, read.model_type.replace("_", "-"))
    preferred = called if called in discovery.architecture_names() else None
    if like is None:
        like, apart = nearest(read.traits, preferred)
    else:
        samples = traits_known(discovery.architecture(like).name)
        apart = min(
            (differences(read.traits, sample_traits) for sample_traits in samples),
            key=len,
            default=["everything"],
        )
    left = [f"{key} = {_short(value)}" for key, value in read.left]
    if read.traits.latent or read.traits.recurrent:
        kind = "latent attention" if read.traits.latent else "a recurrent state"
        left.append(f"{kind}: see {'deepseek2' if read.traits.latent else 'mamba2'} for how it is written")
    if not apart:
        return Draft(module, _extension(name, like, read, left, config.name), like, tuple(left))
    title = (
        f"{name}: drafted by `graphml new-arch` from {config.name} (model_type {read.model_type or 'none'})."
    )
    remarks = [f"Nearest is {like}, which differs in: {', '.join(apart)}."]
    traits = replace(read.traits, latent=False, recurrent=False)
    gate = f"the feed-forward has {'a' if traits.gated else 'no'} gate: config.json does not tell"
    notes = _notes(remarks, left, [gate, *read.notes])
    return Draft(
        module,
        standalone(_safe(title), notes, traits, read.keys, read.tied, read.biases),
        like,
        tuple(left),
    )


def _after(name: str, module: str, like: str) -> Draft:
    known = discovery.architecture(like)
    return Draft(
        module,
        _like(f"{name}: {known.name} under another name, drafted by `graphml new-arch`.", [], like),
        like,
        (),
    )


def _plain(name: str, module: str) -> Draft:
    title = f"{name}: a plain decoder, drafted by `graphml new-arch`."
    return Draft(module, standalone(title, [], Traits(), PLAIN_KEYS, False, False, "norm"), "llama", ())


def _extension(name: str, like: str, read: DraftedConfig, left: Sequence[str], source: str) -> str:
    keys = [f"    {key} = {_short(value)}" for key, value in read.keys.items()]
    title = f"{name}: {like} with other sizes, drafted by `graphml new-arch` from {source}."
    return _like(
        title, [*_notes([], left, read.notes), "What config.json says, under GGUF's keys:", *keys], like
    )


def _like(title: str, notes: Sequence[str], like: str) -> str:
    """A file that imports everything from another; differences are to be written in place of an import."""
    module = f"graphml_models.{like.replace('-', '_').replace('.', '_')}"
    how = "What differs is written here in place of one of these imports; docs/architectures.md shows how."
    doc = ['"""' + _safe(title), "", *map(_safe, notes), *([""] if notes else []), how, '"""']
    lines = [f"from {module} import {public} as {public}" for public in ("Config", "build", "sample")]
    return "\n".join([*doc, "", *lines]) + "\n"


def _notes(remarks: Sequence[str], left: Sequence[str], assumed: Sequence[str]) -> list[str]:
    lines = [*remarks]
    for head, items in (
        ("Assumed, to be checked:", assumed),
        ("In config.json and not in this draft:", left),
    ):
        if items:
            lines += (
                ["", head, *[f"- {line}" for line in items]]
                if lines
                else [head, *[f"- {line}" for line in items]]
            )
    return [_safe(line) for line in lines]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST - 40 else text[: LONGEST - 43] + "..."


def _safe(line: str) -> str:
    """A line that cannot end the docstring around it."""
    kept = line.replace("\\", "/").replace('"""', "'''")
    return "".join(character if character.isprintable() else "?" for character in kept)[:LONGEST]
