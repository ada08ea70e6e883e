"""The models that tests of nodes leave out: each kind of node they have is in one that is tried."""

from __future__ import annotations

from tests import gpu_forms
from tests.backend_pairs import BACKENDS, GPUS, by_forms, listed
from tests.model_forms import ALIKE, families

AGAIN = "run python -m tests.model_forms"


def test_each_kind_of_node_is_in_a_model_that_is_tried() -> None:
    for family in families():
        tried = {one for name, found in family.items() if name not in ALIKE for one in found}
        for name in ALIKE & set(family):
            assert family[name] <= tried, f"{name}: {sorted(family[name] - tried)}; {AGAIN}"


def test_what_is_left_out_exists() -> None:
    assert set().union(*families()) >= ALIKE, AGAIN


def test_each_kind_of_node_and_of_kernel_of_gpus_is_in_a_model_that_they_are_tried_with() -> None:
    """In goldens and in models of records: tests/test_goldens.py, tests/test_transformers_records.py."""
    found, on = gpu_forms.forms(), listed()
    assert set(on) <= {name for name, _ in found}, "run python -m tests.gpu_forms"
    tried = {one for (name, gpu), some in found.items() if gpu in on.get(name, GPUS) for one in some}
    for pair, some in found.items():
        assert some <= tried, f"{pair}: {list(some - tried)}; run python -m tests.gpu_forms"


def test_a_model_that_is_not_listed_is_tried_on_gpus() -> None:
    gpus = {name for name in BACKENDS if name in GPUS}
    assert {backend for _, backend in by_forms(["new"])} == set(BACKENDS)
    alike = next(name for name, some in listed().items() if not some)
    assert {backend for _, backend in by_forms([alike])} == set(BACKENDS) - gpus
