"""Attention of GPU backends in every form: few tokens and many, split contexts, every cache, odd sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from graphml_quant import by_name, quantize

from graphml.ir.cache_types import CACHE_DTYPES, cache_types
from graphml.ir.dtype import F32, I32, dtype
from graphml.ir.graph import Graph
from graphml.ir.language import Builder
from graphml.ir.op import Array
from graphml.ir.ops.attention import attention
from graphml.ir.shape import Symbol
from tests.gpu.on_devices import DEVICES, REAL, WITHOUT_SUBGROUPS, nmse, run_both

pytestmark = pytest.mark.usefixtures("as_on_graphics_cards")
LIMIT = 1e-9
BLOCK = 8


@dataclass(frozen=True)
class Case:
    """Sizes and attributes of one attention; positions: of each token; sequences: of each, 0 or 1."""

    positions: tuple[int, ...]
    sequences: tuple[int, ...]
    n_head: int = 4
    n_head_kv: int = 2
    d: int = 16
    d_v: int = 16
    kind: str = "f32"
    window: int = 0
    softcap: float = 0.0
    max_bias: float = 0.0
    sinks: bool = False
    most: int = 0

    def graph(self, blocks: int) -> Graph:
        g, tokens = Builder(), Symbol("T", self.most or len(self.positions))
        cells, (k_dtype, v_dtype) = 2 * blocks * BLOCK, cache_types(self.kind).most.dtypes
        q = g.input("q", F32, (tokens, self.n_head, self.d))
        k = g.state("k", k_dtype, (cells, self.n_head_kv, self.d))
        v = g.state("v", v_dtype, (cells, self.n_head_kv, self.d_v))
        numbers = [g.input(name, I32, (tokens,)) for name in ("positions", "sequences")]
        table = g.input("table", I32, (2, blocks))
        extra = [g.input("sinks", F32, (self.n_head,))] if self.sinks else []
        names = ("window", "softcap", "max_bias")
        attributes = {name: getattr(self, name) for name in names}
        y = g.call(
            attention, q, k, v, *numbers, table, *extra,
            scale=self.d**-0.5, block_size=BLOCK, k_dtype=k_dtype.name, v_dtype=v_dtype.name, **attributes,
        )  # fmt: skip
        return g.finish(y=y)

    def values(self, blocks: int, unseen: float = 0.0) -> dict[str, Array]:
        """Random numbers; cells that no token sees hold `unseen`."""
        random = np.random.default_rng(len(self.positions))
        cells = 2 * blocks * BLOCK
        table = random.permutation(2 * blocks).astype(np.int32).reshape(2, blocks)
        seen = np.zeros(cells, bool)
        for position, sequence in zip(self.positions, self.sequences, strict=True):
            first = max(0, position - self.window + 1) if self.window else 0
            past = np.arange(first, position + 1)
            seen[table[sequence, past // BLOCK] * BLOCK + past % BLOCK] = True
        values = {
            "q": random.standard_normal((len(self.positions), self.n_head, self.d), np.float32),
            "positions": np.array(self.positions, np.int32),
            "sequences": np.array(self.sequences, np.int32),
            "table": table,
            "sinks": random.standard_normal(self.n_head, np.float32),
        }
        kinds = cache_types(self.kind).most.dtypes
        for name, width, kind in zip("kv", (self.d, self.d_v), kinds, strict=True):
            plain = random.standard_normal((cells, self.n_head_kv, width), np.float32)
            plain[~seen] = unseen
            values[name] = encoded(plain, kind.name)
        return values


def encoded(plain: Array, kind: str) -> Array:
    """Numbers as a cache holds them."""
    if kind in ("f32", "f16"):
        return plain.astype(dtype(kind).numpy)
    raw = np.ascontiguousarray(quantize(by_name(kind), plain.reshape(-1, plain.shape[-1]))).view(np.uint8)
    return raw.reshape(*plain.shape[:-1], -1)


# Each of blocks as keys and as values, and with every way to bind a cache.
MIXED = (
    "q8_0/q5_1",
    "q5_1/q4_1",
    "q4_1/iq4_nl",
    "iq4_nl/q5_0",
    "q5_0/q4_0",
    "q4_0/f16",
    "bf16/f32",
    "f32/q8_0",
)
BOUND = ("q4_0/f16", "bf16/f32", "f32/q8_0")
"""Those of which keys are bound otherwise than values."""
KINDS = (*(kind for kind in CACHE_DTYPES if kind != "f32"), *MIXED)
FEW, MANY = ((9, 30), (0, 1)), (tuple(range(20, 40)), (0,) * 11 + (1,) * 9)
CASES = {
    "few": Case(*FEW),
    "many": Case(*MANY),
    "tiles not full": Case((5, 6, 7), (0, 0, 0), most=20),
    "sequences in turn": Case((5, 30, 6, 31, 7, 32), (0, 1) * 3),
    "few, sinks and window": Case(*FEW, sinks=True, window=7),
    "many, sinks and window": Case(*MANY, sinks=True, window=7),
    "few, softcap and bias": Case(*FEW, n_head=6, softcap=3.0, max_bias=8.0),
    "many, softcap and bias": Case(*MANY, n_head=6, softcap=3.0, max_bias=8.0),
    "few, heads in parts": Case(*FEW, n_head=11, n_head_kv=1),
    "few, odd sizes": Case(*FEW, d=6, d_v=9),
    "many, odd sizes": Case(*MANY, d=6, d_v=9),
    "few, odd halves": Case(*FEW, d=6, d_v=10, kind="f16"),
    "many, odd bf16": Case(*MANY, d=6, d_v=10, kind="bf16"),
    "few, two lanes without columns": Case((90, 300), (0, 1), d=80, d_v=80, kind="f16"),
    "few, wide": Case((9,), (0,), n_head=2, n_head_kv=1, d=260, d_v=520),
    "many, three parts of keys": Case(*MANY, d=96, d_v=96),
    "many, wide": Case((9, 10, 11, 12, 13), (0,) * 5, n_head=1, n_head_kv=1, d=132, d_v=260),
    "many, wider": Case((9, 10, 11, 12, 13), (0,) * 5, n_head=1, n_head_kv=1, d=272, d_v=272),
    **{f"few, {kind}": Case(*FEW, n_head_kv=1, d=32, d_v=32, kind=kind) for kind in KINDS},
    **{f"many, {kind}": Case(*MANY, d=32, d_v=32, kind=kind) for kind in KINDS},
    "few, odd halves as keys alone": Case(*FEW, d=6, d_v=8, kind="f16/f32"),
    "split": Case((700, 130), (0, 1)),
    "split, ten heads of 64 in halves": Case((900, 5, 517), (0, 1, 0), 10, 2, 64, 64, "f16"),
    "split, sinks and window": Case((700, 260), (0, 1), window=300, sinks=True),
}


# In Python, which finds races and reads out of bounds, one case of each kernel and of each way through it.
IN_PYTHON = {
    "python": (
        "few, odd sizes",
        "few, heads in parts",
        "tiles not full",
        "sequences in turn",
        "few, q4_0",
        "few, q5_1/q4_1",
        "few, iq4_nl/q5_0",
    ),
    "python with subgroups": (
        "few, heads in parts",
        "few, sinks and window",
        "few, softcap and bias",
        "few, odd halves as keys alone",
        "few, two lanes without columns",
        "few, q8_0",
        "few, bf16",
        "many, bf16",
        "tiles not full",
        "sequences in turn",
    ),
}
IN_TURN = (WITHOUT_SUBGROUPS, "opencl")
"""They run the same kernels: a form is tried on one of them."""
ALL_DEVICES, ALL_REAL = (*DEVICES, WITHOUT_SUBGROUPS), (*REAL, WITHOUT_SUBGROUPS)


SAME_LOADS = ("q5_1", "q5_0", "q4_1", "q4_0", *(kind for kind in MIXED if kind not in BOUND))
"""Bound as the q8_0 and iq4_nl are: a kernel differs by the function that unpacks four elements alone."""
TILES_AGAIN = ("many, wider",)
"""Sizes of which registers hold no tile: kernels without subgroups, as "many, wide" shows."""


def of_kinds(device: str) -> set[str]:
    """Types of caches in turn: a device meets each with few tokens or with many.

    The kernels without subgroups meet each with both, in OpenCL or in WGSL. Those with subgroups call the
    same functions: they meet each way to bind a cache, and test_gpu_cache_types.py has two with both.
    """
    first = device == WITHOUT_SUBGROUPS
    return {
        f"{('few', 'many')[(i + first) % 2]}, {kind}"
        for i, kind in enumerate(KINDS)
        if device != "wgpu" or kind not in SAME_LOADS
    }


def on(device: str) -> list[str]:
    """The cases that a device is tried with."""
    kinds = {f"{tokens}, {kind}" for tokens in ("few", "many") for kind in KINDS}
    left_out = kinds - of_kinds(device) if device in ALL_REAL else set()
    left_out |= set(TILES_AGAIN) if device == "wgpu" else set()
    if device in IN_TURN:
        forms = [name for name in CASES if name not in kinds]
        left_out |= {name for i, name in enumerate(forms) if i % 2 != IN_TURN.index(device)}
    return [name for name in IN_PYTHON.get(device, CASES) if name not in left_out]


def test_each_device_meets_each_type_and_each_form() -> None:
    forms = {name for name in CASES if name.split(", ")[-1] not in KINDS}
    assert forms - set(TILES_AGAIN) < set(on("wgpu"))
    assert not forms & set(on(IN_TURN[0])) & set(on(IN_TURN[1]))
    for device in IN_TURN:
        assert {"few", "many", "split"} <= {name.split(", ")[0] for name in forms & set(on(device))}
    for device in ALL_REAL:
        kinds = set(KINDS) - (set(SAME_LOADS) if device == "wgpu" else set())
        assert {name.split(", ")[-1] for name in on(device)} >= kinds
    assert {*on("opencl"), *on(WITHOUT_SUBGROUPS)} == set(CASES)
    assert {"few, q8_0", "few, f16", "few, bf16/f32", "many, bf16", "many, iq4_nl"} <= set(on("wgpu"))
    assert {"many, q4_0/f16", "many, f32/q8_0"} <= set(on("wgpu"))


@pytest.mark.parametrize(
    ("name", "device"), [(name, device) for device in ALL_DEVICES for name in on(device)]
)
def test_every_form_means_the_same(name: str, device: str) -> None:
    """The emulator, which is slow, has two heads where a device has four."""
    case = CASES[name]
    if device in IN_PYTHON and case.n_head == 4:
        case = replace(case, n_head=2, n_head_kv=1)
    blocks = max(case.positions) // BLOCK + 2
    made, wanted = run_both(case.graph(blocks), case.values(blocks), device, T=len(case.positions))
    assert nmse(made["y"], wanted["y"]) <= LIMIT


@pytest.mark.parametrize("device", ALL_REAL)
@pytest.mark.parametrize("name", ["few", "many", "tiles not full", "sequences in turn", "split"])
def test_what_a_token_does_not_see_may_be_anything(name: str, device: str) -> None:
    case = CASES[name]
    blocks = max(case.positions) // BLOCK + 2
    values = case.values(blocks, unseen=np.nan)
    made, wanted = run_both(case.graph(blocks), values, device, T=len(case.positions))
    assert np.isfinite(wanted["y"]).all()
    assert nmse(made["y"], wanted["y"]) <= LIMIT


@pytest.mark.parametrize("device", ALL_REAL)
@pytest.mark.parametrize("name", ["few", "many"])
@pytest.mark.parametrize(("flaw", "last"), [(np.nan, False), (np.inf, False), (np.inf, True)])
def test_flaws_in_what_is_seen_show_where_they_belong(
    name: str, device: str, flaw: float, last: bool
) -> None:
    """A last position is read again by invocations that have none."""
    case = CASES[name]
    values = case.values(6)
    position = max(p for p, sequence in zip(*FEW if name == "few" else MANY, strict=True) if sequence == 0)
    position = position if last else 3
    cell = values["table"][0, position // BLOCK] * BLOCK + position % BLOCK
    values["v"][cell, 1, 5] = flaw
    values["q"][-1, 0, 0] = np.nan
    made, wanted = run_both(case.graph(6), values, device, T=len(case.positions))
    assert not np.isfinite(wanted["y"]).all()
    assert nmse(made["y"], wanted["y"]) <= LIMIT
