"""A model in stages on the nodes of a Ray cluster: the bits of one machine, each stage with its own part."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.cluster import stage_backend
from graphml.cluster.ray_engines import ray
from graphml.cluster.stage import Stage, _half
from graphml.cluster.stage_backend import StageDevice
from graphml.errors import BackendError, StatesLostError, UsageError
from graphml.runtime.plans.step_plan import StepPlan
from tests.cluster.ray_nodes import RayNodes, free_port
from tests.sample_models import MODELS, write_model
from tests.stories import STORIES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are found in /proc")
PROMPTS = [f"{name} had a little dog" for name in ("Lily", "Tom", "Anna", "Ben")]
PLACE = "ray.a:layers.0-1,ray.b:layers.2-4"


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(Path("/tmp") / f"graphml-stages-{os.getpid()}", 3)
    yield nodes
    nodes.close()


@pytest.fixture(autouse=True)
def address(nodes: RayNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)


def in_stages(path: Path, place: str, kv: str = "f16", **more: Any) -> graphml.Model:
    return graphml.load(path, "ray.a,ray.b", threads=1, place=place, n_batch=64, kv=kv, **more)


def alone(path: Path, kv: str = "f16", **more: Any) -> graphml.Model:
    return graphml.load(path, "cpu", threads=1, n_batch=64, kv=kv, **more)


def stage(model: graphml.Model, name: str) -> StageDevice:
    device = model.executor.device.devices[name]  # type: ignore[attr-defined]
    assert isinstance(device, StageDevice)
    return device


@pytest.mark.parametrize("kv", ["f16", "bf16"])
def test_stages_compute_the_bits_of_one_machine(kv: str) -> None:
    with alone(STORIES, kv) as model:
        ids = model.prompt_ids("Once upon a time there was a girl")
        wanted, answers = model.logits(ids), model.generate(PROMPTS, max_tokens=30, temperature=0)
        with model.session() as session:
            text = "".join(session.generate("Once upon", max_tokens=20, temperature=0))
    with in_stages(STORIES, PLACE, kv) as model:
        assert stage(model, "ray.a").node.id != stage(model, "ray.b").node.id
        assert (model.logits(ids) == wanted).all()
        same = model.generate(PROMPTS, max_tokens=30, temperature=0)
        assert [result.ids for result in same] == [result.ids for result in answers]
        with model.session() as session:
            assert "".join(session.generate("Once upon", max_tokens=20, temperature=0)) == text
        held = [{name for name, _ in stage(model, name)._sent} for name in ("ray.a", "ray.b")]
    assert not ray.is_initialized()
    assert [{name[:6] for name in names if name.startswith("blk.")} for names in held] == [
        {"blk.0.", "blk.1."}, {"blk.2.", "blk.3.", "blk.4."},
    ]  # fmt: skip


KINDS_OF_REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2},
    {"temperature": 0.9, "top_k": 20, "seed": 1, "logprobs": 2},
    {"temperature": 0.7, "seed": 2, "n": 3},
    {"temperature": 0, "prompt_logprobs": 1},
    {"temperature": 1.0, "seed": 3, "regex": "[a-z ]+"},
    {"temperature": 0, "guidance_scale": 1.5, "negative_prompt": "A cat"},
    {"temperature": 0, "spec_type": "ngram"},
    {"temperature": 0, "capture": ("layers.1.*norm", "layers.4.*norm")},
    {"temperature": 0, "logit_bias": {5: 2.0}, "priority": 1},
    {"temperature": 0.5, "seed": 4},
    {"temperature": 0, "max_tokens": 1},
]
"""Eleven, an odd number."""


def answers_of(
    model: graphml.Model,
    requests: list[dict[str, Any]],
    seen: Callable[[int], None] = lambda n_under_way: None,
) -> tuple[list[Any], int]:
    """What each says, to the bit, and the most plans under way; seen: called with their number at each."""
    most = 0
    with model.engine(max_sequences=7, n_ctx=256) as engine:
        loop = engine._loop
        submit = loop._submit

        def counted(plan: StepPlan) -> None:
            nonlocal most
            submit(plan)
            most = max(most, len(loop._under_way))
            seen(len(loop._under_way))

        loop._submit = counted  # type: ignore[method-assign]
        handles = []
        for i, request in enumerate(requests):
            prompt = f"Once upon a time {PROMPTS[i % 4]} and a cat. " * (1 + 2 * (i % 3))
            handles.append(engine.submit(prompt, **{"max_tokens": 24, **request}))
            if i % 3 == 0:
                engine.submit(prompt + "The", max_tokens=60, temperature=0).cancel()
        answers = []
        for handle, request in zip(handles, requests, strict=True):
            results = [handle.result()] if request.get("n", 1) == 1 else handle.results()
            answers += [
                (result.ids, result.logprobs, result.prompt_logprobs, captured_bits(result.captured))
                for result in results
            ]
    return answers, most


def captured_bits(captured: Any) -> list[bytes]:
    return [np.asarray(captured[name]).tobytes() for name in sorted(captured)] if captured else []


@pytest.mark.parametrize("seed", [0, 1])
def test_several_plans_under_way_have_the_bits_of_one_process(seed: int) -> None:
    """Eleven requests of all kinds beside cancelled ones, prompts in several chunks, seven at a time."""
    requests = random.Random(seed).sample(KINDS_OF_REQUESTS, len(KINDS_OF_REQUESTS))
    with alone(STORIES, deterministic=True) as model:
        wanted, most = answers_of(model, requests)
        assert most == 0
    with in_stages(STORIES, PLACE, deterministic=True) as model:
        answers, most = answers_of(model, requests)
        assert most == 2
    assert answers == wanted


def test_stages_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of stages that take 20 ms for a row: sixteen steps of four rows, or of twice two that overlap."""

    class Slow(Stage):  # of this function, so that its code goes to the nodes
        def run(self, number: int, dims: Mapping[str, int], *more: Any) -> Any:
            time.sleep(0.02 * dims["T"])
            return super().run(number, dims, *more)

    monkeypatch.setattr(stage_backend, "Stage", Slow)
    seconds = []
    with in_stages(STORIES, PLACE) as model:
        for n_plans in (1, 2):
            with model.engine(max_sequences=4, n_ctx=64, prefix_cache=False) as engine:
                engine._loop.n_plans = n_plans
                begin_s = time.monotonic()
                handles = [engine.submit([i + 3], max_tokens=16, temperature=0) for i in range(4)]
                assert all(len(handle.result().ids) == 16 for handle in handles)
                seconds.append(time.monotonic() - begin_s)
    assert seconds[0] > 16 * 2 * 4 * 0.02
    assert seconds[1] < 0.8 * seconds[0], seconds


