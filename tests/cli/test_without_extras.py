"""The command line where only the dependencies of the package itself are installed, none of an extra.

A process that imports none of the other packages stands for that environment.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from graphml.cli.main import COMMANDS
from tests.stories import STORIES

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import importlib.abc, json, sys

class Missing(importlib.abc.MetaPathFinder):
    packages = frozenset(json.loads(sys.argv[1]))

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Missing())
from graphml.cli.main import main
codes = {}
for arguments in json.loads(sys.argv[2]):
    sys.argv = ["graphml", *arguments]
    try:
        main()
        codes[" ".join(arguments)] = 0
    except SystemExit as end:
        codes[" ".join(arguments)] = end.code or 0
print(json.dumps(codes), file=sys.stderr)
"""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return normalized(match[0])


def packages_of_extras() -> set[str]:
    """Top-level packages here that no dependency brings along which is installed with graphml alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [name_of(requirement) for requirement in project["dependencies"]]
    brought = set[str]()
    while wanted:
        name = wanted.pop()
        if name in brought:
            continue
        brought.add(name)
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        wanted += [name_of(requirement) for requirement in requirements if "extra ==" not in requirement]
    return {
        package
        for package, distributions in metadata.packages_distributions().items()
        if package.isidentifier()
        and not package.startswith("graphml")
        and not brought & set(map(normalized, distributions))
    }


def bare(*lines: list[str]) -> tuple[dict[str, int], str, str]:
    """The exit code of each command line, and what they wrote."""
    packages = packages_of_extras() - {"coverage", "a1_coverage"}
    assert {"msgspec", "starlette", "uvicorn"} <= packages
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(sorted(packages)), json.dumps(lines)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    *errors, codes = done.stderr.splitlines() or [""]
    assert codes.startswith("{"), done.stderr[-3000:]
    return json.loads(codes), done.stdout, "\n".join(errors)


def test_every_command_has_its_help() -> None:
    codes, out, errors = bare(*([command, "--help"] for command in COMMANDS))
    assert codes == {f"{command} --help": 0 for command in COMMANDS}, errors[-3000:]
    assert "--temp" in out
    assert errors == ""


def test_structured_answers_want_no_extra() -> None:
    run = ["run", str(STORIES), "--raw", "Once", "-n", "4", "--temp", "0", "--backend", "reference"]
    codes, out, errors = bare([*run, "--format", "json"], [*run, "--json-schema", '{"type": "array"}'])
    assert set(codes.values()) == {0}, errors[-3000:]
    assert "{" in out
    assert "[" in out


@pytest.mark.parametrize(
    ("line", "extra"),
    [
        (["serve"], "server"),
        (["serve", "--port", "0"], "server"),
        (["chat", "--mcp", "mcp.json", "--yes"], "mcp"),
    ],
)
def test_a_command_names_the_extra_that_is_missing(line: list[str], extra: str) -> None:
    codes, _, errors = bare(line)
    assert set(codes.values()) == {2}
    assert errors.startswith(("graphml: serve: ", "graphml: --mcp: ")), errors[-2000:]
    assert f"pip install '.[{extra}]'" in errors
    assert len(errors.splitlines()) == 1


def test_the_harness_that_is_missing_is_said_in_a_line() -> None:
    code = (
        "import runpy, sys; sys.modules['lm_eval'] = None\n"
        "runpy.run_module('graphml.workshop.lm_eval', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("graphml: lm_eval: lm-evaluation-harness is missing; pip install '.[eval]'")
    assert done.stderr.count("\n") == 1
