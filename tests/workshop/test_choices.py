"""Tasks with choices, and strides, beside what llama-perplexity (0.5.0) printed of the same model and files.

`tests/data/choices` has the files and its figures, with keys and values in float32.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import graphml
from graphml.errors import UsageError
from graphml.workshop.choice_scores import Accuracy, TaskScore, blank_scores, choice_scores
from graphml.workshop.strided import strided, strided_chunk
from graphml.workshop.task_choice import chosen_evenly, chosen_from_rest
from graphml.workshop.task_files import (
    BlankTask,
    ChoiceTask,
    read_hellaswag,
    read_multiple_choice,
    read_winogrande,
)
from tests import tiny_model
from tests.cli.test_commands import graphml_command

DATA = Path(__file__).parents[1] / "data" / "choices"
HELLASWAG, WINOGRANDE = DATA / "hellaswag.txt", DATA / "winogrande.csv"
MULTIPLE = DATA / "multiple_choice.bin"
PRINTED = json.loads((DATA / "llama_perplexity.json").read_text())
NUMBERS = "".join(f"{i} hello world " for i in range(400))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_ctx=2048)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[graphml.Model]:
    with graphml.load(path, kv="f32") as opened:
        yield opened


def shares(model: graphml.Model, tasks: list[ChoiceTask]) -> tuple[Accuracy, list[float]]:
    """Percents right after each task."""
    accuracy, after = Accuracy(), []
    for score in choice_scores(model, tasks):
        accuracy.add(score)
        after.append(100 * accuracy.share)
    return accuracy, after


def test_hellaswag_is_scored_as_llama_perplexity_scores_it(model: graphml.Model) -> None:
    accuracy, after = shares(model, read_hellaswag(HELLASWAG))
    assert after == pytest.approx(PRINTED["hellaswag"])
    assert [100 * end for end in accuracy.interval] == pytest.approx(PRINTED["interval"], abs=1e-4)
    assert shares(model, read_hellaswag(HELLASWAG, 8))[1] == pytest.approx(PRINTED["hellaswag 8"])
    assert shares(model, read_hellaswag(HELLASWAG, 11))[1] == pytest.approx(PRINTED["hellaswag"][:11])


@pytest.mark.parametrize(("name", "n_tasks"), [("winogrande", None), ("winogrande 7", 7)])
def test_each_sentence_of_winogrande_has_its_scores(
    model: graphml.Model, name: str, n_tasks: int | None
) -> None:
    found = list(blank_scores(model, read_winogrande(WINOGRANDE, n_tasks)))
    assert len(found) == len(PRINTED[name])
    for score, (first, second, chosen) in zip(found, PRINTED[name], strict=True):
        assert score.scores == pytest.approx((first, second), abs=1e-4)
        assert score.chosen == chosen - 1


def test_multiple_choice_is_scored_as_llama_perplexity_scores_it(model: graphml.Model) -> None:
    accuracy, after = shares(model, read_multiple_choice(MULTIPLE))
    assert after == pytest.approx(PRINTED["multiple choice"])
    percents = [100 * value for value in (accuracy.share, accuracy.error, accuracy.by_chance)]
    assert percents == pytest.approx(PRINTED["final"], abs=1e-4)
    assert shares(model, read_multiple_choice(MULTIPLE, 5))[1] == pytest.approx(PRINTED["multiple choice 5"])


def test_strides_have_the_perplexities_of_llama_perplexity(model: graphml.Model) -> None:
    found = list(strided(model, model.encode(NUMBERS), 200, 100, 9))
    assert [estimate.value for estimate in found] == pytest.approx(PRINTED["strided"], rel=1e-5)
    assert (found[-1].n_ctx, found[-1].count) == (256, 900)
    assert [strided_chunk(*sizes) for sizes in ((128, 32), (300, 40), (512, 0), (512, 256))] == [
        256, 512, 512, 768,
    ]  # fmt: skip


def test_chosen_tasks_are_those_of_the_mersenne_twister() -> None:
    assert sorted(chosen_from_rest(100, None)) == list(range(100))
    # 1791095845, the first number of std::mt19937(1), is 0.417 of 2^32.
    assert chosen_from_rest(1000, 1) == chosen_evenly(1000, 1) == [417]
    assert len(set(chosen_evenly(1000, 999))) == 999
    assert chosen_evenly(5, 5) == chosen_evenly(5, None) == [0, 1, 2, 3, 4]


def test_an_ending_that_others_begin_with_counts_with_its_last_token(model: graphml.Model) -> None:
    task = ChoiceTask("hello", ("world", "world world"), frozenset([1]), "here")
    short, long = (model.encode(f"hello {ending}") for ending in task.endings)
    (score,) = choice_scores(model, [task])
    rows = model.logits(long)
    begin = len(short) - 1
    logs = rows - np.log(np.exp(rows.astype(np.float64)).sum(axis=1, keepdims=True))
    expected = [logs[i - 1, long[i]] for i in range(begin, len(long))]
    assert score.scores == pytest.approx((expected[0], np.mean(expected)), abs=1e-4)


def test_intervals_and_errors_of_one_task() -> None:
    accuracy = Accuracy()
    accuracy.add(TaskScore((-1.0, -2.0), 0, True))
    assert (accuracy.share, accuracy.error, accuracy.by_chance) == (1.0, 0.0, 0.5)
    assert accuracy.interval == pytest.approx((0.206549, 1.0), abs=1e-5)


def test_csv_has_quotes_a_head_and_empty_lines(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_bytes(b'n,sentence,option1,option2,answer\r\n\r\n7,"A, who _ ""b"", _.",x y,z,2 \r\n')
    assert read_winogrande(file) == [
        BlankTask("A, who ", ' ""b"", _.', ("x y", "z"), 1, f"{file}: line 3"),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line a task: number,sentence,choice,choice,1 or 2; got none"),
        (
            "0,a _ b,c,d,1\n1,a _ b,c,d\n",
            "line 2: wanted number,sentence,choice,choice,answer; got 4 columns",
        ),
        ('0,"a _ b,c,d,1\n', "line 1: .* got 2 columns"),
        ("0,a b,c,d,1\n", "line 1: wanted a sentence with _, the blank; got 'a b'"),
        ("0,a _ b,c,d,3\n", "line 1: wanted 1 or 2, the number of the right choice; got '3'"),
    ],
)
def test_lines_of_winogrande_that_are_no_tasks_are_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "w.csv"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"w.csv: (wanted a )?{says}"):
        read_winogrande(file)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "wanted tasks of 6 lines each; got 1 lines"),
        ("a\n0\nb\nc\nd\n", "wanted tasks of 6 lines each; got 5 lines"),
        ("a\n0\nb\nc\nd\ne\n" * 2 + "a\n4\nb\nc\nd\ne\n", "line 14: wanted 0 to 3, .* got '4'"),
        ("a\n0\nb\nc\nd\ne\n" + "0\na\nb\nc\nd\ne\n", "line 8: wanted 0 to 3, .* got 'a'"),
    ],
)
def test_lines_of_hellaswag_that_are_no_tasks_are_named(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "h.txt"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"h.txt: {says}"):
        read_hellaswag(file)


def word(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def answers(*texts: bytes, labels: tuple[int, ...] = ()) -> bytes:
    labels = labels or (1, *[0] * (len(texts) - 1))
    return (
        struct.pack("<I", len(texts)) + b"".join(map(word, texts)) + struct.pack(f"<{len(labels)}i", *labels)
    )


GOOD = word(b"q") + answers(b"a", b"b") + struct.pack("<I", 0)
LONG = word(b"q" * 60) + answers(b"a", b"b") + struct.pack("<I", 0)


@pytest.mark.parametrize(
    ("data", "n_tasks", "says"),
    [
        (b"", None, "the count of tasks: wanted 4 bytes at 0; the file has 0"),
        (struct.pack("<I", 0), None, "wanted a count of tasks that are there; got 0"),
        (struct.pack("<I", 2**32 - 1) + bytes(40), None, "wanted a count of tasks .* got 4294967295"),
        (struct.pack("<II", 1, 8) + GOOD[:-1], None, "task 1: the count of answers: wanted 4 bytes"),
        (struct.pack("<II", 1, 8) + struct.pack("<I", 2**32 - 1) + b"q", None, "question: wanted 4294"),
        (struct.pack("<II", 1, 8) + word(b"q") + struct.pack("<I", 101), None, "at most 100 answers"),
        (struct.pack("<II", 1, 8) + word(b"") + GOOD[5:], None, "task 1: wanted a question and its answers"),
        (struct.pack("<II", 1, 8) + word(b"\xff") + GOOD[5:], None, "task 1: the question: wanted UTF-8"),
        (
            struct.pack("<II", 1, 8) + word(b"q") + answers(b"a", b"b", labels=(0, 2)) + bytes(4), None,
            r"task 1: wanted 1 as the label of the right answer; got \[0, 2\]",
        ),
        (struct.pack("<III", 2, 2**31, 2**31) + GOOD + GOOD, 1, "wanted 4 bytes at 2147483648"),
        (struct.pack("<III", 2, 12, 12) + GOOD + GOOD, None, None),
        (struct.pack("<5I", 4, *[20] * 4) + LONG, 3, "tasks overlap"),
    ],
)  # fmt: skip
def test_binary_files_are_read_within_their_bounds(
    tmp_path: Path, data: bytes, n_tasks: int | None, says: str | None
) -> None:
    file = tmp_path / "m.bin"
    file.write_bytes(data)
    if says is None:
        assert [task.endings for task in read_multiple_choice(file, n_tasks)] == [("a", "b")] * 2
        return
    with pytest.raises(UsageError, match=f"m.bin: .*{says}"):
        read_multiple_choice(file, n_tasks)


def test_tasks_that_the_model_cannot_read_are_named(model: graphml.Model) -> None:
    apart = ChoiceTask("", ("a", "b"), frozenset([0]), "h.txt: line 7")
    same = BlankTask("", "", ("hello", "hello"), 0, "w.csv: line 3")
    long = ChoiceTask("x" * 3000, ("a", "b"), frozenset([0]), "h.txt: line 13")
    with pytest.raises(UsageError, match=r"h.txt: line 13: wanted less than 2047 tokens"):
        list(choice_scores(model, [long]))
    with pytest.raises(UsageError, match=r"w.csv: line 3: wanted sentences that go on behind the blank"):
        list(blank_scores(model, [same]))
    with pytest.raises(UsageError, match=r"h.txt: line 7: wanted endings"):
        list(choice_scores(model, [ChoiceTask("", ("", "b"), apart.right, apart.place)]))


def test_strides_that_have_no_chunks_are_refused(model: graphml.Model) -> None:
    ids = model.encode(NUMBERS)
    for n_ctx, stride, says in (
        (128, 256, "stride: wanted 1 to 255"), (128, 0, "stride: wanted 1 to 255"),
        (2048, 2, "wanted at least 4608 tokens, two chunks of 2304"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=says):
            list(strided(model, ids, n_ctx, stride))
    with pytest.raises(
        UsageError, match="n_ctx: wanted chunks below the model's context of 2048 tokens; got 2048"
    ):
        list(strided(model, ids * 10, 2000, 2))


def test_the_command_prints_accuracies(path: Path, tmp_path: Path) -> None:
    options = [path, "--kv", "f32", "--json"]
    found = json.loads(
        graphml_command("perplexity", *options, "--winogrande", WINOGRANDE, "--tasks", 7).stdout
    )
    assert (found["kind"], found["tasks"], found["right"]) == ("WinoGrande", 7, 5)
    assert [score["place"].split(" ")[-1] for score in found["scores"][:2]] == ["14", "31"]
    for score, (first, second, _) in zip(found["scores"], PRINTED["winogrande 7"], strict=True):
        assert score["scores"] == pytest.approx([first, second], abs=1e-4)
    done = graphml_command("perplexity", path, "--hellaswag", HELLASWAG)
    assert done.stdout == "21.4286\n"
    assert "HellaSwag: 3 of 14 tasks" in done.stderr
    done = graphml_command("perplexity", path, "--multiple-choice", MULTIPLE, "--multiple-choice-tasks", -1)
    assert done.stdout == "33.3333\n"
    # As llama-perplexity is called.
    done = graphml_command("perplexity", "-m", path, "--multiple-choice", "-bf", MULTIPLE)
    assert done.stdout == "33.3333\n"
    text = tmp_path / "text.txt"
    text.write_text(NUMBERS)
    found = json.loads(
        graphml_command(
            "perplexity", *options, "-f", text, "-c", 200, "--ppl-stride", 100, "--chunks", 9
        ).stdout
    )
    assert found["perplexity"] == pytest.approx(PRINTED["strided"][-1], rel=1e-4)
    assert (found["stride"], found["n_ctx"], found["scored"]) == (100, 256, 900)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--hellaswag", "no.txt"], "no.txt: cannot be read"),
        (["--hellaswag", "-f"], "--hellaswag FILE; got '-f'"),
        (["--hellaswag", HELLASWAG, "-f", "x"], "--hellaswag: wanted tasks or a text; got 'x', too"),
        (
            ["--hellaswag", HELLASWAG, "--winogrande", "x"],
            "wanted one kind of score; got --hellaswag and --winogrande",
        ),
        (["--ppl-stride", 2, "--kl-divergence-base", "x"], "got --ppl-stride and --kl-divergence-base"),
        (["--hellaswag", HELLASWAG, "--tasks", 0], "--tasks: wanted at least 1, or -1 for all; got 0"),
        (["--hellaswag", HELLASWAG, "--chunks", 5], "--chunks: wanted --tasks N beside --hellaswag"),
        (["-f", __file__, "--tasks", 5], "--tasks: wanted --hellaswag, --winogrande, --multiple-choice FILE"),
        (["-f", "/dev/null"], "graphml: --file /dev/null: "),
        (
            ["-f", HELLASWAG, "--ppl-stride", 500, "-c", 9000],
            f"graphml: --file {HELLASWAG}: wanted at least ",
        ),
    ],
)
def test_options_of_several_scores_are_refused(path: Path, options: list[object], says: str) -> None:
    done = graphml_command("perplexity", path, *options, code=2)
    assert says in " ".join(done.stderr.split())
