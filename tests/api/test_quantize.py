"""What `graphml.quantize` and `graphml.dequantize` take and refuse."""

import numpy as np
import pytest

import graphml
from graphml.backend import Backend
from graphml.errors import BackendError, UsageError
from graphml.loading import discovery
from tests.looped import looped

VALUES = np.sin(np.arange(3 * 512, dtype=np.float32)).reshape(3, 512)
ONES = np.ones(512, np.float32)


def changed(row: int, column: int, value: float) -> np.ndarray:
    values = VALUES.astype(np.float64)
    values[row, column] = value
    return values


@looped(
    "x, kind, importance, text",
    [
        (changed(2, 7, np.nan), "Q4_K", None, r"x: Q4_K wants finite values; the value at \(2, 7\) is nan"),
        (
            changed(0, 511, -np.inf),
            "Q8_0",
            None,
            r"Q8_0 wants finite.* at \(0, 511\) is -inf",
        ),
        (changed(1, 0, 1e39), "TQ2_0", None, r"TQ2_0 wants finite values; the value at \(1, 0\) is inf"),
        (
            changed(1, 0, 1e9),
            "TQ2_0",
            None,
            r"within float16; the value at \(1, 0\) is 1000000000.0",
        ),
        (changed(1, 0, -65520), "F16", None, r"F16 wants numbers below 65520; that at \(1, 0\) is -65520"),
        (changed(2, 3, 3.4e38), "BF16", None, r"BF16 wants numbers below 3.39.*; that at \(2, 3\)"),
        (
            VALUES.astype(float) * 1e300,
            "F32",
            None,
            r"F32 wants numbers below 3.40282e\+38; that at \(0, 1\)",
        ),
        (VALUES[:, :300], "Q4_K", None, r"x: q4_k: a row of 300 elements is not whole blocks of 256"),
        (VALUES.astype(np.int32), "Q4_K", None, r"x: wanted floats \[..., columns\]; got int32 \[3, 512\]"),
        (np.float32(1), "F16", None, r"x: wanted floats \[..., columns\]; got float32 \[\]"),
        (VALUES, "Q4_Q", None, r"no format of files is named 'Q4_Q'; known are F32.*Did you mean 'Q4_K'"),
        (VALUES, "Q8_K", None, r"no format of files is named 'Q8_K'"),
        (VALUES, 12, None, r"no format of files is named 12"),
        (VALUES, "IQ2_XS", None, r"IQ2_XS: wanted importance \[columns\]"),
        (
            VALUES,
            "Q4_K",
            ONES[:511],
            r"importance: wanted numbers \[512\], .*; got float32 \[511\]",
        ),
        (VALUES, "Q4_K", np.ones((3, 512)), r"importance: wanted numbers \[512\].*got float64 \[3, 512\]"),
        (VALUES, "Q4_K", ["a"] * 512, r"importance: wanted numbers \[512\]"),
        (VALUES, "Q4_K", np.where(np.arange(512) == 9, -1, ONES), r"got -1.0 in column 9"),
        (VALUES, "Q8_0", np.where(np.arange(512) == 9, np.nan, ONES), r"got nan in column 9"),
    ],
)
def test_what_cannot_be_encoded_is_refused_with_its_place(x, kind, importance, text) -> None:
    with pytest.raises(UsageError, match=text):
        graphml.quantize(x, kind, importance)


@looped("threads", [0, -1, 1.5, True, "2", 257])
def test_threads_are_a_whole_number(threads: object) -> None:
    with pytest.raises(UsageError, match="threads"):
        graphml.quantize(VALUES, "Q4_K", threads=threads)  # type: ignore[arg-type]


def test_names_shapes_and_kinds_of_floats() -> None:
    wanted = graphml.quantize(VALUES, "Q4_K")
    assert wanted.shape == (3, 288)
    np.testing.assert_array_equal(graphml.quantize(VALUES[1], "q4_k"), wanted[1])
    np.testing.assert_array_equal(graphml.quantize(VALUES.astype(np.float64), "Q4_K"), wanted)
    np.testing.assert_array_equal(graphml.quantize(VALUES[:, None, ::-1][..., ::-1], "Q4_K")[:, 0], wanted)
    for kind in ("F32", "F16", "BF16"):  # no number of float16 is too large for any
        halves = VALUES.astype(np.float16)
        np.testing.assert_array_equal(
            graphml.quantize(halves, kind), graphml.quantize(halves.astype(np.float32), kind)
        )
    assert graphml.quantize(VALUES[:0], "Q4_K").shape == (0, 288)
    assert graphml.quantize(VALUES[:, :0], "Q4_K").shape == (3, 0)
    decoded = graphml.dequantize(wanted.tobytes(), "Q4_K", (3, 2, 256))
    assert abs(decoded.reshape(VALUES.shape) - VALUES).max() < 0.1
    with pytest.raises(UsageError, match=r"shape \(3, 256\) takes 432 bytes, but 864 came"):
        graphml.dequantize(wanted, "Q4_K", (3, 256))
    with pytest.raises(UsageError, match=r"shape: wanted whole numbers, such as \(rows, columns\); got 768"):
        graphml.dequantize(wanted, "Q4_K", 768)  # type: ignore[arg-type]


def test_what_importance_has_no_influence_on_is_not_refused() -> None:
    for kind in ("Q8_0", "F16", "NVFP4", "TQ1_0"):
        weighted = graphml.quantize(VALUES, kind, np.arange(512))
        np.testing.assert_array_equal(weighted, graphml.quantize(VALUES, kind))


@looped("kind", ["F32", "F16", "BF16"])
def test_formats_of_elements_take_what_is_not_finite(kind: str) -> None:
    values = changed(2, 7, np.nan)
    values[1, 3] = -np.inf
    decoded = graphml.dequantize(graphml.quantize(values, kind), kind, values.shape)
    np.testing.assert_array_equal(np.isfinite(decoded), np.isfinite(values))


def no_backend(name: str) -> Backend:
    raise BackendError(f"no backend {name!r} is installed")


def test_without_the_backend_what_it_alone_encodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {kind: graphml.quantize(VALUES, kind) for kind in ("F16", "Q8_0", "Q4_0")}
    monkeypatch.setattr(discovery, "backend", no_backend)
    for kind, blocks in wanted.items():
        np.testing.assert_array_equal(graphml.quantize(VALUES, kind), blocks)
    np.testing.assert_array_equal(graphml.quantize(VALUES, "Q8_0", ONES), wanted["Q8_0"])
    # IQ4_NL's encoder in NumPy, that of caches, writes other blocks.
    for kind, importance in (("Q4_K", None), ("Q4_0", ONES), ("IQ4_NL", None), ("TQ2_0", None)):
        with pytest.raises(
            UsageError, match=rf"{kind}: the backend 'cpu' alone encodes it: no backend 'cpu'"
        ):
            graphml.quantize(VALUES, kind, importance)
    with pytest.raises(UsageError, match=r"q8_0: the value at \(0, 1\) is nan"):
        graphml.quantize(changed(0, 1, np.nan), "Q8_0")
