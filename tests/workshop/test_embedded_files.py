"""`graphml embed -f FILE -o OUT`: each text's row exactly once and in order, whatever ends it."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import graphml
from graphml.errors import UsageError
from graphml.system import row_files
from graphml.workshop import embedded_files
from graphml.workshop.embedded_files import HEADER, EmbedSettings, EmbedSummary, embed_file
from tests.api.test_embedding import TEXTS, write
from tests.cli.test_commands import graphml_command

OPENING = {"backend": "reference", "kv": "f32", "n_batch": 24}
FORMS = (".txt", ".jsonl", ".csv", ".parquet")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[graphml.Model]:
    path = write(tmp_path_factory.mktemp("bert") / "bert.gguf", pooling_type=1)
    with graphml.load(path, **OPENING) as model:
        yield model


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three texts are written together, and two rows of a table are in memory."""
    monkeypatch.setattr(embedded_files, "MOST_TEXTS", 3)
    monkeypatch.setattr("graphml.workshop.embedding_writers._TOGETHER", 2)
    monkeypatch.setattr(row_files, "TOGETHER", 4)


def texts(folder: Path, ending: str = ".txt", column: str = "text", **more: Any) -> Path:
    """A file of the texts; more: values of further columns."""
    path = folder / f"texts{ending}"
    rows = [{column: text, "number": i, **more} for i, text in enumerate(TEXTS)]
    if ending == ".txt":
        path.write_text("".join(f"{text}\n" for text in TEXTS))
    elif ending == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    elif ending == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def whole(model: graphml.Model, **settings: Any) -> Any:
    return model.embed(TEXTS, **settings)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("ending", FORMS)
def test_each_kind_of_file_becomes_rows_in_its_order(
    ending: str, model: graphml.Model, tmp_path: Path, few: None
) -> None:
    path, output = texts(tmp_path, ending), tmp_path / "rows.npy"
    seen: list[tuple[int, int]] = []
    summary = embed_file(model, path, output, report=lambda done, total: seen.append((done, total)))
    rows = np.load(output, mmap_mode="r")
    assert (rows.dtype, rows.shape) == (np.float32, (len(TEXTS), 64))
    np.testing.assert_allclose(rows, whole(model), atol=1e-6)
    assert (summary.rows, summary.width, summary.kept) == (len(TEXTS), 64, 0)
    assert summary.tokens == sum(len(model.encode(text)) for text in TEXTS)
    assert (seen[0], seen[-1]) == ((0, len(TEXTS)), (len(TEXTS), len(TEXTS)))
    assert seen == sorted(seen)
    assert names(tmp_path) == {path.name, "rows.npy"}


@pytest.mark.parametrize("ending", FORMS)
@pytest.mark.parametrize("written", [".parquet", ".jsonl"])
def test_an_output_has_the_columns_of_the_texts(
    ending: str, written: str, model: graphml.Model, tmp_path: Path, few: None
) -> None:
    output = tmp_path / f"rows{written}"
    embed_file(model, texts(tmp_path, ending), output)
    if written == ".parquet":
        table = pq.read_table(output)
        rows = table.to_pylist()
        assert table.schema.field("embedding").type == pa.list_(pa.float32(), 64)
    else:
        rows = [json.loads(line) for line in output.read_text().splitlines()]
    np.testing.assert_allclose([row.pop("embedding") for row in rows], whole(model), atol=1e-6)
    numbers = {".txt": {}, ".csv": {"number": "2"}}.get(ending, {"number": 2})
    assert [row["text"] for row in rows] == TEXTS
    assert rows[2] == {"text": TEXTS[2], **numbers}


def test_letters_that_utf_8_does_not_have_stay_in_json_lines(model: graphml.Model, tmp_path: Path) -> None:
    path, line = tmp_path / "texts.jsonl", '{"text": "a \\ud800 cat", "k\\udfff": 1}'
    path.write_text(line + "\n")
    embed_file(model, path, tmp_path / "rows.jsonl")
    row = json.loads((tmp_path / "rows.jsonl").read_text(encoding="utf-8"))
    del row["embedding"]
    assert row == json.loads(line)


def test_settings_are_those_of_embed(model: graphml.Model, tmp_path: Path) -> None:
    path, output = texts(tmp_path, ".jsonl", "body"), tmp_path / "rows.npy"
    settings = EmbedSettings("cls", -1, None, "the ", 16, "body")
    embed_file(model, path, output, settings)
    wanted = whole(model, pooling="cls", normalize=False, prompt="the ", dimensions=16)
    np.testing.assert_allclose(np.load(output), wanted, atol=1e-6)