def with_free(monkeypatch: pytest.MonkeyPatch, **free: int) -> None:
    """Have the nodes of stages by name say that so many bytes are free."""
    started = StageDevice._start

    def limited(device: StageDevice) -> None:
        started(device)
        device.free_bytes = free[device.name.removeprefix("ray.")]

    monkeypatch.setattr(StageDevice, "_start", limited)


def test_a_step_sends_no_more_of_block_tables_than_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, sent = StageDevice.begin, list[int]()

    def counted(device: StageDevice, method: str, *arguments: Any, **more: Any) -> Any:
        if method == "run":
            sent.append(sum(values.nbytes for values in arguments[2].values()))
        return begin(device, method, *arguments, **more)

    monkeypatch.setattr(StageDevice, "begin", counted)
    with in_stages(STORIES, PLACE) as model, model.engine(max_sequences=4, n_ctx=128) as engine:
        assert engine.submit(PROMPTS[0], max_tokens=8).result().ids
    assert max(sent) > 1 << 16  # once for each program
    assert max(sent[-8:]) < 4096


def test_rows_travel_as_halves_unless_they_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHML_RAY_ROWS", "f16")
    with alone(STORIES) as model:
        ids = model.encode(PROMPTS[0])
        wanted = model.session().eval(ids)
    with in_stages(STORIES, PLACE) as model:
        logits = model.session().eval(ids)
    assert not np.array_equal(logits, wanted)
    assert ((logits - wanted) ** 2).sum() < 1e-5 * (wanted**2).sum()
    large = np.array([1.5, 70000.0], np.float32)
    assert _half(large) is large
    assert _half(large[:1]).dtype == np.float16


