"""Fine-tuning as one call: examples in, an adapter's GGUF file out, with a checkpoint beside it meanwhile.

Knows when files are written and what must be equal for a checkpoint to be gone on with; nothing of how a step
is made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphml.api.model import Model
from graphml.errors import GraphmlError, UsageError
from graphml.finetuning.examples import Examples, read_examples
from graphml.finetuning.factors import first_pairs, targets
from graphml.finetuning.settings import FinetuneSettings
from graphml.finetuning.step import Step
from graphml.ir.op import Array
from graphml.runtime.store.model_code import own_code_of
from graphml.system.read_files import reason
from graphml.system.replaced_file import replacing
from graphml.weights.adapter_writing import write_adapter
from graphml.weights.tensor_file import TensorFile, write_tensors

if TYPE_CHECKING:
    from graphml.finetuning.training import Training

SAVED_EVERY_S = 60.0
FORMAT = "graphml-finetune"
FURTHEST = 0.05
"""NMSE between training's logits and those of the model with the file; quantised activations have 0.001."""
_COMPARED = 64  # tokens of a text


@dataclass(frozen=True)
class Finetuned:
    """path: the adapter. steps: all that were made, of earlier runs too.

    validation: the loss of the texts that were kept apart before and after, in nats a token; None without
    any. nmse: of the logits that the model has with the file, against training's.
    """

    path: Path
    steps: tuple[Step, ...]
    validation: tuple[float, float] | None
    nmse: float


@dataclass(frozen=True)
class FinetunePlan:
    """What a fine-tuning will do, before it starts. n_done: steps of a checkpoint that it goes on with."""

    examples: Examples
    n_factors: int
    n_matrices: int
    n_steps: int
    n_done: int
    memory: int


