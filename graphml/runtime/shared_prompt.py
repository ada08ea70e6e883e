"""A prompt that begins as another session's does: what that one has computed of it is copied.

Knows evaluations and groups of slots; nothing of text or sampling.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from graphml.runtime.committed import Evaluation
from graphml.runtime.slot_group import LEAST_SHARED, Prompt


@contextlib.contextmanager
def _shared(evaluation: Evaluation, cancelled: Callable[[], bool]) -> Iterator[int]:
    slot = evaluation.slot
    assert slot.group is not None
    prompt = Prompt(evaluation.all_ids, threading.get_ident())
    try:
        slot.group.begin(slot.sequence, prompt, cancelled)
        yield prompt.n_cached
    finally:
        prompt.active = False


def shared_prompt(
    evaluation: Evaluation, cancelled: Callable[[], bool], finds: bool
) -> contextlib.AbstractContextManager[int]:
    """Within, an evaluation computes its ids but those, so many, that its sequence got by a copy before.

    Where another session computes the same beginning just now, its end is awaited. finds: no copy otherwise.
    """
    if not finds or evaluation.slot.group is None or len(evaluation.waiting) < LEAST_SHARED + 2:
        return contextlib.nullcontext(0)
    return _shared(evaluation, cancelled)
