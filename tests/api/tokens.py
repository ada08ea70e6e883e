"""Sessions of the tiny model, for tests."""

from __future__ import annotations

import graphml
from graphml import SamplingParams
from tests import tiny_model

ONLY_A = {"logit_bias": {tiny_model.vocabulary().index("a"): 1000.0}}


def greedy_ids(session: graphml.Session, ids: list[int], count: int) -> list[int]:
    return [token.id for token in session.generate(ids, SamplingParams(), count)]
