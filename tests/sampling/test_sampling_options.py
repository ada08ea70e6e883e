"""Settings of sampling are defined once: flags, help and `/set` follow the fields of `SamplingParams`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from graphml.cli.conversation import sampling_settings
from graphml.cli.main import app
from graphml.cli.options.typer_options import Shown, grouped
from graphml.errors import UsageError
from graphml.options.option_fields import Real, Whole, default_of, option, options_of
from graphml.sampling import SamplingParams

STATED = options_of(SamplingParams)
OF_PROMPTS = {"reasoning_end"}
"""What a conversation's prompt sets, and no caller."""


def test_every_setting_states_itself() -> None:
    assert list(STATED) == [one.name for one in fields(SamplingParams) if one.name not in OF_PROMPTS]
    assert SamplingParams() == SamplingParams(**{one.name: default_of(one) for one in fields(SamplingParams)})


@pytest.mark.parametrize("command", ["run", "chat"])
def test_flags_have_the_fields_help_default_and_range(command: str) -> None:
    group: Any = typer.main.get_command(app)
    shown = {one.name: one for one in group.get_command(None, command).params}
    for one in fields(SamplingParams):
        if one.name in OF_PROMPTS:
            continue
        stated, flag = STATED[one.name], shown[one.name]
        assert (tuple(flag.opts), flag.help) == (stated.flags, stated.help)
        assert flag.default == (None if stated.repeated else one.default)
        if isinstance(stated.range, (Whole, Real)):
            assert (flag.min, flag.max) == stated.range.ends


def test_a_conversation_sets_each() -> None:
    assert list(sampling_settings.HELP) == [*STATED, "seed", "max_tokens"]
    for name, stated in STATED.items():
        assert sampling_settings.HELP[name].startswith(stated.text)
        assert {sampling_settings.named(flag) for flag in stated.flags} == {name}


def given(*arguments: str, group: Any = SamplingParams) -> Any:
    """What a command with these settings is given."""
    found: list[Any] = []

    def command(params: Any) -> None:
        found.append(params)

    command.__annotations__["params"] = group
    single = typer.Typer()
    single.command()(grouped(command))
    done = CliRunner().invoke(single, list(arguments))
    if done.exception is not None:
        raise done.exception
    return found[0]


def test_flags_make_the_value() -> None:
    assert given() == SamplingParams()
    flags = "--temp 0.5 --top-k 40 --repeat-last-n -1 --logit-bias 5-inf --logit-bias 6+1.5 --stop a --stop b"
    assert given(*flags.split(), "--stop-token", "7") == SamplingParams(
        temperature=0.5, top_k=40, repeat_last_n=-1, logit_bias={5: -math.inf, 6: 1.5}, stop=("a", "b"),
        stop_tokens=frozenset({7}),
    )  # fmt: skip


def test_flags_of_every_sampler_make_the_value(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def same(ids, logits, history):\n    return logits\n")
    flags = (
        "--top-nsigma 1.5 --epsilon-cutoff 0.01 --eta-cutoff 0.02 --xtc-probability 0.5 --xtc-threshold 0.2 "
        "--dry-multiplier 0.8 --dry-base 1.5 --dry-allowed-length 3 --dry-penalty-last-n 100 "
        "--dry-sequence-breaker a --mirostat 2 --mirostat-ent 4 --mirostat-lr 0.2 --adaptive-target 0.4 "
        "--adaptive-decay 0.5 --banned-string x --samplers dkt --rng llama.cpp"
    )
    made = given(*flags.split(), "--sampling-function", f"{file}:same")
    assert made.function(None, 5, ()) == 5
    assert made == SamplingParams(
        top_n_sigma=1.5, epsilon_cutoff=0.01, eta_cutoff=0.02, xtc_probability=0.5, xtc_threshold=0.2,
        dry_multiplier=0.8, dry_base=1.5, dry_allowed_length=3, dry_penalty_last_n=100,
        dry_sequence_breakers=("a",), mirostat=2, mirostat_tau=4, mirostat_eta=0.2, adaptive_target=0.4,
        adaptive_decay=0.5, banned_strings=("x",), samplers="dkt", rng="llama.cpp", function=made.function,
    )  # fmt: skip
    assert given("--dry-sequence-breaker", "none") == SamplingParams(dry_sequence_breakers=())


@dataclass(frozen=True)
class More(SamplingParams):
    """Settings with one more of each kind."""

    xtc_probability: float = option(0.0, "Chance; 0 is off.", "--xtc-probability", range=Real(0, 1))
    breakers: tuple[str, ...] = option(
        ("\n",), "Ends a repetition.", "--breaker", on_command_line=str, repeated=True, parse=tuple
    )


def test_a_field_is_all_that_a_new_setting_needs() -> None:
    assert given(group=More) == More()
    made = given("--xtc-probability", "0.5", "--breaker", "x", "--breaker", "y", "--top-k", "3", group=More)
    assert made == More(top_k=3, xtc_probability=0.5, breakers=("x", "y"))
    assert given("--breaker", "z", group=Annotated[More, Shown("breakers")]) == More(breakers=("z",))
    with pytest.raises(UsageError, match=r"^xtc_probability: wanted a number from 0 to 1, got 2"):
        More(xtc_probability=2)


@pytest.mark.parametrize(
    ("range", "wanted"),
    [
        (Real(), "a finite number in float32's range (up to 3.4e+38)"),
        (Real(0), "a finite number of at least 0 and at most 3.4e+38"),
        (Real(0, 1), "a number from 0 to 1"),
        (Whole(-1), "a whole number of at least -1"),
        (Whole(1, 8, " tokens"), "a whole number from 1 to 8 tokens"),
    ],
    ids=repr,
)
def test_a_range_says_what_is_wanted(range: Any, wanted: str) -> None:
    assert str(range) == wanted
    read: Callable[[str, object], Any] = range.read
    with pytest.raises(UsageError, match=r"^x: wanted "):
        read("x", "many")
