"""Reads a folder of PEFT as a low-rank adapter: adapter_config.json and adapter_model.safetensors.

Modules have transformers' names, which `PeftModules` knows. Knows the files' tensors; nothing of graphs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from graphml.errors import WeightsError
from graphml.ir.op import Array
from graphml.loading.huggingface.family import Family, To
from graphml.loading.huggingface.folder import refuse_pickles
from graphml.loading.huggingface.packed import plain
from graphml.loading.huggingface.peft_config import CONFIG, read_peft_config
from graphml.loading.huggingface.peft_modules import PeftModules
from graphml.loading.huggingface.tensors import EMBEDDING, OUTPUT, our_name
from graphml.weights import ModelFile, Tensor
from graphml.weights.filemap import FileMap
from graphml.weights.safetensors import read_safetensors

WEIGHTS = "adapter_model.safetensors"
A, B, B_BIAS = ".lora_A.weight", ".lora_B.weight", ".lora_B.bias"
TABLE_A, TABLE_B = ".lora_embedding_A", ".lora_embedding_B"
START = "base_model.model."
_FACTOR = re.compile(r"(.+)(\.lora_(?:A\.weight|B\.weight|B\.bias|embedding_A|embedding_B))")
_SAVED = re.compile(r"(.+?)(?:\.base_layer)?(\.weight|\.bias)")
Parts = Mapping[str, Array]
Factors = tuple[Array, Array, np.float32]
"""A, B and what their product is multiplied by."""


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
    """factors: tensor of the model -> A, B and scaling, where these have the shapes of `Adapter`'s pairs.

    offsets, invocation: as of `Adapter`, with the scaling in them. Read when it is created.
    """

    def __init__(self, path: Path, model: ModelFile, families: Iterable[Family]) -> None:
        self.factors: dict[str, Factors] = {}
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
        self._names = PeftModules(self._path, model, list(of_architecture))
        self._experts: dict[str, dict[int, Factors]] = {}
        file = FileMap(self._path)
        try:
            held = {name: plain(self._path, tensor) for name, tensor in read_safetensors(file).items()}
            modules, saved = self._modules(held)
            for module, parts in modules.items():
                self._read(module, parts)
            for ours, of in self._experts.items():
                self.factors[ours] = self._stacked(ours, of)
            for name, tensor in saved.items():
                self._saved(name, tensor)
        finally:
            file.close()
        if not self.factors:
            raise WeightsError(f"{self._path}: wanted tensors that end in {A} and {B}; there are none")

    @property
    def pairs(self) -> dict[str, tuple[Array, Array]]:
        """As of `Adapter`."""
        return {ours: (a * scaling, b) for ours, (a, b, scaling) in self.factors.items()}

    def _modules(self, held: Mapping[str, Tensor]) -> tuple[Mapping[str, Parts], dict[str, Tensor]]:
        """The factors of each module, and what is saved of the model's own tensors, by its name."""
        modules: dict[str, dict[str, Array]] = {}
        saved: dict[str, Tensor] = {}
        for name, tensor in held.items():
            short = name.removeprefix(START)
            factor, own = _FACTOR.fullmatch(short), _SAVED.fullmatch(short)
            if short == name or (factor is None and (own is None or ".lora_" in short)):
                raise WeightsError(
                    f"{self._path}: {name[:200]!r}: wanted {START}MODULE with "
                    f"{A}, {B} or {TABLE_A}, {TABLE_B}"
                )
            if factor is not None:
                modules.setdefault(factor[1], {})[factor[2]] = self._numbers(name, tensor)
            elif own is not None:
                saved[own[1] + own[2]] = tensor
        return modules, saved

    def _numbers(self, name: str, tensor: Tensor) -> Array:
        if tensor.dtype not in ("f32", "f16", "bf16", "f64"):
            raise self._names.error(name, f"wanted floating-point numbers; got {tensor.dtype}")
        array = tensor.numpy().astype(np.float32)
        if not np.isfinite(array).all():
            raise WeightsError(f"{self._path}: {name[:200]}: wanted finite numbers")
        return array

    def _read(self, module: str, parts: Parts) -> None:
        config = self._config
        if not config.targeted(module):
            raise self._names.error(
                module, f"target_modules of {config.path.name} do not name it, so that PEFT would not use it"
            )
        table = TABLE_A in parts or TABLE_B in parts
        wanted = {TABLE_A, TABLE_B} if table else {A, B, B_BIAS} if config.lora_bias else {A, B}
        if set(parts) != wanted:
            raise self._names.error(
                module, f"wanted {', '.join(sorted(wanted))}; got {', '.join(sorted(parts))}"
            )
        targets, numbers, suffix = self._names.places(f"{module}.weight")
        scaling = np.float32(config.scaling(module))
        if table:
            ours = targets[0] if len(targets) == 1 and isinstance(targets[0], str) else None
            if ours is None or f"{ours}.weight" != EMBEDDING:
                raise self._names.error(module, "wanted the embedding table for tables")
            a, b = parts[TABLE_A], parts[TABLE_B]
            n_vocab, n_embd = self._names.shape(module, EMBEDDING)
            self._check_shapes(module, parts, {TABLE_A: (-1, n_vocab), TABLE_B: (n_embd, -1)})
            self.factors[EMBEDDING] = np.ascontiguousarray(a.T), b, scaling
            return
        places = [(target, our_name(self._names.config, target, numbers, suffix)) for target in targets]
        shapes = [self._names.shape(module, ours) for _, ours in places]
        n_in, n_out = shapes[0][-1], sum(shape[-2] for shape in shapes)
        self._check_shapes(module, parts, {A: (-1, n_in), B: (n_out, -1), B_BIAS: (n_out,)})
        a, b = parts[A], parts[B]
        for target, ours in places:
            place = target.name if isinstance(target, To) else target
            if len(numbers) == place.count("{}") + 1:
                if B_BIAS in parts:
                    raise self._names.error(module, "graphml does not compute lora_bias of experts")
                self._experts.setdefault(ours, {})[numbers[-1]] = a, b, scaling
                continue
            rows = self._names.order(module, target, n_out, n_in) if isinstance(target, To) else slice(None)
            if b[rows].shape[0] != self._names.shape(module, ours)[-2]:
                wanted_rows = self._names.shape(module, ours)[-2]
                raise self._names.error(
                    module, f"wanted {wanted_rows} rows of {ours}; got {b[rows].shape[0]}"
                )
            self._put(module, ours, (a, np.ascontiguousarray(b[rows]), scaling))
            if B_BIAS in parts:
                self._offset(ours, parts[B_BIAS][rows] * scaling)

    def _put(self, module: str, ours: str, factors: Factors) -> None:
        if ours in self.factors:
            raise self._names.error(module, f"is a second module that is {ours}")
        self.factors[ours] = factors

    def _offset(self, ours: str, values: Array) -> None:
        self.offsets[ours] = self.offsets.get(ours, np.float32(0)) + np.ascontiguousarray(values)

    def _check_shapes(self, module: str, parts: Parts, wanted: Mapping[str, tuple[int, ...]]) -> None:
        rank = self._config.rank_of(module)
        for part, array in parts.items():
            shape = tuple(rank if extent < 0 else extent for extent in wanted[part])
            if array.shape != shape:
                raise self._names.error(module, f"{part}: wanted {list(shape)}; got {list(array.shape)}")

    def _stacked(self, ours: str, of: Mapping[int, Factors]) -> Factors:
        """The pairs of experts as one; experts without a pair, or of a lower rank, get zeros."""
        n_expert, n_out, n_in = (
            self._names.shape(ours, ours) if len(self._names.shape(ours, ours)) == 3 else (0, 0, 0)
        )
        if max(of) >= n_expert:
            raise self._names.error(ours, f"wanted experts 0 to {n_expert - 1}; got {max(of)}")
        rank = max(b.shape[1] for _, b, _ in of.values())
        scalings = {scaling for _, _, scaling in of.values()}
        scaling = scalings.pop() if len(scalings) == 1 else np.float32(1)
        a, b = np.zeros((n_expert, rank, n_in), np.float32), np.zeros((n_expert, n_out, rank), np.float32)
        for expert, (low, up, own) in of.items():
            a[expert, : low.shape[0]] = low if own == scaling else low * own
            b[expert, :, : up.shape[1]] = up
        return a, b, scaling

    def _saved(self, name: str, tensor: Tensor) -> None:
        """A tensor of the model that is saved, too: biases may differ from the model's, weights may not."""
        array = self._numbers(name, tensor)
        targets, numbers, suffix = self._names.places(name)
        for target in targets:
            ours = our_name(self._names.config, target, numbers, suffix)
            own = self._model.tensors.get(EMBEDDING if ours == OUTPUT else ours)
            own = self._model.tensors.get(ours, own)
            values = self._names.changed(target, array) if isinstance(target, To) else array
            if own is None or own.shape != values.shape:
                raise self._names.error(
                    name, f"wanted a tensor as {ours} of the model; got {list(array.shape)}"
                )
            change = values - own.numpy().astype(np.float32)
            if not change.any():
                continue
            weight = self._model.tensors.get(ours.removesuffix(".bias") + ".weight")
            if weight is None or len(weight.shape) != 2:
                raise self._names.error(
                    name, f"has other numbers than {ours} of the model: wanted pairs, or biases"
                )
            self._offset(weight.name, change)
