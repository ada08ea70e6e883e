"""Scores of tasks with choices, as llama-perplexity counts them: the likeliest choice per token is taken.

Knows tasks, models and log-likelihoods; nothing of files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from graphml.api.model import Model
from graphml.errors import UsageError
from graphml.workshop.likelihoods import Likelihood, Pair, log_likelihoods
from graphml.workshop.task_files import BlankTask, ChoiceTask

_Z = 1.95996398454  # of a normal distribution, 95 %
_FEW = 3
"""Tokens behind the common ones of two sentences, up to which the blank is scored, too."""


@dataclass(frozen=True)
class TaskScore:
    """scores: mean log-probability of each choice; chosen: the number of the greatest."""

    scores: tuple[float, ...]
    chosen: int
    is_right: bool


@dataclass
class Accuracy:
    """How many of the tasks so far are right, and how many choices they have."""

    n_tasks: int = 0
    n_right: int = 0
    n_choices: int = 0

    def add(self, score: TaskScore) -> None:
        """One more task."""
        self.n_tasks += 1
        self.n_right += score.is_right
        self.n_choices += len(score.scores)

    @property
    def share(self) -> float:
        """Of the tasks that are right."""
        return self.n_right / self.n_tasks

    @property
    def error(self) -> float:
        """Its standard error; 0 of one task."""
        return math.sqrt(self.share * (1 - self.share) / max(self.n_tasks - 1, 1))

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval at 95 %."""
        count, share, z = self.n_tasks, self.share, _Z * _Z / self.n_tasks
        half = z * math.sqrt(count * (4 * share * (1 - share) + z)) / (2 * _Z)
        return (share + z / 2 - half) / (1 + z), (share + z / 2 + half) / (1 + z)

    @property
    def by_chance(self) -> float:
        """The share that chance would get right."""
        return self.n_tasks / self.n_choices


def choice_scores(model: Model, tasks: Sequence[ChoiceTask]) -> Iterator[TaskScore]:
    """What a model chooses in each task: the ending with the greatest mean log-probability.

    Of the context, a space and the ending, those tokens count that not all of a task's texts begin with; at
    least the last one of each. UsageError for a task whose texts begin with no common token.
    """
    pairs: list[Pair] = []
    for task in tasks:
        texts = [model.encode(f"{task.context} {ending}") for ending in task.endings]
        n_common = min(_n_common(texts), min(map(len, texts)) - 1)
        if n_common < 1:
            raise UsageError(f"{task.place}: wanted endings of a context that begin with the same token")
        pairs += [(_checked(model, task.place, ids)[:n_common], ids[n_common:]) for ids in texts]
    likelihoods = log_likelihoods(model, pairs)
    for task in tasks:
        means = tuple(likelihood.mean for likelihood in islice(likelihoods, len(task.endings)))
        chosen = means.index(max(means))
        yield TaskScore(means, chosen, chosen in task.right)


def blank_scores(model: Model, tasks: Sequence[BlankTask]) -> Iterator[TaskScore]:
    """What a model chooses for each blank: where what follows it has the greatest mean log-probability.

    The last token of a sentence does not count, a full stop mostly. Where a sentence has no more than three
    tokens behind those that both begin with, all of these count, with the choice; then the second sentence's
    first one counts as llama-perplexity counts it: by the logits behind the whole first sentence.
    """
    pairs: list[Pair] = []
    for task in tasks:
        pairs += _of_blank(model, task)
    likelihoods = log_likelihoods(model, pairs)
    for task in tasks:
        first, second, instead = islice(likelihoods, 3)
        logprobs = [*instead.logprobs, *second.logprobs[len(instead.logprobs) :]]
        scores = first.mean, Likelihood(tuple(logprobs), second.are_top).mean
        chosen = 0 if scores[0] > scores[1] else 1
        yield TaskScore(scores, chosen, chosen == task.right)


def _of_blank(model: Model, task: BlankTask) -> list[Pair]:
    """Both sentences, and what the second's first token is scored by instead, or nothing."""
    sentences = [
        _checked(model, task.place, model.encode(task.before + word + task.after)) for word in task.choices
    ]
    n_common = _n_common(sentences)
    skips = min(map(len, sentences)) - n_common > _FEW
    pairs: list[Pair] = []
    for ids, word in zip(sentences, task.choices, strict=True):
        begin = len(model.encode(task.before + word)) if skips else n_common
        end = len(ids) - (len(ids) - begin > 1)
        if not 0 < begin < end:
            raise UsageError(f"{task.place}: wanted sentences that go on behind the blank, or differ in it")
        pairs.append((ids[:begin], ids[begin:end]))
    first, second = sentences
    pairs.append(([1], []) if skips else (first, second[n_common : n_common + 1]))
    return pairs


def _n_common(texts: Sequence[Sequence[int]]) -> int:
    """How many first ids all texts have in common."""
    count = 0
    for ids in zip(*texts, strict=False):
        if len(set(ids)) > 1:
            break
        count += 1
    return count


def _checked(model: Model, place: str, ids: list[int]) -> list[int]:
    if len(ids) >= model.n_ctx - 1:
        raise UsageError(
            f"{place}: wanted less than {model.n_ctx - 1} tokens, for the model's context; got {len(ids)}"
        )
    return ids
