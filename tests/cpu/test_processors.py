"""Cores and memory nodes: how many threads a team has by default, and where pinned ones run."""

import os
from pathlib import Path

import pytest
from graphml_cpu import processors
from graphml_cpu.runtime.tape import Tape
from graphml_cpu.runtime.workers import Team

from graphml.errors import BackendError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests import tiny_model


def machine(root: Path, nodes: dict[int, str], siblings: list[str]) -> Path:
    for number, text in nodes.items():
        (root / "node" / f"node{number}").mkdir(parents=True)
        (root / "node" / f"node{number}" / "cpulist").write_text(text + "\n")
    for number, text in enumerate(siblings):
        folder = root / "cpu" / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    return root


def test_threads_are_dealt_out_to_cores_node_by_node(tmp_path: Path) -> None:
    """Two nodes of four cores, the second threads of the cores behind them: 0 and 8 are one core."""
    siblings = [f"{i % 8},{i % 8 + 8}" for i in range(16)]
    root = machine(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}, siblings)
    every = list(range(16))

    def order(n_threads: int, usable: list[int] = every) -> list[int]:
        found = processors.core_order(usable, n_threads, root)
        assert sorted(found) == usable
        return found[:n_threads]

    assert order(3) == [0, 1, 2]  # one node has a core for each
    assert order(6) == [0, 1, 2, 4, 5, 6]  # two are needed: as many on each
    assert order(8) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert order(12)[:8] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert order(3, [2, 6, 10, 14]) == [2, 6, 10]
    assert processors.core_order([0, 1, 5], 3, tmp_path / "none") == [0, 1, 5]  # the system does not tell


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not pin threads")
def test_pinned_workers_stay_on_one_processor_each() -> None:
    team, usable = Team(3), processors.usable_processors()
    team.run(Tape([], 3))
    team.pin()
    for ith, worker in enumerate(team._threads, 1):
        assert worker.native_id is not None
        assert os.sched_getaffinity(worker.native_id) == {usable[ith % len(usable)]}
    assert sorted(os.sched_getaffinity(0)) == usable  # the caller's own thread is free
    team.close()


def test_pinning_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    team = Team(2)
    with pytest.raises(BackendError, match="pin: wanted Linux"):
        team.pin()
    team.close()


def test_a_model_is_opened_with_pinned_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the option says, else the variable; refused by a backend that has no worker threads."""
    path, pinned = tiny_model.write(tmp_path / "tiny.gguf"), list[Team]()
    monkeypatch.setattr(Team, "pin", lambda team: pinned.append(team))
    open_executor(path, LoadOptions(pin=True)).close()
    assert len(pinned) == 1
    monkeypatch.setenv("GRAPHML_PIN", "1")
    open_executor(path).close()
    assert len(pinned) == 2
    open_executor(path, LoadOptions(pin=False)).close()
    open_executor(path, LoadOptions("reference")).close()
    assert len(pinned) == 2
    with pytest.raises(BackendError, match=r"pin: wanted the backend 'cpu'.*got 'reference'"):
        open_executor(path, LoadOptions("reference", pin=True))


def test_siblings_count_once(tmp_path: Path) -> None:
    for number, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert processors._linux_cores([0, 1, 2, 3], tmp_path) == 2
    assert processors._linux_cores([0, 2], tmp_path) == 1
    assert processors._linux_cores([0, 7], tmp_path) == 2  # the system does not tell: as many as processors


def test_quotas_limit_the_cores(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text("150000 100000\n")
    assert processors._linux_quota(limit) == 2
    limit.write_text("max 100000\n")
    assert processors._linux_quota(limit) > 1000
    assert 1 <= processors.physical_cores() <= (os.cpu_count() or 1)
