"""Walsh-Hadamard transforms of blocks, a workgroup each, in its own memory."""

from __future__ import annotations

from graphml_gpu.kernels.grid import group_number
from graphml_gpu.language import Read, Write, barrier, f32, kernel, local_id, shared_array, u32, unroll


@kernel
def walsh_hadamard(
    x: Read[f32], out: Write[f32], blocks: u32, factor: f32, *, BITS: int, GROUP: int = 64
) -> None:
    """Each block of 2 ** BITS numbers times the orthonormal matrix of its size. factor: 2 ** (-BITS / 2).

    x, out [blocks, 2 ** BITS]; out may be x.
    """
    number = group_number()
    if number < blocks:
        sums = shared_array(f32, 1 << BITS)
        start = number << BITS
        for i in range(local_id(0), 1 << BITS, GROUP):
            sums[i] = x[start + i] * factor
        barrier()
        for bit in unroll(BITS):
            for pair in range(local_id(0), 1 << (BITS - 1), GROUP):
                low = ((pair >> bit) << (bit + 1)) + (pair & ((1 << bit) - 1))
                high = low + (1 << bit)
                a, b = sums[low], sums[high]
                sums[low] = a + b
                sums[high] = a - b
            barrier()
        for i in range(local_id(0), 1 << BITS, GROUP):
            out[start + i] = sums[i]
