"""Copies in another layout, of elements of four bytes whatever they are. An invocation an element."""

from __future__ import annotations

from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import Read, Write, kernel, u32


@kernel
def permute(
    x: Read[u32], out: Write[u32], n: u32, n1: u32, n2: u32, n3: u32,
    stride0: u32, stride1: u32, stride2: u32, stride3: u32, *, GROUP: int = 64,
) -> None:  # fmt: skip
    """out [n / (n1 * n2 * n3), n1, n2, n3], whose neighbours along axis i lie stride_i apart in x."""
    at = element_number()
    if at < n:
        row = at // n3
        page = row // n2
        first = page // n1 * stride0 + page % n1 * stride1
        out[at] = x[first + row % n2 * stride2 + at % n3 * stride3]


@kernel
def concat(
    a: Read[u32], b: Read[u32], out: Write[u32], n: u32, n_a: u32, n_b: u32, *, GROUP: int = 64
) -> None:
    """out = rows of a, each followed by the row of b. a [rows, n_a], b [rows, n_b]; n elements of out."""
    i = element_number()
    if i < n:
        row = i // (n_a + n_b)
        column = i % (n_a + n_b)
        if column < n_a:
            out[i] = a[row * n_a + column]
        else:
            out[i] = b[row * n_b + column - n_a]


@kernel
def columns(
    x: Read[u32], out: Write[u32], n: u32, width: u32, start: u32, x_width: u32, *, GROUP: int = 64
) -> None:
    """out = columns `start` to `start + width` of x [rows, x_width]; n elements of out."""
    i = element_number()
    if i < n:
        out[i] = x[i // width * x_width + start + i % width]


@kernel
def repeat(x: Read[u32], out: Write[u32], n: u32, width: u32, times: u32, *, GROUP: int = 64) -> None:
    """out = each row of x [rows, width], `times` times; n elements of out."""
    i = element_number()
    if i < n:
        out[i] = x[i // (width * times) * width + i % width]