def test_an_empty_line_of_a_text_is_a_text(model: graphml.Model, tmp_path: Path) -> None:
    path, output = tmp_path / "texts.txt", tmp_path / "rows.npy"
    path.write_bytes(b"a cat\r\n\n  \na dog")
    embed_file(model, path, output)
    np.testing.assert_allclose(np.load(output), model.embed(["a cat", "", "  ", "a dog"]), atol=1e-6)


class EndedError(Exception):
    """Ends a job in the middle."""


def interrupted(model: graphml.Model, path: Path, output: Path, after: int, **settings: Any) -> None:
    """A job that ends when so many rows are written, and one more is computed."""

    def report(done: int, total: int) -> None:
        if done > after:
            raise EndedError

    with pytest.raises(EndedError):
        embed_file(model, path, output, EmbedSettings(**settings), report)


def continued(model: graphml.Model, path: Path, output: Path, **settings: Any) -> EmbedSummary:
    """Go on, and compare with all rows at once."""
    summary = embed_file(model, path, output, EmbedSettings(**settings))
    np.testing.assert_allclose(np.load(output), whole(model), atol=1e-6)
    assert not output.with_name("rows.npy.partial").exists()
    return summary


def test_a_job_goes_on_behind_its_last_whole_row(model: graphml.Model, tmp_path: Path, few: None) -> None:
    path, output = texts(tmp_path), tmp_path / "rows.npy"
    partial = tmp_path / "rows.npy.partial"
    output.write_bytes(b"what was there before")
    for cut, kept in ((0, 6), (1, 5), (4 * 64, 5), (4 * 64 * 6, 0), (4 * 64 * 6 + 10, 0)):
        interrupted(model, path, output, 6)
        assert output.read_bytes() == b"what was there before"
        assert partial.stat().st_size == HEADER + 6 * 4 * 64
        os.truncate(partial, partial.stat().st_size - cut)
        summary = continued(model, path, output)
        assert summary.kept == kept
        assert summary.tokens == sum(len(model.encode(text)) for text in TEXTS[kept:])
        output.write_bytes(b"what was there before")


KILLED = """
import os, signal, sys
from pathlib import Path
import graphml
from graphml.workshop import embedded_files
embedded_files.MOST_TEXTS = 3
def report(done, total):
    if done > int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
with graphml.load(sys.argv[1], "reference", kv="f32", n_batch=24) as model:
    embedded_files.embed_file(model, Path(sys.argv[2]), Path(sys.argv[3]), report=report)
"""


def test_a_killed_process_loses_and_repeats_no_row(model: graphml.Model, tmp_path: Path, few: None) -> None:
    path, output = texts(tmp_path), tmp_path / "rows.npy"
    for after in (3, 9):
        words = [sys.executable, "-c", KILLED, str(model.path), str(path), str(output), str(after)]
        assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
        assert not output.exists()
    assert continued(model, path, output).kept == 9


def test_the_partial_file_of_another_job_is_refused(model: graphml.Model, tmp_path: Path, few: None) -> None:
    path, output = texts(tmp_path), tmp_path / "rows.npy"
    partial = tmp_path / "rows.npy.partial"
    interrupted(model, path, output, 6)
    before = partial.read_bytes()
    for changed in ({"dimensions": 8}, {"norm": 1}, {"prompt": "the "}, {"pooling": "cls"}):
        with pytest.raises(UsageError, match=r"rows\.npy\.partial: was left by another job"):
            embed_file(model, path, output, EmbedSettings(**changed))  # type: ignore[arg-type]
    partial.write_bytes(before + bytes(4 * 64 * 5))  # more rows than texts
    with pytest.raises(UsageError, match="was left by another job"):
        embed_file(model, path, output)
    partial.write_bytes(before)
    path.write_text(path.read_text().replace("cat", "dog", 1))
    with pytest.raises(UsageError, match="was left by another job"):
        embed_file(model, path, output)
    assert partial.read_bytes() == before
    for foreign in (b"notes", b"x" * 5000, b"{}".ljust(HEADER) + b"x" * 99):
        partial.write_bytes(foreign)
        with pytest.raises(UsageError, match="was left by another job"):
            embed_file(model, path, output)
        assert partial.read_bytes() == foreign
    assert not output.exists()


