"""The loop of a fine-tuning: shuffled batches, the mean loss of their tokens, AdamW over the factors.

A state after any step can be taken out and put back, and the steps behind it come out the same to the last
bit. Knows examples and the module of a model; nothing of files or terminals.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch.nn import functional

from graphml.api.model import Model
from graphml.errors import GraphmlError
from graphml.finetuning.examples import Example
from graphml.finetuning.factors import Pairs, as_adapter
from graphml.finetuning.memory import activations
from graphml.finetuning.settings import FinetuneSettings
from graphml.finetuning.step import Step
from graphml.ir.op import Array
from graphml.torch_module.model_module import ModelModule

MOMENTS = ("exp_avg", "exp_avg_sq")


class Training:
    """The factors of a model, and steps that train them.

    pairs: the first values. done: how many steps were made. is_whole: False within a change of the factors,
    whose state must not be kept.
    """

    def __init__(
        self, model: Model, texts: Sequence[Example], pairs: Pairs, settings: FinetuneSettings
    ) -> None:
        self.settings, self.done, self.is_whole = settings, 0, True
        self.n_steps = settings.steps(len(texts))
        self._texts = texts
        adapter = as_adapter(pairs)
        self._module = ModelModule(model, [adapter], [settings.factor])
        self._module.requires_grad_(False)
        self._weights = {
            name: tuple(map(self._module.weight, adapter.weight_names(name))) for name in adapter.pairs
        }
        trained = [weight.requires_grad_() for pair in self._weights.values() for weight in pair]
        self._optimiser = torch.optim.AdamW(
            trained, lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

    def steps(self) -> Iterator[Step]:
        """Make the steps that are left, one at a time. GraphmlError where the loss is no finite number."""
        while self.done < self.n_steps:
            yield self._step()

    def loss(self, texts: Sequence[Example]) -> float:
        """The mean over the learned tokens of these texts, in nats, without learning."""
        with torch.no_grad():
            return sum(float(self._summed(group)) for group in self._groups(texts)) / _learned(texts)

    def logits(self, ids: Array) -> Array:
        """Behind each of these ids, float32 [T, n_vocab]."""
        with torch.no_grad():
            rows: Array = self._module.rows([ids]).numpy()
        return rows

    @property
    def pairs(self) -> Pairs:
        """The factors as they are, by the tensor's name."""
        return {
            name: (a.detach().numpy().copy(), b.detach().numpy().copy())
            for name, (a, b) in self._weights.items()
        }

    @property
    def memory(self) -> int:
        """Bytes that the module and a step need, estimated: weights, factors with moments, activations."""
        longest = sorted((len(text.ids) for text in self._texts), reverse=True)[: self.settings.n_batch]
        n_tokens = max(longest[0], min(self.settings.n_together, sum(longest)))
        trained = [name for name, weight in self._module.named_parameters() if weight.requires_grad]
        weights = sum(x.nbytes for x in self._module.parameters())
        factors = sum(x.nbytes for _, x in self._named())
        return int(weights + 3 * factors) + activations(self._module.graph, n_tokens, trained)

    def state(self) -> dict[str, Array]:
        """All that the next step depends on but `done`: name -> array."""
        arrays = {}
        for name, weight in self._named():
            arrays[name] = weight.detach().numpy().copy()
            for moment in MOMENTS:
                kept = self._optimiser.state[weight].get(moment, torch.zeros_like(weight))
                arrays[f"{name}.{moment}"] = kept.detach().numpy().copy()
        return arrays

    def restore(self, done: int, arrays: Mapping[str, Array]) -> None:
        """Put a state back that was taken after so many steps."""
        self.done = done
        for name, weight in self._named():
            with torch.no_grad():
                weight.copy_(torch.from_numpy(arrays[name]))
            if done:
                moments = {moment: torch.from_numpy(arrays[f"{name}.{moment}"]) for moment in MOMENTS}
                self._optimiser.state[weight] = {"step": torch.tensor(float(done)), **moments}

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, pair in self._weights.items():
            yield from zip((f"{name}.lora_a", f"{name}.lora_b"), pair, strict=True)

    def _step(self) -> Step:
        begin = time.perf_counter()
        texts = self._batch(self.done)
        rate = self.settings.rate(self.done, self.n_steps)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.zero_grad()
        n_learned, total = _learned(texts), 0.0
        for together in self._groups(texts):
            loss = self._summed(together) / n_learned
            loss.backward()
            total += float(loss.detach())
        norm = torch.nn.utils.clip_grad_norm_([weight for _, weight in self._named()], self.settings.clip)
        if not np.isfinite([total, float(norm)]).all():
            raise GraphmlError(
                f"finetune: step {self.done + 1}: the loss is {total}, its gradient's norm {float(norm)}; "
                f"wanted finite numbers: try a smaller learning_rate than {self.settings.learning_rate:g}"
            )
        self.is_whole = False
        self._optimiser.step()
        self.done += 1
        self.is_whole = True
        n_tokens = sum(len(text.ids) for text in texts)
        return Step(self.done, total, rate, n_learned, n_tokens, time.perf_counter() - begin)

    def _batch(self, step: int) -> list[Example]:
        """The examples of a step: each epoch has all of them once, in an order of its own."""
        a_pass = -(-len(self._texts) // self.settings.n_batch)
        epoch, at = divmod(step, a_pass)
        order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self._texts))
        chosen = order[at * self.settings.n_batch : (at + 1) * self.settings.n_batch]
        return [self._texts[number] for number in chosen]

    def _groups(self, texts: Sequence[Example]) -> Iterator[list[Example]]:
        """The texts in groups of few enough tokens to be computed at once, or of one text."""
        group: list[Example] = []
        for text in texts:
            if group and sum(len(other.ids) for other in group) + len(text.ids) > self.settings.n_together:
                yield group
                group = []
            group.append(text)
        yield group

    def _summed(self, texts: Sequence[Example]) -> torch.Tensor:
        """The sum of the losses of the learned tokens; logits are computed of the rows before them alone."""
        starts = np.cumsum([0, *[len(text.ids) for text in texts[:-1]]])
        rows = np.concatenate([start + text.learned - 1 for start, text in zip(starts, texts, strict=True)])
        wanted = np.concatenate([text.ids[text.learned] for text in texts])
        logits = self._module.rows([text.ids for text in texts], rows)
        return functional.cross_entropy(logits, torch.from_numpy(wanted).long(), reduction="sum")


def _learned(texts: Sequence[Example]) -> int:
    return sum(len(text.learned) for text in texts)
