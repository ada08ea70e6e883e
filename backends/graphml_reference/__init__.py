"""The oracle: a backend that runs graphs in NumPy, as the references of the ops say."""

from graphml_reference.device import BACKEND

__all__ = ["BACKEND"]
