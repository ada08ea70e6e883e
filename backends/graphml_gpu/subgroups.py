"""Whether a device's subgroups are what kernels take them for, found out by running one kernel.

Neither WGSL nor OpenCL promises that the lanes of a subgroup are neighbours in the workgroup, and drivers
have told sizes that were not so. Sums over neighbours (`cluster_sum`) rely on both; a device that has it
otherwise gets kernels without subgroups. Knows a driver; nothing of graphs.
"""

from __future__ import annotations

import dataclasses
import logging

import numpy as np

from graphml.errors import BackendError
from graphml_gpu.driver import Bound, Driver
from graphml_gpu.kernels.lanes import lanes
from graphml_gpu.language import Features

LOG = logging.getLogger(__name__)
_GROUP = 64


def checked(driver: Driver) -> Features:
    """The features of a driver's device; without subgroups, and with a warning, where they are not usable."""
    features = driver.facts.features()
    if not features.subgroups:
        return features
    wrong = _wrong(driver, features)
    if wrong is None:
        return features
    LOG.warning("%s: kernels do without subgroups: %s", driver.facts.name, wrong)
    return dataclasses.replace(features, subgroups=False, subgroup_min=1, subgroup_max=1)


def _wrong(driver: Driver, features: Features) -> str | None:
    """What is not as kernels want it; None: nothing."""
    group = min(_GROUP, driver.facts.max_group)
    kernel = lanes.specialise(features, GROUP=group)
    out = driver.buffer(group * 32, "lanes")
    words = driver.buffer(-(-4 * len(kernel.scalars) // 16) * 16, "numbers of lanes")
    try:
        bound = Bound(kernel, ((out, 0, out.n_bytes),), (words, 0, words.n_bytes))
        driver.submit(driver.record([bound]), [(1, 1, 1)])
        rows = driver.read([(out, 0, out.n_bytes)])[0].view(np.uint32).reshape(group, 8)
    except BackendError as error:
        return str(error)
    finally:
        out.release()
        words.release()
    return _unlike(rows, features)


def _unlike(rows: np.ndarray[tuple[int, ...], np.dtype[np.uint32]], features: Features) -> str | None:
    """What `lanes` told, against neighbours that fill one subgroup after the other."""
    group, me = len(rows), np.arange(len(rows))
    size = int((rows[:, 0] == 0).sum())
    if not min(features.subgroup_min, group) <= size <= features.subgroup_max:
        return f"one has {size} lanes, not {features.subgroup_min} to {features.subgroup_max}"
    first = me - me % size
    last = np.minimum(first + size, group) - 1
    half = features.subgroup_min // 2
    other = np.where((me ^ half) < group, me ^ half, rows[:, 4])
    wanted = (me // size, me % size, -(-group // size), last - first + 1, other, first, last)
    names = (
        "subgroup",
        "lane",
        "number of subgroups",
        "number of lanes",
        "other lane",
        "first lane",
        "last lane",
    )
    for name, got, want in zip(names, rows.T, wanted, strict=False):
        wrong = np.flatnonzero(got != want)
        if wrong.size:
            n = int(wrong[0])
            return f"{name} of invocation {n}: {got[n]}, not {np.broadcast_to(want, me.shape)[n]}"
    return None
