"""The top k of a row of logits, and the token that a device sampled of the row.

Knows no filter, no settings' meaning and no device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from graphml.sampling.candidates.candidates import Candidates, Floats, Ids

DeviceSettings: TypeAlias = tuple[float, ...]
"""How a device samples a token: `graphml.ir.ops.sampling.SETTINGS`."""


@dataclass(frozen=True)
class DeviceSample:
    """What a device sampled of a row by `settings`: an id, and the row's shares before it and with it."""

    id: int
    before: float
    upto: float
    settings: DeviceSettings


@dataclass(frozen=True, eq=False)
class TopK:
    """The largest logits of a row, the largest first, equal ones by id.

    ids int32 [k], logits float32 [k]; log_sum: the logarithm of the sum of exp(logits) of the whole row; row:
    returns the whole row, float32 [n_vocab], or None where it is gone; sampled: by the device, if it did.
    """

    ids: Ids
    logits: Floats
    log_sum: float
    n_vocab: int
    row: Callable[[], Floats | None] = lambda: None
    sampled: DeviceSample | None = None

    @property
    def usable(self) -> bool:
        """Whether no logit of the whole row is NaN or +inf, and at least one is finite."""
        return math.isfinite(self.log_sum)

    @property
    def candidates(self) -> Candidates:
        """The k tokens, sorted."""
        return Candidates(self.ids, self.logits, is_sorted=True)
