"""Processes that render chat templates are kept, replaced when they end, and told values as they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from graphml import settings
from graphml.errors import TemplateError
from graphml.system import kept_processes
from graphml.text import template_process, template_renderer
from graphml.text.chat_template import ChatTemplate, TemplateLimits
from graphml.text.template_process import RenderingError, TemplateProcesses

LIMITS = TemplateLimits()
ECHO = "{{ x }}"


@pytest.fixture
def processes():
    made = TemplateProcesses()
    yield made
    made.close()


def answer(processes, source=ECHO, limits=LIMITS, **variables):
    return processes.answer(source, variables, "2026-01-02T03:04:05", limits)


def identity(processes):
    """The process that renders next."""
    process = processes._taken()
    processes._idle.put(process)
    return process._process.pid


def test_one_process_renders_one_template_after_the_other(processes):
    processes.prepare()
    first = identity(processes)
    processes.prepare()
    assert [answer(processes, x=n) for n in range(20)] == [str(n) for n in range(20)]
    assert answer(processes, "{{ x + 1 }}", x=1) == "2"
    assert identity(processes) == first


def test_a_process_that_ended_is_replaced(processes):
    answer(processes, x=1)
    before = identity(processes)
    os.kill(before, signal.SIGTERM)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert answer(processes, x=2) == "2"
    assert identity(processes) != before


def test_a_process_that_ends_while_it_renders_is_an_error(processes):
    limits = TemplateLimits(seconds=0.05, seconds_per_byte=0)
    with pytest.raises(RenderingError, match=r"longer than 0.05 s"):
        answer(processes, "{% for i in x %}{% for j in x %}{% endfor %}{% endfor %}", limits, x=[0] * 99999)
    assert answer(processes, x=3) == "3"


def test_a_process_that_does_not_answer_is_ended(processes, monkeypatch):
    answer(processes, x=1)
    os.kill(identity(processes), signal.SIGSTOP)
    monkeypatch.setattr(kept_processes, "CLOCK_FACTOR", 0)
    with pytest.raises(RenderingError, match=r"did not answer \(exit code -9\)"):
        answer(processes, x=2)
    monkeypatch.undo()
    assert answer(processes, x=3) == "3"


@pytest.mark.skipif(sys.platform == "win32", reason="has other descriptors")
def test_descriptors_may_have_large_numbers(processes):
    """As in a server with a thousand connections."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 0 else max(soft, min(hard, 1200)), hard))
    held = [os.dup(0) for _ in range(1030)]
    try:
        assert answer(processes, x=1) == "1"
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_have_processes_of_their_own_up_to_the_most(processes, monkeypatch):
    """Each waits within its template for the others: no one process could answer them all."""
    monkeypatch.setattr(kept_processes, "SECONDS_BEFORE_ANOTHER", 0)
    taken = threading.Barrier(template_process.MOST_PROCESSES + 1)
    seen: list[int] = []

    def take():
        process = processes._taken()
        seen.append(process._process.pid)
        taken.wait(60)
        processes._idle.put(process)

    threads = [threading.Thread(target=take) for _ in range(template_process.MOST_PROCESSES)]
    for thread in threads:
        thread.start()
    taken.wait(60)
    for thread in threads:
        thread.join()
    assert len(set(seen)) == template_process.MOST_PROCESSES
    assert processes._another() is None
    assert answer(processes, x=1) == "1"


def test_values_arrive_as_they_were_sent(processes):
    value = {1: (2, [3.5, None, True]), "ä\ud800": 10**30}
    assert answer(processes, x=value) == str(value)
    assert answer(processes, "{{ x }}", x="\ud800é\U0001f600\r\n") == "\ud800é\U0001f600\r\n"
    assert answer(processes, "{{ x|length }}", x="a" * 3_000_000) == "3000000"
    assert len(answer(processes, x="a" * 3_000_000)) == 3_000_000


def test_one_time_is_told(processes):
    source = "{{ strftime_now('%d %b %Y %H:%M') }}"
    assert processes.answer(source, {"x": 1}, "2026-01-02T03:04:05", LIMITS) == "02 Jan 2026 03:04"


def test_names_that_a_template_reads():
    names = ChatTemplate("{% set a = tools %}{{ a }}{{ messages[0].b }}").variables
    assert names == {"a", "tools", "messages"}
    assert not ChatTemplate("x").variables


def test_no_variable_of_ours_is_in_their_environment(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    _, environment = settings.confined_python_child(template_renderer.__file__)
    assert set(environment) <= {"PYTHONPATH", "SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}


def test_a_python_that_cannot_be_started_is_told(monkeypatch):
    monkeypatch.setattr(template_process, "PROCESSES", TemplateProcesses())
    monkeypatch.setattr("graphml.text.chat_template.PROCESSES", TemplateProcesses())
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(TemplateError, match=r"chat template 'default': no process of Python can be started"):
        ChatTemplate("x")
    TemplateProcesses().prepare()  # says nothing: the first template does


@pytest.mark.skipif(not hasattr(os, "fork"), reason="has no fork")
def test_processes_end_with_the_program_and_are_not_shared_by_a_fork():
    program = (
        "import os; from graphml.text import template_process as p;"
        "from graphml.text.chat_template import ChatTemplate;"
        "t = ChatTemplate('{{ messages[0].x }}'); before = p.PROCESSES._n_processes; pid = os.fork();"
        "print(before, p.PROCESSES._n_processes, t.render([{'x': 7}]), flush=True);"
        "pid and os.waitpid(pid, 0)"
    )
    command, environment = settings.python_child("-W", "error", "-c", program)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["1 0 7", "1 1 7"]
