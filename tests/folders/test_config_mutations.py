"""Changed fields of config.json: the logits of transformers, or an error; see `tests/config_mutations.py`."""

from __future__ import annotations

import numpy as np
import pytest

from tests.config_mutations import FOLDER, LIMIT, RIGHT, SHOWN, by_graphml, sample, verdict
from tests.folder_records import RECORDS, about
from tests.golden import nmse


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.npz")))
def test_it_agrees_or_is_refused(name: str) -> None:
    config, base, _ = about(name)
    for case in sample(name):
        tensors = {key: shape for key, shape in {**base, **case.tensors}.items() if shape is not None}
        logits = by_graphml(case.mutation.on(config), tensors)
        if case.said == "refused":
            assert verdict(logits, case.logits) == "refused", str(case.mutation)
        else:
            assert isinstance(logits, np.ndarray), f"{case.mutation}: {logits}"
            assert nmse(logits[SHOWN], case.logits) < LIMIT, str(case.mutation)


def test_every_record_has_a_sample() -> None:
    kept = {path.stem for path in FOLDER.glob("*.npz")}
    assert kept == set(RECORDS)
    said = [case.said for name in kept for case in sample(name)]
    assert min(said.count(verdict) for verdict in RIGHT) > 20
