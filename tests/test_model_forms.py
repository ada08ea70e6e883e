"""The models that tests of nodes leave out: each kind of node they have is in one that is tried."""

from __future__ import annotations

from tests import backend_pairs, gpu_forms
from tests.model_forms import ALIKE, families

AGAIN = "run python -m tests.model_forms"


def test_each_kind_of_node_is_in_a_model_that_is_tried() -> None:
    for family in families():
        tried = {one for name, found in family.items() if name not in ALIKE for one in found}
        for name in ALIKE & set(family):
            assert family[name] <= tried, f"{name}: {sorted(family[name] - tried)}; {AGAIN}"


def test_what_is_left_out_exists() -> None:
    assert set().union(*families()) >= ALIKE, AGAIN


def test_each_kernel_and_kind_of_node_of_gpus_is_in_a_model_that_they_are_tried_with() -> None:
    """Golden models and those of records, see tests/test_goldens.py and tests/test_transformers_records.py."""
    family, listed = gpu_forms.family(), backend_pairs.ALIKE
    assert set(family) >= listed
    tried = {one for name, found in family.items() if name not in listed for one in found}
    for name in listed:
        assert family[name] <= tried, f"{name}: {family[name] - tried}; run python -m tests.gpu_forms"
