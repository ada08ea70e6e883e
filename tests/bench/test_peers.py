"""graphml beside its peers: one table, with a reason for each that was not measured. The peers are fakes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import graphml.peers
from benchmarks import peers
from graphml.bench.test_plan import SideParameters, Test
from graphml.errors import BackendError, UsageError
from tests.bench.results import ENVIRONMENT, FakeSide

SETTING = SideParameters("graphml", "m.gguf", "cpu", 2)
SHORT, DEEP = Test(8, 0), Test(8, 0, 64)
PROGRAM = f"""#!{sys.executable} -S
import json, sys
for line in sys.stdin:
    command = json.loads(line)
    answer = {{}}
    if "model" in command:
        answer = {{"engine_version": "fake 1", "level": "avx512"}}
        if command["model"] == "unknown.gguf":
            answer = {{"error": "cannot open the model", "kind": "UsageError"}}
    elif command["do"] == "prepare" and command["test"]["n_depth"]:
        answer = {{"error": "no depths", "kind": "UsageError"}}
    elif command["do"] == "run":
        answer = {{"ns": 4_000_000, "steps": []}}
    elif command["do"] == "usage":
        answer = {{"resident": 1}}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    """A program in place of a peer's Python: it takes 4 ms for everything and refuses depths."""
    path = tmp_path / "python"
    path.write_text(PROGRAM)
    path.chmod(0o755)
    return str(path)


class Fake(FakeSide):
    """A side that fails in tests with a depth, if it is to."""

    why = ""

    def __init__(self, name: str, log: list[str], ms: list[int], fails: bool = False) -> None:
        super().__init__(name, log, [one * 10**6 for one in ms])
        self.fails = fails

    def prepare(self, test: Test) -> Any:
        if self.fails and test.n_depth:
            self.why = "too deep"
            raise BackendError(self.why)
        return super().prepare(test)


def measured(*sides: Any, tests: tuple[Test, ...] = (SHORT,), rounds: int = 2) -> list[peers.Row]:
    return list(peers.rows(sides, tests, rounds))


def test_engines_take_turns_and_the_first_round_is_thrown_away() -> None:
    log: list[str] = []
    ours, slow, fast = (
        Fake("cpu", log, [90, 2, 4]),
        Fake("slow", log, [80, 4, 4]),
        Fake("fast", log, [70, 1, 2]),
    )
    found = measured(ours, slow, fast)
    assert log[3:] == ["cpu", "slow", "fast", "fast", "slow", "cpu", "cpu", "slow", "fast"]
    assert [one.engine for one in found] == ["graphml", "slow", "fast"]
    assert found[0].samples_ts == (4000, 2000)
    assert [one.samples_ratio for one in found] == [(), (2, 1), (0.5, 0.5)]
    assert found[1].figures()["median_ratio"] == 1.5
    assert found[1].figures()["max_ts"] == 2000


def test_a_peer_that_cannot_run_a_test_has_a_reason_and_the_others_are_measured() -> None:
    sides = Fake("cpu", [], [2]), Fake("shallow", [], [4], fails=True), Fake("deep", [], [6])
    found = measured(*sides, tests=(DEEP, SHORT))
    assert [(one.test, one.engine, one.why) for one in found] == [
        ("pp8 @ d64", "graphml", ""), ("pp8 @ d64", "deep", ""), ("pp8 @ d64", "shallow", "too deep"),
        ("pp8", "graphml", ""), ("pp8", "shallow", ""), ("pp8", "deep", ""),
    ]  # fmt: skip
    assert [one.samples_ratio for one in found] == [(), (3, 3), (), (), (2, 2), (3, 3)]


def test_a_failure_of_graphml_itself_is_an_error() -> None:
    with pytest.raises(BackendError, match="too deep"):
        measured(Fake("cpu", [], [2], fails=True), Fake("peer", [], [4]), tests=(DEEP,))


def test_a_peer_is_measured_in_a_process_of_its_own(python: str) -> None:
    with ExitStack() as stack:
        others, missing = peers.opened(SETTING, {"openvino": python}, stack)
        found = measured(Fake("cpu", [], [2]), *others, tests=(SHORT, DEEP))
    assert missing == []
    assert found[1] == peers.Row("pp8", "openvino", "", (2000, 2000), (2, 2), found[1].others_busy)
    assert found[3] == peers.Row("pp8 @ d64", "openvino", "no depths")


