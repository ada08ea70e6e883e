"""The backend `numba`: every op as a plain function over arrays, compiled by numba; made to be read."""

from __future__ import annotations

from graphml_numba.backend import BACKEND

__all__ = ["BACKEND"]
