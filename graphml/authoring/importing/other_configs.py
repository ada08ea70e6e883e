"""Trials of an imported file: small models of its class, in each of which a field of config.json differs.

The file computes what the class does, or refuses. A field for which it does neither is first withheld from
the text, where a constant may be read from it by chance, and else pinned: the file refuses another value than
the traced one. So are numbers and lists that could not be tried. Knows folders and runs; nothing of how a
file is written.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import graphml
from graphml.authoring.importing.importing import Imported
from graphml.authoring.importing.numbers import Pins
from graphml.authoring.importing.proof import LIMIT
from graphml.authoring.verify.stages import nmse
from graphml.errors import ArchitectureError, GraphmlError
from graphml.inspect.compare import archive
from graphml.loading.huggingface.config_names import HARMLESS, SIZES
from graphml.system.read_files import guarded, plain_json

ENCODER, DECODER = "encoder_", "decoder_"
LARGEST_BYTES, MOST = 64 << 20, 2000
REQUEST = {"sizes": {key: list(names) for key, names in SIZES.items()}, "skipped": sorted(HARMLESS)}
"""What the process that writes trials needs to know of names."""


@dataclass(frozen=True)
class ConfigTrial:
    """A model by its folder. path: of the field, names with dots; empty for what others are changes of.

    also: fields that are changed with it.
    """

    path: str
    value: Any
    folder: Path
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfigTrials:
    """All of a class. paths: of all fields; seconds: that it took to write them."""

    trials: Sequence[ConfigTrial]
    paths: Sequence[str]
    seconds: float


@dataclass(frozen=True)
class TrialOutcome:
    """What came of a trial: the NMSE of its logits, or the text with which it is refused."""

    trial: ConfigTrial
    nmse: float
    refusal: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the file computes what the class does."""
        return not self.refusal and self.nmse <= LIMIT

    @property
    def is_wrong(self) -> bool:
        """Whether it computes something else, or dies."""
        return not self.refusal and not self.agrees


@dataclass(frozen=True, eq=False)
class Settled:
    """A file that is wrong for no trial. pinned: fields, each with the value that alone it knows."""

    imported: Imported
    outcomes: Sequence[TrialOutcome]
    pinned: Mapping[str, Any]
    seconds: float

    def rows(self) -> list[tuple[str, str]]:
        """For the report: what came of fields, and which."""
        by_path: dict[str, set[bool]] = {}
        for outcome in self.outcomes:
            if outcome.trial.path and outcome.trial.path not in self.pinned:
                for path in (outcome.trial.path, *outcome.trial.also):
                    by_path.setdefault(path, set()).add(outcome.agrees)
        said = {
            "every value agrees": [path for path, ways in by_path.items() if ways == {True}],
            "a value agrees, another is refused": [path for path, ways in by_path.items() if len(ways) > 1],
            "another value is refused": [path for path, ways in by_path.items() if ways == {False}],
            "pinned": [f"{path} = {str(value)[:40]}" for path, value in self.pinned.items()],
        }
        return [(what, ", ".join(paths)) for what, paths in said.items() if paths]


def read_trials(folder: Path) -> ConfigTrials:
    """The trials that the tracer wrote; none of a plain module. ArchitectureError if they are damaged."""
    path, what = folder / "trials.json", "the trials cannot be read"
    if not path.is_file():
        return ConfigTrials((), (), 0.0)
    document = plain_json(path, ArchitectureError, LARGEST_BYTES, what)
    with guarded(path, ArchitectureError, what):
        trials = [
            ConfigTrial(
                str(each["path"]), each["value"], folder / Path(each["folder"]).name, tuple(each["also"])
            )
            for each in document["trials"][:MOST]
        ]
        return ConfigTrials(trials, [str(each) for each in document["paths"]], float(document["seconds"]))


