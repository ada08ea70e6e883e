"""Reads a folder of PEFT as a low-rank adapter: adapter_config.json and adapter_model.safetensors.

Modules have transformers' names: the families of the model's architecture say which tensor each is, and
what was done to its rows. Rows in another order, or some of them, are those of B; any other change of a
weight does not carry over to a low-rank product and is refused. Knows names and shapes; nothing of graphs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.errors import WeightsError
from graphml.ir.op import Array
from graphml.loading.huggingface.config import HfConfig, class_fields
from graphml.loading.huggingface.config_names import SIZES
from graphml.loading.huggingface.family import Family, To
from graphml.loading.huggingface.folder import CONFIG as MODEL_CONFIG
from graphml.loading.huggingface.folder import is_folder_of_model, language_model, model_type, refuse_pickles
from graphml.loading.huggingface.json_files import read_json
from graphml.loading.huggingface.packed import plain
from graphml.loading.huggingface.peft_config import CONFIG, read_peft_config
from graphml.loading.huggingface.tensors import EMBEDDING, LEFT_OUT, OUTPUT, looked_up, our_name
from graphml.weights import Metadata, ModelFile, Tensor
from graphml.weights.filemap import FileMap
from graphml.weights.safetensors import read_safetensors

WEIGHTS = "adapter_model.safetensors"
A, B, B_BIAS = ".lora_A.weight", ".lora_B.weight", ".lora_B.bias"
TABLE_A, TABLE_B = ".lora_embedding_A", ".lora_embedding_B"
_START = "base_model.model."
_FACTOR = re.compile(r"(.+)(\.lora_(?:A\.weight|B\.weight|B\.bias|embedding_A|embedding_B))")
_SAVED = re.compile(r"(.+?)(?:\.base_layer)?(\.weight|\.bias)")
Parts = Mapping[str, Array]


def files_of(path: Path) -> tuple[Path, Path]:
    """The two files of a folder of PEFT; WeightsError where one is not there."""
    for file in (path / CONFIG, path / WEIGHTS):
        if not file.is_file():
            refuse_pickles(path, WEIGHTS)
            raise WeightsError(
                f"{path}: wanted {CONFIG} and {WEIGHTS}, as PEFT saves them; got no {file.name}"
            )
    return path / CONFIG, path / WEIGHTS


class PeftFolder:
    """pairs, offsets, invocation: as of `Adapter`, with the scaling in them; read when it is created."""

    def __init__(self, path: Path, model: ModelFile, families: Iterable[Family]) -> None:
        self.pairs: dict[str, tuple[Array, Array]] = {}
        self.offsets: dict[str, Array] = {}
        self._config, self._model = read_peft_config(path), model
        self._path = files_of(path)[1]
        self.invocation = self._config.invocation
        architecture = model.metadata.text("general.architecture")
        of_architecture = {
            id(family): family for family in families if family.architecture == architecture
        }.values()
        if not of_architecture:
            raise WeightsError(f"{path}: no family has transformers' names of {architecture}'s tensors")
        self._of_model, self._families = _config_of(model, list(of_architecture))
        self._orders: dict[tuple[int, int, int], NDArray[np.intp]] = {}
        self._experts: dict[str, dict[int, tuple[Array, Array]]] = {}
        file = FileMap(self._path)
        try:
            held = {name: plain(self._path, tensor) for name, tensor in read_safetensors(file).items()}
            modules, saved = self._modules(held)
            for module, parts in modules.items():
                self._read(module, parts)
            for ours, of in self._experts.items():
                self.pairs[ours] = self._stacked(ours, of)
            for name, tensor in saved.items():
                self._saved(name, tensor)
        finally:
            file.close()
        if not self.pairs:
            raise WeightsError(f"{self._path}: wanted tensors that end in {A} and {B}; there are none")

    def _modules(self, held: Mapping[str, Tensor]) -> tuple[Mapping[str, Parts], dict[str, Tensor]]:
        """The factors of each module, and what is saved of the model's own tensors, by its name."""
        modules: dict[str, dict[str, Array]] = {}
        saved: dict[str, Tensor] = {}
        for name, tensor in held.items():
            short = name.removeprefix(_START)
            factor, own = _FACTOR.fullmatch(short), _SAVED.fullmatch(short)
            if short == name or (factor is None and (own is None or ".lora_" in short)):
                raise WeightsError(
                    f"{self._path}: {name[:200]!r}: wanted {_START}MODULE with "
                    f"{A}, {B} or {TABLE_A}, {TABLE_B}"
                )
            if factor is not None:
                modules.setdefault(factor[1], {})[factor[2]] = self._numbers(name, tensor)
            elif own is not None:
                saved[own[1] + own[2]] = tensor
        return modules, saved

    def _numbers(self, name: str, tensor: Tensor) -> Array:
        if tensor.dtype not in ("f32", "f16", "bf16", "f64"):
            raise self._error(name, f"wanted floating-point numbers; got {tensor.dtype}")
        array = tensor.numpy().astype(np.float32)
        if not np.isfinite(array).all():
            raise WeightsError(f"{self._path}: {name[:200]}: wanted finite numbers")
        return array

    def _read(self, module: str, parts: Parts) -> None:
        config = self._config
        if not config.targeted(module):
            raise self._error(
                module, f"target_modules of {config.path.name} do not name it, so that PEFT would not use it"
            )
        table = TABLE_A in parts or TABLE_B in parts
        wanted = {TABLE_A, TABLE_B} if table else {A, B, B_BIAS} if config.lora_bias else {A, B}
        if set(parts) != wanted:
            raise self._error(module, f"wanted {', '.join(sorted(wanted))}; got {', '.join(sorted(parts))}")
        targets, numbers, suffix = self._places(f"{module}.weight")
        scaling = np.float32(config.scaling(module))
        if table:
            ours = targets[0] if len(targets) == 1 and isinstance(targets[0], str) else None
            if ours is None or f"{ours}.weight" != EMBEDDING:
                raise self._error(module, "wanted the embedding table for tables")
            a, b = parts[TABLE_A], parts[TABLE_B]
            n_vocab, n_embd = self._shape(module, EMBEDDING)
            self._check_shapes(module, parts, {TABLE_A: (-1, n_vocab), TABLE_B: (n_embd, -1)})
            self.pairs[EMBEDDING] = np.ascontiguousarray(a.T) * scaling, b
            return
        places = [(target, our_name(self._of_model, target, numbers, suffix)) for target in targets]
        shapes = [self._shape(module, ours) for _, ours in places]
        n_in, n_out = shapes[0][-1], sum(shape[-2] for shape in shapes)
        self._check_shapes(module, parts, {A: (-1, n_in), B: (n_out, -1), B_BIAS: (n_out,)})
        a, b = parts[A] * scaling, parts[B]
        for target, ours in places:
            place = target.name if isinstance(target, To) else target
            if len(numbers) == place.count("{}") + 1:
                if B_BIAS in parts:
                    raise self._error(module, "graphml does not compute lora_bias of experts")
                self._experts.setdefault(ours, {})[numbers[-1]] = a, b
                continue
            rows = self._order(module, target, n_out, n_in) if isinstance(target, To) else slice(None)
            if b[rows].shape[0] != self._shape(module, ours)[-2]:
                wanted_rows = self._shape(module, ours)[-2]
                raise self._error(module, f"wanted {wanted_rows} rows of {ours}; got {b[rows].shape[0]}")
            self._put(module, ours, (a, np.ascontiguousarray(b[rows])))
            if B_BIAS in parts:
                self._offset(ours, parts[B_BIAS][rows] * scaling)

    def _put(self, module: str, ours: str, pair: tuple[Array, Array]) -> None:
        if ours in self.pairs:
            raise self._error(module, f"is a second module that is {ours}")
        self.pairs[ours] = pair

    def _offset(self, ours: str, values: Array) -> None:
        self.offsets[ours] = self.offsets.get(ours, np.float32(0)) + np.ascontiguousarray(values)

    def _error(self, module: str, text: str) -> WeightsError:
        return WeightsError(f"{self._path}: {module[:200]}: {text}")

    def _places(self, name: str) -> tuple[tuple[str | To, ...], list[int], str]:
        """What a tensor of transformers is here, the numbers in its name, and the end of ours."""
        entries = [looked_up(family, name) for family in self._families]
        known = [(entry, numbers, suffix) for entry, numbers, suffix in entries if entry]
        if not known or LEFT_OUT.fullmatch(name):
            raise self._error(name, "the model has no tensor of this name that text is evaluated by")
        if any(other != known[0] for other in known):
            raise self._error(name, "families of the model's architecture differ in what this is")
        return known[0]

    def _shape(self, module: str, ours: str) -> tuple[int, ...]:
        tensor = self._model.tensors.get(ours)
        if tensor is None:
            tied = ": its output is the embedding table" if ours == OUTPUT else ""
            raise self._error(module, f"the model has no tensor {ours}{tied}")
        if len(tensor.shape) not in (2, 3):
            raise self._error(module, f"wanted a matrix; {ours} is {list(tensor.shape)}")
        return tensor.shape

    def _check_shapes(self, module: str, parts: Parts, wanted: Mapping[str, tuple[int, ...]]) -> None:
        rank = self._config.rank_of(module)
        for part, array in parts.items():
            shape = tuple(rank if extent < 0 else extent for extent in wanted[part])
            if array.shape != shape:
                raise self._error(module, f"{part}: wanted {list(shape)}; got {list(array.shape)}")

    def _order(self, module: str, to: To, n_out: int, n_in: int) -> NDArray[np.intp] | slice:
        """Which rows of B a change of the weight takes; it is tried on the numbers of rows and of columns."""
        key = id(to.change), n_out, n_in
        if key not in self._orders:
            shape = (n_out, n_in)
            by_row, by_column = (
                self._changed(to, np.ascontiguousarray(np.broadcast_to(numbers, shape)))
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
                raise self._error(
                    module, f"{to.name} is not made of the weight's rows: an adapter of it cannot be applied"
                )
            self._orders[key] = by_row[:, 0].astype(np.intp) - 1
        return self._orders[key]

    def _changed(self, to: To, array: Array) -> Array:
        tensor = Tensor(to.name, "f32", array.shape, array.reshape(-1).view(np.uint8), mapped=False)
        changed: Array = to.change(self._of_model, to.name, tensor).numpy()
        return changed

    def _stacked(self, ours: str, of: Mapping[int, tuple[Array, Array]]) -> tuple[Array, Array]:
        """The pairs of experts as one; experts without a pair, or of a lower rank, get zeros."""
        n_expert, n_out, n_in = self._shape(ours, ours) if len(self._shape(ours, ours)) == 3 else (0, 0, 0)
        if max(of) >= n_expert:
            raise self._error(ours, f"wanted experts 0 to {n_expert - 1}; got {max(of)}")
        rank = max(b.shape[1] for _, b in of.values())
        a, b = np.zeros((n_expert, rank, n_in), np.float32), np.zeros((n_expert, n_out, rank), np.float32)
        for expert, (low, up) in of.items():
            a[expert, : low.shape[0]], b[expert, :, : up.shape[1]] = low, up
        return a, b

    def _saved(self, name: str, tensor: Tensor) -> None:
        """A tensor of the model that is saved, too: biases may differ from the model's, weights may not."""
        array = self._numbers(name, tensor)
        targets, numbers, suffix = self._places(name)
        for target in targets:
            ours = our_name(self._of_model, target, numbers, suffix)
            own = self._model.tensors.get(EMBEDDING if ours == OUTPUT else ours)
            own = self._model.tensors.get(ours, own)
            values = self._changed(target, array) if isinstance(target, To) else array
            if own is None or own.shape != values.shape:
                raise self._error(name, f"wanted a tensor as {ours} of the model; got {list(array.shape)}")
            change = values - own.numpy().astype(np.float32)
            if not change.any():
                continue
            weight = self._model.tensors.get(ours.removesuffix(".bias") + ".weight")
            if weight is None or len(weight.shape) != 2:
                raise self._error(
                    name, f"has other numbers than {ours} of the model: wanted pairs, or biases"
                )
            self._offset(weight.name, change)


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


def _config_of(model: ModelFile, families: Sequence[Family]) -> tuple[HfConfig, Sequence[Family]]:
    """What the changes of tensors read: config.json of a folder, or the metadata of a file.

    And the families that the model may be of: of a folder the one of its model_type.
    """
    family = families[0]
    if is_folder_of_model(model.path):
        fields = language_model(read_json(model.path / MODEL_CONFIG))
        kind = str(model_type(fields, {str(i): of for i, of in enumerate(families)}))
        families = [of for of in families if kind in of.kinds] or families
        family = families[0]
        reads = class_fields().get(family.older.get(kind, kind))
        config = HfConfig(model.path / MODEL_CONFIG, fields, family.defaults, reads=reads)
        return config, families
    sizes: dict[str, int] = {}
    for key, names in SIZES.items():
        size = _size_of(model.metadata, f"{family.architecture}.{key}")
        sizes |= {} if size is None else dict.fromkeys(names, size)
    return _KeysOfModel(model.path, sizes, {}), families
