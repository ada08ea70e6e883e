"""Order of the tests: long ones first, at last those that run a whole model. What all of them share.

A long test that is begun last keeps one process at work while the others have nothing to do.

Hypothesis tries the same examples each time, so that a change is judged by what it changed; others are sought
with `pytest --hypothesis-profile explore`.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from graphml_cpu.processors import usable_processors
from hypothesis import HealthCheck, settings

from graphml.ir import op_table
from graphml.loading import discovery
from tests import golden, process_costs
from tests.browser import Browser
from tests.hub_server import FILES, HubServer, serving
from tests.shared_drivers import remembering, sharing

process_costs.keep_byte_code_for_the_run()
process_costs.wait_for_byte_code()
process_costs.collect_no_garbage()

SLOW = [HealthCheck.too_slow]  # which a busy machine is
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=SLOW)
settings.register_profile("explore", max_examples=1000, deadline=None, suppress_health_check=SLOW)
settings.load_profile("same")

# GPU kernels run for microseconds here and take seconds to compile: drivers made of the processor do not
# optimise them. OpenCL's compiler does for the networks of the conformance suite, as for users.
os.environ.setdefault("GRAPHML_OPENCL_OPTIONS", "-cl-opt-disable")
os.environ.setdefault("GALLIVM_PERF", "nopt")
os.environ["GRAPHML_CONFIG"] = os.devnull  # no settings of the person who runs the tests
os.environ.setdefault("GRAPHML_COMPILE_PROCESSES", "1")  # the tests' own processes fill the cores
# NumPy's threads wait in loops: with one the goldens on the reference take 22 s of processor time, else 53.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


# The first keeps the code of what it lists, which the second runs.
LONG = ("test_assembly.py", "test_levels.py", "test_conformance.py")


def pytest_collection(session: pytest.Session) -> None:
    process_costs.help_with_byte_code(Path(argument).resolve() for argument in session.config.args)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those in a browser side by side, so that it is opened once or twice."""

    def place(item: pytest.Item) -> float:
        if item.get_closest_marker("model") is not None:
            return len(LONG) + 1
        if in_a_browser(item):
            return len(LONG) - 0.5
        return LONG.index(item.path.name) if item.path.name in LONG else len(LONG)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    process_costs.byte_code_is_there()
    process_costs.collect_seldom()


def pytest_unconfigure() -> None:
    process_costs.collect_once_more()


def in_a_browser(item: pytest.Item) -> bool:
    return "chromium" in getattr(item, "fixturenames", ())


_browser = Browser()


@pytest.fixture
def chromium() -> Browser:
    return _browser


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not in_a_browser(item):
        _browser.close()


def pytest_sessionfinish() -> None:
    _browser.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: some tests wait for a server or a browser."""
    return 1 + len(usable_processors())


@pytest.fixture(scope="session", autouse=True)
def one_driver_for_each_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "backend", sharing(discovery.backend))
        if importlib.util.find_spec("pyopencl") is not None:
            invoker = importlib.import_module("pyopencl.invoker")
            generate = "generate_enqueue_and_set_args"
            patch.setattr(invoker, generate, remembering(getattr(invoker, generate)))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_context_for_all_clients() -> Iterator[None]:
    """Each HTTP client would read all certificates of the machine, in 50 ms; a context is only read."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("httpcore2") is not None:
            clients = importlib.import_module("httpcore2")
            patch.setattr(clients, "default_ssl_context", functools.cache(clients.default_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_file_for_each_golden(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each of the run's processes would make most of them, 60 ms for each."""
    base = tmp_path_factory.getbasetemp()  # of a process of the run it is within the run's
    golden.keep_files((base.parent if hasattr(pytestconfig, "workerinput") else base) / "shared-goldens")


@pytest.fixture(autouse=True)
def no_op_stays_declared() -> Iterator[None]:
    """What a test declares, or loads from a file, no later one sees."""
    before = set(op_table.own_ops())
    yield
    op_table.forget(*set(op_table.own_ops()) - before)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub on this machine, which huggingface-hub takes for the usual one, and empty caches."""
    monkeypatch.setenv("GRAPHML_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "shared"))
    with serving(FILES) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)
        monkeypatch.setattr("huggingface_hub.file_download.time", SimpleNamespace(sleep=lambda seconds: None))
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server
