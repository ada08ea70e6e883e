"""The table of load options in docs/command-line.md; `python -m tests.option_table` prints it."""

from __future__ import annotations

from dataclasses import fields

from graphml.option_fields import options_of
from graphml.runtime.load_options import LoadOptions

HOW = "python -m tests.option_table prints the table"
HEADER = ("load option", "flags", "variable", "default", "what it is")


def rows() -> list[tuple[str, ...]]:
    stated = options_of(LoadOptions)
    return [
        (one.name, ", ".join(stated[one.name].flags), stated[one.name].variable, repr(one.default),
         stated[one.name].text)
        for one in fields(LoadOptions)
    ]  # fmt: skip


def main() -> None:
    print(f"| {' | '.join(HEADER)} |")
    print("|---" * len(HEADER) + "|")
    for name, flags, variable, default, text in rows():
        cells = (f"`{name}`", f"`{flags}`", f"`{variable}`" if variable else "", f"`{default}`", text)
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
