"""Drawing a token among the best of its row."""

from __future__ import annotations

from graphml_gpu.kernels.grid import element_number
from graphml_gpu.language import Read, Write, exp, f32, i32, kernel, log, u32


@kernel
def draw(
    ids: Read[i32],
    logits: Read[f32],
    log_sum: Read[f32],
    settings: Read[f32],
    out: Write[i32],
    rows: u32,
    k: u32,
    *,
    GROUP: int = 32,
) -> None:
    """out[row] = one of ids[row], as op `draw` means it; an invocation a row.

    ids, logits [rows, k], the largest logit first; log_sum [rows]; settings [rows, 5].
    """
    row = element_number()
    if row < rows:
        at = row * k
        inverse_temperature, most = settings[row * 5], u32(settings[row * 5 + 1])
        top_p, min_p, number = settings[row * 5 + 2], settings[row * 5 + 3], settings[row * 5 + 4]
        top = logits[at]
        among = k
        whole = exp(log_sum[row] - top)
        if most > 0:
            among = min(most, k)
            whole = 0.0
            for i in range(among):
                whole += exp(logits[at + i] - top)
        kept = u32(0)
        running, total = f32(0.0), f32(0.0)
        for i in range(among):
            below = logits[at + i] - top
            likely = (top_p >= 1.0 or running < top_p * whole) and (min_p <= 0.0 or below >= log(min_p))
            if i == 0 or likely:
                running += exp(below)
                total += exp(below * inverse_temperature)
                kept = i + 1
        chosen = u32(0)
        running = 0.0
        for i in range(kept):
            running += exp((logits[at + i] - top) * inverse_temperature)
            if running <= number * total:
                chosen = i + 1
        out[row] = ids[at + min(chosen, kept - 1)]
