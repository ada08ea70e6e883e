"""Numbers of expressions as text: fields of the configuration that follow from config.json, else literals.

Knows config.json's fields and GGUF's keys; nothing of graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphml.loading.huggingface.config_names import NUMBERS

MEANT = ("scal", "mult", "factor", "cap", "temperature", "logit", "residual", "clip", "clamp", "limit")
FORMULAS: Mapping[str, Callable[[float], float]] = {
    "{}": lambda x: x,
    "1.0 / {}": lambda x: 1.0 / x,
    "{}**0.5": lambda x: x**0.5,
    "{}**-0.5": lambda x: x**-0.5,
}


def near(a: float, b: float) -> bool:
    """Whether two numbers are the same but for rounding."""
    return math.isclose(a, b, rel_tol=2e-6, abs_tol=1e-12)


@dataclass(frozen=True)
class Pins:
    """Fields of config.json that are kept from a text.

    withheld: no number of the text is read from them. pinned: by their paths of names, each with the only
    value that the file knows. ignored: without influence on what the class computes.
    """

    withheld: frozenset[str] = frozenset()
    pinned: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


@dataclass
class Fields:
    """What the file reads: fields of Config (name -> type, how it is read), and keys from config.json.

    config: without the fields that are withheld. keys: GGUF's key -> the text that reads it from `config`;
    values: of the fields, for GGUF files.
    """

    config: Mapping[str, Any]
    fields: dict[str, tuple[str, str]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    pins: Pins = field(default_factory=Pins)

    def add(self, name: str, kind: str, read: str, key: str = "", source: str = "", value: Any = None) -> str:
        """A field of Config, and the key that it is read from."""
        self.fields[name] = (kind, read)
        if key:
            self.values[key] = value
            if source:
                self.keys[key] = source
        return f"config.{name}"

    def add_key(self, key: str, value: Any, source: str = "") -> None:
        """A key that no field of its own is read from; its value, and the text that reads it."""
        self.values[key], self.keys[key] = value, source or repr(value)

    def number(self, value: float, role: str = "") -> str:
        """The text of a factor or a limit. role: a GGUF key that names its use, if it has one."""
        if self.config:
            width = self.config.get("hidden_size", self.config.get("n_embd"))
            if isinstance(width, int) and near(value, width**0.5):
                return "config.n_embd**0.5"
            if isinstance(width, int) and near(value, width**-0.5):
                return "config.n_embd**-0.5"
        if (formula_of := self._formula_of(value)) is not None:
            name, formula = formula_of
            number, configured = f'config.number("{name}")', float(self.config[name])
            return formula.format(self.add(name, "float", f'keys.number("{name}")', name, number, configured))
        if role and self.values.get(role, value) == value:
            return self.add(
                role.replace(".", "_"), "float", f'keys.number("{role}")', role, repr(value), value
            )
        return literal(value)

    def integer(self, value: int, role: str) -> str:
        """The text of a number of tokens. role: the GGUF key that names its use."""
        name = next(
            (
                name
                for name, configured in self.config.items()
                if configured == value and role.split(".")[-1] in name
            ),
            "",
        )
        source = f'config.size("{name}")' if name else repr(value)
        return self.add(role.replace(".", "_"), "int", f'keys.integer("{role}")', role, source, value)

    def scale(self, value: float, head_dim: int) -> str:
        """The text of what scores are multiplied with."""
        if near(value, head_dim**-0.5):
            return "config.scale"
        formula = self._formula_of(value)
        text = repr(value) if formula is None else formula[1].format(f'config.number("{formula[0]}")')
        self.keys["attention.scale"], self.values["attention.scale"] = text, value
        return "config.scale"

    def _formula_of(self, value: float) -> tuple[str, str] | None:
        """The field of config.json that a number follows from, and how; None where there is none."""
        meant = {
            name: float(configured)
            for name, configured in self.config.items()
            if not isinstance(configured, bool) and isinstance(configured, int | float) and configured > 0
            and any(part in name for part in MEANT)
        }  # fmt: skip
        for formula, function in FORMULAS.items():  # the number itself before what is computed from another
            for name, configured in meant.items():
                if near(function(configured), value):
                    return name, formula
        return None

    def eps_field(self, key: str, value: float) -> tuple[str, dict[str, float]]:
        """The field of config.json with the epsilon of norms, if it has an unusual name; and its default."""
        for name in NUMBERS[key]:
            if isinstance(self.config.get(name), float) and near(self.config[name], value):
                return "", {}
        for name, configured in self.config.items():
            if isinstance(configured, float) and "eps" in name and near(configured, value):
                return name, {}
        return "", {NUMBERS[key][0]: value}


def literal(value: float) -> str:
    """A number as a person would write it."""
    return repr(float(f"{value:.9g}"))


def period(windows: Sequence[int]) -> int | None:
    """Of so many layers the last has no window; None for another pattern."""
    free = [i + 1 for i, window in enumerate(windows) if not window]
    first = free[0] if free else 0
    pattern = [bool(first) and (i + 1) % first == 0 for i in range(len(windows))]
    return first if [not window for window in windows] == pattern else None
