"""Every architecture on files that lack something or contradict themselves: the error names what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from graphml.errors import GraphmlError
from graphml.loading import discovery
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.open_executor import read_architecture
from graphml.weights import Metadata, Tensor
from graphml.weights.metadata import StoredValue
from tests.looped import looped

NAMES = discovery.architecture_names()
BACKEND = discovery.backend("reference")
KINDS = {bool: "bool", int: "u32", float: "f32", str: "string"}
REQUIRED = {"context_length", "embedding_length", "block_count"}
# What a file may lack, and what an architecture then takes instead
OPTIONAL = (".bias", ".scale", "output.weight", "rope_freqs.weight", "rope_factors_short.weight",
            "rope_factors_long.weight", "token_types.weight")  # fmt: skip
EITHER_WAY = {
    ("stablelm", "blk.1.ffn_norm.weight"),  # without, the blocks lie side by side
    ("falcon-h1", "blk.1.ssm_norm.weight"),  # most Falcon-H1 have none
    ("gemma3n", "blk.1.attn_v.weight"),  # without, values are keys
    ("gemma4", "blk.1.attn_v.weight"),  # without, values are keys
    ("gemma4", "blk.1.layer_output_scale.weight"),
    ("hy-v3", "blk.1.exp_probs_b"),
    ("kimi-k3", "blk.1.attn_gate.weight"),
    ("kimi-k3", "blk.1.ffn_routed_norm.weight"),
    ("mimo2", "blk.1.attn_sinks.weight"),  # of layers with a window, in some models
    ("step35", "blk.1.attn_gate.weight"),
    ("minimax-m3", "blk.1.indexer.q_proj.weight"),  # the first layers have no index
    ("jina-bert-v2", "blk.1.ffn_gate.weight"),  # without, the feed-forward has no gate
    *(("t5encoder", f"enc.blk.{i}.ffn_gate.weight") for i in range(2)),  # the same
    *(("t5", f"enc.blk.{i}.ffn_gate.weight") for i in range(2)),
    *(("t5", f"dec.blk.{i}.ffn_gate.weight") for i in range(3)),
}
PADDED = {("qwen4exp", "per_layer_token_embd.weight")}  # written with more rows than are read, never fewer
# Of other shapes where two more elements are refused as ones of the tensor beside.
ONE_MORE = {("hy-v4", name) for name in
            ("blk.1.hc_attn_fn.weight", "blk.1.hc_ffn_fn.weight", "output_hc_fn.weight")}  # fmt: skip


@dataclass(frozen=True)
class File:
    """A model file in memory."""

    metadata: Metadata
    tensors: Mapping[str, Tensor]
    path: Path = Path("broken.gguf")
    header_only: bool = False


def stored(value: Any) -> StoredValue:
    one = value[0] if isinstance(value, list) else value
    count = len(value) if isinstance(value, list) else None
    return StoredValue(KINDS[type(one)], count, lambda limit: value[:limit] if count else value)


@lru_cache(maxsize=1000)  # those of a model, which is built again for each of them
def zeros(name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, "f32", shape, np.zeros(4 * prod(shape), np.uint8))


def build(name: str, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Read and build as opening a file does."""
    values = {key: stored(value) for key, value in {"general.architecture": name, **metadata}.items()}
    tensors = {tensor: zeros(tensor, shape) for tensor, shape in shapes.items()}
    file: Any = File(Metadata(File.path, values), tensors)
    architecture, config = read_architecture(file)
    with_device = BACKEND.open(1)
    executor = Executor(file, architecture, config, BACKEND, with_device)
    executor.build(2, 2)


def error(name: str, metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What building says that is wrong, nothing where it works."""
    try:
        build(name, metadata, shapes)
    except GraphmlError as error:
        return str(error)
    return ""


def sample(name: str) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    made = discovery.architecture(name).sample
    assert made is not None
    model = made(name)[0]
    return dict(model.metadata), dict(model.tensors)


def parts(tensors: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """The tensors of one layer, and those of none."""
    return (name for name in tensors if not name.startswith("blk.") or name.startswith("blk.1."))


@looped("name", NAMES)
def test_a_missing_tensor_is_named(name: str) -> None:
    metadata, tensors = sample(name)
    build(name, metadata, tensors)
    failed = 0
    for lost in parts(tensors):
        told = error(name, metadata, {tensor: tensors[tensor] for tensor in tensors if tensor != lost})
        assert lost in told if told else lost.endswith(OPTIONAL) or (name, lost) in EITHER_WAY, (
            f"{lost} is not missed: {told}"
        )
        assert not told or "wanted" in told, told
        failed += bool(told)
    assert failed > 5


@looped("name", NAMES)
def test_a_tensor_of_another_shape_is_named(name: str) -> None:
    """Two elements more, which may be divided where one more cannot."""
    metadata, tensors = sample(name)
    for wrong in parts(tensors):
        if "rope_factors" in wrong:
            continue  # of the two, one is read
        shape = tensors[wrong]
        for axis in range(len(shape)):
            step = -1 if axis == 0 and (name, wrong) in PADDED else 1 if (name, wrong) in ONE_MORE else 2
            other = tuple(size + step * (i == axis) for i, size in enumerate(shape))
            if other[:1] != shape[:1] and wrong == "token_embd.weight" and "output.weight" not in tensors:
                continue  # another number of ids for both
            if axis == 0 and wrong == "token_types.weight":
                continue  # the first row is read
            assert wrong in error(name, metadata, {**tensors, wrong: other}), (wrong, other)


@looped("name", NAMES)
def test_a_missing_or_senseless_key_is_named(name: str) -> None:
    """Or the architecture does without; nothing but our own errors comes, and soon.

    Values of another kind and large numbers: `test_architecture_errors.py`.
    """
    metadata, tensors = sample(name)
    named = set()
    for key, value in metadata.items():
        without = {known: metadata[known] for known in metadata if known != key}
        wrong: list[Any] = [0, -1] if isinstance(value, int) else []
        for changed in (without, *({**metadata, key: other} for other in wrong)):
            named |= {key} if key in error(name, changed, tensors) else set()
    assert {f"{name}.{key}" for key in REQUIRED} <= named
