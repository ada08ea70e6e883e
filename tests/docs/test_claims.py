"""What the pages claim: figures are the lower of two measurements, counts are the code's, citations fit."""

from __future__ import annotations

import json
import re
from typing import Any

import graphml_quant

from graphml.cli.main import COMMANDS
from graphml.weights import random_blocks as blocks
from tests.docs.pages import PAGES, ROOT, name_of
from tests.looped import looped

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Row of the README's table -> case of the suite.
CASES = {
    "SmolLM2-135M-Instruct, Q4_1": "SmolLM2 Q4_1",
    "1.1B, Q4_K_M": "tinyllama-1.1b Q4_K_M",
    "1.1B, Q8_0": "tinyllama-1.1b Q8_0",
    "2.4B, 8 experts of which 2 are used, Q4_K_M": "mixtral-small Q4_K_M",
}


def measurements(case: str, test: str) -> list[dict[str, Any]]:
    """Every recorded measurement of a suite's case on two threads."""
    found = []
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        rows = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(rows, list):
            found += [row for row in rows if (row.get("suite_case"), row.get("test")) == (case, test)]
    return [row for row in found if row["n_threads"] == 2]


def speeds() -> dict[str, list[float]]:
    """Rows of the README's speed table: prompt t/s and ratio, generation t/s and ratio."""
    lines = README.split("## Speed")[1].split("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: [float(cell.split()[0]) for cell in row[1:]] for row in cells[2:]}


def test_the_readme_quotes_the_lower_of_at_least_two_measurements() -> None:
    assert set(speeds()) == set(CASES)
    for name, (prompt, prompt_ratio, tokens, tokens_ratio) in speeds().items():
        for test, speed, ratio in (("pp512", prompt, prompt_ratio), ("tg64", tokens, tokens_ratio)):
            found = measurements(CASES[name], test)
            assert len(found) >= 2, (name, test)
            assert speed <= min(row["median_ts"] for row in found) + 0.5, (name, test)
            assert ratio <= min(row["ratio"] for row in found) + 0.005, (name, test)


def test_the_readme_counts_the_formats_of_files() -> None:
    in_files, activations = len(blocks.formats()), set(graphml_quant.formats()) - set(blocks.formats())
    assert activations == {"q8_1", "q8_k"}
    assert f"all {in_files} that GGUF files keep weights in are decoded" in README


@looped("page", PAGES, ids=name_of)
def test_a_decision_is_cited_by_its_own_number(page: Any) -> None:
    for number, file in re.findall(r"\[decision (\d+)\]\((?:[^)]*/)?(\d{4})-", page.read_text("utf-8")):
        assert int(number) == int(file), f"{name_of(page)}: decision {number}"


def test_only_what_can_be_installed_is_named() -> None:
    """graphml is on no index yet: its extras are installed from a clone."""
    sources = [
        path for root in ("graphml", "backends", "models", "quant") for path in (ROOT / root).rglob("*.py")
    ]
    for path in [*PAGES, *sources]:
        wrong = re.search(r"pip install[^\n`]*graphml-engine\[(?!hub)\w+", path.read_text("utf-8"))
        assert wrong is None, f"{path.relative_to(ROOT)}: {wrong}"


def test_the_map_of_files_has_one_file_a_row_and_each_question_once() -> None:
    """`docs/where.md`; that the files are there is checked of every page."""
    rows = re.findall(r"^\| (.+?) \| (.*`.*) \|$", (ROOT / "docs" / "where.md").read_text("utf-8"), re.M)
    assert len(rows) > 60
    assert [answer for _, answer in rows if answer.count("`") != 2] == []
    assert len({question for question, _ in rows}) == len(rows)


@looped("name", COMMANDS)
def test_every_command_is_named(name: str) -> None:
    (row,) = [line for line in README.splitlines() if line.startswith("| commands |")]
    assert name in re.findall(r"[a-z][a-z-]*", row)
