"""Random weights by the names of tensors, that keep activations near 1; a whole model's in little memory.

Knows names, formats and shapes; nothing of files' layouts or programs.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from math import lcm, prod

import graphml_quant
import numpy as np
from graphml_quant.format import Format
from numpy.typing import NDArray

from graphml.system.pages import fresh
from graphml.weights.filemap import Bytes
from graphml.weights.gguf import DEFAULT_ALIGNMENT
from graphml.weights.gguf_writing import TensorPlan
from graphml.weights.model_file import ModelFile
from graphml.weights.random_blocks import random_blocks
from graphml.weights.tensor import PLAIN_DTYPES, Tensor, type_named

SHARED_BYTES = 1 << 30
"""Of one format, far more than caches hold; more where a tensor is larger."""
_REPEATED_BYTES = 16 << 20


def random_values(name: str, shape: tuple[int, ...], format: Format) -> Iterator[bytes]:
    """The bytes of a tensor in pieces; they depend on its name, shape and format alone."""
    seed = zlib.crc32(name.encode())
    if _is_vector(name, shape):
        yield _vector(name, prod(shape), seed).astype("<f4").tobytes()
        return
    n_blocks = format.bytes_for_shape(shape) // format.block_bytes
    # Rows of length n with numbers of deviation 1 / sqrt(n) keep the size of the vector multiplied with them.
    for chunk in random_blocks(format, n_blocks, shape[-1] ** -0.5, seed):
        yield chunk.tobytes()


def _is_vector(name: str, shape: tuple[int, ...]) -> bool:
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
    plans = [TensorPlan(name, types.get(name, of.dtype), of.shape) for name, of in file.tensors.items()]
    sizes: dict[str, list[int]] = {}
    for plan in filter(_is_matrix, plans):
        sizes.setdefault(plan.dtype, []).append(plan.n_bytes)
    width = max(plan.shape[-1] for plan in plans)
    pools = {kind: _pool(kind, each, width) for kind, each in sizes.items()}
    used, tensors = dict.fromkeys(pools, 0), dict[str, Tensor]()
    for plan in plans:
        kind, n_bytes = plan.dtype, plan.n_bytes
        if not _is_matrix(plan):
            data = _small(plan)
        else:
            begin = used[kind] if used[kind] + n_bytes <= pools[kind].nbytes else 0
            data = pools[kind][begin : begin + n_bytes]
            used[kind] = begin + n_bytes + -n_bytes % _step(kind)
        tensors[plan.name] = Tensor(plan.name, kind, plan.shape, data, False)
    return ModelFile(file.path, file.metadata, tensors, ())


def _is_matrix(plan: TensorPlan) -> bool:
    return plan.dtype not in PLAIN_DTYPES and not (plan.dtype == "f32" and _is_vector(plan.name, plan.shape))


def _step(kind: str) -> int:
    """Bytes of which each tensor's start is a multiple: of whole blocks, and aligned as files align."""
    return lcm(type_named(kind).block_bytes, DEFAULT_ALIGNMENT)


def _small(plan: TensorPlan) -> Bytes:
    """Bytes of what is no matrix; numbers of rows and the like are 0."""
    if plan.dtype in PLAIN_DTYPES:
        return np.zeros(plan.n_bytes, np.uint8)
    return _vector(plan.name, prod(plan.shape), zlib.crc32(plan.name.encode())).astype("<f4").view(np.uint8)


def _pool(kind: str, sizes: Sequence[int], width: int) -> Bytes:
    """Bytes for tensors of such sizes, with room for their starts. width: of the widest row of all."""
    format, n_bytes = graphml_quant.by_name(kind), max(*sizes, min(sum(sizes), SHARED_BYTES))
    n_blocks = min(n_bytes, _REPEATED_BYTES) // format.block_bytes + 1
    chunks = random_blocks(format, n_blocks, width**-0.5, 0)
    repeated = np.concatenate([chunk.reshape(-1) for chunk in chunks])
    pool = fresh(n_bytes + _step(kind) * len(sizes), large=True)
    for start in range(0, pool.nbytes, repeated.nbytes):
        part = pool[start : start + repeated.nbytes]
        part[:] = repeated[: part.nbytes]
    pool.flags.writeable = False
    return pool
