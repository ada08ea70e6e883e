"""How an editable install finds the packages: by the folders that hold them, on Python's path.

A folder named graphml in the working directory, as the clone is in the folder above it, is a namespace
package to Python unless the path has a package of that name. The finder that setuptools installs by default
for several source roots is asked after the path, too late. All else is in pyproject.toml.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command import editable_wheel


class EditableWheel(editable_wheel.editable_wheel):
    """Writes a .pth file of the source roots; where setuptools has that no more, what it does by default."""

    def _select_strategy(self, name: str, tag: str, build_lib: Any) -> Any:
        by_path = getattr(editable_wheel, "_StaticPth", None)
        if by_path is None:
            return super()._select_strategy(name, tag, build_lib)
        roots = [Path(self.project_dir, root) for root in (".", "quant", "backends", "models")]
        return by_path(self.distribution, name, roots)


setup(cmdclass={"editable_wheel": EditableWheel})