def outcome(arch: Path, trial: ConfigTrial) -> TrialOutcome:
    """Run a file on the model of a trial."""
    arrays = archive.arrays_of(trial.folder / "logits.npz", ArchitectureError, "a trial cannot be read")
    ids = arrays["ids"].tolist()
    try:
        with graphml.load(trial.folder, "reference", kv="f32", quant="fp32", arch=arch) as model:
            got = model.session(n_ctx=len(ids)).eval(ids, all_logits=True)
    except GraphmlError as error:
        return TrialOutcome(trial, float("inf"), str(error).replace(f"{trial.folder}/", "") or "refused")
    except Exception:  # a file that dies is as wrong as one with other logits
        return TrialOutcome(trial, float("inf"))
    return TrialOutcome(trial, nmse(got, arrays["logits"]))


def settle(write: Callable[[Pins], Imported], trials: ConfigTrials, config: Mapping[str, Any]) -> Settled:
    """The file that is right or refuses in every trial. write: the file, some fields withheld or pinned."""
    begin = time.monotonic()
    pins = Pins()
    with tempfile.TemporaryDirectory() as directory:
        arch = Path(directory) / "tried.py"

        def tried(pins: Pins, of: Sequence[ConfigTrial]) -> list[TrialOutcome]:
            arch.write_text(write(pins).text, encoding="utf-8")
            return [outcome(arch, trial) for trial in of]

        outcomes = tried(pins, trials.trials[:1])
        if not outcomes or not outcomes[0].agrees:
            pins = replace(pins, pinned=_values(config, trials.paths))
            return Settled(write(pins), tried(pins, trials.trials), pins.pinned, time.monotonic() - begin)
        outcomes = tried(pins, trials.trials)
        unused = _without_influence(outcomes, config)
        if unused:
            pins = replace(pins, ignored=unused)
            outcomes = tried(pins, trials.trials)
        for path in dict.fromkeys(each.trial.path for each in outcomes if each.is_wrong):
            own = [trial for trial in trials.trials if trial.path == path]
            without = replace(pins, withheld=pins.withheld | {path})
            again = tried(without, own)
            if any(each.agrees for each in again) and not any(each.is_wrong for each in again):
                pins = without
        changed = bool(pins.withheld)
        outcomes = tried(pins, trials.trials) if changed else outcomes
        wrong = [each.trial.path for each in outcomes if each.is_wrong]
        known = {each.trial.path for each in outcomes}
        known |= {path for each in outcomes if each.agrees for path in each.trial.also}
        left = [path for path in trials.paths if path not in known and _is_number(_value(config, path))]
        pins = replace(pins, pinned=_values(config, [*wrong, *left]))
        if pins.pinned:
            last = tried(pins, trials.trials)
            outcomes = [b if a.trial.path in pins.pinned else a for a, b in zip(outcomes, last, strict=True)]
        for each in outcomes:
            if each.is_wrong:
                problem = f"NMSE {each.nmse:.1e}: neither right nor refused"
                raise ArchitectureError(f"{each.trial.path} = {str(each.trial.value)[:60]}: {problem}")
    return Settled(write(pins), outcomes, pins.pinned, time.monotonic() - begin + trials.seconds)


def _without_influence(outcomes: Sequence[TrialOutcome], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of an encoder that are refused, beside those of the imported decoder, and change no logits."""
    base = _logits(outcomes[0].trial)
    refused: dict[str, list[bool]] = {}
    for each in outcomes[1:]:
        is_same = bool(each.refusal) and np.array_equal(_logits(each.trial), base)
        refused.setdefault(each.trial.path, []).append(is_same)
    return tuple(
        path
        for path, alike in refused.items()
        if path.startswith(ENCODER) and path.replace(ENCODER, DECODER, 1) in config and all(alike)
    )


def _logits(trial: ConfigTrial) -> NDArray[Any]:
    arrays = archive.arrays_of(trial.folder / "logits.npz", ArchitectureError, "a trial cannot be read")
    return arrays["logits"]


def _values(config: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    return {path: _value(config, path) for path in dict.fromkeys(paths) if path}


def _value(config: Mapping[str, Any], path: str) -> Any:
    """The value of a field of the traced model; None for one that config.json lacks."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_number(value: Any) -> bool:
    """A number, or a list of anything but words, which are checked one by one."""
    words = isinstance(value, list) and any(isinstance(word, str) for word in value)
    return isinstance(value, int | float | list) and not words
