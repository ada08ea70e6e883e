"""The model `graphml` of lm-evaluation-harness, and its command line: `python -m graphml.workshop.lm_eval`.

`lm_eval` finds models in a table of its own alone, so its command line is called with this one in the table:

    python -m graphml.workshop.lm_eval --model graphml --model_args pretrained=model.gguf --tasks arc_easy

Knows models, their likelihoods and the harness; nothing of tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import graphml
from graphml.errors import GraphmlError, UsageError
from graphml.options.argument_checks import whole_number
from graphml.sampling import SamplingParams
from graphml.workshop.likelihoods import TOGETHER, log_likelihoods, some_ahead

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry, register_model
    from lm_eval.models.utils import normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    missing = f"lm_eval: lm-evaluation-harness is missing; pip install '.[eval]': {error}"
    raise (SystemExit(f"graphml: {missing}") if __name__ == "__main__" else UsageError(missing)) from None

NAME = "graphml"
MAX_NEW_TOKENS = 256
"""Tokens of an answer whose task does not say how many, as of the harness's other models."""
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def _whole(name: str, value: object, most: int, why: str = "", least: int = 1) -> int:
    """A number of the command line, which may be a text; UsageError for what is none within the bounds."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else whole_number(value)
    if number is None or not least <= number <= most:
        raise UsageError(f"{name}: wanted {least} to {most}{why}; got {value!r:.80}")
    return number


class HarnessModel(TemplateLM):  # type: ignore[misc] # untyped where the harness is missing
    """A model for lm-evaluation-harness. options: of `graphml.load`, as `kv` or `backend`.

    pretrained: what `load` opens. max_length: most tokens that a token is predicted by, None: as many as the
    model's context has room for. prefix_token_id: what is before a text without a context; None: the begin
    token, or the end token. add_bos_token: whether texts begin with the begin token; None: as the vocabulary
    says. batch_size, max_batch_size, device: of the harness's command line; steps are as full as they can be.
    """

    def __init__(
        self,
        pretrained: str,
        max_length: int | None = None,
        max_gen_toks: int = MAX_NEW_TOKENS,
        prefix_token_id: int | None = None,
        add_bos_token: bool | None = None,
        seed: int = 0,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.model = graphml.load(pretrained, **options)
        if not self.model.executor.generates:
            raise UsageError(f"{self.model.path}: {self.model.arch} gives embeddings, no logits to score by")
        self._add_bos, self._seed = add_bos_token, seed
        self.max_gen_toks = _whole("max_gen_toks", max_gen_toks, 1 << 31)
        if self.model.tokenizer is None:
            raise UsageError(f"{self.model.path}: wanted a model with a vocabulary, to encode tasks")
        self._tokens = self.model.tokenizer
        most = (self.model.default_n_ctx or self.model.n_ctx) - 2  # the token that it predicts, and room
        self.max_length = most
        if max_length is not None:
            self.max_length = _whole("max_length", max_length, most, ", for the model's context")
        prefix = next(
            (id for id in (prefix_token_id, self._tokens.bos, self._tokens.eos) if id is not None), None
        )
        if prefix is None:
            raise UsageError("prefix_token_id: wanted an id; the vocabulary has no begin or end token")
        self._prefix = _whole("prefix_token_id", prefix, self.model.n_vocab - 1, ", of the vocabulary", 0)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._prefix if self._tokens.eos is None else self._tokens.eos

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """What the harness keeps its requests by."""
        return str(self.model.path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **others: object) -> list[int]:
        """The ids of a text, with special tokens; a text that begins with the begin token gets no other."""
        add = self._add_bos if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and string.startswith(self._prefix_text):
            add = False
        if add is None:
            return self.model.encode(string, parse_special=True)
        ids = self.model.encode(string, add_special=False, parse_special=True)
        if add and self._tokens.bos is not None:
            ids = [self._tokens.bos, *ids]
        return ids

    @cached_property
    def _prefix_text(self) -> str:
        return self._tokens.piece(self._prefix)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        **others: object,
    ) -> list[tuple[float, bool]]:
        """Of each context and continuation the log-likelihood, and whether it is the most probable one."""
        pairs = [self._within_context(context, continuation) for _, context, continuation in requests]
        answers = []
        likelihoods = log_likelihoods(self.model, pairs)
        shown = tqdm(likelihoods, total=len(pairs), disable=disable_tqdm, desc="Scoring")
        for (key, _, _), likelihood in zip(requests, shown, strict=True):
            answers.append((likelihood.total, likelihood.is_greedy))
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answers[-1])
        return answers

    def _within_context(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """As much of the context's end as there is room for; the prefix token where it has no ids."""
        room = self.max_length + 1 - len(continuation)
        if room < 1:
            raise UsageError(
                f"max_length: wanted at least {len(continuation)}, the tokens of a continuation; "
                f"got {self.max_length}"
            )
        return (context or [self._prefix])[-room:], continuation

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each text: of longer ones in windows, each as full as can be."""
        windows, counts = [], []
        for request in requests:
            (text,) = request.args
            rolling = get_rolling_token_windows(
                token_list=self.tok_encode(text), prefix_token=self._prefix, max_seq_len=self.max_length,
                context_len=1,
            )  # fmt: skip
            own = [(None, *make_disjoint_window(window)) for window in rolling]
            windows += own
            counts.append(len(own))
        scores: Iterator[tuple[float, bool]] = iter(self._loglikelihood_tokens(windows, disable_tqdm))
        totals = []
        for request, count in zip(requests, counts, strict=True):
            totals.append(sum(next(scores)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, totals[-1])
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The answer to each context, up to one of the texts that end it."""
        wanted = [self._asked(*request.args) for request in requests]
        answers: list[str] = []
        if not wanted:
            return answers
        longest = max(len(ids) + count for ids, _, count in wanted) + 1
        count = min(TOGETHER, self.model.executor.n_batch)
        with (
            self.model.engine(max_sequences=count, n_ctx=min(longest, self.model.n_ctx)) as engine,
            tqdm(total=len(wanted), disable=disable_tqdm, desc="Generating") as bar,
        ):
            handles = (engine.submit(ids, params, most, self._seed) for ids, params, most in wanted)
            for request, handle in zip(requests, some_ahead(handles), strict=True):
                answers.append(handle.result().text)
                self.cache_hook.add_partial("generate_until", request.args, answers[-1])
                bar.update()
        return answers

    def _asked(self, context: str, options: Mapping[str, Any]) -> tuple[list[int], SamplingParams, int]:
        """Ids of a request, and how it is continued; UsageError for options that no sampling here has."""
        asked = dict(normalize_gen_kwargs(dict(options), self.max_gen_toks))
        until, most = asked.pop("until", None) or [], int(asked.pop("max_gen_toks"))
        samples = asked.pop("do_sample", None)
        unknown = sorted(set(asked) - set(_SAMPLING))
        if unknown:
            raise UsageError(
                f"generation_kwargs: wanted some of {', '.join(_SAMPLING)}; got {', '.join(unknown)}"
            )
        settings = {name: value for name, value in asked.items() if value is not None}
        settings = {"temperature": 1.0, **settings} if samples else {**settings, "temperature": 0.0}
        if "repetition_penalty" in settings:  # of all tokens
            settings |= {"repeat_penalty": settings.pop("repetition_penalty"), "repeat_last_n": -1}
        room = self.max_length - most
        if room < 1:
            raise UsageError(f"max_gen_toks: wanted less than max_length, {self.max_length}; got {most}")
        texts = (until,) if isinstance(until, str) else tuple(until)
        params = SamplingParams(**settings, stop=tuple(text for text in texts if text))
        return self.tok_encode(context)[-room:], params, most

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The conversation in the template's form; without a generation prompt its last message goes on."""
        messages: Any = [dict(message) for message in chat_history]
        text = self.model.template.render(messages, add_generation_prompt=add_generation_prompt)
        if add_generation_prompt or not messages:
            return text
        last = messages[-1]["content"].strip()
        return text[: text.rindex(last) + len(last)]

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source; None where none is asked for. By a name it is that of `templates`."""
        if chat_template is False or chat_template is None:
            return None
        name = "default" if chat_template is True else chat_template
        return self.model.templates[name].source

    def get_model_info(self) -> dict[str, Any]:
        """What the harness keeps beside results."""
        return {"model_num_parameters": self.model.n_params, "model_path": str(self.model.path)}


def register() -> None:
    """Have the harness know the model's name; a second call does nothing."""
    if NAME not in model_registry:
        register_model(NAME)(HarnessModel)


def main() -> None:
    """The harness's own command line, which knows `--model graphml`."""
    register()
    from lm_eval.__main__ import cli_evaluate

    sys.argv[0] = "python -m graphml.workshop.lm_eval"
    try:
        cli_evaluate()
    except GraphmlError as error:
        raise SystemExit(f"graphml: {error}") from None


if __name__ == "__main__":
    main()
