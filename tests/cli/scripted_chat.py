"""Files for `graphml chat` with tools: a template that knows them, functions, and scripted answers."""

from __future__ import annotations

from pathlib import Path

import graphml
from tests.api.test_chat_tools import TEMPLATE

TOOLS = '''
import json
from pathlib import Path


def double(x: int) -> int:
    """Double a number."""
    with Path(__file__).with_name("calls.txt").open("a") as file:
        file.write(f"{x};")
    return 2 * x


def _hidden() -> None:
    """Not offered."""
'''
SCRIPT = """
import numpy as np

SCRIPTS, HEADER, OFFERED = {scripts}, {header}, {offered}


def scripted(ids, logits, history):
    history = list(history)
    assert any(history[i : i + len(OFFERED)] == OFFERED for i in range(len(history))), "no tools"
    begins = [i for i in range(len(history)) if history[i : i + len(HEADER)] == HEADER]
    said = len(history) - begins[-1] - len(HEADER)
    logits = np.full_like(logits, -1e30)
    logits[list(ids).index(SCRIPTS[min(len(begins), len(SCRIPTS)) - 1][said])] = 0.0
    return logits
"""


def call_of(x: int, name: str = "double") -> str:
    """A call of the function of `TOOLS`."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"x": {x}}}}}\n</tool_call>'


def scripted_options(folder: Path, model: Path, *answers: str) -> list[str]:
    """Write the files; the options of a chat in which the model gives these answers, one after the other."""
    with graphml.load(model, backend="reference") as opened:
        scripts = [[*opened.encode(one, False, True), 2] for one in answers]  # 2: the end of a turn
        header = opened.encode("<|im_start|>assistant\n", False, True)
        offered = opened.encode("Double a number", False)
    (folder / "tools.py").write_text(TOOLS)
    (folder / "script.py").write_text(SCRIPT.format(scripts=scripts, header=header, offered=offered))
    (folder / "template.jinja").write_text(TEMPLATE)
    return [
        "--tools", str(folder / "tools.py"), "--sampling-function", f"{folder / 'script.py'}:scripted",
        "--template", str(folder / "template.jinja"), "-n", "200",
    ]  # fmt: skip
