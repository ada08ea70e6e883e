"""Products with chosen experts' matrices against float64: any choice, any format, any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from graphml_cpu import packed
from graphml_cpu.layouts import PANEL_ELEMENTS, TOKEN_BLOCK, expert_scratch_bytes, record_bytes
from graphml_quant import formats

from graphml import settings
from tests.cpu.kernels.running import THREADS, kernel, run
from tests.cpu.test_mul_mat import guarded, pack, relative_error, unpack
from tests.cpu.weights import ordinary_weights
from tests.looped import looped

# One format per length of block, at other levels two; decoders are tested in test_format_kernels.
QUICK = ["f16", "q5_1"]
FORMATS = QUICK if settings.cpu_level() else [*QUICK, "f32", "q4_k"]


def matrices_of(decoded: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """The matrix of each pair's expert, of zeros for an expert that there is not."""
    known = (ids >= 0) & (ids < len(decoded))
    return np.where(known[..., None, None], decoded.astype(np.float64)[np.where(known, ids, 0)], 0.0)


class Product:
    """A product's operands and what float64 makes of them; `shared`: one row for all slots of a token."""

    def __init__(
        self, name: str, experts: int, n: int, k: int, ids: np.ndarray, shared: bool = False
    ) -> None:
        self.name, self.experts, self.n, self.k = name, experts, n, k
        self.ids = np.ascontiguousarray(ids, np.int32)
        format, random = formats()[name], np.random.default_rng(n * k + ids.size)
        self.w = ordinary_weights(format, experts * n, k)
        slots = 1 if shared else ids.shape[1]
        self.x = random.standard_normal((ids.shape[0], slots, k + 3), np.float32)
        decoded = format.decode(self.w.reshape(-1, format.block_bytes)).reshape(experts, n, k)
        chosen = matrices_of(decoded, ids)
        x = np.broadcast_to(self.x[..., :k].astype(np.float64), (*ids.shape, k))
        self.exact = np.einsum("tunk,tuk->tun", chosen, x)

    def run(self, nth: int = 1, tokens: slice = slice(None)) -> np.ndarray:
        """[tokens, slots, n] from the kernel; what lies around the output and the scratch is not touched."""
        ids, x = np.ascontiguousarray(self.ids[tokens]), np.ascontiguousarray(self.x[tokens])
        y = np.full((*ids.shape, self.n + 5), 7, np.float32)
        scratch_bytes = expert_scratch_bytes(self.k, self.experts, ids.size)
        scratch = np.full(scratch_bytes + 64, 0xFF, np.uint8)
        run(kernel("experts.mul_mat_id", "make_mul_mat_id", self.name), nth, w=self.w, x=x, ids=ids, y=y,
            n_experts=self.experts, n_used=ids.shape[1], n=self.n, k=self.k,
            expert_bytes=self.n * self.w.shape[1], row_bytes=self.w.shape[1], x_token_stride=x.strides[0],
            x_slot_stride=x.strides[1] if x.shape[1] > 1 else 0, y_stride=4 * (self.n + 5), scratch=scratch,
            pairs=ids.size)  # fmt: skip
        assert (y[..., self.n :] == 7).all()
        assert (scratch[-64:] == 0xFF).all()
        return y[..., : self.n]


def some_ids(tokens: int, used: int, experts: int) -> np.ndarray:
    return np.random.default_rng(tokens + used).integers(0, experts, (tokens, used))


def error(got: np.ndarray, exact: np.ndarray) -> float:
    """Normalised mean squared error."""
    return float(((got - exact) ** 2).sum() / (exact**2).sum())


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("tokens", "used", "n", "blocks"), [(1, 1, 5, 1), (1, 2, 37, 3), (9, 3, 21, 5)])
def test_product_is_float64s_within_rounding(
    name: str, tokens: int, used: int, n: int, blocks: int, shared: bool
) -> None:
    k = blocks * max(formats()[name].block_elements, 32)
    product = Product(name, 6, n, k, some_ids(tokens, used, 6), shared)
    for nth in THREADS:
        assert error(product.run(nth), product.exact) < 1e-12


