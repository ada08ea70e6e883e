"""Cases that share a test: each is tried, and each that fails is named."""

from __future__ import annotations

import pytest

from tests.looped import looped


def test_each_case_that_fails_is_named() -> None:
    tried = []

    @looped("a, b", [(1, 1), (1, 2), (3, 4), (5, 5)], ids=["one", "two", "three", "five"])
    def all_are_equal(a: int, b: int) -> None:
        tried.append((a, b))
        assert a == b

    with pytest.raises(pytest.fail.Exception, match=r"(?s)^2 of 4 cases:\n\[two\].*\[three\]"):
        all_are_equal()
    assert len(tried) == 4


@looped("case", [1, 2])
def test_fixtures_are_those_of_all_cases(case: int, request: pytest.FixtureRequest) -> None:
    assert request.node.name == "test_fixtures_are_those_of_all_cases"
    assert case in (1, 2)


def test_a_case_that_skips_fails_and_ends_no_other() -> None:
    tried = []

    @looped("case", [1, 2])
    def skips_the_first(case: int) -> None:
        tried.append(case)
        if case == 1:
            pytest.skip("not here")

    with pytest.raises(pytest.fail.Exception, match=r"(?s)^1 of 2 cases:\n\[1\].*not here"):
        skips_the_first()
    assert tried == [1, 2]


def test_no_cases_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        looped("case", [])
