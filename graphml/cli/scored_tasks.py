"""The tasks of `graphml perplexity`: what a model chooses, scored as llama-perplexity does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphml.api.model import Model
from graphml.cli.options import options
from graphml.cli.options.opening import find, load
from graphml.cli.terminal.console import Bars, write_json
from graphml.errors import TokenizerError, UsageError
from graphml.workshop.choice_scores import Accuracy, TaskScore, blank_scores, choice_scores
from graphml.workshop.task_files import HELLASWAG_TASKS, read_hellaswag, read_multiple_choice, read_winogrande


@dataclass(frozen=True)
class _TaskKind:
    name: str
    read: Callable[[Path, int | None], Sequence[Any]]
    score: Callable[[Model, Sequence[Any]], Iterator[TaskScore]]
    n_tasks: int | None = None


_KINDS = {
    "--hellaswag": _TaskKind("HellaSwag", read_hellaswag, choice_scores, HELLASWAG_TASKS),
    "--winogrande": _TaskKind("WinoGrande", read_winogrande, blank_scores),
    "--multiple-choice": _TaskKind("multiple choice", read_multiple_choice, choice_scores),
}


def score_tasks(
    opening: options.Running, model: str | None, option: str, path: Path, n_tasks: int | None, json: bool
) -> None:
    """Score the tasks of a file and print how many are right. option: `--hellaswag` or another of the three.

    n_tasks: how many; None: as many as llama-perplexity; -1: all.
    """
    if str(path).startswith("-"):
        raise UsageError(f"{option}: wanted a file of tasks behind it, {option} FILE; got {str(path)!r:.80}")
    kind = _KINDS[option]
    if n_tasks == 0:
        raise UsageError("--tasks: wanted at least 1, or -1 for all; got 0")
    wanted = kind.n_tasks if n_tasks is None else n_tasks
    tasks = kind.read(path, None if wanted is None or wanted < 0 else wanted)
    accuracy, scores = Accuracy(), list[TaskScore]()
    with Bars() as bars, load(find(model, opening, bars), opening, bars) as opened:
        if opened.tokenizer is None:
            raise TokenizerError(f"{opened.path}: wanted a model with a vocabulary, to encode the tasks")
        for score in kind.score(opened, tasks):
            accuracy.add(score)
            scores.append(score)
            bars.report("tasks", len(scores), len(tasks))
    low, high = accuracy.interval
    if json:
        write_json(
            {
                "model": str(opened.path), "file": str(path), "kind": kind.name, "tasks": accuracy.n_tasks,
                "right": accuracy.n_right, "accuracy": accuracy.share, "error": accuracy.error,
                "interval": [low, high], "by_chance": accuracy.by_chance,
                "scores": [
                    {
                        "place": task.place, "scores": list(score.scores), "chosen": score.chosen,
                        "right": score.is_right,
                    }
                    for task, score in zip(tasks, scores, strict=True)
                ],
            }
        )  # fmt: skip
        return
    print(
        f"{kind.name}: {accuracy.n_right} of {accuracy.n_tasks} tasks, +/- {100 * accuracy.error:.4f} %, "
        f"95 %: {100 * low:.4f} to {100 * high:.4f} %; by chance {100 * accuracy.by_chance:.4f} %",
        file=sys.stderr,
    )
    print(f"{100 * accuracy.share:.4f}")