@looped("name", QUICK)
@looped("chosen", ["all one", "twice the same", "out of range", "first and last"])
def test_unusual_choices(name: str, chosen: str) -> None:
    ids = {
        "all one": np.full((TOKEN_BLOCK // 2 + 6, 2), 3),
        "twice the same": np.repeat(some_ids(5, 1, 4), 2, axis=1),
        "out of range": np.array([[-1, 4], [-(2**31), 2**31 - 1], [0, 3]]),
        "first and last": np.array([[0, 3]] * 5),
    }[chosen]
    product = Product(name, 4, 19, 64, ids)
    assert error(product.run(2), product.exact) < 1e-12


def test_many_experts_and_pairs() -> None:
    product = Product("f16", 512, 5, 32, some_ids(256, 16, 512), shared=True)
    assert error(product.run(2), product.exact) < 1e-12


@pytest.mark.parametrize("name", QUICK)
def test_a_token_does_not_depend_on_its_batch_or_the_threads(name: str) -> None:
    product = Product(name, 3, 71, PANEL_ELEMENTS + 64, some_ids(74, 2, 3))
    together = product.run()
    for nth in (*THREADS[1:], 64):
        np.testing.assert_array_equal(product.run(nth), together)
    for tokens in (slice(0, 1), slice(60, 63), slice(73, 74)):
        # Few tokens take another loop, which adds in another order.
        assert error(product.run(tokens=tokens), together[tokens]) < 4e-12


def test_experts_that_nobody_chose_are_not_read() -> None:
    """Their decoded weights would be NaN, and NaN times anything shows."""
    product = Product("f16", 5, 7, 32, np.array([[1, 3]]))
    product.w.reshape(5, -1)[[0, 2, 4]] = 0xFF
    assert error(product.run(), product.exact) < 1e-12


class PackedProduct(Product):
    """The same with rows packed to int8, which the float64 product sees as well."""

    def __init__(
        self, name: str, experts: int, n: int, k: int, ids: np.ndarray, shared: bool = False
    ) -> None:
        super().__init__(name, experts, n, k, ids, shared)
        rows = np.ascontiguousarray(self.x[..., :k]).reshape(-1, k)
        self.packed = pack(rows).reshape(*self.x.shape[:2], -1)
        q, scale, _ = unpack(self.packed.reshape(len(rows), -1), k)
        self.x = (q * scale[..., None]).reshape(len(rows), -1)[:, :k].reshape(*self.x.shape[:2], k)
        format = formats()[name]
        decoded = format.decode(self.w.reshape(-1, format.block_bytes)).reshape(experts, n, k)
        chosen = matrices_of(decoded, ids)
        x = np.broadcast_to(self.x.astype(np.float64), (*ids.shape, k))
        self.exact = np.einsum("tunk,tuk->tun", chosen, x)
        self.terms = np.einsum("tunk,tuk->tun", np.abs(chosen), np.abs(x))

    def run(self, nth: int = 1, tokens: slice = slice(None), one_token: bool = False) -> np.ndarray:
        ids, x = np.ascontiguousarray(self.ids[tokens]), guarded(self.packed[tokens])
        y = np.full((*ids.shape, self.n + 5), 7, np.float32)
        tile_bytes = 0 if one_token else -(-packed.scratch_bytes(self.name, self.k) // 64) * 64
        scratch = guarded(
            np.zeros(-(-(tile_bytes + record_bytes(self.experts, ids.size)) // 64) * 64, np.uint8)
        )
        made = kernel("experts.mul_mat_id_packed", "make_mul_mat_id_packed", self.name, one_token)
        run(made, nth, w=guarded(self.w), x=x, ids=ids, y=y,
            n_experts=self.experts, n_used=ids.shape[1], n=self.n, k=self.k,
            expert_bytes=self.n * self.w.shape[1], row_bytes=self.w.shape[1], x_token_stride=x.strides[0],
            x_slot_stride=x.strides[1] if x.shape[1] > 1 else 0, y_stride=4 * (self.n + 5),
            tile_bytes=tile_bytes, scratch=scratch, pairs=ids.size)  # fmt: skip
        assert (y[..., self.n :] == 7).all()
        return y[..., : self.n]

    def check(self, got: np.ndarray) -> None:
        assert (np.abs(got - self.exact) <= 1e-6 * (self.terms + 1)).all()
        assert relative_error([got - self.exact], [self.exact]) <= 1e-5


# One format of each kind of reader; the readers themselves are tested in test_mul_mat.
PACKED = ["q4_0"] if settings.cpu_level() else ["q4_0", "q6_k", "q2_k"]


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("tokens", "used", "n", "blocks"), [(1, 1, 5, 1), (3, 2, 67, 3), (60, 3, 33, 2)])
def test_packed_product_is_float64s_within_rounding(
    name: str, tokens: int, used: int, n: int, blocks: int, shared: bool
) -> None:
    product = PackedProduct(
        name, 6, n, blocks * formats()[name].block_elements, some_ids(tokens, used, 6), shared
    )
    alone = product.run()
    product.check(alone)
    for nth in (2, 3, 64):
        np.testing.assert_array_equal(product.run(nth), alone)


@pytest.mark.parametrize("used", [1, 4, 6])
def test_one_packed_token(used: int) -> None:
    """All experts but those that it chose would give NaN; all chosen at last."""
    ids = np.random.default_rng(used).permutation(6)[None, :used]
    product = PackedProduct("q4_0", 6, 71, 96, ids, shared=True)
    product.w.reshape(6, -1)[np.setdiff1d(np.arange(6), ids)] = 0xFF
    for nth in (1, 2, 5):
        product.check(product.run(nth, one_token=True))
    np.testing.assert_array_equal(product.run(one_token=True), product.run())


@pytest.mark.parametrize("one_token", [True, False])
def test_each_number_of_pairs_of_an_expert(one_token: bool) -> None:
    """1, 2, ... 9 pairs: each fills its tiles and quartets in another way."""
    ids = np.repeat(np.arange(9), np.arange(1, 10)).reshape((1, 45) if one_token else (15, 3))
    product = PackedProduct("q4_0", 9, 35, 64, ids)
    product.check(product.run(2, one_token=one_token))


@looped("chosen", ["all one", "twice the same", "out of range", "first and last", "all"])
def test_unusual_choices_of_packed_rows(chosen: str) -> None:
    ids = {
        "all one": np.full((39, 2), 3),
        "twice the same": np.repeat(some_ids(5, 1, 4), 2, axis=1),
        "out of range": np.array([[-1, 4], [-(2**31), 2**31 - 1], [0, 3]]),
        "first and last": np.array([[0, 3]] * 7),
        "all": np.array([[2, 0, 1, 3]] * 9),
    }[chosen]
    product = PackedProduct("q4_0", 4, 35, 64, ids)
    product.check(product.run(2))
    np.testing.assert_array_equal(product.run(3), product.run())


def test_hostile_experts_stay_by_themselves() -> None:
    """An expert whose weights are no numbers spoils the results of those that chose it, and no others."""
    product = PackedProduct("q4_0", 4, 40, 64, some_ids(30, 2, 4))
    product.w.reshape(4, -1)[1] = 0xFF
    got, bad = product.run(2), product.ids == 1
    assert not np.isfinite(got[bad]).any()
    assert (np.abs(got - product.exact) <= 1e-6 * (product.terms + 1))[~bad].all()
