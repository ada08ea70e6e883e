"""Batch jobs: a result for each line exactly once, whatever ends them; files of other jobs are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import graphml
from graphml.batch_jobs import BatchDefaults, BatchJob, BatchSettings, BatchSummary
from graphml.batch_jobs.results import ResultFile
from graphml.errors import BackendError, UsageError
from graphml.server.local_server import LocalServer
from graphml.server.options.server_options import ServerOptions
from tests.stories import STORIES

COMPLETIONS = "/v1/completions"
SHORT = BatchSettings(parallel=4, n_ctx=64, defaults=BatchDefaults(max_tokens=4, sampling={"temperature": 0}))


@pytest.fixture(scope="module")
def stories() -> Iterator[graphml.Model]:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=64) as model:
        yield model


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def requests(folder: Path, *rows: Any, name: str = "in.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def texts(count: int) -> list[dict[str, Any]]:
    return [{"custom_id": f"n{i}", "prompt": f"Once upon a time {i}"} for i in range(count)]


def run(model: graphml.Model, path: Path, settings: BatchSettings = SHORT) -> BatchSummary:
    return BatchJob(model, path, path.with_name("out.jsonl"), settings).run()


def test_each_kind_of_line_is_answered_as_a_server_does(stories: graphml.Model, tmp_path: Path) -> None:
    path = requests(
        tmp_path,
        {"custom_id": "a", "method": "POST", "url": COMPLETIONS, "body": {"prompt": "Once", "max_tokens": 3}},
        {"custom_id": "b", "url": "/v1/embeddings", "body": {"input": "Once"}},
        {"prompt": "Once upon", "seed": 3},
        json.dumps("There was"),
        {"input": ["Once", "upon"]},
    )
    summary = run(stories, path)
    results = {result["custom_id"]: result for result in lines_of(summary.output)}
    assert set(results) == {"a", "b", "line-3", "line-4", "line-5"}
    assert {result["response"]["status_code"] for result in results.values()} == {200}
    wanted = stories.generate("Once", max_tokens=3, temperature=0)
    assert results["a"]["response"]["body"]["choices"][0]["text"].strip() == str(wanted).strip()
    assert results["line-3"]["response"]["body"]["usage"]["completion_tokens"] == 4
    assert len(results["line-5"]["response"]["body"]["data"]) == 2
    progress = summary.progress
    assert (progress.total, progress.done, progress.failed, summary.errors) == (5, 5, 0, None)
    assert not path.with_name("out.errors.jsonl").exists()
    assert progress.generated_tokens == 3 + 4 + 4


def test_lines_of_a_text_and_rows_of_tables_are_prompts(stories: graphml.Model, tmp_path: Path) -> None:
    text = requests(tmp_path, "Once upon", "", "There was", name="in.txt")
    names = {result["custom_id"] for result in lines_of(run(stories, text).output)}
    assert names == {"line-1", "line-3"}  # they come as they are done
    (tmp_path / "table").mkdir()
    table = pa.table({"prompt": ["Once", "upon"], "custom_id": ["x", "y"]})
    pq.write_table(table, tmp_path / "table" / "part-0.parquet")
    with pa.ipc.new_stream(tmp_path / "table" / "part-1.arrow", table.schema) as writer:
        writer.write_table(pa.table({"prompt": ["a"], "custom_id": ["z"]}))
    summary = BatchJob(stories, tmp_path / "table", tmp_path / "t.jsonl", SHORT).run()
    assert {result["custom_id"] for result in lines_of(summary.output)} == {"x", "y", "z"}


BAD: Mapping[str, tuple[Any, str]] = {
    "no JSON": ("nonsense {", "no JSON"),
    "a number": (5, "wanted an object or a text"),
    "an unknown row": ({"question": "?"}, "wanted url and body, or one of messages, prompt"),
    "no name": ({"url": COMPLETIONS, "body": {}}, "custom_id: wanted a name"),
    "an odd name": ({"custom_id": [], "prompt": "a"}, "custom_id: wanted a text"),
    "another endpoint": ({"custom_id": "a", "url": "/v1/audio", "body": {}}, "url: wanted /v1/chat"),
    "another method": ({"custom_id": "a", "method": "GET", "url": COMPLETIONS, "body": {}}, "wanted POST"),
    "a body of text": ({"custom_id": "a", "url": COMPLETIONS, "body": "x"}, "body: wanted an object"),
    "a stream": ({"custom_id": "a", "url": COMPLETIONS, "body": {"prompt": "a", "stream": True}}, "one line"),
    "a further key": ({"custom_id": "a", "url": COMPLETIONS, "body": {}, "model": "x"}, "got 'model' too"),
    "what the server refuses": ({"prompt": "a", "temperature": "hot"}, "temperature"),
}


def test_lines_that_fail_are_in_a_file_of_their_own_with_the_reason(
    stories: graphml.Model, tmp_path: Path
) -> None:
    path = requests(tmp_path, *(row for row, _ in BAD.values()), {"prompt": "Once"})
    summary = run(stories, path)
    assert summary.errors is not None
    assert len(lines_of(summary.output)) == 1
    failed = {result["line"]: result["error"]["message"] for result in lines_of(summary.errors)}
    for number, (name, (_, wanted)) in enumerate(BAD.items(), 1):
        assert wanted in failed[number], name
    again = run(stories, path)
    assert (again.progress.kept, again.progress.done) == (len(BAD) + 1, len(BAD) + 1)
    retried = run(stories, path, BatchSettings(**{**vars(SHORT), "retry": True}))
    assert (retried.progress.kept, retried.progress.failed) == (1, len(BAD))


def test_what_has_a_result_is_not_asked_again(
    stories: graphml.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = requests(tmp_path, *texts(6))
    output = run(stories, path).output
    whole = output.read_bytes()
    kept = whole.splitlines(keepends=True)[:3]
    output.write_bytes(b"".join(kept) + whole.splitlines()[3][:50])  # killed while it wrote a line
    asked: list[Any] = []
    answer = LocalServer.answer

    async def counted(self: LocalServer, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        asked.append(body["prompt"])
        return await answer(self, path, body)

    monkeypatch.setattr(LocalServer, "answer", counted)
    summary = run(stories, path)
    assert len(asked) == 3
    assert summary.progress.kept == 3
    assert sorted(result["custom_id"] for result in lines_of(output)) == [f"n{i}" for i in range(6)]
    run(stories, path)
    assert len(asked) == 3


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
def test_a_killed_job_goes_on_without_losing_or_repeating_a_line(tmp_path: Path) -> None:
    path, output = requests(tmp_path, *texts(40)), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "graphml", "batch", str(STORIES), str(path), "-o", str(output),
               "-np", "2", "-n", "40", "--temp", "0", "-c", "96", "-t", "1", "--in-order"]  # fmt: skip
    kills = 0
    for more in (2, 9):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and (not output.exists() or output.read_bytes().count(b"\n") < more):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    before = output.read_bytes().count(b"\n")
    assert kills == 2
    assert 9 <= before < 40
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["kept"] >= before - 1  # a line that was half written is asked again
    assert [result["custom_id"] for result in lines_of(output)] == [f"n{i}" for i in range(40)]


def test_results_are_sorted_at_the_end_where_that_is_wanted(stories: graphml.Model, tmp_path: Path) -> None:
    rows = [{**row, "max_tokens": 20 - 2 * i} for i, row in enumerate(texts(8))]
    path = requests(tmp_path, *rows)
    summary = run(stories, path, BatchSettings(**{**vars(SHORT), "in_order": True}))
    assert [result["custom_id"] for result in lines_of(summary.output)] == [f"n{i}" for i in range(8)]


def test_files_of_other_jobs_are_refused_and_left_as_they_are(stories: graphml.Model, tmp_path: Path) -> None:
    path = requests(tmp_path, *texts(2))
    output = run(stories, path).output
    before = output.read_bytes()
    with pytest.raises(UsageError, match=r"out\.jsonl: line 1 is a result of another job"):
        run(stories, requests(tmp_path, {"prompt": "another"}))
    with pytest.raises(UsageError, match="other settings"):
        run(stories, requests(tmp_path, *texts(2)), BatchSettings(parallel=4, n_ctx=64))
    assert output.read_bytes() == before
    output.write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="line 1: wanted results of `graphml batch`"):
        run(stories, path)
    assert output.read_text() == '{"a": 1}\n'
    with pytest.raises(UsageError, match="another file than that of the requests"):
        BatchJob(stories, path, path, SHORT)
    with pytest.raises(UsageError, match="custom_id 'n0' is that of line 1"):
        run(stories, requests(tmp_path, *texts(1), *texts(1)))
    with pytest.raises(UsageError, match="the file has none"):
        run(stories, requests(tmp_path, ""))
    with pytest.raises(UsageError, match=r"wanted one of /v1/chat/completions"):
        BatchJob(stories, path, output, BatchSettings(url="/v1/audio"))


@pytest.mark.skipif(os.name != "posix", reason="files are not locked on Windows")
def test_two_jobs_do_not_write_one_file(tmp_path: Path) -> None:
    with ResultFile(tmp_path / "out.jsonl"), pytest.raises(UsageError, match="another job writes this file"):
        ResultFile(tmp_path / "out.jsonl")


def test_a_full_disk_keeps_whole_lines_and_says_how_to_go_on(
    stories: graphml.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = requests(tmp_path, *texts(4))
    add, count = ResultFile.add, 0

    class Full:
        """Takes half of a line, then nothing."""

        def __init__(self, file: Any) -> None:
            self._file, self._written = file, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, data: memoryview) -> int:
            if self._written:
                raise OSError(28, "No space left on device")
            self._written = True
            written: int = self._file.write(data[: len(data) // 2])
            return written

    def third(self: ResultFile, result: Mapping[str, Any]) -> None:
        nonlocal count
        count += 1
        if count == 3:
            self._file = Full(self._file)  # type: ignore[assignment]
        add(self, result)

    monkeypatch.setattr(ResultFile, "add", third)
    with pytest.raises(UsageError, match="No space left on device; 2 results are kept, and the same command"):
        run(stories, path)
    assert len(lines_of(tmp_path / "out.jsonl")) == 2
    monkeypatch.setattr(ResultFile, "add", add)
    assert run(stories, path).progress.kept == 2


def test_a_server_that_is_busy_is_asked_again(
    stories: graphml.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, refused = LocalServer.answer, [429, 503, 429]

    async def busy(self: LocalServer, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if refused:
            return refused.pop(), {"error": {"message": "too many requests"}}
        return await answer(self, path, body)

    monkeypatch.setattr(LocalServer, "answer", busy)
    progress = run(stories, requests(tmp_path, *texts(3))).progress
    assert (progress.done, progress.failed, refused) == (3, 0, [])


def test_an_engine_that_ends_ends_the_job_with_its_results(
    stories: graphml.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, answer, count = requests(tmp_path, *texts(6)), LocalServer.answer, 0

    async def ending(self: LocalServer, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        nonlocal count
        count += 1
        if count == 3:
            monkeypatch.setattr(LocalServer, "is_dead", True)
            return 503, {"error": {"message": "the engine has ended"}}
        return await answer(self, path, body)

    monkeypatch.setattr(LocalServer, "answer", ending)
    with pytest.raises(BackendError, match="the engine has ended; the same command goes on"):
        run(stories, path)
    assert not (tmp_path / "out.errors.jsonl").exists()
    monkeypatch.undo()
    assert run(stories, path).progress.done == 6


def test_the_command_says_what_came(tmp_path: Path) -> None:
    path, output = requests(tmp_path, "Once upon", 7), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "graphml", "batch", str(STORIES), str(path), "-o", str(output),
               "-n", "3", "-c", "64"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "2 lines; " in done.stderr
    assert "2 lines failed: " in done.stderr  # a text without quotes is no JSON
    assert done.stderr.count("\n") == 2
    again = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, check=False)
    assert (again.returncode, json.loads(again.stdout)["failed"]) == (1, 2)
    for flags, wanted in (
        (["--body", "[]"], "--body: wanted an object"),
        (["--url", "/v1/audio"], "url: wanted one of"),
        (["-o", str(tmp_path / "none" / "out.jsonl")], "none"),
    ):
        refused = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120, check=False)
        assert refused.returncode == 2, refused.stderr
        assert wanted in refused.stderr


def test_answers_name_the_model_as_requests_do(stories: graphml.Model, tmp_path: Path) -> None:
    path = requests(tmp_path, {"prompt": "Once", "model": "mine"}, {"prompt": "Once", "model": "another"})
    job = BatchJob(stories, path, tmp_path / "out.jsonl", SHORT, ServerOptions(short_name="mine"))
    names = {
        result["custom_id"]: result["response"]["body"]["model"] for result in lines_of(job.run().output)
    }
    assert names == {"line-1": "mine", "line-2": stories.path.name}
