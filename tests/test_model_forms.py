"""The models that tests of nodes leave out: each kind of node they have is in one that is tried."""

from __future__ import annotations

from tests.model_forms import ALIKE, families

AGAIN = "run python -m tests.model_forms"


def test_each_kind_of_node_is_in_a_model_that_is_tried() -> None:
    for family in families():
        tried = {one for name, found in family.items() if name not in ALIKE for one in found}
        for name in ALIKE & set(family):
            assert family[name] <= tried, f"{name}: {sorted(family[name] - tried)}; {AGAIN}"


def test_what_is_left_out_exists() -> None:
    assert set().union(*families()) >= ALIKE, AGAIN
