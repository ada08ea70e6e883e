"""Figures of a row as text, for tables of every kind; marks for those that are too noisy.

Knows rows; nothing of tables.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphml.bench.result_rows import Row
from graphml.inspect.node_names import printable

TOO_NOISY = "too noisy"
WHAT_TO_DO = (
    "the quartiles of the rounds lie further apart than their median, so it is no figure; end what else "
    "runs, then measure again with more rounds (-r 9) or more tokens"
)


def speed(row: Row) -> str:
    """Median and half the distance of the quartiles, `*` if that is large; or a mark for no figure."""
    if "t/s" in row.refused:
        return TOO_NOISY
    return f"{'*' * row.noisy}{row.median_ts:.2f} ± {(row.q3_ts - row.q1_ts) / 2:.2f}"


def ratio(row: Row) -> str:
    """The same for the ratio; "" if there is none."""
    if "ratio" in row.refused:
        return TOO_NOISY
    digits = 2 if row.ratio >= 0.1 else 4
    spread = (row.ratio_q3 - row.ratio_q1) / 2
    return f"{row.ratio:.{digits}f} ± {spread:.{digits}f}" if row.peer else ""


def of_bandwidth(row: Row) -> str:
    """The part of its memory's bandwidth that a row used; "" if one of the two is not known."""
    return f"{row.of_bandwidth:.0%}" if row.bandwidth_gb_s and "t/s" not in row.refused else ""


def device(row: Row) -> str:
    """The device of a row, as "llvmpipe (processor; Vulkan, Mesa 22.3.6)", or the host processor's name."""
    if not row.driver:
        return printable(row.device)
    return printable(f"{row.device} ({row.device_kind}; {row.driver})")


def notes(noisy: bool, refused: bool) -> Iterator[str]:
    """Explanations of the marks that a table has."""
    if noisy:
        yield "noisy: the quartiles of rows marked * lie more than 10 % of the median apart\n"
    if refused:
        yield f"{TOO_NOISY}: {WHAT_TO_DO}\n"


def size(n_bytes: int) -> str:
    """As llama-bench writes it: "606.53 MiB"."""
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes < 2**30 else f"{n_bytes / 2**30:.2f} GiB"


def params(count: int) -> str:
    """As llama-bench writes it: "1.10 B"."""
    return f"{count / 1e6:.2f} M" if count < 10**9 else f"{count / 1e9:.2f} B"
