"""Random weights by the names of tensors, that keep activations near 1; a whole model's in little memory.

Knows names, formats and shapes; nothing of files' layouts or programs.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from math import prod

import graphml_quant
import numpy as np
from graphml_quant.format import Format
from numpy.typing import NDArray

from graphml.system.pages import fresh
from graphml.weights.filemap import Bytes
from graphml.weights.model_file import ModelFile
from graphml.weights.random_blocks import random_blocks
from graphml.weights.tensor import PLAIN_DTYPES, Tensor, type_named

SHARED_BYTES = 1 << 30
"""Of one format, far more than caches hold; more where a tensor is larger."""
_REPEATED_BYTES, ALIGNMENT = 16 << 20, 64


def random_values(name: str, shape: tuple[int, ...], format: Format) -> Iterator[bytes]:
    """The bytes of a tensor in pieces; they depend on its name, shape and format alone."""
    seed = zlib.crc32(name.encode())
    if is_vector(name, shape):
        yield _vector(name, prod(shape), seed).astype("<f4").tobytes()
        return
    n_blocks = format.bytes_for_shape(shape) // format.block_bytes
    # Rows of length n with numbers of deviation 1 / sqrt(n) keep the size of the vector multiplied with them.
    for chunk in random_blocks(format, n_blocks, shape[-1] ** -0.5, seed):
        yield chunk.tobytes()


def is_vector(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is no matrix: gains, biases, factors, decays."""
    return len(shape) == 1 or not name.endswith(".weight") or "_norm." in name


def _vector(name: str, count: int, seed: int) -> NDArray[np.float64]:
    """Gains of norms about 1, biases about 0, frequency factors between llama 3's 1 and 32.

    Decays and steps of state spaces are distributed like those of an untrained Mamba 2.
    """
    if name == "rope_freqs.weight":
        return np.geomspace(1.0, 32.0, count)
    if name.endswith("ssm_a"):
        return -np.linspace(1.0, 16.0, count)
    if name.endswith("ssm_dt.bias"):
        return np.log(np.expm1(np.geomspace(0.001, 0.1, count)))
    numbers = np.random.default_rng(seed).standard_normal(count)
    return 0.1 * numbers + (0.0 if name.endswith(".bias") else 1.0)


def in_shared_memory(file: ModelFile, types: Mapping[str, str]) -> ModelFile:
    """A file's header with random weights, which nothing reads from a disk; a file of its own.

    types: of tensors that have another type than the file says. Matrices of a format lie over each other,
    so that a model of any size takes about `SHARED_BYTES` for each of its formats; a step over all layers
    reads more than caches hold wherever the model's own would.
    """
    named = {name: types.get(name, tensor.dtype) for name, tensor in file.tensors.items()}
    bodies = {name: tensor for name, tensor in file.tensors.items() if _is_body(tensor, named[name])}
    sizes: dict[str, list[int]] = {}
    for name, tensor in bodies.items():
        sizes.setdefault(named[name], []).append(_n_bytes(named[name], tensor.shape))
    pools = {
        kind: _pool(kind, max(*each, min(sum(each), SHARED_BYTES), 0), bodies) for kind, each in sizes.items()
    }
    used, tensors = dict.fromkeys(pools, 0), dict[str, Tensor]()
    for name, tensor in file.tensors.items():
        kind, n_bytes = named[name], _n_bytes(named[name], tensor.shape)
        if name not in bodies:
            tensors[name] = Tensor(name, kind, tensor.shape, _small(name, kind, tensor.shape), False)
            continue
        pool = pools[kind]
        if used[kind] + n_bytes > pool.nbytes:
            used[kind] = 0
        data = pool[used[kind] : used[kind] + n_bytes]
        used[kind] += n_bytes + -n_bytes % _step(kind)
        tensors[name] = Tensor(name, kind, tensor.shape, data, False)
    return ModelFile(file.path, file.metadata, tensors, ())


def _is_body(tensor: Tensor, kind: str) -> bool:
    return kind not in PLAIN_DTYPES and not (kind == "f32" and is_vector(tensor.name, tensor.shape))


def _n_bytes(kind: str, shape: tuple[int, ...]) -> int:
    of = type_named(kind)
    return prod(shape) // of.block_elements * of.block_bytes


def _step(kind: str) -> int:
    """Bytes of which each tensor's start is a multiple: of whole blocks, and aligned as files align."""
    return math.lcm(type_named(kind).block_bytes, ALIGNMENT)


def _small(name: str, kind: str, shape: tuple[int, ...]) -> Bytes:
    """Bytes of what is no matrix; numbers of rows and the like are 0."""
    if kind in PLAIN_DTYPES:
        return np.zeros(_n_bytes(kind, shape), np.uint8)
    pieces = random_values(name, shape, graphml_quant.by_name(kind))
    return np.frombuffer(b"".join(pieces), np.uint8)


def _pool(kind: str, n_bytes: int, bodies: Mapping[str, Tensor]) -> Bytes:
    """At least so many bytes of blocks of a format, with room for the starts of all tensors."""
    format, width = graphml_quant.by_name(kind), max(tensor.shape[-1] for tensor in bodies.values())
    n_blocks = min(n_bytes, _REPEATED_BYTES) // format.block_bytes + 1
    repeated = np.concatenate(
        [chunk.reshape(-1) for chunk in random_blocks(format, n_blocks, width**-0.5, 0)]
    )
    pool = fresh(n_bytes + _step(kind) * len(bodies), large=False)
    for start in range(0, pool.nbytes, repeated.nbytes):
        part = pool[start : start + repeated.nbytes]
        part[:] = repeated[: part.nbytes]
    pool.flags.writeable = False
    return pool
