"""Every reader of files with damaged ones: each opens, or one error of graphml names the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.attacks import Attack
from tests.hostile.targets import TARGETS, closed_at_the_end

CASES = 40


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    with closed_at_the_end():
        yield


@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_file_opens_or_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    attack, wrong = Attack(TARGETS[name], tmp_path), []
    for number in range(CASES):
        try:
            attack.case(number, measured=number % 8 == 0)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
