"""How products are shared out among invocations: the parameters of their kernels, by device and shape.

The usual ones are a rule of thumb. What `graphml tune` found for a device is kept in a file and used where it
is wanted. Knows the parameters and the file; how good ones are found is `tuner`'s business.

An entry of the file has the device, its driver, the hash of the kernels' sources (another one makes it void),
format, n, k and columns of the product, the parameters, and the seconds of one call with the usual parameters
and with these.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graphml.backend import tuning_file
from graphml.errors import BackendError
from graphml.settings import Setting, one_of
from graphml_gpu.driver import Facts

KERNELS = Setting(
    "GRAPHML_GPU_KERNELS",
    one_of("graphics"),
    None,
    "`graphics`: GPU backends on a processor run the kernels of graphics cards.",
    shown="those of the device's kind",
)

FEW = 8
"""Rows of activations that the kernels for few take at a time."""

FEW_INT8 = 16
"""The same of activations of 8 bits, which meet weights that were unpacked once for 8 of them at a time."""

Parameters = Mapping[str, int]

_OF_PROCESSORS = ((8, 1), (16, 1), (64, 1))
_SHARES = ((64, 1), (64, 8), (64, 16), (64, 32), (64, 64), (128, 32), (128, 128), (256, 64), (256, 256))
_INT8_SHARES = ((64, 16), (128, 8), (128, 16), (128, 32), (256, 16), (256, 32), (256, 256))
"""GROUP and LANES that are tried for few rows, of floats and of 8 bits."""
_TILES = (
    (64, 8, 32, 32, 2),
    (64, 8, 64, 32, 2),
    (128, 16, 64, 64, 2),
    (64, 8, 64, 64, 2),
    (256, 16, 64, 64, 2),
    (256, 16, 128, 64, 1),
    (256, 16, 128, 128, 1),
)
"""GROUP, ACROSS, TILE_ROWS, TILE_COLUMNS and UNITS that are tried for many."""
_INT8_TILES = (
    (64, 8, 32, 32, 2),
    (64, 8, 32, 32, 4),
    (128, 8, 32, 32, 4),
    (128, 8, 32, 32, 8),
    (128, 16, 64, 64, 2),
    (256, 16, 64, 64, 4),
    (256, 16, 128, 64, 4),
)
"""The same for activations of 8 bits, in units of 32."""


@dataclass(frozen=True)
class Product:
    """A product: k elements of each of n rows of weights, at most so many rows of activations of a dtype."""

    format: str
    n: int
    k: int
    columns: int
    activations: str = "f32"


@dataclass(frozen=True)
class GpuTuning:
    """Parameters other than the usual ones, by product."""

    entries: Mapping[Product, Parameters] = field(default_factory=dict)

    def parameters(self, facts: Facts, product: Product) -> Parameters:
        """Those of a product's kernel: what was found, else the usual ones."""
        tuned = self.entries.get(product)
        if tuned is None:
            return usual(facts, product)
        wanted = {**usual(facts, product), **tuned}
        whole = all(type(value) is int for value in wanted.values())  # 4.0 is another text than 4
        if not whole or wanted not in candidates(facts, product):
            raise BackendError(
                f"{tuning_file.path()}: {product} has no parameters {dict(tuned)}; remove the file"
            )
        return wanted


UNTUNED = GpuTuning()


def is_processor(facts: Facts) -> bool:
    """Whether the device runs invocations one after the other: sharing costs, what they repeat is cached.

    `KERNELS` has processors run the kernels of graphics cards, to try these where there is none.
    """
    return KERNELS() is None and facts.kind == "cpu"


def takes_few(facts: Facts, columns: int, activations: str = "f32") -> bool:
    """Whether the kernels for few rows make a product: on processors always, as nothing is shared there."""
    return columns <= (FEW if activations == "f32" else FEW_INT8) or is_processor(facts)


def usual(facts: Facts, product: Product) -> Parameters:
    """The rule of thumb."""
    return (
        few_rows(facts, product)
        if takes_few(facts, product.columns, product.activations)
        else many_rows(facts, product)
    )


