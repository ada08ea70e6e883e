"""Which layers see a window of the text alone, as the metadata say."""

from __future__ import annotations

from graphml.engine.architecture import Keys

SIZE, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"


def read_windows(keys: Keys, n_layer: int, period: int, all_first: bool = False) -> tuple[int, ...]:
    """How many tokens each layer sees, 0 if all.

    The file's pattern is a yes or no for each layer, or a number, else it is `period`: of so many layers the
    last sees all, or the first where `all_first`; of 0 none does.
    """
    size = keys.integer(SIZE)
    if keys.is_array(PATTERN):
        return tuple(size if windowed else 0 for windowed in keys.integers(PATTERN, n_layer))
    period = keys.integer(PATTERN, period)
    one = 0 if all_first else period - 1
    return tuple(0 if period and i % period == one else size for i in range(n_layer))
