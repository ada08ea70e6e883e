import random
import struct

import numpy as np
import pytest

from graphml.weights.strings import OutOfFileError, string_runs
from tests.looped import looped
from tests.weights.gguf_bytes import string


def walk(raw: bytes, start: int, count: int) -> tuple[list[tuple[int, int]], int]:
    data = np.frombuffer(raw, np.uint8)
    found, end = [], start
    for run in string_runs(data, start, count):
        found += list(zip(run.starts.tolist(), run.lengths.tolist(), strict=True))
        end = run.end
    return found, end


def expected(lengths: list[int], start: int) -> tuple[list[tuple[int, int]], int]:
    places = []
    for length in lengths:
        places.append((start + 8, length))
        start += 8 + length
    return places, start


def ordinary(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 20)).replace(b"\0", b"x")


def empty(rng: random.Random) -> bytes:
    return b""


def full_of_zeros(rng: random.Random) -> bytes:
    return b"\0" * rng.randrange(0, 40)


def fields_within(rng: random.Random) -> bytes:
    """Text that looks like strings with lengths of its own, to lure the walk off its way."""
    return b"".join(string(b"y" * rng.randrange(0, 5)) for _ in range(rng.randrange(4)))


def long(rng: random.Random) -> bytes:
    return b"z" * rng.choice([255, 256, 257, 511, 65535, 65536])


def mixed(rng: random.Random) -> bytes:
    make = rng.choices([ordinary, empty, full_of_zeros, fields_within, long], [5000, 3, 3, 3, 1])[0]
    return make(rng)


@pytest.mark.parametrize("make", [ordinary, empty, full_of_zeros, fields_within, mixed])
@pytest.mark.parametrize("start", [0, 1, 2, 3, 13])
def test_any_content_is_walked_exactly(make, start):
    rng = random.Random(7 + start)
    strings = [make(rng) for _ in range(30_000)]
    raw = b"\0" * start + b"".join(string(one) for one in strings)
    for tail in (b"", b"\0" * 64, b"\1" + b"\0" * 7):
        assert walk(raw + tail, start, len(strings)) == expected([len(one) for one in strings], start)


def test_long_strings_are_walked_exactly():
    rng = random.Random(1)
    strings = [long(rng) for _ in range(300)]
    raw = b"".join(string(one) for one in strings)
    assert walk(raw, 0, 300) == expected([len(one) for one in strings], 0)


def test_fewer_strings_than_there_are():
    raw = b"".join(string(b"ab") for _ in range(5000))
    for count in (0, 1, 63, 64, 65, 4999):
        assert walk(raw, 0, count) == expected([2] * count, 0)


@looped("missing", [1, 2, 9, 10, 11])
def test_the_string_that_ends_after_the_file_is_named(missing):
    raw = b"".join(string(b"ab") for _ in range(5000))[:-missing]
    with pytest.raises(OutOfFileError) as caught:
        walk(raw, 0, 5000)
    assert caught.value.index == (4999 if missing <= 10 else 4998)


def test_a_huge_length_is_out_of_the_file():
    raw = string(b"ab") * 100 + struct.pack("<Q", 2**64 - 1) + b"x" * 100
    with pytest.raises(OutOfFileError) as caught:
        walk(raw, 0, 200)
    assert caught.value.index == 100


def test_ordinary_strings_come_in_few_runs():
    """Each run is found at once: this is what makes a vocabulary of 262k words open in milliseconds."""
    rng = random.Random(3)
    strings = [ordinary(rng) for _ in range(100_000)]
    data = np.frombuffer(b"".join(string(one) for one in strings), np.uint8)
    assert len(list(string_runs(data, 0, len(strings)))) < 20
