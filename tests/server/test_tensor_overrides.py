"""llama-server's overrides of tensors' buffers are rules of placement, or are refused."""

from __future__ import annotations

import pytest

import graphml
from graphml.cli.serve import load_options
from graphml.errors import UsageError
from graphml.passes.placement_rules import parse_rules
from graphml.server.options.command_line import Parsed, parsed, with_variables
from tests.stories import STORIES

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (["-cmoe"], f"cpu:/{EXPERTS}/"),
        (["-ncmoe", "2"], rf"cpu:/blk\.(0|1){EXPERTS}/"),
        (["-ncmoe", "0"], ""),
        (["-ncffn", "1"], r"cpu:/blk\.(0)\.ffn_(up|down|gate)\./"),
        (["-ot", "a=CPU,b=wgpu"], "wgpu:/b/,cpu:/a/"),  # llama.cpp takes the first, rules the last
        (["-cmoe", "-ot", r"blk\.3\.=WGPU"], rf"cpu:/{EXPERTS}/,wgpu:/blk\.3\./"),
        (["-cmoe", "--place", "wgpu:layers.1"], f"cpu:/{EXPERTS}/,wgpu:layers.1"),
    ],
    ids=" ".join,
)
def test_overrides_are_rules(line: list[str], place: str) -> None:
    opening = load_options(parsed(["--backend", "wgpu", *line]))
    assert opening.place == place
    assert opening.backend == ("wgpu,cpu" if "cpu:" in place else "wgpu")
    parse_rules(place, opening.backend.split(","))


def test_variables_say_the_same() -> None:
    variables = {"LLAMA_ARG_CPU_MOE": "1", "LLAMA_ARG_OVERRIDE_TENSOR": "a=CPU"}
    opening = load_options(with_variables(Parsed({"backend": "wgpu"}), variables))
    assert opening.place == f"cpu:/{EXPERTS}/,cpu:/a/"


def test_on_the_cpu_alone_overrides_hold_as_it_is() -> None:
    opening = load_options(parsed(["-cmoe", "-ot", "a=CPU", "-ncmoe", "3"]))
    assert (opening.place, opening.backend) == ("", "cpu")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["-ot", "exps=CUDA0"], r"exps=CUDA0.*--backend names \(CPU, wgpu\)"),
        (["-ot", "exps"], "PATTERN=BUFFER"),
        (["-ot", "=CPU"], "PATTERN=BUFFER"),
        (["-ncmoe", "-1"], "--n-cpu-moe: wanted a number of layers from 0"),
        (["-ncffn", "10000"], "--n-cpu-ffn: .*got 10000"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_refused(line: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_options(parsed(["--backend", "wgpu", *line]))


def test_a_wrong_expression_is_said() -> None:
    with pytest.raises(UsageError, match=r"/a\(/.*wanted a regular expression"):
        parse_rules("cpu:/a(/", ["cpu"])


def test_an_expression_selects_by_weights_alone() -> None:
    rule = r"reference:/blk\.[01]\.ffn_(up|down)/"
    with graphml.load(STORIES, "cpu,reference", place=rule, threads=1) as model:
        placement = model.executor.compiled(max_tokens=1, max_outputs=1).placement
    assert placement is not None
    ruled = {name for name, placed in placement.places.items() if placed.reason == f"rule {rule}"}
    assert ruled == {f"layers.{i}.{name}" for i in (0, 1) for name in ("up", "down")}


def test_an_expression_that_no_weight_has_is_an_error() -> None:
    with pytest.raises(UsageError, match="ffn_residual"):
        graphml.load(STORIES, "cpu,reference", place="reference:/ffn_residual/").graph()