def test_without_rules_stages_divide_the_layers_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes, the second with twice as much room; three plans are under way."""
    with alone(STORIES, deterministic=True) as model:
        wanted, answers = model.logits([1, 2, 3]), answers_of(model, KINDS_OF_REQUESTS)[0]
        room = sum(tensor.n_bytes for tensor in model.executor.file.tensors.values())
    with_free(monkeypatch, a=room, b=2 * room, c=room)
    three = "ray.a,ray.b,ray.c"
    with graphml.load(STORIES, three, threads=1, n_batch=64, deterministic=True) as model:
        assert len({stage(model, name).node.id for name in three.split(",")}) == 3
        assert model.executor.options.place == "ray.a:layers.0-0,ray.b:layers.1-3,ray.c:layers.4-4"
        assert (model.logits([1, 2, 3]) == wanted).all()
        assert answers_of(model, KINDS_OF_REQUESTS) == (answers, 3)
    assert not ray.is_initialized()


def test_what_does_not_fit_is_refused_with_what_each_node_had(monkeypatch: pytest.MonkeyPatch) -> None:
    with_free(monkeypatch, a=200_000, b=123_456)
    had = r"5 layers .*; got ray\.a 200,000 on node .*, ray\.b 123,456 on node "
    with pytest.raises(UsageError, match=r"backend: wanted room for [\d,]+ bytes of weights, " + had):
        in_stages(STORIES, "")
    assert not ray.is_initialized()
    with_free(monkeypatch, a=10_000_000, b=123_456)
    with in_stages(STORIES, PLACE) as model:
        refused = r"ray\.b: node .*: wanted room for [\d,]+ bytes of weights; got 123,456 free"
        with pytest.raises(UsageError, match=refused):
            model.logits([1, 2, 3])
        first, second = stage(model, "ray.a"), stage(model, "ray.b")
        first.node = second.node  # then both have half of what is free there
        assert (first.memory_bytes, second.memory_bytes) == (5_000_000, 61_728)


@pytest.mark.parametrize("name", ["mamba-plain", "mamba2-groups"])
def test_recurrent_states_are_kept_on_their_stages(name: str, tmp_path: Path) -> None:
    """An engine goes back to copies of states where prompts begin alike."""
    path = write_model(tmp_path / "model.gguf", *MODELS[name])
    ids = (np.arange(80) * 7 % 31 + 1).tolist()
    with alone(path) as model:
        wanted = model.logits(ids)
        n_layers = len({key.split(".")[1] for key in model.executor.file.tensors if key.startswith("blk.")})
    place = f"ray.a:layers.0,ray.b:layers.1-{n_layers - 1}"
    answers = []
    for opened in (alone(path, deterministic=True), in_stages(path, place, deterministic=True)):
        with opened as model, model.engine(n_ctx=128) as engine:
            many = [engine.submit(ids[: 9 + 13 * i], max_tokens=9, temperature=0) for i in range(5)]
            many += [engine.submit(ids[:40], max_tokens=9, seed=1, n=3)]
            together = [result.ids for handle in many for result in handle.results()]
            first = engine.submit(ids, max_tokens=6, temperature=0).result()
            again = engine.submit([*ids, 3, 4], max_tokens=6, temperature=0).result()
            answers.append((first.ids, again.ids, together))
            assert again.n_cached > 0
    assert answers[0] == answers[1]
    with in_stages(path, place) as model:
        assert (model.logits(ids) == wanted).all()


def test_a_stage_that_dies_is_started_again_and_its_sequences_recomputed(
    nodes: RayNodes, caplog: pytest.LogCaptureFixture
) -> None:
    with alone(STORIES) as model:
        wanted = [result.ids for result in model.generate(PROMPTS, max_tokens=60, temperature=0)]
    with in_stages(STORIES, PLACE) as model, model.engine(n_ctx=128) as engine:
        session = model.session()
        session.eval(model.prompt_ids("Once"))
        before = [engine.submit(prompt, max_tokens=5, temperature=0).result().ids for prompt in PROMPTS]
        killed = threading.Event()
        handles = [engine.submit(prompt, max_tokens=60, temperature=0) for prompt in PROMPTS]
        for number, _ in enumerate(handles[0]):
            if number == 10 and not killed.is_set():
                killed.set()
                os.kill(min(nodes.engines("ray::Stage")), signal.SIGKILL)
        assert [handle.result().ids for handle in handles] == wanted
        assert [ids[:5] for ids in wanted] == [ids[:5] for ids in before]
        assert "its sequences are computed again" in caplog.text
        # A session's own states are gone, and it says so whenever it is asked.
        for _ in range(2):
            with pytest.raises(StatesLostError, match=r"ray\.[ab]: the stage"):
                session.eval(model.prompt_ids("upon"))
        assert [
            engine.submit(prompt, max_tokens=60, temperature=0).result().ids for prompt in PROMPTS
        ] == wanted


@pytest.mark.parametrize(("name", "kill_at"), [("ray.a", 3), ("ray.b", 3), ("ray.a", 20), ("ray.b", 21)])
def test_a_stage_dies_with_plans_under_way(name: str, kill_at: int, caplog: pytest.LogCaptureFixture) -> None:
    """While prompts are read in chunks, and while all generate: everybody has the tokens of one process."""
    with alone(STORIES, deterministic=True) as model:
        wanted, _ = answers_of(model, KINDS_OF_REQUESTS)
    with in_stages(STORIES, PLACE, deterministic=True) as model:
        _ = model.logits([1])
        pid = ray.get(stage(model, name)._actor.__ray_call__.remote(lambda actor: os.getpid()))
        n_times = 0

        def kill(n_under_way: int) -> None:
            nonlocal n_times
            n_times += n_under_way == 2
            if n_times == kill_at and n_under_way == 2:
                os.kill(pid, signal.SIGKILL)

        answers, most = answers_of(model, KINDS_OF_REQUESTS, kill)
        assert n_times > kill_at
        assert stage(model, name).generation == 1
    assert answers == wanted
    assert most == 2
    assert f"{name}: the stage" in caplog.text


def test_calls_of_a_stage_that_has_ended_say_nothing_of_the_one_after_it() -> None:
    with in_stages(STORIES, PLACE) as model:
        wanted = model.logits([1])
        device = stage(model, "ray.a")
        pid = ray.get(device._actor.__ray_call__.remote(lambda actor: os.getpid()))
        os.kill(pid, signal.SIGKILL)
        before = device.begin("facts")
        with pytest.raises(StatesLostError):
            device.call("facts")
        device.started()
        with pytest.raises(StatesLostError):
            device.wait(before, 0)
        assert (model.logits([1]) == wanted).all()
        assert device.generation == 1


def test_a_command_runs_in_stages(nodes: RayNodes) -> None:
    command = [sys.executable, "-m", "graphml", "run", str(STORIES), "--raw", "-p", "Once upon", "-n", "8"]
    place = ["--backend", "ray.a,ray.b", "--place", PLACE, "-t", "1"]
    said = []
    for more in ([], place):
        done = subprocess.run([*command, "--temp", "0", *more], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1] != ""


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match="no backend 'ray'"):
        graphml.load(STORIES, "ray")
    with pytest.raises(UsageError, match=r"wanted 4 CPUs of the cluster; [0-3] of its 3 are free"):
        graphml.load(STORIES, "ray.a", threads=4)
    assert not ray.is_initialized()
    with in_stages(STORIES, PLACE) as model, model.engine(n_ctx=64) as engine:
        with pytest.raises(UsageError, match=r"ray\.b: .*layers\.3\.ffn_residual.* function of this process"):
            engine.submit("Once", patch={"layers.3.ffn_residual": lambda rows: rows * 0.5})
        assert engine.submit("Once", max_tokens=2).result().ids
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(UsageError, match="nothing listens at 127"):
        graphml.load(STORIES, "ray.a")
