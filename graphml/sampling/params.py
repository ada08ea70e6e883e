"""Settings of the sampler as one value: each with its type, default, help, range and flags.

The flags of `graphml run` and `graphml chat`, their help, `/set` and the table in docs/generation.md are
derived from these fields. Knows the settings; knows nothing of logits, candidates or a random generator.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphml.argument_checks import items_of, text_of
from graphml.errors import UsageError
from graphml.option_fields import POSITIVE, Checked, Real, Whole, check, option
from graphml.sampling.logit_biases import checked_biases, parse_biases, written_biases


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = tuple(items_of(name, value, "a tuple of strings such as ('\\n',)"))
    for text in texts:
        if not isinstance(text, str) or not text:
            raise UsageError(f"{name}: wanted strings that are not empty, got {text!r}")
    return texts


def _token_ids(name: str, value: object) -> frozenset[int]:
    return frozenset(Whole(0).read(name, one) for one in items_of(name, value, "a collection of token ids"))


def _text(name: str, value: object) -> str:
    return text_of(name, value)


def _json_text(name: str, value: object) -> str:
    """A schema as text, so that params can be compared: of a dict, a dataclass or a pydantic model."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | bool):
        from graphml.sampling.structured.type_schemas import schema_of_type

        value = schema_of_type(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{name}: wanted a JSON schema as a text or a dict; {error}") from None


STRUCTURES = ("grammar", "json_schema", "regex", "choices")
"""The fields that say what the text must follow; one of them at a time."""


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one sampler chain; `SamplingParams()` is greedy.

    Fields keep llama.cpp's names and meaning where it has them, and so do their flags. A field at its default
    leaves its step out. Temperature 0 takes the most likely token, whatever the filters say; the bias and the
    penalties still count. Raises UsageError naming the field, what was wanted and what came.
    """

    temperature: float = option(
        0.0, "Temperature, which divides the logits; 0 takes the most likely token.", "--temp", range=Real(0)
    )
    dynatemp_range: float = option(
        0.0, "The temperature moves by up to this, up and down, with the entropy; 0 is off.",
        "--dynatemp-range", range=Real(0),
    )  # fmt: skip
    dynatemp_exponent: float = option(
        1.0, "Exponent of the dynamic temperature.", "--dynatemp-exp", range=Real(0)
    )
    top_k: int = option(0, "Keep the k most likely tokens; 0 is off.", "--top-k", range=Whole(0))
    top_p: float = option(
        1.0, "Keep the most likely tokens that together reach p; 1 is off.", "--top-p", range=Real(0, 1)
    )
    min_p: float = option(
        0.0, "Keep tokens at least p times as likely as the most likely one; 0 is off.", "--min-p",
        range=Real(0, 1),
    )  # fmt: skip
    typical_p: float = option(
        1.0, "Keep the tokens nearest to the entropy that together exceed p (locally typical); 1 is off.",
        "--typical-p", range=Real(0, 1),
    )  # fmt: skip
    min_keep: int = option(
        0, "Fewest tokens that top-p, min-p and typical-p leave.", "--min-keep", range=Whole(0)
    )
    repeat_penalty: float = option(
        1.0, "Divides positive and multiplies other logits of tokens in the window; 1 is off.",
        "--repeat-penalty", range=POSITIVE,
    )  # fmt: skip
    presence_penalty: float = option(
        0.0, "Subtracted from the logits of tokens in the window.", "--presence-penalty", range=Real()
    )
    frequency_penalty: float = option(
        0.0, "Subtracted once per occurrence in the window.", "--frequency-penalty", range=Real()
    )
    penalty_last_n: int = option(
        64, "Length of the penalties' window, prompt included; 0 is off, -1 the whole history.",
        "--repeat-last-n", range=Whole(-1),
    )  # fmt: skip
    logit_bias: Mapping[int, float] = option(
        dict, "Added to the logit of a token id: 15043+1; 15043-inf forbids it.", "--logit-bias", hash=False,
        range=Checked(checked_biases), metavar="ID+X|ID-X", on_command_line=str, repeated=True,
        parse=parse_biases, write=written_biases,
    )  # fmt: skip
    stop: tuple[str, ...] = option(
        (), "A text that ends the generation; it is not shown.", "--stop",
        range=Checked(_texts), on_command_line=str, repeated=True, write=list,
    )  # fmt: skip
    stop_tokens: frozenset[int] = option(
        frozenset(), "A token id that ends the generation.", "--stop-token",
        range=Checked(_token_ids), metavar="ID", on_command_line=int, repeated=True, write=sorted,
    )  # fmt: skip

    grammar: str = option(
        "", "A GBNF grammar that the text follows.", "--grammar", range=Checked(_text), metavar="GBNF"
    )
    json_schema: Any = option(
        "", "A JSON schema that the text follows, {{}} for any JSON.", "--json-schema",
        range=Checked(_json_text), metavar="SCHEMA", on_command_line=str,
    )  # fmt: skip
    regex: str = option(
        "", "A regular expression that the whole text follows.", "--regex", range=Checked(_text)
    )
    choices: tuple[str, ...] = option(
        (), "A text that may be the whole answer.", "--choice",
        range=Checked(_texts), on_command_line=str, repeated=True, write=list,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)
        given = [name for name in STRUCTURES if getattr(self, name)]
        if len(given) > 1:
            raise UsageError(f"{', '.join(given)}: wanted one of them, or none")

    @property
    def structured(self) -> bool:
        """Whether the text follows a grammar, schema, expression or list of choices."""
        return any(getattr(self, name) for name in STRUCTURES)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether any penalty changes a logit."""
        neutral = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) == (1.0, 0.0, 0.0)
        return self.penalty_last_n != 0 and not neutral


def checked_params(params: SamplingParams | None) -> SamplingParams:
    """The settings, or those of greedy sampling for None; UsageError for anything else."""
    if params is not None and not isinstance(params, SamplingParams):
        raise UsageError(f"params: wanted SamplingParams or None, got {params!r}")
    return params or SamplingParams()
