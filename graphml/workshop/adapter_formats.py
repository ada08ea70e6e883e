"""LoRA adapters from PEFT's folders to GGUF files and back.

What is written is read again and compared before it has its name. Knows the fields of both formats; names and
orders of rows are those that the reader of folders knows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from graphml.errors import GraphmlError, UsageError, WeightsError
from graphml.ir.op import Array
from graphml.loading import discovery
from graphml.loading.adapter_files import StoredFactors, read_adapter, read_factors
from graphml.loading.huggingface.family import Family, To
from graphml.loading.huggingface.folder import is_folder_of_model, read_checkpoint
from graphml.loading.huggingface.peft_config import CONFIG
from graphml.loading.huggingface.peft_folder import START, TABLE_A, TABLE_B, WEIGHTS, A, B, PeftFolder
from graphml.loading.huggingface.peft_modules import PeftModules
from graphml.loading.huggingface.tensors import LEFT_OUT, OUTPUT, PREFIXES, looked_up, our_name
from graphml.loading.open_file import open_path
from graphml.passes.lora import EMBEDDING, Adapter
from graphml.system.read_files import guarded, reason
from graphml.system.replaced_file import replacing, replacing_folder
from graphml.weights import ModelFile, Tensor
from graphml.weights.adapter_writing import write_adapter
from graphml.weights.filemap import FileMap
from graphml.workshop.module_names import OTHER_MODULES, module_name

FURTHEST = 1e-6  # of a pair that is multiplied on the way, in parts of its largest number
Target = str | To


@dataclass(frozen=True)
class ConvertedAdapter:
    """n_pairs: of tensors, or of modules. n_multiplied: those whose A had to be multiplied."""

    n_pairs: int
    n_multiplied: int = 0


def adapter_to_gguf(adapter: Path, model: Path, output: Path) -> ConvertedAdapter:
    """Write a folder of PEFT as the GGUF file of an adapter of the model, a folder or a GGUF file.

    UsageError for what the file has no place for; GraphmlError where it is another adapter, read again.
    """
    with closing(open_path(model)) as file:
        with guarded(adapter, WeightsError):
            peft = PeftFolder(adapter, file, discovery.families().values())
        if peft.offsets:
            raise UsageError(
                f"{adapter}: adapter: a GGUF adapter has no biases; got one of {next(iter(peft.offsets))}"
            )
        alpha = _alpha({name: (b.shape[-1], scaling) for name, (_, b, scaling) in peft.factors.items()})
        if not alpha:
            raise UsageError(f"{adapter}: adapter: lora_alpha is 0, which a GGUF adapter cannot say")
        pairs, n_multiplied = {}, 0
        for name, (a, b, scaling) in peft.factors.items():
            factor = np.float32(alpha / b.shape[-1])
            n_multiplied += bool(factor != scaling)
            pairs[name] = (a if factor == scaling else a * (scaling / factor)), b
        whole = Adapter(adapter.name, "", peft.pairs, peft.invocation)
        try:
            with replacing(output) as partial:
                write_adapter(
                    partial, file.metadata.text("general.architecture"), pairs, alpha, peft.invocation
                )
                _check(whole, read_adapter(partial, file), adapter)
        except OSError as error:
            raise UsageError(f"{output}: cannot be written: {reason(error)}") from None
    return ConvertedAdapter(len(pairs), n_multiplied)


def adapter_to_peft(adapter: Path, model: Path, output: Path) -> ConvertedAdapter:
    """Write a GGUF adapter as a folder of PEFT for a model's folder of transformers.

    UsageError for what the class's modules cannot have; GraphmlError where it is another adapter, read again.
    """
    if not is_folder_of_model(model):
        raise UsageError(
            f"{model}: adapter: wanted the model's folder of transformers, for the names of its modules"
        )
    with closing(open_path(model)) as file:
        held = read_factors(adapter, file)
        written = _Modules(adapter, model, file, held)
        try:
            with replacing_folder(output) as partial:
                fields = {"base_model_name_or_path": str(model), **written.fields()}
                (partial / CONFIG).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
                save_file(written.tensors, partial / WEIGHTS, metadata={"format": "pt"})
                _check(read_adapter(adapter, file), read_adapter(partial, file), adapter)
        except (OSError, SafetensorError) as error:  # the library's own, of a full disk too
            raise UsageError(f"{output}: cannot be written: {reason(error)}") from None
    return ConvertedAdapter(len(written.ranks))


def _alpha(scalings: Mapping[str, tuple[int, np.float32]]) -> float:
    """The alpha, as of float32, by which the most pairs of a rank have their scaling; 0 where all are 0."""
    exact: Counter[float] = Counter()
    for alpha in {float(np.float32(float(scaling) * rank)) for rank, scaling in scalings.values() if scaling}:
        exact[alpha] = sum(np.float32(alpha / rank) == scaling for rank, scaling in scalings.values())
    return max(exact, key=lambda alpha: (exact[alpha], alpha), default=0.0)


def _check(wanted: Adapter, came: Adapter, path: Path) -> None:
    """GraphmlError where two adapters are not the same; pairs of zeros may be there besides."""
    more = [pair for name, pair in came.pairs.items() if name not in wanted.pairs]
    same = wanted.pairs.keys() <= came.pairs.keys() and wanted.invocation == came.invocation
    same = same and not any(b.any() for _, b in more)
    for name, pair in wanted.pairs.items() if same else ():
        for left, right in zip(pair, came.pairs[name], strict=True):
            most = FURTHEST * float(np.abs(left).max(initial=0.0))
            if left.shape != right.shape or not float(np.abs(left - right).max(initial=0.0)) <= most:
                raise GraphmlError(f"{path}: adapter: {name} is another one in what was written")
    if not same:
        raise GraphmlError(f"{path}: adapter: what was written has other pairs")


class _Modules:
    """The modules of a folder's class that have the pairs of an adapter.

    tensors: of adapter_model.safetensors. ranks: module -> rank.
    """

    def __init__(self, adapter: Path, model: Path, file: ModelFile, held: StoredFactors) -> None:
        self.tensors: dict[str, Array] = {}
        self.ranks: dict[str, int] = {}
        self._path, self._held, self._model = adapter, held, model
        self._done: set[str] = set()
        opened: list[FileMap] = []
        try:
            read = read_checkpoint(model, discovery.families(), None, discovery.refused_folders(), opened)
            if read.wrapped:
                raise UsageError(
                    f"{model}: adapter: the language model is a part of a larger one, whose modules' names "
                    "its files do not have: wanted a folder of a language model alone"
                )
            self._kind = str(read.kind)
            if self._kind in OTHER_MODULES:
                raise UsageError(
                    f"{model}: adapter: modules of {self._kind} are not those of its files' tensors: "
                    "graphml does not know their names"
                )
            self._names = PeftModules(adapter, file, [read.family])
            self.known = [self._called(name) for name in read.tensors if name.endswith(".weight")]
            for name, tensor in read.tensors.items():
                if name.endswith(".weight") and not LEFT_OUT.fullmatch(name):
                    self._module(read.family, name, tensor)
        finally:
            for each in opened:
                each.close()
        left = [name for name in held.pairs if name not in self._done]
        if left:
            raise UsageError(f"{adapter}: adapter: {left[0]}: no module of {model} is this alone")

    def _called(self, name: str) -> str:
        return module_name(self._kind, name.removesuffix(".weight"))

    def _module(self, family: Family, name: str, tensor: Tensor) -> None:
        """The factors of a module, where ours that it is have some."""
        entry, numbers, suffix = looked_up(family, name)
        places = [(target, our_name(self._names.config, target, numbers, suffix)) for target in entry or ()]
        ours = [of for of in places if of[1] in self._held.pairs]
        if not ours:
            return
        module, first = self._called(name), ours[0][1]
        if len(self._held.pairs[first][0].shape) > 2:
            raise self._error(first, "experts' matrices are no modules of their own for PEFT")
        if any(each in self._done for _, each in ours):
            raise self._error(first, f"is in a second module, {module}, too")
        if first != OUTPUT and not name.startswith(PREFIXES):
            raise self._error(
                first,
                f"{self._model} names {module}: wanted names with the class's first part, as model.layers.0, "
                "which transformers saves of a class that predicts tokens",
            )
        a = self._held.pairs[first][0]
        if any(not np.array_equal(a, self._held.pairs[each][0]) for _, each in ours):
            raise self._error(
                first,
                f"{module} is {', '.join(each for _, each in ours)} in one, whose pairs have another A each",
            )
        self._done.update(each for _, each in ours)
        if first == EMBEDDING:
            table, rank = np.ascontiguousarray(a.T), a.shape[1]
            self.tensors |= {
                f"{START}{module}{TABLE_A}": table, f"{START}{module}{TABLE_B}": self._held.pairs[first][1]
            }  # fmt: skip
        else:
            rank = a.shape[0]
            self.tensors |= {
                f"{START}{module}{A}": np.array(a), f"{START}{module}{B}": self._rows(module, places, rank)
            }  # fmt: skip
        self.ranks[module] = rank

    def _rows(self, module: str, places: Sequence[tuple[Target, str]], rank: int) -> Array:
        """B of a module: the rows of ours in its order, zeros for those of ours that have no pair."""
        shapes = [self._names.shape(module, ours) for _, ours in places]
        n_out, n_in = sum(shape[-2] for shape in shapes), shapes[0][-1]
        whole = np.zeros((n_out, rank), np.float32)
        for target, ours in places:
            if ours not in self._held.pairs:
                continue
            b = self._held.pairs[ours][1]
            order = self._names.order(module, target, n_out, n_in) if isinstance(target, To) else slice(None)
            whole[order] = b
            if not np.array_equal(whole[order], b):
                raise self._error(ours, f"has rows of {module} twice, with other numbers")
        return whole

    def _error(self, ours: str, text: str) -> UsageError:
        return UsageError(f"{self._path}: adapter: {ours}: {text}")

    def fields(self) -> dict[str, Any]:
        """Those of adapter_config.json."""
        rank = Counter(self.ranks.values()).most_common(1)[0][0]
        fields: dict[str, Any] = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "inference_mode": True, "bias": "none",
            "lora_dropout": 0.0, "r": rank, "lora_alpha": _whole(self._held.alpha or rank),
            "target_modules": self._targets(),
        }  # fmt: skip
        others = {rf"{_escaped(name)}": of for name, of in self.ranks.items() if of != rank}
        if others:
            fields["rank_pattern"] = others
            if not self._held.alpha:
                fields["alpha_pattern"] = others  # scaling is 1
        if self._held.invocation:
            fields["alora_invocation_tokens"] = list(self._held.invocation)
        return fields

    def _targets(self) -> list[str]:
        """Last parts of names, where all modules that end so have a pair; else whole names."""
        short: dict[str, list[str]] = {}
        for module in self.known:
            short.setdefault(module.rpartition(".")[2], []).append(module)
        targets = []
        for end, modules in short.items():
            having = [module for module in modules if module in self.ranks]
            targets += [end] if len(having) == len(modules) else having
        return targets


def _escaped(name: str) -> str:
    return name.replace(".", r"\.")


def _whole(number: float) -> float:
    return int(number) if float(number).is_integer() else number
