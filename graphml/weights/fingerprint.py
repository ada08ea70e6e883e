"""A fingerprint of a model: whether keys and values that were computed earlier are of the same one.

Knows metadata and tensors; nothing of what is computed with them. Reads samples of the data, not all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from graphml.weights.metadata import Metadata
from graphml.weights.tensor import Tensor

FIRST_ELEMENTS = 256  # of each array of the metadata, beside its length
SAMPLE_BYTES = 256
SAMPLES = 4  # of each tensor, evenly spread, the first and the last bytes among them


def fingerprint_of(metadata: Metadata, tensors: Mapping[str, Tensor]) -> str:
    """Hexadecimal SHA-256 over metadata, names, types and shapes of all tensors, and samples of their bytes.

    Two models that differ only in bytes between the samples have the same one. Requantised tensors, and
    metadata that are overridden, count as they are in memory.
    """
    found = hashlib.sha256()
    for key in sorted(metadata):
        found.update(repr((key, *metadata.beginning(key, FIRST_ELEMENTS))).encode())
    for name, tensor in tensors.items():
        found.update(repr((name, tensor.dtype, tensor.shape, tensor.n_bytes)).encode())
        last = max(0, tensor.data.nbytes - SAMPLE_BYTES)
        for at in sorted({last * i // (SAMPLES - 1) for i in range(SAMPLES)}):
            found.update(tensor.data[at : at + SAMPLE_BYTES].tobytes())
    return found.hexdigest()
