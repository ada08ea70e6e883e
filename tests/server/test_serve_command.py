"""`graphml serve` as a process: llama-server's command line, the ready line, and the end by SIGTERM."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

import graphml
from graphml.cli.serve import check_binding, load_options, server_options
from graphml.errors import UsageError
from graphml.server.observing.server_metrics import own_bytes, process_metrics
from graphml.server.options.command_line import ALONE, BY_NAME, WITH_VALUE, parsed
from graphml.server.options.key_limits import KeyLimits
from graphml.server.options.server_options import ServerOptions
from tests.looped import looped
from tests.mcp_server import by_stdio
from tests.server.running_server import running
from tests.stories import STORIES


def test_a_process_says_where_it_is_reads_keys_again_and_drains_at_its_end(tmp_path: Path) -> None:
    keys, header = tmp_path / "keys", {"X-Api-Key": "second"}
    keys.write_text("first\n")
    flags = f"-m {STORIES} --port 0 -c 512 -np 2 -t 1 --jinja -fa on --temp 0 -ngl 99".split()
    flags += ["--api-key-file", str(keys), "--mcp", str(by_stdio(tmp_path / "mcp.json"))]
    command = [sys.executable, "-c", "from graphml.cli.main import main; main()", "serve", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        while not (found := re.search(r"at (http://127.0.0.1:\d+)", line := process.stderr.readline())):
            assert line, lines
            lines.append(line)
        assert any("without a meaning here: --jinja -fa" in one for one in lines)
        assert re.search(r"2 slots of 256 tokens, room for 512 tokens, [0-9]+ MB of memory", line)
        slots = f"{found[1]}/slots"
        assert httpx2.get(slots, headers=header).status_code == 401
        keys.write_text("second admin=1\n")
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 10
        while httpx2.get(slots, headers=header).status_code == 401:
            assert time.monotonic() < end
        listed = httpx2.get(f"{found[1]}/mcp/tools", headers=header).json()["tools"]
        assert listed[0]["function"]["name"] == "own__double"
        answers: list[httpx2.Response] = []

        def ask() -> None:
            body = {"prompt": "Once upon a time", "n_predict": 200, "ignore_eos": True}
            answers.append(httpx2.post(f"{found[1]}/completion", json=body, headers=header, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        while not any(one["is_processing"] for one in httpx2.get(slots, headers=header).json()):
            if answers:
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        asking.join()
        assert answers[0].status_code == 200
        assert answers[0].json()["tokens_predicted"] == 200
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_short_name_of_a_model_is_an_alias(stories: graphml.Model) -> None:
    for words, short in (
        (["stories260k"], "stories260k"), (["-m", "stories260k"], "stories260k"),
        ([str(STORIES)], ""), (["-hf", "user/stories260k"], ""),
    ):  # fmt: skip
        assert server_options(parsed(words)).short_name == short
    with running(ServerOptions(n_ctx=64, short_name="stories260k"), stories) as server:
        listed = server.http.get("/v1/models").json()["data"][0]
        assert (listed["id"], listed["aliases"]) == (STORIES.name, [STORIES.name, "stories260k"])
        assert server.http.get("/v1/models/stories260k").json()["id"] == STORIES.name


def test_a_log_that_cannot_be_written_and_a_hangup_stop_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = f"-m {STORIES} --port {port} -c 256 -np 1 -t 1 --jinja --log-requests".split()
    command = [sys.executable, "-c", "from graphml.cli.main import main; main()", "serve", *flags]
    with Path("/dev/full").open("w") as full:  # every write to it says that the disk is full
        process = subprocess.Popen(command, stderr=full)
    address = f"http://127.0.0.1:{port}"
    try:
        while process.poll() is None:
            with contextlib.suppress(httpx2.TransportError):
                httpx2.get(f"{address}/health")
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
        for _ in range(2):
            answer = httpx2.post(f"{address}/completion", json={"prompt": "Once", "n_predict": 2}, timeout=60)
            assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def test_memory_that_the_system_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "Name:\tgraphml\nThreads:\t1\n")
    assert own_bytes() is None
    assert "process_anonymous_bytes" not in process_metrics(asleep=False)


FLAGS = (
    "--host=0.0.0.0 --api-key a,b -np 4 --ctx-size 4096 --n_predict 7 -ctk q8_0 -ctv f16 --alias one,two "
    "--lora x.gguf,y.gguf --temp 0.5 --top-k 3 -b 64 -ub 32 --chat-template llama3 --context-shift -ngl 99"
)


def test_flags_become_options() -> None:
    given = parsed(FLAGS.split())
    options, opening = server_options(given), load_options(given)
    assert options.hosts == ("0.0.0.0",)
    assert options.api_keys == ("a", "b")
    assert (options.parallel, options.n_ctx, options.n_predict) == (4, 1024, 7)
    assert [path.name for path, _ in options.loras] == ["x.gguf", "y.gguf"]
    assert (options.params.temperature, options.params.top_k, options.params.min_p) == (0.5, 3, 0.05)
    assert (opening.kv, opening.n_batch) == ("q8_0/f16", 32)
    assert "start_header_id" in str(opening.template)
    assert options.context_shift
    assert opening.gpu_layers is None  # the backend cpu has none


def test_flags_of_older_versions_are_accepted() -> None:
    given = parsed(["-m", "x", "--mlock", "--no-mmap", "--verbose-prompt", "--draft-max", "8", "-c", "64"])
    assert given.values == {"model": "x", "ctx": 64, "spec_draft_n_max": 8}
    assert given.ignored == ["--mlock", "--no-mmap", "--verbose-prompt"]


@looped(
    ("line", "said"),
    [("--prot 1", "--port"), ("--port", "wanted a value"), ("--port x", "a whole number"),
     ("--temp -1", "temperature")],
    ids=["unknown", "no value", "no number", "out of range"],
)  # fmt: skip
def test_wrong_flags_are_told(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        server_options(parsed(line.split()))


def test_others_need_a_key_or_leave() -> None:
    with pytest.raises(UsageError, match="--api-key"):
        check_binding(server_options(parsed(["--host", "0.0.0.0"])))
    check_binding(server_options(parsed(["--host", "0.0.0.0", "--allow-no-key"])))
    check_binding(server_options(parsed(["--host", "127.0.0.1,::1"])))


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n\nsecond weight=2 tokens=900\nfirst\n")
    options = server_options(parsed(["--api-key-file", str(path), "--host", "0.0.0.0"]))
    found = [(one.key, one.line, one.limits) for one in options.file_keys]
    assert found == [("first", 2, KeyLimits()), ("second", 4, KeyLimits(weight=2, tokens=900))]
    check_binding(options)
    path.write_text("# none\n")
    with pytest.raises(UsageError, match="no keys"):
        server_options(parsed(["--api-key-file", str(path)]))
    for wrong in ("weight=0", "weight", "tokens=x", "streams=0", "name=a", "tokens=1 tokens=2", "weight=nan"):
        path.write_text(f"# ours\nsecret {wrong}\n")
        with pytest.raises(UsageError, match="line 2") as error:
            server_options(parsed(["--api-key-file", str(path)]))
        assert "secret" not in str(error.value)


def test_no_flag_is_both_read_and_ignored() -> None:
    assert not (WITH_VALUE | ALONE) & BY_NAME.keys()
    assert not WITH_VALUE & ALONE


def test_a_second_signal_ends_what_still_runs() -> None:
    flags = f"-m {STORIES} --port 0 -c 256 -t 1 --no-ui --context-shift --shutdown-timeout 600".split()
    command = [sys.executable, "-c", "from graphml.cli.main import main; main()", "serve", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        (address,) = re.findall(r"at (http://127.0.0.1:\d+)", process.stderr.readline())
        body = {"prompt": "Once", "n_predict": -1, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{address}/completion", json=body, timeout=60) as response:
            chunks = response.iter_bytes()
            next(chunks)
            process.send_signal(signal.SIGTERM)
            while httpx2.get(f"{address}/health").status_code == 200:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            for _ in chunks:
                pass
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
