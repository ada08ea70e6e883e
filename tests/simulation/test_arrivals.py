"""Arrivals by a law have its rate, shape and lengths; rows of a file are read, or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphml.errors import UsageError
from graphml.simulation import Arrival, Traffic, arrivals, read_arrivals


def test_each_shape_has_its_rate_where_it_should() -> None:
    times = {
        shape: np.array([each.at_s for each in arrivals(Traffic(20, 1200, shape), 1)])
        for shape in ("poisson", "bursty", "diurnal", "even")
    }
    for shape, at in times.items():
        assert len(at) == pytest.approx(24_000, rel=0.03), shape
        assert (np.diff(at) >= 0).all()
        assert at[0] >= 0
        assert at[-1] < 1200
    gaps = np.diff(times["poisson"])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    assert np.diff(times["even"]).std() < 1e-9
    assert (times["bursty"] % 60 < 12).mean() == pytest.approx(0.6, abs=0.02)
    noon, night = (np.histogram(times["diurnal"], [begin, begin + 60])[0][0] for begin in (570, 0))
    assert noon == pytest.approx(20 * 60 * 1.8, rel=0.1)
    assert night < 20 * 60 * 0.3


def test_lengths_have_their_mean_and_their_tail() -> None:
    flat = arrivals(Traffic(50, 400, prompt=300, answer=40), 2)
    assert {(each.n_prompt, each.n_answer, each.prefix) for each in flat} == {(300, 40, "")}
    long = arrivals(Traffic(50, 400, prompt=300, answer=40, tail=1.0), 2)
    lengths = np.array([each.n_prompt for each in long])
    assert lengths.mean() == pytest.approx(300, rel=0.05)
    assert np.log(lengths).std() == pytest.approx(1.0, rel=0.05)
    assert min(each.n_answer for each in long) >= 1


def test_beginnings_are_shared_as_often_as_said() -> None:
    each = arrivals(Traffic(50, 400, prompt=100, share=0.4, prefixes=3, prefix_tokens=70), 3)
    shared = [arrival for arrival in each if arrival.prefix]
    assert len(shared) / len(each) == pytest.approx(0.4, abs=0.02)
    assert {(arrival.n_prompt, arrival.n_prefix) for arrival in shared} == {(170, 70)}
    counts = sorted(sum(arrival.prefix == name for arrival in shared) for name in {a.prefix for a in shared})
    assert counts[2] / counts[0] == pytest.approx(3, rel=0.15)


ROWS = [Arrival(0.5, 100, 20, "a", 64), Arrival(1.0, 7, 1), Arrival(2.0, 64, 5, "a", 64)]


def test_rows_of_a_file_are_read_in_order_of_time(tmp_path: Path) -> None:
    table = "arrival_s,prompt,answer,prefix,prefix_tokens\n2,64,5,a,64\n0.5,100,20,a,64\n1,7,1,,\n"
    (tmp_path / "a.csv").write_text(table)
    assert read_arrivals(tmp_path / "a.csv") == ROWS
    lines = '{"arrival_s": 1, "prompt": 7, "answer": 1}\n{"arrival_s": 2.0, "prompt": 64, "answer": 5, '
    lines += (
        '"prefix": "a", "prefix_tokens": 64}\n{"arrival_s": 0.5, "prompt": 100, "answer": 20, "prefix": "a", '
    )
    (tmp_path / "a.jsonl").write_text(lines + '"prefix_tokens": 64}\n')
    assert read_arrivals(tmp_path / "a.jsonl") == ROWS


HEAD = "arrival_s,prompt,answer,prefix,prefix_tokens\n"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.csv", HEAD + "1,5,5,,\nx,5,5,,\n", "row 2: arrival_s: wanted a number from 0; got 'x'"),
        ("a.csv", HEAD + "-1,5,5,,\n", "row 1: arrival_s: wanted a number"),
        ("a.csv", HEAD + "nan,5,5,,\n", "row 1: arrival_s: wanted a number"),
        ("a.csv", HEAD + "inf,5,5,,\n", "row 1: arrival_s: wanted a number"),
        ("a.csv", HEAD + "1,0,5,,\n", "row 1: prompt: wanted a whole number from 1"),
        ("a.csv", HEAD + "1,5,2.5,,\n", "row 1: answer: wanted a whole number from 1"),
        ("a.csv", HEAD + "1,5,5,a,\n", "row 1: prefix_tokens: wanted a whole number"),
        ("a.csv", HEAD + "1,5,5,a,6\n", "row 1: prefix_tokens: wanted a prefix, and at most 5; got 6"),
        ("a.csv", HEAD + "1,5,5,,4\n", "row 1: prefix_tokens: wanted a prefix"),
        ("a.csv", HEAD + "1,5,5,a,4,9\n", "row 1: wanted arrival_s, prompt"),
        (
            "a.csv",
            "arrival,prompt\n1,5\n",
            "row 1: wanted arrival_s, prompt, answer, prefix, prefix_tokens; got",
        ),
        ("a.csv", HEAD + "1\n", "row 1: prompt: wanted a whole number"),
        ("a.jsonl", "1\n", "row 1: wanted arrival_s"),
        ("a.jsonl", '{"arrival_s": true, "prompt": 1, "answer": 1}\n', "row 1: arrival_s: wanted a number"),
        ("a.jsonl", "[" * 100_000 + "\n", "row 1: wanted arrival_s"),
        ("a.csv", "\xff\xfe\x00", "wanted"),
    ],
)
def test_rows_that_cannot_be_meant_are_named(name: str, text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as raised:
        read_arrivals(tmp_path / name)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"shape": "square"}, "shape: wanted one of poisson, bursty, diurnal, even; got 'square'"),
        ({"rate": 0}, "rate: wanted a number from"),
        ({"rate": float("nan")}, "rate: wanted a number"),
        ({"seconds": float("inf")}, "seconds: wanted a number"),
        ({"rate": 1e9}, "rate: wanted at most 100 million requests"),
        ({"prompt": 0}, "prompt: wanted a whole number from 1"),
        ({"answer": 2.5}, "answer: wanted a whole number"),
        ({"tail": -1}, "tail: wanted a number from 0 to 4"),
        ({"share": 2}, "share: wanted a number from 0 to 1"),
        ({"prefixes": True}, "prefixes: wanted a whole number"),
    ],
)
def test_a_law_that_cannot_be_meant_is_refused(fields: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        Traffic(**{"rate": 1, "seconds": 10, **fields})  # type: ignore[arg-type]
    assert words in str(raised.value)
