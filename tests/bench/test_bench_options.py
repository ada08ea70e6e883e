"""Options of `graphml bench` are defined once: flags, help and defaults follow the fields."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import typer

from graphml.bench import test_plan as plan
from graphml.bench.bench_options import (
    LengthOptions,
    MeasuredServers,
    ModelOptions,
    OutputOptions,
    RunOptions,
    SettingOptions,
)
from graphml.cli.main import app
from graphml.errors import UsageError
from graphml.options.option_fields import options_of
from graphml.runtime.programs.load_options import LoadOptions
from tests.looped import looped

KINDS = (ModelOptions, LengthOptions, SettingOptions, RunOptions, MeasuredServers, OutputOptions)


def test_flags_are_those_of_the_fields() -> None:
    group: Any = typer.main.get_command(app)
    shown = {one.name: one for one in group.get_command(None, "bench").params}
    assert [*shown] == [one.name for kind in KINDS for one in fields(kind)]
    for kind in KINDS:
        for name, stated in options_of(kind).items():
            assert (tuple(shown[name].opts), shown[name].help) == (stated.flags, stated.help)


@looped("name", ["threads", "quant", "arch", "offline"])
def test_what_opening_a_model_has_too_is_said_there(name: str) -> None:
    (ours,) = (options_of(kind)[name] for kind in KINDS if name in options_of(kind))
    theirs = options_of(LoadOptions)[name]
    assert (ours.text, ours.flags, ours.variable) == (theirs.text, theirs.flags, theirs.variable)


def test_without_flags_the_defaults_are_measured() -> None:
    assert LengthOptions().tests == [plan.Test(512, 0), plan.Test(0, 128)]
    assert SettingOptions().combined(["m"], [2]) == [plan.SideParameters("graphml", "m", "cpu", 2)]
    assert RunOptions().backend == (LoadOptions().backend,)


@looped(
    ("keys", "values", "wanted"),
    [
        ((), (), [("f16", "f16")]),
        (("q8_0", "f32"), (), [("q8_0", "q8_0"), ("f32", "f32")]),
        ((), ("q8_0",), [("q8_0", "q8_0")]),
        (("f16",), ("f32",), [("f16", "f32")]),
    ],
)
def test_a_type_that_is_left_out_is_the_other(keys: Any, values: Any, wanted: Any) -> None:
    assert SettingOptions(cache_type_k=keys, cache_type_v=values).cache_types == wanted


def test_wrong_values_are_named_as_the_command_line_has_them() -> None:
    with pytest.raises(UsageError, match=r"^-oe: wanted one of md, csv, json, jsonl, sql; got 'xml'"):
        OutputOptions(output_err="xml")
    with pytest.raises(UsageError, match=r"^-r: wanted a whole number of at least 1, got 0"):
        RunOptions(repetitions=0)


def test_layers_and_rules_are_combined_and_open_what_they_name() -> None:
    rules = ("cpu:layers.0, reference:softmax", "wgpu:layers.*")
    found = SettingOptions(place=rules, gpu_layers=(0, 3)).combined(["m"], [2])
    assert [(one.place, one.gpu_layers) for one in found] == [(rule, n) for rule in rules for n in (0, 3)]
    assert replace(found[0], backend="wgpu").opened == "wgpu,cpu,reference"
    assert replace(found[2], backend="wgpu").opened == "wgpu"
    assert plan.SideParameters("graphml", "m", "cpu", 2).opened == "cpu"
