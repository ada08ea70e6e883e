"""Rope (arXiv:2104.09864): pairs of each head turned by the position, with any frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.authoring.importing.evaluation import op_name
from graphml.authoring.importing.region import PRODUCTS, CatalogueEntry, Recognised, Region, run, same
from graphml.errors import ArchitectureError

Array = NDArray[Any]
MOST_POSITIONS = 1024
FAR = (1 << 14, 1 << 12, 1 << 10, 1 << 8)  # tokens of texts whose positions are looked at


def looks(region: Region) -> bool:
    """Positions come in, and nothing of parameters; a shape [.., T, ..] of heads that stays."""
    return (
        len(region.nodes) <= 40
        and region.shape == region.shape_last
        and len(region.shape) >= 3
        and region.shape.count(next((size for size in region.shape if isinstance(size, str)), "")) == 1
        and isinstance(region.shape[-1], int)
        and not region.ops & PRODUCTS
        and region.has_positions()
        and not region.others(lambda name: not region.dependence.kinds[name] <= {"positions"})
    )


def matches(region: Region) -> Recognised | None:
    """Order of pairs, rotating dimensions, frequencies and magnitude."""
    if _is_scaled_by_position(region):
        return None
    n = min(MOST_POSITIONS, max(64, region.dependence.description.length))
    axis = next(i for i, size in enumerate(region.shape) if isinstance(size, str))
    pairs = [(x, region.run(x, n)) for x in (region.random(n, seed) for seed in (0, 1))]
    rows = [
        tuple(np.moveaxis(values, axis, 0).reshape(n, -1, int(region.shape[-1])) for values in pair)
        for pair in pairs
    ]
    x, y = rows[0]
    turning = [i for i in range(x.shape[-1]) if not np.array_equal(x[..., i], y[..., i])]
    n_rot = max(turning, default=-1) + 1
    n_rot += n_rot % 2
    if n_rot < 2:
        return None
    widths = dict.fromkeys((n_rot, x.shape[-1] - x.shape[-1] % 2))  # pairs of the whole width may stand still
    for mode, wrote, width in ((*modes, width) for width in widths for modes in MODES):
        order = pair_order(mode, wrote, width, x.shape[-1])
        rotation = _frequencies([(x, y[..., np.argsort(order)]) for x, y in rows], mode, width)
        if rotation is not None and _holds_far(region, mode, order, rotation):
            frequencies, magnitude = rotation
            numbers = {"mode": mode, "n_rot": width, "frequencies": frequencies, "magnitude": magnitude,
                       "wrote": wrote}  # fmt: skip
            return Recognised("rope", region.last, {"x": region.entry}, numbers=numbers)
    return None


def _is_scaled_by_position(region: Region) -> bool:
    """Whether the last op is a product with a number for each position, of which near ones may all be 1."""
    last, nodes = region.nodes[-1], region.dependence.description.nodes
    for operand in last.operands if op_name(last) in ("mul", "div") else ():
        shape = nodes[operand].shape if operand in nodes and region.dependence.is_positions(operand) else None
        if shape and all(size == 1 or isinstance(size, str) for size in shape):
            return True
    return False


MODES = (("neox", "neox"), ("norm", "norm"), ("norm", "neox"), ("neox", "norm"))  # as read, as written


def pair_order(mode: str, wrote: str, n_rot: int, width: int) -> Array:
    """For each number of a head that is written in another order of pairs than it was read: where it was."""
    natural = np.arange(width)
    if mode == wrote:
        return natural
    halves = natural[:n_rot].reshape(-1, 2).T if wrote == "neox" else natural[:n_rot].reshape(2, -1).T
    return np.concatenate([halves.reshape(-1), natural[n_rot:]])


def _halves(x: Array, mode: str, n_rot: int) -> tuple[Array, Array]:
    """First and second numbers of the pairs."""
    if mode == "neox":
        return x[..., : n_rot // 2], x[..., n_rot // 2 : n_rot]
    return x[..., 0:n_rot:2], x[..., 1:n_rot:2]


def _frequencies(
    rows: list[tuple[Array, ...]], mode: str, n_rot: int
) -> tuple[tuple[float, ...], float] | None:
    (a, b), (p, q) = (_halves(values, mode, n_rot) for values in rows[0])
    square = a**2 + b**2
    cos, sin = ((p * a + q * b) / square)[:, :1], ((q * a - p * b) / square)[:, :1]
    for x, y in rows:
        (a, b), (p, q) = (_halves(values, mode, n_rot) for values in (x, y))
        if not (same(p, cos * a - sin * b, 1e-7) and same(q, cos * b + sin * a, 1e-7)):
            return None
        if not np.array_equal(x[..., n_rot:], y[..., n_rot:]):
            return None
    cos, sin = cos[:, 0], sin[:, 0]
    size = np.sqrt(cos**2 + sin**2)
    magnitude = float(np.median(size))
    if not same(size, np.full(size.shape, magnitude), 1e-6):
        return None
    angles = np.arctan2(sin, cos)
    frequencies = _steps(angles)
    if np.max(np.abs(_wrapped(angles - np.arange(len(angles))[:, None] * frequencies))) > 1e-6 * len(angles):
        return None
    still = np.abs(frequencies) < 1e-9 / len(angles)
    if (
        still[0]
        or np.any(np.diff(still.astype(int)) < 0)
        or np.any(frequencies[~still] * frequencies[0] <= 0)
    ):
        return None  # neither all forwards nor all backwards, but for the last ones
    frequencies[still] = 0.0
    return tuple(map(float, frequencies)), float(f"{magnitude:.7g}")


def _holds_far(region: Region, mode: str, order: Array, rotation: tuple[tuple[float, ...], float]) -> bool:
    """Whether the same frequencies turn tokens far behind the traced ones, as far as there are tables."""
    (frequencies, magnitude), nodes = rotation, region.dependence.description.nodes
    names = region.others(lambda name: region.dependence.is_positions(name) and bool(nodes[name].shape))
    for count in FAR:
        at = np.array([*range(8), *(1 << i for i in range(3, 20) if 1 << i < count), count - 1])
        try:
            positions = {name: _chosen(region, name, count, at) for name in names}
        except ArchitectureError:
            continue  # a table of fewer positions
        x = region.random(len(at), 2)
        y = run(region.dependence, {region.entry: x, **positions}, region.last, len(at))
        y = y[..., np.argsort(order)]
        axis = next(i for i, size in enumerate(region.shape) if isinstance(size, str))
        (a, b), (p, q) = (
            _halves(
                np.moveaxis(values, axis, 0).reshape(len(at), -1, x.shape[-1]), mode, 2 * len(frequencies)
            )
            for values in (x, y)
        )
        angles = at[:, None, None] * np.array(frequencies)
        cos, sin = magnitude * np.cos(angles), magnitude * np.sin(angles)
        return same(p, cos * a - sin * b, 1e-3) and same(q, cos * b + sin * a, 1e-3)
    return True


def _chosen(region: Region, name: str, count: int, at: Array) -> Array:
    """The values of some of `count` positions; of a node without positions as they are."""
    values = run(region.dependence, {}, name, count)
    shape = region.dependence.description.nodes[name].shape or ()
    axes = [i for i, size in enumerate(shape) if isinstance(size, str)]
    if axes and values.shape[axes[0]] < count:  # a slice ends where its table does
        raise ArchitectureError(f"{name}: has {values.shape[axes[0]]} positions")
    return np.take(values, at, axes[0]) if axes else values


def _wrapped(angle: Array) -> Array:
    wrapped: Array = np.mod(angle + np.pi, 2 * np.pi) - np.pi
    return wrapped


def _steps(angles: Array) -> Array:
    """Angle of each pair by position, made exact over longer and longer distances."""
    steps: Array = angles[1].copy()
    at = 2
    while at < len(angles):
        steps += _wrapped(angles[at] - at * steps) / at
        at *= 2
    return steps


ENTRY = CatalogueEntry("rope", looks, matches)