def few_rows(facts: Facts, product: Product) -> Parameters:
    """GROUP, LANES, ROWS and COLUMNS of `mat_vec`."""
    columns = min(product.columns, 4 if is_processor(facts) and product.columns > FEW else FEW)
    if is_processor(facts):
        # Four rows together take drivers four times as long to compile: large products make up for it.
        return {"GROUP": 16, "LANES": 1, "ROWS": 4 if product.n > 512 else 1, "COLUMNS": columns}
    if product.activations != "f32":
        return _few_int8(facts, product, columns)
    units = -(-product.k // 16)
    group = min(64, facts.max_group)
    lanes = min(group, 64 if units >= 128 else 32 if units >= 32 else 8)
    tall = 2 if product.n >= 4096 and columns <= 4 else 1
    return {"GROUP": group, "LANES": lanes, "ROWS": tall, "COLUMNS": columns}


def _few_int8(facts: Facts, product: Product, columns: int) -> Parameters:
    """As measured: neighbours share a row until there are enough rows for all of them."""
    lanes = 16 if product.n >= 4096 or product.k < 1024 else 32
    tall = 2 if product.n >= 4096 or columns > 1 else 1
    return {"GROUP": min(256, facts.max_group), "LANES": lanes, "ROWS": tall, "COLUMNS": columns}


def many_rows(facts: Facts, product: Product) -> Parameters:
    """GROUP, ACROSS, TILE_ROWS, TILE_COLUMNS and UNITS of `mat_mul` and `mat_mul_int8`."""
    if product.activations != "f32":
        fitting = [tile for tile in _INT8_TILES if _fits(facts, tile)]
        wanted = _INT8_TILES[4] if product.columns > 32 else _INT8_TILES[2 if product.n >= 4096 else 3]
        return _tile(*(wanted if wanted in fitting else fitting[0]))
    large = _tile_bytes(*_TILES[2]) <= facts.shared_bytes and facts.max_group >= 128
    small = product.columns <= 32 or not large
    return _tile(*_TILES[0 if small else 2])


def _tile(group: int, across: int, tall: int, wide: int, units: int) -> Parameters:
    return {"GROUP": group, "ACROSS": across, "TILE_ROWS": tall, "TILE_COLUMNS": wide, "UNITS": units}


def _tile_bytes(group: int, across: int, tall: int, wide: int, units: int) -> int:
    """Shared memory that the kernel takes."""
    return 4 * 16 * units * (tall + wide + 1)


def _fits(facts: Facts, tile: tuple[int, ...]) -> bool:
    """Whether a device runs `mat_mul_int8` with a tile."""
    group, _, tall, wide, units = tile
    shared = units * (tall * (32 + 12) + wide * (32 + 8))
    return group <= facts.max_group and shared <= facts.shared_bytes


def candidates(facts: Facts, product: Product) -> Sequence[Parameters]:
    """All parameters that a product's kernel may be given on a device; the usual ones are the first."""
    first = usual(facts, product)
    if takes_few(facts, product.columns, product.activations):
        groups = _SHARES if product.activations == "f32" else _INT8_SHARES
        tried = [
            {"GROUP": group, "LANES": lanes, "ROWS": n_rows, "COLUMNS": first["COLUMNS"]}
            for group, lanes in (_OF_PROCESSORS if is_processor(facts) else groups)
            for n_rows in (1, 2, 4)
            if group <= facts.max_group and lanes <= max(1, product.k // 16)
        ]
    elif product.activations != "f32":
        tried = [dict(_tile(*tile)) for tile in _INT8_TILES if _fits(facts, tile)]
    else:
        tried = [
            dict(_tile(*tile))
            for tile in _TILES
            if tile[0] <= facts.max_group and _tile_bytes(*tile) <= facts.shared_bytes
        ]
    return [first, *(parameters for parameters in tried if parameters != first)]


@functools.cache
def _sources_hash() -> str:
    """Of everything that makes a kernel's text."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in sorted([*here.glob("kernels/**/*.py"), *here.glob("language/*.py")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _device(facts: Facts) -> dict[str, str]:
    kernels = ", kernels of graphics cards" if facts.kind == "cpu" and not is_processor(facts) else ""
    return {"device": f"{facts.backend}: {facts.name}{kernels}", "driver": facts.driver}


def _product(entry: Mapping[str, Any]) -> Product:
    return Product(
        str(entry["format"]),
        int(entry["n"]),
        int(entry["k"]),
        int(entry["columns"]),
        str(entry.get("activations", "f32")),
    )


def load(facts: Facts) -> GpuTuning:
    """What was found on this device with these kernels; see `tuning_file.parameters_of`."""
    known = tuning_file.parameters_of({**_device(facts), "version": _sources_hash()}, _product)
    return GpuTuning({product: parameters for product, parameters in known.items() if parameters})


def save(facts: Facts, results: Mapping[Product, Mapping[str, Any]]) -> None:
    """Put results into the file; see `tuning_file.put`. They have `parameters`, `usual_s` and `tuned_s`."""
    entries = {product: {**asdict(product), **result} for product, result in results.items()}
    tuning_file.put(_device(facts), _sources_hash(), _product, entries)