def test_another_model_s_rows_are_not_mixed_in(model: graphml.Model, tmp_path: Path, few: None) -> None:
    path, output = texts(tmp_path), tmp_path / "rows.npy"
    interrupted(model, path, output, 6)
    other = {**OPENING, "override_kv": {"bert.attention.layer_norm_epsilon": 1e-3}}
    with (
        graphml.load(model.path, **other) as changed,
        pytest.raises(UsageError, match="was left by another job"),
    ):
        embed_file(changed, path, output)


def test_one_process_writes_an_output_at_a_time(model: graphml.Model, tmp_path: Path, few: None) -> None:
    path, output = texts(tmp_path), tmp_path / "rows.npy"

    def report(done: int, total: int) -> None:
        with pytest.raises(UsageError, match=r"rows\.npy\.partial: another job writes this file"):
            embed_file(model, path, output)

    embed_file(model, path, output, report=report)
    np.testing.assert_allclose(np.load(output), whole(model), atol=1e-6)


def test_a_full_disk_loses_no_row(model: graphml.Model, tmp_path: Path, few: None) -> None:
    path, output = texts(tmp_path), tmp_path / "rows.npy"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER + 4 * 64 * 4, limits[1]))
        with pytest.raises(UsageError, match=r"3 rows are kept, and the same command goes on"):
            embed_file(model, path, output)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        with pytest.raises(UsageError, match="rows are kept"):
            embed_file(model, path, tmp_path / "other.npy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == {"texts.txt", "rows.npy.partial"}
    assert continued(model, path, output).kept == 3


def test_a_disk_that_is_full_at_the_end_keeps_all_rows(
    model: graphml.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, output = texts(tmp_path), tmp_path / "rows.npy"

    def full(*rest: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("graphml.workshop.embedding_writers._write_npy", full)
        with pytest.raises(UsageError, match="No space left on device; all rows are kept"):
            embed_file(model, path, output)
    assert names(tmp_path) == {"texts.txt", "rows.npy.partial"}
    summary = continued(model, path, output)
    assert (summary.kept, summary.tokens) == (len(TEXTS), 0)


def test_a_file_that_changes_meanwhile_is_no_result(model: graphml.Model, tmp_path: Path, few: None) -> None:
    path, output = texts(tmp_path), tmp_path / "rows.npy"

    def report(done: int, total: int) -> None:
        path.write_text(path.read_text().replace("mat", "hat"))

    with pytest.raises(UsageError, match="was changed while it was read"):
        embed_file(model, path, output, report=report)
    assert not output.exists()


WRONG: list[tuple[str, bytes, str]] = [
    (".txt", b"a\n\xff\xfe\n", r"texts\.txt: line 2: no UTF-8"),
    (".txt", b"", r"texts\.txt: wanted texts; the file has none"),
    (".jsonl", b'"a"\n{"text": "b"}\n{"text": 3}\n', r"texts\.jsonl: line 3: text: wanted a text; got 3"),
    (".jsonl", b'{"text": "b"}\n\n{"txt": "c"}\n', r"line 3: column: wanted one of txt; got 'text'"),
    (".jsonl", b'{"text": "b"}\n[1]\n', r"line 2: wanted an object or a text; got \[1\]"),
    (".jsonl", b'{"text": "b"}\n{"text"\n', r"line 2: no JSON"),
    (".csv", b"text,n\na,1\nb\n", r"texts\.csv: line 3: wanted 2 fields; got 1"),
    (".csv", b'text\n"a\nb"\n"c', r"line \d: no CSV"),
    (".csv", b"text,text\na,b\n", "line 1: wanted names of columns, each once"),
    (".csv", b"body\na\n", "line 2: column: wanted one of body; got 'text'"),
    (".csv", b"text\na\n\xff\n", "no UTF-8"),
    (".parquet", b"nothing of the kind", "no table that pyarrow reads"),
    (".md", b"a", r"wanted a file that ends in \.txt"),
]


@pytest.mark.parametrize(("ending", "data", "said"), WRONG)
def test_a_line_that_is_no_text_is_named(
    ending: str, data: bytes, said: str, model: graphml.Model, tmp_path: Path
) -> None:
    path = tmp_path / f"texts{ending}"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=said):
        embed_file(model, path, tmp_path / "rows.npy")
    assert names(tmp_path) == {path.name}


@pytest.mark.parametrize(("output", "said"), [
    ("rows.bin", r"wanted a name that ends in \.npy, \.parquet, \.jsonl"),
    ("no/rows.npy", "no is no folder"), ("texts.jsonl", "wanted another file than that of the texts"),
    ("rows.parquet", "line 1: has 'embedding', the column that rows.parquet gets"),
    ("rows.jsonl", "line 1: has 'embedding', the column that rows.jsonl gets"),
])  # fmt: skip
def test_outputs_that_cannot_be_are_refused_at_once(
    output: str, said: str, model: graphml.Model, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        embed_file(model, texts(tmp_path, ".jsonl", embedding=1), tmp_path / output)
    assert names(tmp_path) == {"texts.jsonl"}


def test_columns_of_a_table_stay_as_they_are(model: graphml.Model, tmp_path: Path, few: None) -> None:
    """Times, bytes and categories; JSON has no form of the first two."""
    path = tmp_path / "texts.parquet"
    times = pa.array(range(len(TEXTS)), pa.timestamp("ns"))
    kinds = pa.array(["a", "b"] * (len(TEXTS) // 2)).dictionary_encode()
    raw = pa.array([bytes([i]) for i in range(len(TEXTS))])
    table = pa.table({"text": TEXTS, "time": times, "kind": kinds, "raw": raw})
    pq.write_table(table, path, row_group_size=3)
    embed_file(model, path, tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet").drop_columns("embedding").equals(pq.read_table(path))
    np.testing.assert_allclose(
        pq.read_table(tmp_path / "rows.parquet")["embedding"].to_pylist(), whole(model), atol=1e-6
    )
    with pytest.raises(UsageError, match=r"texts\.parquet: row 1: .*not JSON serializable: wanted \.npy or"):
        embed_file(model, path, tmp_path / "rows.jsonl")


def test_columns_of_several_kinds_are_no_table(model: graphml.Model, tmp_path: Path, few: None) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a", "n": 1}\n{"text": "b", "n": {"x": 1}}\n{"text": "b", "m": 1.5}\n')
    with pytest.raises(UsageError, match=r"no columns of a table, wanted \.npy or \.jsonl"):
        embed_file(model, path, tmp_path / "rows.parquet")
    embed_file(model, path, tmp_path / "rows.jsonl")
    path.write_text('{"text": "a", "n": 1}\n{"text": "b", "m": null}\n{"text": "b", "n": 1.5}\n')
    embed_file(model, path, tmp_path / "rows.parquet")
    assert pq.read_table(tmp_path / "rows.parquet")["n"].to_pylist() == [1.0, None, 1.5]


def test_a_long_text_is_refused_by_its_line_and_cut_where_that_is_asked_for(
    model: graphml.Model, tmp_path: Path, few: None
) -> None:
    path, output = tmp_path / "texts.txt", tmp_path / "rows.npy"
    path.write_text("".join(f"{text}\n" for text in [*TEXTS[:4], "a cat sat " * 10, TEXTS[4]]))
    said = r"texts\.txt: line 5: wanted at most 24 tokens of a text; got 32; truncate cuts it"
    with pytest.raises(UsageError, match=said):
        embed_file(model, path, output)
    summary = embed_file(model, path, output, EmbedSettings(truncate=True))
    assert (summary.kept, summary.truncated) == (3, 1)
    ids = model.encode("a cat sat " * 10)
    (wanted,) = model.embed_ids([[*ids[:23], ids[-1]]], "mean")
    rows = np.load(output)
    np.testing.assert_allclose(rows[4], wanted[0] / np.linalg.norm(wanted[0]), atol=1e-6)
    np.testing.assert_allclose(rows[[0, 1, 2, 3, 5]], model.embed(TEXTS[:5]), atol=1e-6)


def test_the_command_embeds_a_file(model: graphml.Model, tmp_path: Path) -> None:
    path, output = texts(tmp_path, ".csv"), tmp_path / "rows.npy"
    options = [model.path, "-f", path, "-o", output, "-b", 24, "--backend", "reference", "--kv", "f32"]
    done = graphml_command("embed", *options, "--dimensions", 16, "--prompt", "the ", "--json")
    np.testing.assert_allclose(np.load(output), whole(model, prompt="the ", dimensions=16), atol=1e-6)
    said = json.loads(done.stdout)
    assert (said["output"], said["rows"], said["width"], said["kept"]) == (str(output), len(TEXTS), 16, 0)
    before = output.read_bytes()
    assert (
        f"--output: {output} is there already; --force" in graphml_command("embed", *options, code=2).stderr
    )
    assert output.read_bytes() == before
    failed = graphml_command("embed", *options[:4], tmp_path / "rows.bin", code=2).stderr
    assert failed.startswith("graphml: --output: wanted a name that ends in .npy")
    done = graphml_command("embed", *options, "--force")
    assert done.stdout == ""
    assert f"{output}: {len(TEXTS)} rows of 64 numbers; " in done.stderr