class Finetuning:
    """One fine-tuning of a model: `plan` says what it will do, `run` does it.

    data, validation: files of JSON lines, or mappings. UsageError for examples, targets and a checkpoint that
    do not fit; without PyTorch; for a model that predicts no next tokens, or was opened with adapters.
    """

    def __init__(
        self,
        model: Model,
        data: str | os.PathLike[str] | Iterable[Any],
        output: str | os.PathLike[str],
        settings: FinetuneSettings,
        validation: str | os.PathLike[str] | Iterable[Any] | None = None,
    ) -> None:
        executor = model.executor
        if executor.options.added:
            raise UsageError("finetune: wanted a model without adapters and control vectors")
        continues = executor.generates and executor.architecture.causal and not executor.denoises
        if not continues or executor.encodes:
            raise UsageError(
                f"{model.path}: finetune: wanted a model that predicts the next token of a text; got an "
                f"encoder, a diffusion model or one with a source text ({model.arch})"
            )
        self._model, self._output, self._settings = model, Path(output), settings
        self._checkpoint = self._output.with_name(self._output.name + ".checkpoint")
        longest = min(settings.n_ctx, model.n_ctx)
        self._examples = read_examples(_source(data), model, longest)
        self._apart = None if validation is None else read_examples(_source(validation), model, longest)
        self._identity = {
            "model": executor.file.fingerprint,
            "definition": own_code_of(executor),
            "data": self._examples.fingerprint,
            "validation": None if self._apart is None else self._apart.fingerprint,
            "settings": settings.as_json(),
        }
        shapes = targets(model, settings.targets or ())
        pairs = first_pairs(shapes, settings.rank, settings.seed)
        self._training: Training = _training()(model, self._examples.texts, pairs, settings)
        self._steps: list[Step] = []
        self._first_loss: float | None = None
        if self._checkpoint.exists():
            self._restore()
        self.plan = FinetunePlan(
            self._examples, sum(a.size + b.size for a, b in pairs.values()), len(pairs),
            self._training.n_steps, len(self._steps), self._training.memory,
        )  # fmt: skip

    def run(self, on_step: Callable[[Step], None] = lambda step: None) -> Finetuned:
        """Make the steps that are left, write the adapter, and compare the model with it to the training.

        What is interrupted has a checkpoint, with which the same call goes on.
        """
        apart = () if self._apart is None else self._apart.texts
        if apart and self._first_loss is None:
            self._first_loss = self._training.loss(apart)
        saved = time.monotonic()
        try:
            for step in self._training.steps():
                self._steps.append(step)
                on_step(step)
                if time.monotonic() - saved > SAVED_EVERY_S:
                    self._save()
                    saved = time.monotonic()
        except BaseException:
            # An interrupt within a change of the factors leaves the last checkpoint as it is.
            if self._training.is_whole and self._training.done == len(self._steps) > 0:
                self._save()
            raise
        self._save()
        validation = None
        if apart and self._first_loss is not None:
            validation = self._first_loss, self._training.loss(apart)
        nmse = self._written()
        self._checkpoint.unlink()
        return Finetuned(self._output, tuple(self._steps), validation, nmse)

    def _written(self) -> float:
        """Write the adapter where it is what was trained; returns the NMSE of `_compared`."""
        settings, architecture = self._settings, self._model.metadata.text("general.architecture")
        text = max(self._examples.texts, key=lambda text: len(text.ids))
        try:
            with replacing(self._output) as partial:
                write_adapter(partial, architecture, self._training.pairs, settings.factor * settings.rank)
                return self._compared(partial, text.ids[:_COMPARED])
        except OSError as error:
            raise UsageError(f"{self._output}: cannot be written: {reason(error)}") from None

    def _compared(self, adapter: Path, ids: Array) -> float:
        """The NMSE of the model's logits with the file; GraphmlError where they are not training's."""
        wanted = self._training.logits(ids)
        with self._model.session(max(len(ids), 2), lora=[(adapter, 1.0)]) as session:
            logits = session.eval(ids.tolist(), all_logits=True)
        nmse = float(((logits - wanted) ** 2).sum() / (wanted**2).sum())
        if not nmse < FURTHEST:
            raise GraphmlError(
                f"{self._output}: the model's logits with it are not training's: wanted an NMSE below "
                f"{FURTHEST}, got {nmse:.2g}; please report this"
            )
        return nmse

    def _save(self) -> None:
        about = {
            "format": FORMAT, **self._identity, "first_loss": self._first_loss,
            "steps": [asdict(step) for step in self._steps],
        }  # fmt: skip
        try:
            write_tensors(self._checkpoint, about, self._training.state())
        except OSError as error:
            raise UsageError(f"{self._checkpoint}: cannot be written: {reason(error)}") from None

    def _restore(self) -> None:
        with TensorFile(self._checkpoint) as file:
            for name, own in {"format": FORMAT, **self._identity}.items():
                came = file.about.get(name)
                if came != own:
                    raise UsageError(
                        f"{self._checkpoint}: the checkpoint of a fine-tuning with other {name}"
                        f"{_differing(came, own)}; remove it to begin anew"
                    )
            self._steps = [Step(**fields) for fields in file.about["steps"]]
            self._first_loss = file.about["first_loss"]
            wanted = self._training.state()
            arrays = {name: file.array(name, array.shape, "f4") for name, array in wanted.items()}
            self._training.restore(len(self._steps), arrays)


def _training() -> type[Training]:
    try:
        from graphml.finetuning.training import Training
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError("finetune: torch is missing; pip install '.[authoring]' in a clone") from None
    return Training


def _differing(came: object, own: object) -> str:
    if isinstance(came, dict) and isinstance(own, dict):
        names = [name for name in own if came.get(name) != own[name]]
        return f": {', '.join(f'{name} {came.get(name)!r}, now {own[name]!r}' for name in names)}"
    return ""


def _source(data: str | os.PathLike[str] | Iterable[Any]) -> Path | Iterable[Any]:
    return Path(data) if isinstance(data, str | os.PathLike) else data


def finetune(
    model: Model,
    data: str | os.PathLike[str] | Iterable[Any],
    output: str | os.PathLike[str],
    settings: FinetuneSettings | None = None,
    *,
    validation: str | os.PathLike[str] | Iterable[Any] | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
    **changes: Any,
) -> Finetuned:
    """Train a low-rank adapter on examples, by PyTorch, and write it as a GGUF file.

    data: a file of JSON lines, or mappings: {"messages": [...]}, {"prompt": ..., "completion": ...} or
    {"text": ...}. changes: settings by name, as rank=8. on_step is called after each step. A checkpoint
    beside the output is gone on with. UsageError without PyTorch, and for what does not fit, by its place.
    """
    try:
        chosen = replace(settings or FinetuneSettings(), **changes)
    except TypeError as error:
        raise UsageError(f"finetune: {error}") from None
    return Finetuning(model, data, output, chosen, validation).run(on_step)
