"""llama-server's INI file of models: a section states the flags of one model, `[*]` those of all.

Knows lines, keys and how flags are named; nothing of what a flag means, nor of models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from graphml.errors import UsageError, did_you_mean
from graphml.server.options.command_line import (
    ALONE,
    BY_NAME,
    NAMED_OTHERWISE,
    OFF,
    ON,
    PREFIX,
    WITH_VALUE,
    Parsed,
    with_stated,
)
from graphml.system.read_files import guarded, plain_text

EVERY: Final = "*"
LINE: Final = re.compile(
    r"[ \t]*(?:\[[ \t]*(?P<section>[^\]]+?)[ \t]*\]"
    r"|(?P<key>[A-Za-z_][\w.-]*)[ \t]*=[ \t]*(?P<value>[^;#]*?))?"
    r"[ \t]*(?:[;#].*)?",
    re.ASCII,
)
"""As llama-server reads it: a comment begins anywhere behind a value."""
OF_SERVER: Final = frozenset(
    (
        "--host", "--port", "--api-key", "--api-key-file", "--alias", "--models-dir", "--models-preset",
        "--models-max", "--models-autoload", "--mcp", "--help", "--version", "--api-prefix",
        "--ssl-key-file", "--ssl-cert-file", "--log-requests", "--otlp-endpoint", "--cors-origins", "--ui",
        "--no-ui", "--shutdown-timeout", "--max-body", "--max-waiting", "--allow-no-key", "--share-prefixes",
        "--timeout", "--sse-ping-interval", "--log-level", "--no-metrics",
    )
)  # fmt: skip
"""Flags that no model has of its own."""
OF_ROUTER: Final = ("stop-timeout", "dedup-cache-models")
"""Without a meaning here: a model is closed after its last request; the hub's cache is not listed."""
Stated = tuple[str, str, list[str | bool]]


@dataclass
class ModelPreset:
    """What a section states: flags with their place and value, and whether its model is loaded at the start.

    ignored: flags of llama-server that have no meaning here.
    """

    stated: list[Stated] = field(default_factory=list)
    on_startup: bool | None = None
    ignored: list[str] = field(default_factory=list)


def read_presets(path: Path) -> dict[str, ModelPreset]:
    """The sections of a file by name; UsageError naming the line of what cannot be meant.

    A key that is stated again in a section counts as it is stated last, as llama-server reads it.
    """
    text = plain_text(path, UsageError)
    with guarded(path, UsageError):
        return _presets(path, text)


def _presets(path: Path, text: str) -> dict[str, ModelPreset]:
    presets: dict[str, ModelPreset] = {}
    section: str | None = None
    for number, line in enumerate(text.split("\n"), 1):
        where, match = f"{path}:{number}", LINE.fullmatch(line)
        if match is None:
            raise UsageError(f"{where}: wanted [MODEL], KEY = VALUE or a comment; got {line.strip()!r:.60}")
        if match["section"] is not None:
            section = match["section"]
            if section in presets:
                raise UsageError(f"{where}: [{section}]: wanted each section once")
            presets[section] = ModelPreset()
        elif match["key"] is not None:
            if section is not None:
                _state(presets[section], where, match["key"], match["value"])
            elif (match["key"], match["value"]) != ("version", "1"):
                raise UsageError(f"{where}: {match['key']}: wanted a section before it, or version = 1")
    return presets


def preset_command(command: Parsed, presets: Mapping[str, ModelPreset], name: str) -> Parsed:
    """The command line of a model: the server's own flags first, then its section's, then those of `[*]`."""
    merged = command
    for section in (name, EVERY):
        preset = presets.get(section, ModelPreset())
        merged = with_stated(merged, preset.stated)
        merged.ignored += preset.ignored
    return merged


def loaded_on_startup(presets: Mapping[str, ModelPreset], name: str) -> bool:
    """Whether a model's section, or else `[*]`, wants it loaded at the start."""
    stated = (presets[section].on_startup for section in (name, EVERY) if section in presets)
    return next((value for value in stated if value is not None), False)


def _state(preset: ModelPreset, where: str, key: str, value: str) -> None:
    place = f"{where}: {key}"
    if key == "load-on-startup":
        preset.on_startup = _switched(place, value)
        return
    if key in OF_ROUTER:
        preset.ignored.append(key)
        return
    flag = _flag_of(place, key)
    if OF_SERVER.intersection((flag, *(BY_NAME[flag].names.split() if flag in BY_NAME else ()))):
        raise UsageError(f"{place}: wanted a flag of a model; {flag} is the server's")
    if flag in WITH_VALUE or flag in ALONE:
        preset.ignored.append(flag)
        return
    known = BY_NAME[flag]
    values: list[str | bool] = [value]
    if known.read is None:
        if not isinstance(known.value, bool):
            raise UsageError(f"{place}: wanted a flag with a value, or one that is on or off")
        values = [known.value == _switched(place, value)]
    elif known.n_values > 1:
        values = [*value.split()]
    preset.stated.append((place, flag, values))


def _flag_of(place: str, key: str) -> str:
    """The flag of a key: its long or short name without dashes, or its variable."""
    if key.startswith(PREFIX) or key in NAMED_OTHERWISE:
        variable = NAMED_OTHERWISE.get(key, "--" + key.removeprefix(PREFIX).lower().replace("_", "-"))
        names = [variable]
    else:
        names = [f"--{key}", f"--{key.replace('_', '-')}", f"-{key}"]
    every = BY_NAME.keys() | WITH_VALUE | ALONE
    flag = next((name for name in names if name in every), None)
    if flag is None:
        raise UsageError(f"{place}: serve has no such option.{did_you_mean(names[0], BY_NAME)}")
    return flag


def _switched(place: str, value: str) -> bool:
    if value not in ON + OFF:
        raise UsageError(f"{place}: wanted {', '.join(ON + OFF)}; got {value!r:.40}")
    return value in ON
