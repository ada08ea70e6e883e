"""`graphml bench --server`: what clients of scripted servers see, and the rows made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphml.bench.server_load import ServerLoad, messages, send
from graphml.bench.server_rows import measure_servers
from tests.cli.test_bench import bench
from tests.server.scripted_server import Script, chunk, served

USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 15}}
ANSWER: list[dict[str, Any] | None] = [
    chunk({"role": "assistant", "content": None}), chunk({"reasoning_content": "hm"}),
    chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop"), {"choices": [], "usage": USAGE},
]  # fmt: skip
LOAD = ServerLoad(clients=2, requests=2, n_prompt=6, n_gen=5)


def test_all_clients_are_answered_and_timed() -> None:
    script = Script([ANSWER] * 4)
    with served(script) as address:
        found = send(f"{address}/", LOAD)
    assert (len(found.answers), found.tokens, found.errors) == (4, 20, {})
    assert all(len(one.token_s) == 3 and one.ttft_s > 0 for one in found.answers)
    assert [(one.n_prompt, one.n_cached) for one in found.answers] == [(20, 15)] * 4
    texts = {body["messages"][0]["content"] for body in script.bodies}
    assert len(texts) == 4  # no prompt is found computed because another had it
    assert {body["max_tokens"] for body in script.bodies} == {5}
    assert found.seconds >= max(one.token_s[-1] - one.arrived_s for one in found.answers)


def test_without_a_count_of_the_server_pieces_are_counted() -> None:
    with served(Script([ANSWER[:-1]])) as address:
        assert send(address, ServerLoad(1, 1)).tokens == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([chunk({"content": "a"})], "an answer without an end"),
        ([chunk({}, "stop")], "an answer without text"),
        ([chunk({"content": "a"}), {"error": {"message": "x"}}], "an error in the stream"),
        ([7], "an event that is no object"),
    ],
)
def test_answers_that_break_off_are_counted_as_what_they_are(answer: Any, error: str) -> None:
    with served(Script([answer, ANSWER])) as address:
        found = send(address, ServerLoad(1, 2))
    assert found.errors == {error: 1}
    assert len(found.answers) == 1


def test_a_refusal_and_a_silent_port_are_errors() -> None:
    with served(Script([ANSWER], key="k")) as address:
        assert send(address, ServerLoad(1, 1)).errors == {"status 401": 1}
        assert send(address, ServerLoad(1, 1, api_key="k")).errors == {}
    assert send(address, ServerLoad(1, 1)).errors == {"ConnectionRefusedError": 1}


def test_prompts_share_their_beginning_and_nothing_else() -> None:
    load = ServerLoad(1, 1, n_prompt=30, n_shared=10)
    (system, one), (other, two) = messages(load, 0), messages(load, 1)
    assert system == other
    assert len(system["content"].split()) == 10
    assert one["content"].split()[1:] != two["content"].split()[1:]
    assert messages(load, 0) == [system, one]


def test_servers_take_turns_and_the_first_is_the_measure() -> None:
    order: list[str] = []

    class Turns(Script):
        async def chat(self, request: Any) -> Any:
            order.append(self.key or "first")
            return await super().chat(request)

    one, other = Turns([ANSWER] * 9), Turns([ANSWER] * 9, key="")
    with served(one) as first, served(other) as second:
        rows = list(measure_servers([first, second], [ServerLoad(1, 1, 2, 2)], 3, warm=True))
    assert [row.server for row in rows] == [first, second]
    assert [len(one.bodies), len(other.bodies)] == [4, 4]  # one to warm up, then three rounds
    assert rows[0].ratio == 1
    assert rows[1].ratio > 0
    assert rows[1].n_cached * 20 == rows[1].n_prompt * 15


def test_the_command_prints_a_row_for_each_number_of_clients(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k\n")
    with served(Script([ANSWER] * 20, key="k")) as address:
        asked = ["--server", address, "--clients", "1,2", "--requests", "1", "-r", "1", "-n", "5"]
        told = bench(*asked, "--api-key", f"@{tmp_path / 'key'}", "-o", "json", "-oe", "md")
    rows = json.loads(told.stdout)
    assert [(row["load"]["clients"], row["n_answers"], row["load"]["api_key"]) for row in rows] == [
        (1, 1, ""),
        (2, 2, ""),
    ]
    assert told.stderr.count(" 20 / 5 |") == 2


def test_a_long_prompt_comes_while_all_clients_get_their_answers() -> None:
    class Waiting(Script):
        """Every chat is answered slowly but the long one's, which asks for one token."""

        async def chat(self, request: Any) -> Any:
            long = (await request.json())["max_tokens"] == 1
            order.append("long" if long else "chat")
            self.answers.append(ANSWER if long else [*ANSWER[:3], *[ANSWER[3]] * 60, *ANSWER[4:]])
            return await super().chat(request)

    order: list[str] = []
    with served(Waiting()) as address:
        found = send(address, ServerLoad(2, 1, n_prompt=6, n_gen=5, n_long=300))
    assert order == ["chat", "chat", "long"]
    assert (len(found.answers), found.tokens, found.errors) == (2, 10, {})
    assert found.long is not None
    assert found.long.ttft_s > 0


def test_a_long_prompt_waits_for_no_client_that_has_failed() -> None:
    load = ServerLoad(2, 1, n_long=50)
    with served(Script(key="k")) as address:
        assert send(address, load).errors == {"status 401": 3}
    found = send(address, load)
    assert (found.errors, found.long) == ({"ConnectionRefusedError": 3}, None)


def test_idle_connections_are_open_while_answers_come() -> None:
    class Counting(Script):
        async def chat(self, request: Any) -> Any:
            counts.append(_n_open(request.url.port))
            return await super().chat(request)

    counts: list[int] = []
    with served(Counting([ANSWER] * 2)) as address:
        for n_idle in (0, 20):
            assert send(address, ServerLoad(1, 1, n_idle=n_idle)).errors == {}
    assert counts == ([1, 21] if TABLE.exists() else [0, 0])


TABLE = Path("/proc/net/tcp")


def _n_open(port: int) -> int:
    """Connections to a port that clients of this machine have open; 0 where the system does not tell."""
    lines = TABLE.read_text().splitlines()[1:] if TABLE.exists() else []
    return sum(one[2].endswith(f":{port:04X}") and one[3] == "01" for one in map(str.split, lines))
