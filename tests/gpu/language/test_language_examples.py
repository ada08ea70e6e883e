"""Kernels that use the whole language: in the emulator, as text, and as text on every device there is."""

from __future__ import annotations

import dataclasses

import pytest
from graphml_gpu.driver import Driver
from graphml_gpu.language import PORTABLE, Features

from tests.gpu.language.devices import DRIVERS, open_driver, run_on
from tests.gpu.language.examples import EVERYTHING, EXAMPLES, FOLDER, GOLDENS, Example, texts

FEATURES = {"portable": PORTABLE, "everything": EVERYTHING}


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_emulator_computes_what_numpy_does(name: str, features: str) -> None:
    example = EXAMPLES[name]
    made = {buffer: array.copy() for buffer, array in example.buffers.items()}
    example.specialise(FEATURES[features]).run_python(made, example.scalars, example.groups)
    example.check(made)


@pytest.mark.parametrize("name", GOLDENS)
def test_texts_stay_what_they_are(name: str) -> None:
    """After a change on purpose: `python -m tests.gpu.language.examples`, and read the diff."""
    for file, text in texts(name).items():
        assert text == (FOLDER / file).read_text(), file


@pytest.fixture(scope="module", params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return open_driver(request.param)


def _chosen(example: Example, driver: Driver) -> list[Features]:
    """Nothing, and all that the device offers; each alone where it makes another text."""
    offered = driver.facts.features()
    one = [dataclasses.replace(PORTABLE, f16=True)] if offered.f16 else []
    return list(dict.fromkeys([PORTABLE, *one, offered]))


@pytest.mark.parametrize("name", EXAMPLES)
def test_devices_compute_what_numpy_does(name: str, driver: Driver) -> None:
    example = EXAMPLES[name]
    for features in _chosen(example, driver):
        made = run_on(driver, example.specialise(features), example.buffers, example.scalars, example.groups)
        example.check(made)
