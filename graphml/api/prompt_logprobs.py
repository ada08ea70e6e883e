"""Log-probabilities of a session's prompt: all rows of it are computed, a part of them at a time.

A part of `Session` in a file of its own: it works on the session's tokens. Knows nothing of sampling.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphml.api.session_evaluation import EvaluatedSession
from graphml.errors import WeightsError
from graphml.ir.op import Array, Floats
from graphml.runtime.plans.next_token import no_numbers
from graphml.sampling import flaw_of
from graphml.sampling.logprobs import TokenLogprobs, of_row, of_rows

ROWS = 128
"""Rows of logits that are held at a time."""


def scored_prompt(session: EvaluatedSession, ids: Array, n_top: int) -> list[TokenLogprobs | None]:
    """Append ids, and return what follows from the rows before each token that the session then holds.

    None for tokens that it held before, and for a first one, which nothing comes before. Fewer where it was
    cancelled. WeightsError where logits are no numbers.
    """
    words, path = session._tokenizer, session._executor.file.path
    found: list[TokenLogprobs | None] = [None] * max(1, len(session._held))
    if len(session._held):
        found.append(of_row(_checked(session.logits[None], path)[0], int(ids[0]), n_top, words))
    for first in range(0, len(ids), ROWS):
        if session._cancelled:
            break
        some = ids[first : first + ROWS]
        following = ids[first + 1 : first + 1 + len(some)]
        rows = _checked(session.evaluated(some, all_logits=True), path)
        found += of_rows(rows[: len(following)], following, n_top, words)
    return found


def _checked(rows: Floats, path: Path) -> Floats:
    if not np.isfinite(rows).all():  # -inf is a logit, too
        flaw = next((one for row in rows if (one := flaw_of(row)) is not None), None)
        if flaw is not None:
            raise WeightsError(no_numbers(path, flaw))
    return rows
