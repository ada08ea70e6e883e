"""A whole Python file: title, sorted imports, lines that are not too long; and its class Config."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

WIDE = 110  # characters of a line


def document(title: str, imports: Mapping[str, set[str]], body: list[str]) -> str:
    """A whole file."""
    groups: list[list[str]] = [[], [], []]
    for module in sorted(imports):
        group = 2 if module.startswith("graphml") else 0 if module == "__future__" else 1
        names = sorted(imports[module], key=lambda name: (name != name.upper() or name[0] == "_", name))
        groups[group].append(_import(module, names))
    head = [
        "from __future__ import annotations",
        *(["\n" + "\n".join(groups[1])] if groups[1] else []),
        "\n" + "\n".join(groups[2]),
    ]
    lines = [each for line in "\n\n\n".join(body).split("\n") for each in _wrapped(line)]
    text = "\n".join([f'"""{title}', '"""', "", *head, "", "", *lines]) + "\n"
    return re.sub(r"\n{4,}", "\n\n\n", text)


def constants(text: str) -> list[float]:
    """The numbers in a text of Python other than 0 and 1, in order."""
    numbers = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
    return [
        float(number)
        for number in numbers
        if isinstance(number, int | float) and not isinstance(number, bool) and number not in (0, 1)
    ]


def config_class(fields: Mapping[str, tuple[str, str]], layered: bool) -> str:
    """The class Config. fields: its own, name -> type and how it is read; layered: with layer norms."""
    eps = ", eps=_config.LAYER_EPS" if layered else ""
    lines = [
        "@dataclass(frozen=True)",
        "class Config(_config.Config):",
        '    """As of every decoder, and what is special here."""',
        "",
        *[f"    {name}: {kind}" for name, (kind, _) in fields.items()],
        "",
        "    @classmethod",
        "    def read(cls, keys: Keys) -> Self:",
        '        """From the file\'s metadata."""',
        f"        known = _config.read(keys{eps})",
        "        return cls(",
        "            **vars(known),",
        *[f"            {name}={read}," for name, (_, read) in fields.items()],
        "        )",
    ]
    return "\n".join(lines)


def _wrapped(line: str) -> list[str]:
    """A line that is too long, with the arguments of its outermost calls on lines of their own."""
    start = line.find("(")
    if len(line) <= WIDE or start < 0 or not line.endswith(")"):
        return [line]
    parts, indent = arguments(line[start + 1 : -1]), line[: len(line) - len(line.lstrip())]
    if not parts:
        return [line]  # the call ends before the line does
    inner = f"{indent}    {', '.join(parts)}"
    lines = [inner] if len(inner) <= WIDE else []
    for part in () if lines else parts:
        *begun, last = _wrapped(f"{indent}    {part}")
        lines += [*begun, f"{last},"]
    return [line[: start + 1], *lines, f"{indent})"]


def arguments(text: str) -> list[str]:
    """What the commas outside of brackets separate; nothing if a bracket ends that did not begin."""
    depth, parts = 0, [""]
    for sign in text:
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(sign, 0)
        if depth < 0:
            return []
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def _import(module: str, names: list[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    return line if len(line) <= 100 else f"from {module} import (\n    " + ",\n    ".join(names) + ",\n)"
