"""Settings of the sampler as one value: each with its type, default, help, range and flags.

The flags of `graphml run` and `graphml chat`, their help, `/set` and the table in docs/generation.md are
derived from these fields. Knows the settings; knows nothing of logits, candidates or a random generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from graphml.errors import UsageError
from graphml.options.argument_checks import text_of
from graphml.options.keyword_arguments import OF_GENERATING, named_arguments
from graphml.options.option_fields import (
    POSITIVE,
    Checked,
    OneOf,
    OneOfNumbered,
    Real,
    Whole,
    check,
    no_option,
    option,
    options_of,
)
from graphml.sampling.settings.field_checks import (
    OwnFunction,
    checked_biases,
    checked_breakers,
    checked_flag,
    checked_function,
    checked_json_text,
    checked_texts,
    checked_token_ids,
    opened_schema_text,
    parse_biases,
    written_biases,
)
from graphml.sampling.settings.grammar_triggers import Trigger, checked_triggers
from graphml.sampling.settings.reasoning_end import ReasoningEnd
from graphml.sampling.settings.sampler_names import checked_order

BREAKERS = ("\n", ":", '"', "*")
"""Where repetitions that DRY counts end, as in llama.cpp."""
LLAMA_CPP = "llama.cpp"
LLAMA_SERVER: Final[Mapping[str, Any]] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""What llama-server and the command line sample by where neither a flag nor the model's file says."""
MOST_LOGPROBS = 256
"""Most likely tokens that can be asked for with each token."""

MOST_STEPS = 1 << 16
"""Steps of a diffusion model, and tokens of a block, that can be asked for."""
ALGORITHM = OneOfNumbered(("origin", "entropy", "margin", "random", "confidence"))
"""Which tokens a diffusion model fills in first, by llama.cpp's numbers."""

STRUCTURES = ("grammar", "json_schema", "regex", "lark", "choices", "begins_with")
"""The fields that say what the text must follow; one of them at a time."""

DIFFUSION = (
    "diffusion_steps", "diffusion_block_length", "diffusion_eps", "diffusion_algorithm", "diffusion_alg_temp",
    "diffusion_cfg_scale",
)  # fmt: skip
"""The fields of diffusion models alone."""


