"""A server of several replicas on a Ray cluster: one server to its clients, whatever ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

import graphml
from tests.cluster.ray_nodes import RayNodes, free_port
from tests.stories import STORIES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nodes are found in /proc")
COMPLETIONS = "/v1/completions"
ADMIN = {"authorization": "Bearer the-admin"}
LASTING: dict[str, Any] = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "temperature": 1.0}
LONG = "Once upon a time there was a little girl who had a red ball and a blue hat. " * 3


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(Path("/tmp") / f"graphml-serve-{os.getpid()}", 3)
    yield nodes
    nodes.close()


class Running:
    """A server in a process of its own, and a client of it."""

    def __init__(self, nodes: RayNodes, *flags: str) -> None:
        self.nodes, self.port = nodes, free_port()
        command = [sys.executable, "-m", "graphml", "serve", str(STORIES), "--ray", nodes.address,
                   "--port", str(self.port), "-b", "64", "--deterministic", "-kvu", "-c", "512",
                   "--replica-cpus", "0.5", *flags]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.ready = self.process.stderr.readline()
        self.said = ""
        self.reader = threading.Thread(target=self._listen, daemon=True)
        self.reader.start()
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, headers=ADMIN)

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.said = self.process.stderr.read()

    def post(self, path: str = COMPLETIONS, key: str = "the-admin", **body: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {key}"}
        return self.client.post(path, json={"temperature": 0, **body}, headers=headers)

    def replicas(self) -> int:
        """As many as run."""
        return int(self.client.get("/health").json().get("replicas", 0))

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; an error after a minute."""
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.1)

    def metric(self, name: str) -> dict[str, float]:
        """A metric's samples by replica, or by key."""
        families = text_string_to_metric_families(self.client.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return {(s.labels.get("replica") or s.labels["key"]): s.value for s in samples}

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(nodes: RayNodes, *flags: str) -> Iterator[Running]:
    server = Running(nodes, *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
        server.client.close()
        server.reader.join(10)
        server.process.stderr.close()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def server(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("the-admin admin=1\nfew requests=4\none streams=1\nwords tokens=60\n")
    with serving(nodes, "--replicas", "2", "-np", "4", "--api-key-file", str(keys)) as server:
        assert "(2 replicas of 4 slots)" in server.ready
        server.wait_until(lambda: server.replicas() == 2)
        yield server


def test_answers_are_those_of_one_server(server: Running) -> None:
    with graphml.load(STORIES, "cpu", threads=1, n_batch=64, deterministic=True) as model:
        wanted = str(model.generate("Once upon a time", max_tokens=20, temperature=0))
    asked = {"prompt": "Once upon a time", "max_tokens": 20}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.post(**asked).json(), range(8)))
    assert {answer["choices"][0]["text"] for answer in answers} == {wanted}
    streamed = server.post(**asked, stream=True).text
    events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == wanted
    assert streamed.endswith("data: [DONE]\n\n")
    assert min(server.metric("llamacpp:tokens_predicted_total").values()) > 0
    assert server.post(prompt=3).status_code == 400
    assert server.client.get("/nothing").status_code == 404


def test_a_beginning_is_computed_by_one_replica(server: Running) -> None:
    texts = [f"{letter} {LONG}" for letter in "AB"]
    cached = [
        server.post(prompt=f"{text}{i}", max_tokens=2).json()["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        for i in range(4)
        for text in texts
    ]
    assert max(cached[:2]) <= 1  # the token that begins every text
    assert min(cached[2:]) > 50


def test_responses_are_found_where_they_are(server: Running) -> None:
    kept = [server.post("/v1/responses", input=f"{i} Once", max_output_tokens=3).json() for i in range(6)]
    for response in kept:
        assert server.client.get(f"/v1/responses/{response['id']}").json()["output"] == response["output"]
        more = server.post(
            "/v1/responses", input="and", previous_response_id=response["id"], max_output_tokens=2
        )
        assert more.json()["previous_response_id"] == response["id"]
    assert server.client.delete(f"/v1/responses/{kept[0]['id']}").status_code == 200
    assert server.client.get(f"/v1/responses/{kept[0]['id']}").status_code == 404
    unknown = server.post("/v1/responses", input="and", previous_response_id="resp_none")
    assert (unknown.status_code, "no response of this id" in unknown.text) == (404, True)


def test_what_is_of_one_replica_is_refused_or_told_of_each(server: Running) -> None:
    slots = server.client.get("/slots").json()
    assert len({slot["replica"] for slot in slots}) == 2
    assert len(slots) == 8
    for path in ("/slots/0?action=erase", "/lora-adapters"):
        refused = server.client.post(path, json=[])
        assert (refused.status_code, "needs a server of one replica" in refused.text) == (501, True)
    assert len(server.metric("llamacpp:n_decode_total")) == 2
    assert server.client.get("/v1/models").json()["data"][0]["id"].startswith("stories")


def test_keys_and_their_limits_hold_over_all_replicas(server: Running) -> None:
    assert server.post(prompt="a", key="nobody").status_code == 401
    statuses = [server.post(prompt=f"{i} {LONG}", max_tokens=1, key="few").status_code for i in range(6)]
    assert statuses == [200] * 4 + [429] * 2
    with ThreadPoolExecutor(4) as pool:
        codes = pool.map(
            lambda i: server.post(**{**LASTING, "prompt": f"{i} Once"}, key="one").status_code, range(4)
        )
        assert sorted(codes) == [200, 429, 429, 429]
    # The prompt's tokens count, too, once it is known how many they are.
    first, second = (server.post(prompt=f"{i} {LONG}", max_tokens=2, key="words") for i in range(2))
    assert (first.status_code, second.status_code) == (200, 429)
    used = server.metric("graphml:key_prompt_tokens_total")
    assert used["4"] == first.json()["usage"]["prompt_tokens"] > 60
    # An admin's key passes the key that a request brings to its replica.
    assert server.client.get("/v1/responses/none", headers={"authorization": "Bearer few"}).status_code == 404


def test_a_client_that_leaves_ends_its_answer(server: Running) -> None:
    body = {**LASTING, "n": 32, "stream": True}
    with server.client.stream("POST", COMPLETIONS, json=body) as response:
        lines = response.iter_lines()  # the connection is closed where nobody holds it
        assert '"choices"' in next(lines)
        server.wait_until(lambda: sum(server.metric("llamacpp:requests_processing").values()) > 0)
    server.wait_until(lambda: not sum(server.metric("llamacpp:requests_processing").values()))


def test_a_stream_with_a_name_is_read_on_from_its_replica(server: Running) -> None:
    named = {"x-conversation-id": "story"}
    body = {**LASTING, "stream": True, "max_tokens": 40}
    with server.client.stream("POST", COMPLETIONS, json=body, headers=named) as response:
        lines = response.iter_lines()
        first = next(lines)
    again = server.client.get("/v1/stream", params={"conv_id": "story", "from": 0}).text
    assert first in again
    assert again.endswith("data: [DONE]\n\n")
    assert server.client.get("/v1/stream", params={"conv_id": "other"}).status_code == 404
    assert server.client.delete("/v1/stream", params={"conv_id": "story"}).status_code == 204


def test_the_death_of_a_replica_is_hidden_or_told(server: Running) -> None:
    server.wait_until(lambda: server.replicas() == 2)
    body = {**LASTING, "n": 16}
    replicas = server.nodes.engines(f"ray::ServeReplica:graphml-{server.port}:")
    assert len(replicas) == 2
    with (
        ThreadPoolExecutor(4) as pool,
        server.client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as seen,
    ):
        lines = seen.iter_lines()
        next(lines)
        waiting = [pool.submit(server.post, **{**LASTING, "prompt": f"{i} Once"}) for i in range(4)]
        time.sleep(0.1)
        for pid in replicas:
            os.kill(pid, signal.SIGKILL)
        last = [line for line in lines if line.startswith("data: ")]
        assert all(answer.result().status_code == 200 for answer in waiting)
    error = json.loads(last[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["message"]) == (503, "the replica that answered has ended; ask again")
    assert server.post(prompt="Once", max_tokens=2).status_code == 200
    server.wait_until(lambda: server.replicas() == 2)


def test_replicas_come_and_go_with_requests_and_a_signal_ends_the_server(nodes: RayNodes) -> None:
    with serving(nodes, "--replicas", "1-3", "-np", "1") as server:
        assert "(1 replicas of 1 slots)" in server.ready
        most, ends = 1, threading.Event()

        def ask(number: int) -> int:
            status = 200
            while not ends.is_set() and status == 200:
                status = server.post(prompt=f"{number} Once", max_tokens=400, ignore_eos=True).status_code
            return status

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask, i) for i in range(4)]
            end = time.monotonic() + 60
            while most < 2 and time.monotonic() < end:
                most = max(most, server.replicas())
                time.sleep(0.2)
            ends.set()
            assert most >= 2
            assert {call.result() for call in asking} == {200}
            last = pool.submit(server.post, prompt="At the end", max_tokens=300, ignore_eos=True)
            time.sleep(0.2)
            assert server.stop() == 0
            assert len(last.result().json()["choices"][0]["text"]) > 100
    assert nodes.engines(f"ray::ServeReplica:graphml-{server.port}:") == []


def test_a_server_ends_with_an_error_when_the_head_node_dies() -> None:
    nodes = RayNodes(Path("/tmp") / f"graphml-serve-head-{os.getpid()}", 1)
    try:
        with serving(nodes) as server:
            assert server.post(prompt="Once", max_tokens=2).status_code == 200
            nodes.kill(0)
            assert server.process.wait(40) == 1
            server.reader.join(10)
            assert "does not answer any more" in server.said
    finally:
        nodes.close()
