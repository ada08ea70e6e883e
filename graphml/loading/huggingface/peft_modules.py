"""Which of our tensors a module of transformers is, and which rows of its factor B they have.

By the tables of the model's families. Rows in another order, or some of them, are those of B; any other
change of a weight does not carry over to a low-rank product and is refused. Knows names and shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.errors import WeightsError
from graphml.ir.op import Array
from graphml.loading.huggingface.config import HfConfig, class_fields
from graphml.loading.huggingface.config_names import SIZES
from graphml.loading.huggingface.family import Family, To
from graphml.loading.huggingface.folder import CONFIG, is_folder_of_model, language_model, model_type
from graphml.loading.huggingface.json_files import read_json
from graphml.loading.huggingface.tensors import LEFT_OUT, OUTPUT, looked_up
from graphml.weights import Metadata, ModelFile, Tensor


class PeftModules:
    """The modules of a model by the names of its families' tables. path: of the adapter, for errors.

    config: what the changes of tensors read.
    """

    def __init__(self, path: Path, model: ModelFile, families: Sequence[Family]) -> None:
        self._path, self._model = path, model
        self.config, self._families = config_of(model, families)
        self._orders: dict[tuple[int, int, int], NDArray[np.intp] | slice] = {}

    def error(self, module: str, text: str) -> WeightsError:
        """An error with the file and the module."""
        return WeightsError(f"{self._path}: {module[:200]}: {text}")

    def places(self, name: str) -> tuple[tuple[str | To, ...], list[int], str]:
        """What a tensor of transformers is here, the numbers in its name, and the end of ours."""
        entries = [looked_up(family, name) for family in self._families]
        known = [(entry, numbers, suffix) for entry, numbers, suffix in entries if entry]
        if not known or LEFT_OUT.fullmatch(name):
            raise self.error(name, "the model has no tensor of this name that text is evaluated by")
        if any(other != known[0] for other in known):
            raise self.error(name, "families of the model's architecture differ in what this is")
        return known[0]

    def shape(self, module: str, ours: str) -> tuple[int, ...]:
        """The shape of our tensor, a matrix or those of experts."""
        tensor = self._model.tensors.get(ours)
        if tensor is None:
            tied = ": its output is the embedding table" if ours == OUTPUT else ""
            raise self.error(module, f"the model has no tensor {ours}{tied}")
        if len(tensor.shape) not in (2, 3):
            raise self.error(module, f"wanted a matrix; {ours} is {list(tensor.shape)}")
        return tensor.shape

    def order(self, module: str, to: To, n_out: int, n_in: int) -> NDArray[np.intp] | slice:
        """Which rows of B a change of the weight takes; it is tried on the numbers of rows and of columns."""
        key = id(to.change), n_out, n_in
        if key not in self._orders:
            shape = (n_out, n_in)
            by_row, by_column = (
                self.changed(to, np.ascontiguousarray(np.broadcast_to(numbers, shape)))
                for numbers in (_count(n_out)[:, None], _count(n_in))
            )
            # Stored as [in, out], where the product of the factors is transposed, too.
            columns = by_row.shape == (n_in, n_out) and (by_row == _count(n_out)).all()
            if columns and (by_column == _count(n_in)[:, None]).all():
                return slice(None)
            if (
                by_row.ndim != 2 or by_row.shape[1] != n_in or (by_column != _count(n_in)).any()
                or (by_row != by_row[:, :1]).any() or not set(by_row[:, 0]) <= set(_count(n_out))
            ):  # fmt: skip
                raise self.error(
                    module, f"{to.name} is not made of the weight's rows: an adapter of it cannot be applied"
                )
            self._orders[key] = by_row[:, 0].astype(np.intp) - 1
        return self._orders[key]

    def changed(self, to: To, array: Array) -> Array:
        """What a tensor of these numbers is here."""
        tensor = Tensor(to.name, "f32", array.shape, array.reshape(-1).view(np.uint8), mapped=False)
        changed: Array = to.change(self.config, to.name, tensor).numpy()
        return changed


def _count(number: int) -> NDArray[np.float32]:
    return np.arange(1, number + 1, dtype=np.float32)


class _KeysOfModel(HfConfig):
    """The sizes that metadata have, as a config; what they lack is an error, and never a default."""

    of_file = True

    def get(self, *names: str) -> Any:
        value = super().get(*names)
        if value is None:
            raise self.error(f"adapters of this model need {' or '.join(names)}, which its metadata lack")
        return value


def _size_of(metadata: Metadata, key: str) -> int | None:
    """A size of all layers, of those where it is not 0; None where there is none, or they differ."""
    value = metadata[key] if metadata.has(key) else None
    sizes = {size for size in value if size} if isinstance(value, list) else {value}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def config_of(model: ModelFile, families: Sequence[Family]) -> tuple[HfConfig, Sequence[Family]]:
    """What the changes of tensors read: config.json of a folder, or the metadata of a file.

    And the families that the model may be of: of a folder the one of its model_type.
    """
    family = families[0]
    if is_folder_of_model(model.path):
        fields = language_model(read_json(model.path / CONFIG))
        kind = str(model_type(fields, {str(i): of for i, of in enumerate(families)}))
        families = [of for of in families if kind in of.kinds] or families
        family = families[0]
        reads = class_fields().get(family.older.get(kind, kind))
        config = HfConfig(model.path / CONFIG, fields, family.defaults, reads=reads)
        return config, families
    sizes: dict[str, int] = {}
    for key, names in SIZES.items():
        size = _size_of(model.metadata, f"{family.architecture}.{key}")
        sizes |= {} if size is None else dict.fromkeys(names, size)
    return _KeysOfModel(model.path, sizes, {}), families