def _else(name: str) -> str:
    return f"the model's, else {LLAMA_SERVER[name]}"


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one sampler chain; `SamplingParams()` is greedy.

    Fields keep llama.cpp's names and meaning where it has them, and so do their flags. A field at its default
    leaves its step out. Temperature 0 takes the most likely token, whatever the filters say; the bias and the
    penalties still count. Raises UsageError naming the field, what was wanted and what came.
    """

    temperature: float = option(
        0.0, "Temperature, which divides the logits; 0 takes the most likely token.",
        "--temperature", "--temp", range=Real(0), shown=_else("temperature"),
    )  # fmt: skip
    dynatemp_range: float = option(
        0.0, "The temperature moves by up to this, up and down, with the entropy; 0 is off.",
        "--dynatemp-range", range=Real(0),
    )  # fmt: skip
    dynatemp_exponent: float = option(
        1.0, "Exponent of the dynamic temperature.", "--dynatemp-exp", range=Real(0)
    )
    top_k: int = option(
        0, "Keep the k most likely tokens; 0 is off.", "--top-k", range=Whole(0), shown=_else("top_k")
    )
    top_p: float = option(
        1.0, "Keep the most likely tokens that together reach p; 1 is off.", "--top-p", range=Real(0, 1),
        shown=_else("top_p"),
    )  # fmt: skip
    min_p: float = option(
        0.0, "Keep tokens at least p times as likely as the most likely one; 0 is off.", "--min-p",
        range=Real(0, 1), shown=_else("min_p"),
    )  # fmt: skip
    typical_p: float = option(
        1.0, "Keep the tokens nearest to the entropy that together exceed p (locally typical); 1 is off.",
        "--typical-p", range=Real(0, 1),
    )  # fmt: skip
    min_keep: int = option(
        0, "Fewest tokens that top-p, min-p, typical-p, XTC, epsilon and eta leave.", "--min-keep",
        range=Whole(0),
    )  # fmt: skip
    top_n_sigma: float = option(
        -1.0, "Keep logits within n standard deviations of the highest; 0 or less is off.", "--top-nsigma",
        range=Real(),
    )  # fmt: skip
    epsilon_cutoff: float = option(
        0.0, "Keep tokens of at least this probability; 0 is off.", "--epsilon-cutoff", range=Real(0, 1)
    )
    eta_cutoff: float = option(
        0.0, "The same, and less where the entropy is high (eta); 0 is off.", "--eta-cutoff",
        range=Real(0, 1),
    )  # fmt: skip
    xtc_probability: float = option(
        0.0, "Chance that XTC removes the most likely tokens; 0 is off.", "--xtc-probability",
        range=Real(0, 1),
    )  # fmt: skip
    xtc_threshold: float = option(
        0.1, "XTC removes all tokens at least this likely but the last; above 0.5 is off.",
        "--xtc-threshold", range=Real(0, 1),
    )  # fmt: skip
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
    repeat_last_n: int = option(
        64, "Length of the penalties' window, prompt included; 0 is off, -1 the whole history.",
        "--repeat-last-n", range=Whole(-1),
    )  # fmt: skip
    dry_multiplier: float = option(
        0.0, "Strength of DRY, which lowers tokens that would go on with a repetition; 0 is off.",
        "--dry-multiplier", range=Real(),
    )  # fmt: skip
    dry_base: float = option(
        1.75, "DRY subtracts multiplier * base to the power of the tokens repeated beyond the allowed; "
        "below 1 is off.", "--dry-base", range=Real(0),
    )  # fmt: skip
    dry_allowed_length: int = option(
        2, "Shortest repetition that DRY lowers.", "--dry-allowed-length", range=Whole(0)
    )
    dry_penalty_last_n: int = option(
        -1, "Length of DRY's window, prompt included; 0 is off, -1 the whole history.",
        "--dry-penalty-last-n", range=Whole(-1),
    )  # fmt: skip
    dry_sequence_breakers: tuple[str, ...] = option(
        BREAKERS, "A text at which repetitions end for DRY, in place of the usual ones; none: no text does.",
        "--dry-sequence-breaker", range=Checked(checked_breakers), on_command_line=str, repeated=True,
        write=list,
    )  # fmt: skip
    mirostat: int = option(
        0, "Mirostat 1 or 2 in place of the filters, but for biases and temperature; 0 is off.", "--mirostat",
        range=Whole(0, 2),
    )  # fmt: skip
    mirostat_tau: float = option(
        5.0, "Surprise in bits that Mirostat aims at.", "--mirostat-ent", range=Real(0)
    )
    mirostat_eta: float = option(0.1, "How fast Mirostat learns.", "--mirostat-lr", range=Real(0))
    adaptive_target: float = option(
        -1.0, "Probability near which adaptive-p samples tokens; below 0 is off.", "--adaptive-target",
        range=Real(-1, 1),
    )  # fmt: skip
    adaptive_decay: float = option(
        0.9, "How long adaptive-p remembers the probabilities of earlier tokens.", "--adaptive-decay",
        range=Real(0, 0.99),
    )  # fmt: skip
    banned_strings: tuple[str, ...] = option(
        (), "A text that is never generated: the token that would complete it is forbidden.",
        "--banned-string", range=Checked(checked_texts), on_command_line=str, repeated=True, write=list,
    )  # fmt: skip
    logit_bias: Mapping[int, float] = option(
        dict, "Added to the logit of a token id: 15043+1; 15043-inf forbids it.", "--logit-bias", hash=False,
        range=Checked(checked_biases), metavar="ID+X|ID-X", on_command_line=str, repeated=True,
        parse=parse_biases, write=written_biases,
    )  # fmt: skip
    function: OwnFunction | None = option(
        None, "A function of your own, NAME of a Python file: (ids, logits, history) -> logits.",
        "--sampling-function", range=Checked(checked_function), metavar="FILE.py:NAME", on_command_line=str,
    )  # fmt: skip
    samplers: str = option(
        "", "Which filters run, in this order, as 'penalties;top_k;temperature' or letters 'ekt'; empty: "
        "all, in llama.cpp's order.", "--samplers", range=Checked(checked_order),
        metavar="NAMES",
    )  # fmt: skip
    rng: str = option(
        "graphml", "Random numbers and details of the filters: {words}; llama.cpp gives its very tokens.",
        "--rng", range=OneOf(("graphml", LLAMA_CPP)),
    )  # fmt: skip
    stop: tuple[str, ...] = option(
        (), "A text that ends the generation; it is not shown.", "--stop",
        range=Checked(checked_texts), on_command_line=str, repeated=True, write=list,
    )  # fmt: skip
    stop_tokens: frozenset[int] = option(
        frozenset(), "A token id that ends the generation.", "--stop-token",
        range=Checked(checked_token_ids), metavar="ID", on_command_line=int, repeated=True, write=sorted,
    )  # fmt: skip

    grammar: str = option(
        "", "A GBNF grammar that the text follows.", "--grammar", range=Checked(text_of), metavar="GBNF"
    )
    json_schema: Any = option(
        "", "A JSON schema that the text follows, {{}} for any JSON.", "--json-schema",
        range=Checked(checked_json_text), metavar="SCHEMA", on_command_line=str,
    )  # fmt: skip
    open_objects: bool = option(
        False, "Allow additional properties in objects whose schema does not say.",
        "--open-objects", range=Checked(checked_flag),
    )  # fmt: skip
    regex: str = option(
        "", "A regular expression that the whole text follows.", "--regex", range=Checked(text_of)
    )
    lark: str = option(
        "", "A Lark grammar that the text follows, from its rule start.", "--lark", range=Checked(text_of),
    )  # fmt: skip
    choices: tuple[str, ...] = option(
        (), "One of the possible answers.", "--choice",
        range=Checked(checked_texts), on_command_line=str, repeated=True, write=list,
    )  # fmt: skip
    begins_with: str = option(
        "", "A text that the generated text begins with.", "--begins-with", range=Checked(text_of)
    )
    logprobs: int | None = option(
        None, "Log-probabilities of each token and of the n most likely ones; 0: of the token alone.",
        "--logprobs", range=Whole(0, MOST_LOGPROBS), metavar="N", on_command_line=int,
    )  # fmt: skip
    prompt_logprobs: int | None = option(
        None, "The same of the prompt's tokens.", "--prompt-logprobs", range=Whole(0, MOST_LOGPROBS),
        metavar="N", on_command_line=int,
    )  # fmt: skip
    post_sampling_probs: bool = option(
        False, "Log-probabilities are those that the sampler chain leaves, not the model's.",
        "--post-sampling-probs", range=Checked(checked_flag),
    )  # fmt: skip

    grammar_lazy: bool = option(
        False, "Lazy grammar: applies from the first --grammar-trigger on.",
        "--grammar-lazy", range=Checked(checked_flag),
    )  # fmt: skip
    grammar_triggers: tuple[Trigger, ...] = option(
        (), "A text or token id that starts a lazy grammar.", "--grammar-trigger",
        range=Checked(checked_triggers), metavar="TEXT", on_command_line=str, repeated=True,
        write=lambda triggers: [trigger.value or str(trigger.token) for trigger in triggers],
    )  # fmt: skip
    grammar_after: str = option(
        "", "The structure counts behind this text, such as </think>, which must come; before, the text is "
        "free.", "--grammar-after", range=Checked(text_of), metavar="TEXT",
    )  # fmt: skip
    reasoning_budget: int = option(
        -1, "Tokens of reasoning in a conversation's answer, behind which its end is forced; -1: no limit.",
        "--reasoning-budget", range=Whole(-1), metavar="N",
    )  # fmt: skip
    reasoning_budget_message: str = option(
        "", "A text at the end of reasoning that is ended.", "--reasoning-budget-message",
        range=Checked(text_of), metavar="TEXT",
    )  # fmt: skip
    reasoning_end: ReasoningEnd | None = no_option(None)
    """How it ends, by the template: a conversation's prompt sets this, no caller."""
    spec_type: str = option(
        "auto", "Speculation, what drafts tokens that a step tries at once: {words}; ngram: what followed "
        "the latest tokens before; draft: the draft model; eagle3, dflash, dspark: one of that kind; mtp: "
        "the file's layer for multi-token prediction, or Gemma 4's assistant; auto: the draft model where "
        "there is one.",
        "--spec-type",
        range=OneOf(("auto", "none", "ngram", "draft", "eagle3", "dflash", "dspark", "mtp")),
    )  # fmt: skip
    spec_draft_n_max: int = option(
        15, "Maximum number of draft tokens.", "--spec-draft-n-max", range=Whole(1, 64)
    )
    spec_draft_n_min: int = option(
        0, "Minimum number of draft tokens.", "--spec-draft-n-min", range=Whole(0, 64)
    )
    diffusion_steps: int = option(
        128, "Diffusion models: most steps in which an answer is denoised.", "--diffusion-steps",
        range=Whole(1, MOST_STEPS),
    )  # fmt: skip
    diffusion_block_length: int = option(
        0, "Diffusion models: denoise an answer in blocks of so many tokens, one after the other; 0: as "
        "--diffusion-eps says, or as the model does by default.", "--diffusion-block-length",
        range=Whole(0, MOST_STEPS),
    )  # fmt: skip
    diffusion_eps: float = option(
        0.0, "Diffusion models: denoise a whole answer at once, by timesteps from 1 to this, such as 0.001; "
        "0: in blocks, or as the model does by default.", "--diffusion-eps", range=Real(0, 1),
    )  # fmt: skip
    diffusion_algorithm: str = option(
        "confidence", "Diffusion models: which tokens are filled in first: {words}, or llama.cpp's 0 to 4.",
        "--diffusion-algorithm", range=ALGORITHM, on_command_line=str, metavar="NAME",
    )  # fmt: skip
    diffusion_alg_temp: float = option(
        0.0, "Diffusion models: temperature of that choice; 0: always the first ones.",
        "--diffusion-alg-temp", range=Real(0),
    )  # fmt: skip
    diffusion_cfg_scale: float = option(
        0.0, "Diffusion models: scale of classifier-free guidance away from a masked prompt; 0: none.",
        "--diffusion-cfg-scale", range=Real(0, 100),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)
        structures = [name for name in STRUCTURES if getattr(self, name)]
        if len(structures) > 1:
            raise UsageError(f"{', '.join(structures)}: wanted one of them, or none")
        if self.grammar_lazy and not self.grammar_triggers:
            raise UsageError("grammar_triggers: wanted some with grammar_lazy, there are none")
        if self.open_objects and self.json_schema:
            object.__setattr__(self, "json_schema", opened_schema_text(self.json_schema))
        if self.diffusion_eps and self.diffusion_block_length:
            raise UsageError("diffusion_eps: wanted no diffusion_block_length besides: one or the other")
        late = "grammar_lazy" if self.grammar_lazy else "grammar_after" if self.grammar_after else ""
        if late and not structures:
            raise UsageError(f"{late}: wanted one of {', '.join(STRUCTURES)}, too; there is none")

    def __repr__(self) -> str:
        """Only what differs from the defaults."""
        changed = (
            f"{name}={value!r}"
            for name in options_of(type(self))
            if (value := getattr(self, name)) != getattr(_DEFAULTS, name)
        )
        return f"SamplingParams({', '.join(changed)})"

    @cached_property
    def structured(self) -> bool:
        """Whether the text follows a grammar, schema, expression, list of choices, begin, or limit."""
        return self.reasoning_budget >= 0 or any(getattr(self, name) for name in STRUCTURES)

    def __hash__(self) -> int:
        """Of a few fields: samplers are looked up by params at every token."""
        return hash(
            (self.temperature, self.top_k, self.top_p, self.min_p, self.repeat_penalty, self.samplers)
        )

    @classmethod
    def unchecked(cls, **fields: Any) -> SamplingParams:
        """A value whose fields may be anything, and more than its own: of an entry of a chain."""
        params = object.__new__(cls)
        for name, value in {**vars(_DEFAULTS), **fields}.items():
            object.__setattr__(params, name, value)
        return params

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether any penalty changes a logit."""
        neutral = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty) == (1.0, 0.0, 0.0)
        return self.repeat_last_n != 0 and not neutral


_checked_names = named_arguments(SamplingParams.__init__, elsewhere=OF_GENERATING)
SamplingParams.__init__ = _checked_names  # type: ignore[method-assign]
_DEFAULTS = SamplingParams()


def changed_params(params: SamplingParams | None, fields: Mapping[str, Any]) -> SamplingParams:
    """The settings, or those of greedy sampling for None, with some fields changed.

    UsageError for a value that is none of its field, and for a field that the settings have at another value
    than its default or the one it is changed to.
    """
    chosen = checked_params(params)
    if not fields:
        return chosen
    changed = replace(chosen, **fields)
    for name in fields:
        said, new = getattr(chosen, name), getattr(changed, name)
        if said not in (getattr(_DEFAULTS, name), new):
            raise UsageError(f"{name}: params says {said!r} and the keyword {new!r}; wanted one of them")
    return changed


def checked_params(params: SamplingParams | None) -> SamplingParams:
    """The settings, or those of greedy sampling for None; UsageError for anything else."""
    if params is not None and not isinstance(params, SamplingParams):
        raise UsageError(f"params: wanted SamplingParams or None, got {params!r}")
    return params or SamplingParams()
