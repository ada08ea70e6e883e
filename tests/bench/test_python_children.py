"""Other Pythons that commands start: none takes a module from the folder that happens to be current."""

import json
import re
import subprocess
from pathlib import Path

import pytest

import graphml
from benchmarks import plots
from graphml import settings
from graphml.bench.side import ProcessSide
from graphml.bench.test_plan import SideParameters
from graphml.errors import GraphmlError

PACKAGES = Path(graphml.__file__).parent, Path(graphml.__file__).parents[1] / "backends"


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, now current, with modules of names that are imported."""
    for name in ("graphml", "numpy", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('of the current folder')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_worker_of_bench_starts_beside_a_clone(beside: Path) -> None:
    with pytest.raises(GraphmlError, match=r"reference: .*nowhere\.gguf"):  # the worker's own words
        ProcessSide(SideParameters("graphml", str(beside / "nowhere.gguf"), "reference", 1))


def test_a_child_has_the_path_of_its_parent(beside: Path) -> None:
    command, environment = settings.python_child("-c", "import sys, json; print(json.dumps(sys.path))")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert str(beside) not in json.loads(done.stdout)


def test_arithmetic_is_measured_beside_a_folder_of_that_name(beside: Path) -> None:
    assert plots.multiply_rate(1) > 0


def test_every_python_is_started_without_the_current_folder() -> None:
    files = [path for folder in PACKAGES for path in folder.rglob("*.py")]
    started = {path: re.findall(r"\[sys\.executable, (\S+)", path.read_text("utf-8")) for path in files}
    assert {path.name for path, first in started.items() if first} >= {"settings.py", "wheel.py"}
    assert [path for path, first in started.items() if any(one != '"-P",' for one in first)] == []
