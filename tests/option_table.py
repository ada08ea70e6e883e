"""The tables of options and variables in the docs, from the values that define them.

`python -m tests.option_table` writes them anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import Field, fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from graphml import settings
from graphml.bench.bench_options import (
    LengthOptions,
    MeasuredServers,
    ModelOptions,
    OutputOptions,
    RunOptions,
    SettingOptions,
)
from graphml.options.option_fields import POSITIVE, Option, Real, Whole, default_of
from graphml.runtime.programs.load_options import LoadOptions
from graphml.sampling import SamplingParams
from graphml.settings import Setting

DOCS = Path(__file__).parents[1] / "docs"
HOW = "write the tables anew: python -m tests.option_table"
Row = tuple[str, ...]


def load_options() -> list[Row]:
    header = ("load option", "flags", "variable", "default", "what it is")
    return [header, *(
        (_code(one.name), _flags(stated), _code(stated.variable), _default(one), stated.text)
        for one, stated in _stated(LoadOptions)
    )]  # fmt: skip


def sampling_settings() -> list[Row]:
    header = ("setting", "flag", "default", "range", "what it is")
    return [header, *(
        (_code(one.name), _flags(stated), _default(one), _range(stated), stated.text)
        for one, stated in _stated(SamplingParams)
    )]  # fmt: skip


def bench_options() -> list[Row]:
    kinds = (ModelOptions, LengthOptions, SettingOptions, RunOptions, MeasuredServers, OutputOptions)
    return [("bench option", "default", "what it is"), *(
        (_flags(stated), _shown(one, stated), stated.text) for kind in kinds for one, stated in _stated(kind)
    )]  # fmt: skip


def _shown(one: Field[Any], option: Option) -> str:
    default = default_of(one)
    return _code(
        option.shown or ("" if default is None or default is False or default == () else str(default))
    )


def variables() -> list[Row]:
    return [VARIABLES, *map(_variable, [*settings_of(settings), *settings_of_backends()])]


def variables_of_gpus() -> list[Row]:
    return [VARIABLES, *map(_variable, settings_of_backends())]


VARIABLES = ("variable", "type", "default", "what it is")
SOURCES = Path(__file__).parents[1] / "backends"


def settings_of(module: ModuleType) -> list[Setting[Any]]:
    return [one for one in vars(module).values() if isinstance(one, Setting)]


def settings_of_backends() -> list[Setting[Any]]:
    """Those that modules of the backends define, by the order of their names."""
    files = [path.relative_to(SOURCES) for path in SOURCES.rglob("*.py") if "= Setting(" in path.read_text()]
    modules = [import_module(".".join(path.with_suffix("").parts)) for path in files]
    found = {one.name: one for module in modules for one in settings_of(module)}
    return [found[name] for name in sorted(found)]


def _variable(one: Setting[Any]) -> Row:
    default = {False: "0", True: "1"}.get(one.default, f"`{one.default}`")
    return _code(one.name), one.kind.text, one.shown or default, one.text


TABLES: list[tuple[str, Callable[[], list[Row]]]] = [
    ("command-line.md", load_options),
    ("generation.md", sampling_settings),
    ("benchmarks.md", bench_options),
    ("cpu.md", variables),
    ("gpu.md", variables_of_gpus),
]
"""The page of each table, and what makes its header and rows."""


def _stated(kind: Any) -> list[tuple[Field[Any], Option]]:
    return [(one, one.metadata["option"]) for one in fields(kind) if one.metadata["option"]]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _flags(option: Option) -> str:
    return _code(", ".join(option.flags))


def _default(one: Field[Any]) -> str:
    return _code(repr(default_of(one)))


def _range(option: Option) -> str:
    if option.range == POSITIVE:
        return "above 0"
    if not isinstance(option.range, (Whole, Real)):
        return ""
    least, most = option.range.ends
    if most is not None:
        return f"{least:g} to {most:g}"
    return "any" if least is None else f"at least {least:g}"


def written(text: str, rows: list[Row]) -> str:
    """The page with these rows in place of the table whose first column is so headed."""
    header, *others = [f"| {' | '.join(row)} |\n" for row in rows]
    table = header + "|---" * len(rows[0]) + "|\n" + "".join(others)
    begins = rf"^\| {re.escape(rows[0][0])} \|.*\n(?:\|.*\n)+"
    text, count = re.subn(begins, lambda _: table, text, flags=re.MULTILINE)
    assert count == 1, f"{count} tables begin with a column {rows[0][0]!r}"
    return text


def main() -> None:
    for name, rows in TABLES:
        page = DOCS / name
        page.write_text(written(page.read_text(encoding="utf-8"), rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
