"""`graphml info`: what is in a model file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from graphml.cli.options import options
from graphml.cli.options.opening import open_header
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write, write_json
from graphml.errors import UsageError, WeightsError
from graphml.loading.carried_definition import carried_definition
from graphml.system.progress_labels import size
from graphml.weights import Metadata, ModelFile, Tensor
from graphml.weights.requantise import checked, choose, memory_of

LONGEST_WHOLE_ARRAY = 64
LAYER = re.compile(r"(?<=\.)[0-9]{1,9}(?=\.)")
"""The number of a layer in a tensor's name."""


@grouped
def info(
    source: options.ModelSource,
    model: options.Model = None,
    json: options.Json = False,
    quant: options.Quant = None,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List each tensor; by default those of layers are grouped.")
    ] = False,
    template: Annotated[
        bool, typer.Option("--template", help="Print the model's chat template, whole.")
    ] = False,
    definition: Annotated[
        bool,
        typer.Option("--definition", help="Print the source of the architecture that the file carries."),
    ] = False,
) -> None:
    """Show a model file's metadata with types, its tensors, and how much of it is quantised how.

    With --quant, also what would become of each tensor; nothing is converted.
    """
    checked(quant)
    with Bars() as bars:
        file = open_header(model, source, bars)
    with file:
        if definition:
            own = carried_definition(file)
            if own is None:
                raise UsageError(f"--definition: {file.path} carries none; its architecture is known by name")
            write(own.text)
        elif template:
            text = file.metadata.get("tokenizer.chat_template")
            if not isinstance(text, str):
                raise UsageError(f"--template: {file.path} has no chat template")
            write(text if text.endswith("\n") else f"{text}\n")
        elif json:
            write_json(_as_json(file, quant))
        else:
            _print(file, quant, tensors)