def test_a_peer_that_is_missing_or_cannot_open_the_model_is_a_row(python: str) -> None:
    unknown = SideParameters("graphml", "unknown.gguf", "cpu", 2)
    with ExitStack() as stack:
        others, missing = peers.opened(unknown, {"openvino": python, "llama.cpp": "/no/python"}, stack)
    assert others == []
    assert [(one.test, one.engine) for one in missing] == [("all", "openvino"), ("all", "llama.cpp")]
    assert missing[0].why == "cannot open the model"
    assert missing[1].why == "/no/python cannot be started: No such file or directory"


def test_peers_are_named_with_their_python() -> None:
    assert peers.peers([]) == dict.fromkeys(("llama.cpp", "openvino"), sys.executable)
    assert peers.peers(["openvino=/a=b/python"]) == {"openvino": "/a=b/python"}
    with pytest.raises(SystemExit, match=r"--peer: wanted one of llama\.cpp, openvino; got 'onnx'"):
        peers.peers(["onnx"])


def test_one_table_and_the_same_in_json(
    tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Opened(peers.Engine):
        def __new__(cls, setting: SideParameters, python: str = "") -> Any:
            return super().__new__(cls) if python else Ours("cpu", [], [2, 2, 1])

    class Ours(Fake):
        def __enter__(self) -> Ours:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    monkeypatch.setattr(peers, "Engine", Opened)
    monkeypatch.setattr(peers, "environment", lambda name: ENVIRONMENT)
    given = [str(model), "--peer", f"openvino={python}", "--peer", "llama.cpp=/no|python", "--rounds", "2"]
    given += ["--threads", "2", "--depth", "0", "--prompt", "8", "--tokens", "2"]
    peers.main(given)
    told = capsys.readouterr().out
    assert told.startswith("m.gguf (llama 1.1B Q4_0), 2 threads, keys f16, values f16; A ")
    assert "commit abc" in told
    assert "- openvino: fake 1 (avx512)" in told
    assert (
        "| pp8 | openvino | 2000.0 | 2000.0 to 2000.0 | 2000.0 to 2000.0 | "
        "3.00 | 2.50 to 3.50 | 2.00 to 4.00 |"
    ) in told
    assert "| tg2 sampled | graphml | 1" in told
    assert "| all | llama.cpp | not measured: /no/python cannot be started" in told
    peers.main([*given, "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert found["environment"]["build_commit"] == "abc"
    assert len(found["model_sha256"]) == 64
    assert found["engines"]["openvino"]["engine_version"] == "fake 1"
    assert [(one["test"], one["engine"], bool(one["why"])) for one in found["rows"]] == [
        ("pp8", "graphml", False), ("pp8", "openvino", False), ("tg2 sampled", "graphml", False),
        ("tg2 sampled", "openvino", False), ("all", "llama.cpp", True),
    ]  # fmt: skip
    assert found["rows"][1]["samples_ratio"] == [2, 4]


# the program that measures OpenVINO GenAI, with a module in place of it


class Pipeline:
    """Takes 1 ms to the first token, 0.1 ms to each further one, of which sampling is a tenth."""

    log: list[Any] = []  # noqa: RUF012
    short = 0

    def __init__(self, model: str, device: str, scheduler_config: Any, **properties: Any) -> None:
        if model == "unknown.gguf":
            raise RuntimeError("Check failed:\nunsupported architecture\n")
        self.log.append((vars(scheduler_config), properties))

    def get_tokenizer(self) -> Any:
        return SimpleNamespace(get_vocab=lambda: dict.fromkeys(range(50)))

    def generate(self, ids: Any, config: Any) -> Any:
        count = config.max_new_tokens - self.short
        self.log.append((ids[0].tolist(), config.max_new_tokens))
        raw = SimpleNamespace(
            m_times_to_first_token=[1000.0],
            m_durations=[100.0] * (count - 1),
            sampling_durations=[100.0] + [10.0] * (count - 1),
        )
        metrics = SimpleNamespace(raw_metrics=raw)
        return SimpleNamespace(perf_metrics=metrics, tokens=[[1] * count])


@pytest.fixture
def openvino(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `measure_openvino`."""
    api, core = ModuleType("openvino_genai"), ModuleType("openvino")
    vars(api).update(
        LLMPipeline=Pipeline,
        SchedulerConfig=SimpleNamespace,
        GenerationConfig=SimpleNamespace,
        __version__="1",
    )
    vars(core).update(
        Tensor=np.asarray,
        __version__="2",
        Core=lambda: SimpleNamespace(get_property=lambda *_: ["FP32", "INT8"]),
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", api)
    monkeypatch.setitem(sys.modules, "openvino", core)
    monkeypatch.setattr(Pipeline, "log", [])
    monkeypatch.syspath_prepend(str(Path(graphml.peers.__file__).parent))
    yield importlib.import_module("measure_openvino")
    for name in ("measure_openvino", "peer_talk"):
        sys.modules.pop(name, None)


def setting(**other: Any) -> dict[str, Any]:
    return {
        "model": "m.gguf",
        "threads": 3,
        "n_batch": 512,
        "quant": "",
        "type_k": "f16",
        "type_v": "f32",
    } | other


def asked(
    n_prompt: int, n_gen: int, n_depth: int = 0, n_parallel: int = 1, sampled: bool = True
) -> dict[str, Any]:
    return asdict(Test(n_prompt, n_gen, n_depth, n_parallel, sampled))


def test_openvino_has_the_same_lengths_threads_and_types(openvino: Any) -> None:
    peer = openvino.OpenVinoPeer(setting())
    assert peer.describe()["engine_version"] == "openvino-genai 1, openvino 2"
    peer.prepare(asked(8, 0, 64))
    runs = [peer.run() for _ in range(2)]
    scheduler, properties = Pipeline.log[1]
    assert properties == {
        "INFERENCE_NUM_THREADS": 3, "KEY_CACHE_PRECISION": "f16", "VALUE_CACHE_PRECISION": "f32",
    }  # fmt: skip
    assert scheduler["enable_prefix_caching"]
    assert scheduler["max_num_batched_tokens"] == 512
    assert scheduler["num_kv_blocks"] * openvino.BLOCK >= 2 * (8 + 64 + 1)
    (filled, _), (first, n_first), (second, n_second) = Pipeline.log[2:]
    assert len(filled) == 64
    assert first[:64] == second[:64] == filled
    assert len(first) == len(second) == 72
    assert first[64:] != second[64:]  # else the cache would have the prompt of the run before
    assert n_first == n_second == 1
    assert [one["ns"] for one in runs] == [900_000 + 100_000] * 2


def test_of_generated_tokens_the_first_is_not_timed(openvino: Any) -> None:
    peer = openvino.OpenVinoPeer(setting())
    peer.prepare(asked(0, 4, 70))
    assert peer.run() == {"ns": 400_000, "steps": []}
    assert (len(Pipeline.log[-1][0]), Pipeline.log[-1][1]) == (70, 5)
    peer.prepare(asked(0, 4, sampled=False))
    assert peer.run() == {"ns": 360_000, "steps": [90_000] * 4}
    assert len(Pipeline.log[-1][0]) == 1
    peer.prepare(asked(8, 4, sampled=False))
    assert peer.run()["ns"] == 900_000 + 360_000


def test_what_openvino_cannot_measure_is_refused(openvino: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = openvino.OpenVinoPeer(setting())
    refused = openvino.RefusedError
    with pytest.raises(refused, match="wanted a multiple of 32 before a prompt; got 70"):
        peer.prepare(asked(8, 0, 70))
    with pytest.raises(refused, match="with one sequence; got 2"):
        peer.prepare(asked(8, 0, n_parallel=2))
    with pytest.raises(refused, match="no logits"):
        peer.logits([1, 2], 1)
    with pytest.raises(refused, match="type_k: wanted one of f32, f16, bf16; got q8_0"):
        openvino.OpenVinoPeer(setting(type_k="q8_0"))
    with pytest.raises(refused, match=r"unknown\.gguf: OpenVINO cannot open it: RuntimeError: unsupported"):
        openvino.OpenVinoPeer(setting(model="unknown.gguf"))
    peer.prepare(asked(0, 4))
    monkeypatch.setattr(Pipeline, "short", 1)
    with pytest.raises(refused, match="wanted times of 5 tokens; got"):
        peer.run()
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with pytest.raises(refused, match="openvino-genai is not installed"):
        openvino.OpenVinoPeer(setting())


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--peer: wanted one of llama\.cpp, openvino; got 'onnx'"):
        peers.Engine(SideParameters("onnx", "m.gguf", "cpu", 1))
