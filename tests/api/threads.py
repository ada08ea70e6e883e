"""Uses of sessions in threads, and what the logits of the remembering device must be; for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

import graphml
from tests.api import remembering

PROMPTS = [[5 + i, 6, 7 + i * i, 8][: 2 + i % 3] for i in range(6)]
COUNT = 20
Use = Callable[[], object]


def in_threads(uses: list[Use]) -> None:
    """Call each in a thread of its own, all at once; the first error is raised."""
    errors: list[BaseException] = []
    together = threading.Barrier(len(uses))

    def run(use: Use) -> None:
        try:
            together.wait()
            use()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(use,), daemon=True) for use in uses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for error in errors:
        raise error


def wanted(model: graphml.Model, ids: list[int], count: int = COUNT) -> list[int]:
    """Greedy ids, of a function of the ids before them."""
    held = list(ids)
    for _ in range(count):
        held.append(int(remembering.row_of((), tuple(held), model.n_vocab).argmax()))
    return held[len(ids) :]


def is_right(session: graphml.Session) -> bool:
    """Whether its logits are those of the ids that it tells."""
    row = remembering.row_of((), tuple(session.tokens), session.n_vocab)
    return bool(np.array_equal(session.logits, row))