def quantisation(tensors: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return per dtype the counts of tensors and elements, bytes, and bits per weight; largest first."""
    mix: dict[str, dict[str, Any]] = {}
    for tensor in tensors:
        row = mix.setdefault(tensor.dtype, {"dtype": tensor.dtype, "tensors": 0, "elements": 0, "bytes": 0})
        row["tensors"] += 1
        row["elements"] += tensor.n_elements
        row["bytes"] += tensor.n_bytes
    for row in mix.values():
        row["bits_per_weight"] = _bits(row["bytes"], row["elements"])
    return sorted(mix.values(), key=lambda row: -int(row["bytes"]))


def _bits(n_bytes: int, n_elements: int) -> float:
    return round(8 * n_bytes / n_elements, 3) if n_elements else 0.0


def _becomes(tensor: Tensor, quant: str | None) -> dict[str, Any]:
    """What a tensor becomes in memory, or why it stays."""
    if quant is None:
        return {}
    choice = choose(tensor, quant)
    return {"becomes": choice.dtype, "bytes_in_memory": choice.n_bytes, "stays_because": choice.reason}


def _memory(file: ModelFile, quant: str | None) -> dict[str, int]:
    mapped, copied = memory_of(file.tensors, quant)
    return {"mapped": mapped, "copied": copied}


def _as_json(file: ModelFile, quant: str | None) -> dict[str, Any]:
    tensors = list(file.tensors.values())
    parameters = sum(tensor.n_elements for tensor in tensors)
    return {
        "path": str(file.path),
        "files": [str(path) for path in file.paths],
        "bytes": file.n_bytes,
        "parameters": parameters,
        "bits_per_weight": _bits(file.n_weight_bytes, parameters),
        "metadata": {key: _value(file.metadata, key) for key in file.metadata},
        "quantisation": quantisation(tensors),
        "memory": _memory(file, quant),
        "tensors": [
            {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "bytes": tensor.n_bytes}
            | _becomes(tensor, quant)
            for tensor in tensors
        ],
    }


def _value(metadata: Metadata, key: str) -> dict[str, Any]:
    """Type and value; of a long array its length and how it begins."""
    described = metadata.describe(key)
    if described.count is None:
        try:
            return {"type": described.type, "value": metadata[key]}
        except WeightsError:  # not UTF-8: shown as far as it can be
            return {"type": described.type, "preview": described.preview}
    value: dict[str, Any] = {"type": f"{described.type}[]", "count": described.count}
    if described.count <= LONGEST_WHOLE_ARRAY:
        return value | {"value": metadata[key]}
    return value | {"preview": described.preview}


def _print(file: ModelFile, quant: str | None, each: bool) -> None:
    tensors = list(file.tensors.values())
    parameters = sum(tensor.n_elements for tensor in tensors)
    print(f"{file.path}: {size(file.n_bytes)}, {parameters:,} parameters, ", end="")
    print(f"{_bits(file.n_weight_bytes, parameters):g} bits per weight")
    for line in _summary(file):
        print(f"  {line}")
    print(f"\nmetadata: {len(file.metadata)} keys")
    for key in file.metadata:
        print(f"  {file.metadata.describe(key)}")
    print("\nquantisation")
    rows = quantisation(tensors)
    for row in rows:
        print(
            f"  {row['dtype']:8} {row['tensors']:5} tensors {row['elements']:>16,} weights "
            f"{size(row['bytes']):>11} {row['bits_per_weight']:7g} bits per weight"
        )
    memory = _memory(file, quant)
    print(f"\nmemory: weights {size(memory['mapped'])} in the map, {size(memory['copied'])} copied")
    groups = [[tensor] for tensor in tensors] if each else _alike(tensors, quant)
    print(f"\ntensors: {len(tensors)}{'' if len(groups) == len(tensors) else ' (--tensors lists each)'}")
    # repr() of a name escapes what could steer the terminal
    names = [repr(_name_of(group))[1:-1] for group in groups]
    width = max(map(len, names), default=0)
    for name, group in zip(names, groups, strict=True):
        tensor, n_bytes = group[0], size(sum(tensor.n_bytes for tensor in group))
        shape = " x ".join(map(str, tensor.shape))
        count = f"  x{len(group)}" if len(group) > 1 else ""
        print(f"  {name:{width}}  {tensor.dtype:8} {shape:>18} {n_bytes:>11}{count}{_told(group, quant)}")


def _summary(file: ModelFile) -> list[str]:
    """What most people look for first, as far as the file has it: sizes, vocabulary, template, licence."""
    keys = file.metadata

    def known(key: str, text: str) -> str:
        arch = keys["general.architecture"]
        return text.format(keys[key.format(arch)]) if key.format(arch) in keys else ""

    if "general.architecture" not in keys:
        return []
    sizes = [
        known("general.architecture", "architecture {}"), known("{}.context_length", "context {:,} tokens"),
        known("{}.block_count", "{} layers"), known("{}.embedding_length", "width {}"),
    ]  # fmt: skip
    n_tokens = keys.describe("tokenizer.ggml.tokens").count if "tokenizer.ggml.tokens" in keys else None
    texts = [
        f"vocabulary {n_tokens:,} tokens" if n_tokens else "no vocabulary",
        "a chat template" if "tokenizer.chat_template" in keys else "no chat template",
        known("general.license", "licence {}"),
    ]
    return [repr(", ".join(filter(None, parts)))[1:-1] for parts in (sizes, texts)]


def _alike(tensors: Sequence[Tensor], quant: str | None) -> list[list[Tensor]]:
    """Tensors that differ in the number of their layer alone, and become the same, in one row each."""
    rows: dict[tuple[Any, ...], list[Tensor]] = {}
    for tensor in tensors:
        name = LAYER.sub("{}", tensor.name, count=1)
        rows.setdefault((name, tensor.dtype, tensor.shape, _told([tensor], quant)), []).append(tensor)
    return list(rows.values())


def _name_of(row: Sequence[Tensor]) -> str:
    """The name of one tensor; of several with the numbers of their layers: blk.{0-3,7}.attn_q.weight."""
    if len(row) == 1:
        return row[0].name
    numbers = sorted(int(match[0]) for tensor in row if (match := LAYER.search(tensor.name)))
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    text = ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in ranges)
    return LAYER.sub(f"{{{text}}}", row[0].name, count=1)


def _told(row: Sequence[Tensor], quant: str | None) -> str:
    """What tensors that are alike become, and the bytes of all of them then."""
    if quant is None:
        return ""
    choice = choose(row[0], quant)
    n_bytes = sum(choose(tensor, quant).n_bytes for tensor in row)
    return f"  -> {choice.dtype} {size(n_bytes)}" if choice.reason is None else f"  stays: {choice.reason}"
