"""Options of opening a model are defined once: `load`, flags and their help follow the fields."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import graphml
from graphml import UsageError, settings
from graphml.bench.bench_options import MeasuredServers, RunOptions, SettingOptions
from graphml.cli.main import app
from graphml.cli.options import opening
from graphml.cli.options.ways_of_decoding import DecodingOptions
from graphml.ir.cache_types import CACHE_DTYPES
from graphml.options.option_fields import Whole, options_of
from graphml.runtime.blocks.overflow import Overflow
from graphml.runtime.programs.load_options import LoadOptions
from tests import tiny_model
from tests.looped import looped


def test_load_takes_every_option_by_its_name_and_default() -> None:
    taken = {
        name: one.default
        for name, one in inspect.signature(graphml.load).parameters.items()
        if name not in ("path", "progress", "n_ctx")  # n_ctx is of the model's sessions, not of its file
    }
    stated = options_of(LoadOptions)
    # Those with a key are other spellings of override_kv.
    assert taken == {one.name: one.default for one in fields(LoadOptions) if not stated[one.name].key}


def test_flags_reach_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that Python or a variable alone had; what is opened sees them."""
    seen: list[LoadOptions] = []
    monkeypatch.setattr(opening, "load_model", lambda path, options, progress: seen.append(options))
    path = tiny_model.write(tmp_path / "tiny.gguf")
    flags = ["--pages", "map", "--numa", "interleave", "--pin", "--tuned"]
    CliRunner().invoke(app, ["run", str(path), "-p", "hi", "--backend", "reference", *flags])
    CliRunner().invoke(app, ["run", str(path), "-p", "hi", "--backend", "reference", "--no-tuned"])
    assert [(one.pages, one.numa, one.pin, one.tuned) for one in seen] == [
        ("map", "interleave", True, True),
        (None, None, None, False),
    ]


def test_every_option_states_itself() -> None:
    assert list(options_of(LoadOptions)) == [one.name for one in fields(LoadOptions)]
    known = {one.name: one.text for one in vars(settings).values() if isinstance(one, settings.Setting)}
    for one in options_of(LoadOptions).values():
        assert not one.variable or one.text == known[one.variable]


def test_flags_have_the_fields_help_default_and_range() -> None:
    group: Any = typer.main.get_command(app)
    shown = {one.name: one for one in group.get_command(None, "run").params}
    for one in fields(LoadOptions):
        stated, flag = options_of(LoadOptions)[one.name], shown[one.name]
        assert [*flag.opts, *flag.secondary_opts] == [
            part for name in stated.flags for part in name.split("/")
        ]
        assert (flag.help, flag.default) == (stated.help, one.default)
        if isinstance(stated.range, Whole):
            assert flag.min == stated.range.least


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"threads": 0}, "threads: wanted a whole number of at least 1, got 0"),
        ({"threads": True}, "threads: wanted a whole number of at least 1, got True"),
        ({"n_batch": None}, "n_batch: wanted a whole number of at least 1, got None"),
        ({"n_batch": 1 << 21}, "n_batch: wanted 1 to 1048576 tokens of one step; got 2097152"),
        ({"gpu_layers": -1}, "gpu_layers: wanted a whole number of at least 0, got -1"),
        ({"kv": "q4_k"}, f"kv: wanted one of {', '.join(CACHE_DTYPES)}, or two as KEYS/VALUES; got 'q4_k'"),
        ({"kv": "q8_0/"}, "or two as KEYS/VALUES; got 'q8_0/'"),
        ({"kv": "q8_0/q4_0/f16"}, "or two as KEYS/VALUES; got 'q8_0/q4_0/f16'"),
        ({"kv": 8}, "or two as KEYS/VALUES; got 8"),
        ({"quant": ["q8"]}, "quant: wanted one of fp32, q8, q4; got"),
        ({"pages": "all"}, "pages: wanted one of ahead, map, huge, copy; got 'all'"),
        ({"numa": "near"}, "numa: wanted one of first-touch, interleave; got 'near'"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_when_the_value_is_made(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        LoadOptions(**given)


@looped(
    "kind",
    [
        LoadOptions,
        Overflow,
        graphml.SamplingParams,
        DecodingOptions,
        SettingOptions,
        RunOptions,
        MeasuredServers,
    ],
)
def test_defaults_are_in_their_ranges(kind: type) -> None:
    """They are not checked where a value is made."""
    for one in fields(kind):
        stated = one.metadata.get("option")
        if stated is not None and stated.range is not None and one.default not in (None, MISSING):
            read = stated.range.read(one.name, one.default)
            assert (read, type(read)) == (one.default, type(one.default))
