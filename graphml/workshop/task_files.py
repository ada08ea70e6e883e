"""Tasks of choices from files, in the three forms that llama-perplexity reads.

HellaSwag: six lines a task: a context, the number of the right ending from 0, four endings. WinoGrande: CSV
with a number, a sentence in which `_` is the blank, two choices, and 1 or 2; a sentence may be in quotes, of
which the outer ones are left out. Multiple choice: binary, of little-endian 32-bit numbers: a count of tasks,
where each of them begins in the file, and the tasks: a question, its answers (a count, the texts, of each 1
if it is right), and a second list of answers, which nobody reads. A text is its number of bytes and UTF-8.

Knows bytes and texts; nothing of models or scores.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphml.errors import UsageError
from graphml.system.read_files import plain_bytes, plain_text
from graphml.workshop.task_choice import chosen_evenly, chosen_from_rest

MOST_BYTES = 1 << 30
MOST_ANSWERS = 100
HELLASWAG_TASKS = 400
"""Tasks of HellaSwag that llama-perplexity scores where nothing is said."""
_LINES = 6
_COUNT = struct.Struct("<I")


@dataclass(frozen=True)
class ChoiceTask:
    """A context and what may follow it. right: numbers of the right endings. place: where the file has it."""

    context: str
    endings: tuple[str, ...]
    right: frozenset[int]
    place: str


@dataclass(frozen=True)
class BlankTask:
    """A sentence with a blank between `before` and `after`; right: 0 or 1, which of two choices it is."""

    before: str
    after: str
    choices: tuple[str, str]
    right: int
    place: str


def read_hellaswag(path: Path, n_tasks: int | None = None) -> list[ChoiceTask]:
    """Tasks of a file of HellaSwag in llama-perplexity's random order: all, or the first n_tasks of it."""
    lines = _text(path).rstrip("\n").split("\n")
    if len(lines) % _LINES or not any(lines):
        raise UsageError(f"{path}: wanted tasks of {_LINES} lines each; got {len(lines)} lines")
    count = len(lines) // _LINES
    return [_hellaswag_task(path, lines, index) for index in chosen_from_rest(count, n_tasks)]


def _hellaswag_task(path: Path, lines: Sequence[str], index: int) -> ChoiceTask:
    first = index * _LINES
    context, label, *endings = lines[first : first + _LINES]
    place = f"{path}: line {first + 1}"
    if not re.fullmatch(r"\s*[0-3]\s*", label):
        raise UsageError(
            f"{path}: line {first + 2}: wanted 0 to 3, the number of the right ending; got {label!r:.80}"
        )
    return ChoiceTask(context, tuple(endings), frozenset([int(label)]), place)


def read_winogrande(path: Path, n_tasks: int | None = None) -> list[BlankTask]:
    """Tasks of a file of WinoGrande: all in their order, or n_tasks, chosen as llama-perplexity does."""
    lines = enumerate(_text(path).split("\n"), start=1)
    tasks = [
        _winogrande_task(f"{path}: line {number}", line)
        for number, line in lines
        if line.strip()
        and not (number == 1 and line.rstrip().lower().endswith(",answer"))  # names of columns
    ]
    if not tasks:
        raise UsageError(f"{path}: wanted a line a task: number,sentence,choice,choice,1 or 2; got none")
    return [tasks[index] for index in chosen_evenly(len(tasks), n_tasks)]


def _winogrande_task(place: str, line: str) -> BlankTask:
    commas = list(_commas(line))
    if len(commas) < 4:
        raise UsageError(
            f"{place}: wanted number,sentence,choice,choice,answer; got {len(commas) + 1} columns: "
            f"{line!r:.80}"
        )
    ends = [*commas[:4], len(line)]
    _, sentence, first, second, answer = (
        line[begin + 1 : end] for begin, end in zip([-1, *ends], ends, strict=False)
    )
    if sentence.startswith('"'):
        sentence = sentence[1:-1]
    before, blank, after = sentence.partition("_")
    if not blank:
        raise UsageError(f"{place}: wanted a sentence with _, the blank; got {sentence!r:.80}")
    if answer.strip() not in ("1", "2"):
        raise UsageError(f"{place}: wanted 1 or 2, the number of the right choice; got {answer!r:.80}")
    return BlankTask(before, after, (first, second), int(answer) - 1, place)


def _commas(line: str) -> Iterator[int]:
    """Where the commas outside of quotes are."""
    quoted = False
    for at, letter in enumerate(line):
        quoted ^= letter == '"'
        if letter == "," and not quoted:
            yield at


def read_multiple_choice(path: Path, n_tasks: int | None = None) -> list[ChoiceTask]:
    """Tasks of a binary file: all in their order, or n_tasks, chosen as llama-perplexity does."""
    reader = _TaskReader(path, plain_bytes(path, UsageError, MOST_BYTES))
    count = reader.number("the count of tasks")
    if not 0 < count <= len(reader.data) // _COUNT.size:
        raise UsageError(
            f"{path}: wanted a count of tasks that are there; got {count} in {len(reader.data)} bytes"
        )
    places = [reader.number("a task's place") for _ in range(count)]
    if n_tasks is None or n_tasks >= count:
        return [reader.task(f"{path}: task {index + 1}") for index in range(count)]
    tasks = []
    for index in chosen_evenly(count, n_tasks):
        reader.at = places[index]
        tasks.append(reader.task(f"{path}: task {index + 1}"))
    return tasks


class _TaskReader:
    """Reads the binary form. n_read: bytes of texts so far, which many places of one task could multiply."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data = path, data
        self.at = self.n_read = 0

    def task(self, place: str) -> ChoiceTask:
        """The task at the place that it has come to."""
        question = self._text(f"{place}: the question")
        endings, labels = self._answers(place)
        self._answers(place)
        if not endings or not question or not all(endings):
            raise UsageError(f"{place}: wanted a question and its answers; got an empty one")
        right = frozenset(i for i, label in enumerate(labels) if label == 1)
        if not right:
            raise UsageError(f"{place}: wanted 1 as the label of the right answer; got {labels!r:.80}")
        return ChoiceTask(question, endings, right, place)

    def number(self, what: str) -> int:
        """The next one."""
        return int(_COUNT.unpack(self._bytes(_COUNT.size, what))[0])

    def _answers(self, place: str) -> tuple[tuple[str, ...], list[int]]:
        count = self.number(f"{place}: the count of answers")
        if count > MOST_ANSWERS:
            raise UsageError(f"{place}: wanted at most {MOST_ANSWERS} answers; got {count}")
        texts = tuple([self._text(f"{place}: answer {index + 1}") for index in range(count)])
        return texts, [self.number(f"{place}: a label") for _ in range(count)]

    def _text(self, what: str) -> str:
        data = self._bytes(self.number(f"{what}: its size"), what)
        self.n_read += len(data)
        if self.n_read > len(self.data):
            raise UsageError(f"{what}: tasks overlap: they have more text than the file")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{what}: wanted UTF-8; {error}") from None

    def _bytes(self, count: int, what: str) -> bytes:
        data = self.data[self.at : self.at + count]
        if len(data) < count:
            what = what if what.startswith(str(self.path)) else f"{self.path}: {what}"
            raise UsageError(f"{what}: wanted {count} bytes at {self.at}; the file has {len(self.data)}")
        self.at += count
        return data


def _text(path: Path) -> str:
    return plain_text(path, UsageError, MOST_BYTES)
