"""Packings of quantised checkpoints, one file each; a new one is one more file, which is found here.

Each module without a leading underscore defines `PACKING`. Knows where they are; nothing of single ones.
"""

import functools
import importlib
import pkgutil

from graphml.loading.huggingface.packings._layout import Packing


@functools.cache
def packings() -> tuple[Packing, ...]:
    """All packings, by the names of their modules."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return tuple(
        importlib.import_module(f"{__name__}.{name}").PACKING for name in names if not name.startswith("_")
    )
