"""Devices that do not do all that their backend could: what they refuse, what activations become on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

from graphml.backend import Backend, Device
from graphml.ir.dtype import DType
from graphml.ir.node import Node


@runtime_checkable
class LimitedDevice(Protocol):
    """Optional part of a device: one that decides for itself what it can do of what its backend can."""

    def refuses(self, node: Node) -> str | None:
        """As `Backend.refuses`, of this device; refuses what the backend refuses, and more."""

    def activation(self, weight: DType) -> DType | None:
        """As `Backend.activation`."""


def on_device(backend: Backend, device: Device) -> Backend:
    """The backend as its device is."""
    if not isinstance(device, LimitedDevice):
        return backend
    return replace(backend, refuses=device.refuses, activation=device.activation)
