"""Control vectors of pairs of texts, beside those of llama.cpp's cvector-generator, and what is refused.

`python -m tests.workshop.test_control_directions GENERATOR` writes the record with llama.cpp's, 0.5.0. Its
PCA is wrong where a batch has many iterations: eigenvectors are shifted by 8 places. With batches of 2
they are right, so these are recorded.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner, Result

import graphml
from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.workshop import control_directions
from graphml.workshop.control_directions import Differences, lines_of
from tests.stories import STORIES

RECORD = Path(__file__).parents[1] / "data" / "control_vectors.npz"
METHODS = {"mean": ["--method", "mean"], "pca": ["--pca-iter", "400", "--pca-batch", "2"]}
POSITIVE = "\n".join((
    "Once upon a time a happy girl played in the sun.\\nShe was glad",
    "Tom was so happy. He smiled and laughed with his friend",
    "The dog was kind and good",
    "Lily had a lot of fun. It was a \\x62ig and nice day",
))  # fmt: skip
NEGATIVE = "\n".join((
    "Once upon a time a sad girl cried in the dark.\\nShe was hurt",
    "Tom was so sad. He cried",
    "The dog was angry and bad at all times",
    "Lily had no fun. It was a big and bad day",
))  # fmt: skip


def cvector(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["cvector", *map(str, arguments)])


def files(path: Path, positive: str = POSITIVE, negative: str = NEGATIVE) -> list[str]:
    """The options that name both files of texts."""
    (path / "positive.txt").write_text(positive)
    (path / "negative.txt").write_text(negative)
    return ["--positive-file", str(path / "positive.txt"), "--negative-file", str(path / "negative.txt")]


def read(path: Path) -> dict[str, Any]:
    return {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def pairs() -> list[tuple[str, str]]:
    return list(zip(lines_of(POSITIVE, "p"), lines_of(NEGATIVE, "n"), strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_directions_are_those_of_llama_cpp(method: str, tmp_path: Path) -> None:
    output = tmp_path / "control.gguf"
    done = cvector(STORIES, *files(tmp_path), *METHODS[method], "-o", output, "--kv", "f32")
    assert done.exit_code == 0, done.output
    fields = gguf.GGUFReader(output).fields
    assert fields["general.architecture"].contents() == "controlvector"
    assert fields["controlvector.model_hint"].contents() == "llama"
    assert fields["controlvector.layer_count"].contents() == 4
    assert fields["controlvector.layer_count"].types == [gguf.GGUFValueType.INT32]
    came = read(output)
    assert list(came) == [f"direction.{layer}" for layer in range(1, 5)]
    with np.load(RECORD) as record:
        for name, direction in came.items():
            wanted = record[f"{method}.{name}"].astype(np.float64)
            assert abs(np.linalg.norm(direction) - 1) < 1e-5
            cosine = direction @ wanted / np.linalg.norm(wanted)
            if method == "mean":
                assert np.linalg.norm(direction - wanted) < 1e-2
                assert cosine >= 0.999
            else:  # its sign follows from a random start
                assert abs(cosine) >= 0.99


def test_a_component_is_the_first_and_points_to_the_positive_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Any] = []
    add = Differences.add
    monkeypatch.setattr(Differences, "add", lambda self, rows: (added.append(rows), add(self, rows)))
    with graphml.load(STORIES, kv="f32") as model:
        directions = control_directions.control_directions(model, pairs())
        others = control_directions.control_directions(model, [(n, p) for p, n in pairs()])
        monkeypatch.setattr(control_directions, "PIECE_BYTES", 0)  # 16 tokens at a time
        in_pieces = control_directions.control_directions(model, pairs())
    whole = added[: 4 * len(pairs())]
    for layer, direction in directions.items():
        rows = np.concatenate(whole[layer - 1 :: 4]).astype(np.float64)
        rows = rows[(rows > 1e-6).any(1)]
        first = np.linalg.svd(rows)[2][0]
        first *= np.sign(first @ rows.sum(0))
        assert first @ direction > 1 - 1e-6
        assert direction @ others[layer] < -0.999
        assert direction @ in_pieces[layer] > 1 - 1e-6


def test_more_rows_than_numbers_are_kept_as_products() -> None:
    numbers = np.random.default_rng(0)
    rows = [numbers.standard_normal((5, 8)).astype(np.float32) * np.arange(1, 9) for _ in range(7)]
    differences = Differences(True, np.zeros(8))
    for each in rows:
        differences.add(each)
    assert sum(map(len, differences.rows)) < 9
    first = np.linalg.svd(np.concatenate(rows).astype(np.float64))[2][0]
    assert abs(first @ differences.component(2000)) > 1 - 1e-9


def test_rows_without_a_difference_do_not_count() -> None:
    differences = Differences(False, np.zeros(2))
    differences.add(np.array([[0, 0], [1e-7, -3], [0, 2], [1, 0]], np.float32))
    assert differences.n_rows == 2
    np.testing.assert_allclose(differences.mean(), np.array([1, 2]) / 5**0.5)


def test_the_shorter_text_is_filled_with_spaces_and_control_tokens_are_read() -> None:
    with graphml.load(STORIES) as model:
        bos, space = model.encode("")[0], model.encode(" ", add_special=False)[-1]
        longer, shorter = control_directions._filled(model, 1, "<s>a dog and a cat", "a dog")
        own = model.encode("a dog")
    assert longer.count(bos) == 2
    assert shorter == own + [space] * (len(longer) - len(own))


def test_a_run_with_the_file_says_something_else(tmp_path: Path) -> None:
    output = tmp_path / "control.gguf"
    assert cvector(STORIES, *files(tmp_path), "-o", output).exit_code == 0
    answers = [
        CliRunner()
        .invoke(app, ["run", str(STORIES), "-p", "One day", "-n", "20", "--temp", "0", *more])
        .stdout
        for more in ([], ["--control-vector", f"{output}:3"], ["--control-vector", f"{output}:-3"])
    ]
    assert len(set(answers)) == 3


def test_a_line_has_escapes_as_in_llama_cpp() -> None:
    assert lines_of("a\\nb\\t\\'\\\"\\\\n\\x41\\q\\xg\r\nc\\\n\n", "f") == ["a\nb\t'\"\\nA\\q\\xg", "c\\"]
    with pytest.raises(UsageError, match=r"f: line 1: wanted UTF-8 where"):
        lines_of("\\xff", "f")


@pytest.mark.parametrize(
    ("positive", "negative", "more", "wanted"),
    [("a\nb\n", "a\n", (), "wanted 2 texts, one for each of"),
     ("a\n\nb", "a\nb\nc", (), "positive.txt: line 2: wanted a text; it is empty"),
     ("a\nb", "a\n \nc", (), "negative.txt: line 2: wanted a text; it is empty"),
     ("", "a", (), "positive.txt: wanted a text a line; the file is empty"),
     ("a", "b", (), "cvector: pca: wanted at least 2 pairs; got 1: the mean is of one, too"),
     ("a\nb", "b\nb", (), "cvector: pair 2: both texts are the same"),
     ("a\nb ", "b\nb", (), "cvector: pair 2: the texts differ in spaces at their ends alone"),
     ("a\n" + "b" * 600, "b\na", (), "cvector: pair 2: wanted at most 512 tokens, the context; got"),
     ("a\nb", "b\na", ("--method", "mean"), "the differences cancel out: it has no mean direction"),
     ("a\nb", "b\nc", ("--pca-iter", "0"), "--pca-iter"),
     ("a\nb", "b\nc", ("--method", "sum"), "--method")],
)  # fmt: skip
def test_mistakes(positive: str, negative: str, more: tuple[str, ...], wanted: str, tmp_path: Path) -> None:
    output = tmp_path / "control.gguf"
    done = cvector(STORIES, *files(tmp_path, positive, negative), *more, "-o", output)
    assert done.exit_code == 2, done.output
    assert wanted in done.output
    assert not output.exists()


def test_a_pair_is_enough_for_a_mean(tmp_path: Path) -> None:
    output = tmp_path / "control.gguf"
    words = files(tmp_path, "happy", "sad")
    assert cvector(STORIES, *words, "--method", "mean", "-o", output).exit_code == 0
    done = cvector(STORIES, *words, "--method", "mean", "-o", output)
    assert "is there already; --force overwrites it" in done.output
    assert cvector(STORIES, *words, "--method", "mean", "-o", output, "--force").exit_code == 0
    text = Path(words[1]).rename(output)
    done = cvector(STORIES, words[0], text, *words[2:], "--method", "mean", "-o", output, "--force")
    assert (done.exit_code, text.read_text()) == (2, "happy")
    assert "is read by this command" in done.output


if __name__ == "__main__":
    recorded: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        model, output = Path(folder) / "model.gguf", Path(folder) / "control.gguf"
        CliRunner().invoke(app, ["convert", str(STORIES), "-o", str(model)])
        for method, words in METHODS.items():
            command = [sys.argv[1], "-m", model, *files(Path(folder)), *words, "-o", output]
            command += ["-ctk", "f32", "-ctv", "f32"]
            subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
            recorded |= {f"{method}.{name}": array for name, array in read(output).items()}
    np.savez_compressed(RECORD, **recorded)
