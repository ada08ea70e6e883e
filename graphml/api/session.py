"""A session: one sequence of tokens on a model, evaluated, continued, rewound.

Knows ids, logits and, where the model has a tokenizer, the text of single tokens. Knows nothing of files,
chat templates or architectures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphml.api.capture import Probe
from graphml.api.draft_model import DraftModel
from graphml.api.generation import generation
from graphml.api.invoked_adapters import go_on_with
from graphml.api.read_source import read_source
from graphml.api.saved_session import AnyPath, Settings, save_session
from graphml.api.session_evaluation import evaluated
from graphml.api.session_sampling import last_logits, sampled
from graphml.api.stats import Meter, Stats
from graphml.api.tokens import NO_IDS, Ids, StopReason, Token, checked_ids
from graphml.backend import Progress, no_progress
from graphml.compiler.top_k_outputs import TOP_K
from graphml.errors import UsageError
from graphml.ir.op import Array
from graphml.options.argument_checks import count_up_to, seed_or_random
from graphml.runtime.adapter_options import Scaled, with_adapters
from graphml.runtime.cell_mover import check_shifts, shift_tokens
from graphml.runtime.committed import Captured, Committed, Evaluation
from graphml.runtime.evaluation import Floats
from graphml.runtime.executor import Executor
from graphml.runtime.forked_slot import forked_slot
from graphml.runtime.run_ahead import Ahead
from graphml.runtime.slots import Slot, session_slot
from graphml.sampling import NextLogits, PeekableRandom, SamplingParams, checked_params
from graphml.sampling.logprobs import TokenLogprobs
from graphml.sampling.structured.params_structure import Structured
from graphml.sampling.top_k_sampling import samples_without_row
from graphml.text.tokenizer import Tokenizer


class Session:
    """A sequence of tokens, its keys, values and states. Made by `Model.session`; for one thread at a time.

    `n_ctx`: how many tokens it holds at most. `seed`: of the random generator, also where none was given;
    `numbers`: that generator. `tokens`: the ids it holds. `source`: those that an encoder has read.
    `stop_reason`: why the latest generation ended: "end" (an end-of-generation token), "stop" (a stop string
    or token), "length" (max_tokens), "context" (n_ctx) or "cancel"; None while it runs or if it was left.
    Of the latest generation too: prompt, the ids that it began from; generated, those that it gave; shifts,
    what its full context made it forget, (keep, drop) each time; logprobs, of each generated id, and
    prompt_logprobs, of each of the prompt (None for those that were there before, and the very first), where
    its params ask for them.
    """

    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer | None,
        n_vocab: int,
        n_ctx: int,
        seed: int | None = None,
        progress: Progress = no_progress,
        probe: Probe | None = None,
        held: Committed | None = None,
        prefix_cache: bool = True,
        draft: DraftModel | None = None,
    ) -> None:
        self.n_ctx, self.n_vocab = n_ctx, n_vocab
        self.stop_reason: StopReason | None = None
        self._executor, self._tokenizer, self._progress = executor, tokenizer, progress
        self._probe = probe or Probe(executor)
        self._ahead: Ahead | None = None
        self._cancelled = False  # an Event has a lock, which Ctrl-C may leave locked
        self._turn, self._finds, self._draft = 0, prefix_cache, draft
        self.chooses, self._structured = SamplingParams(), Structured()  # of the latest generation
        self.prompt: list[int] = []
        self.generated: list[int] = []
        self.shifts: list[tuple[int, int]] = []
        self.scores: list[TokenLogprobs] = []  # of the token that was sampled last
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs | None] = []
        self.meter = Meter()
        self.set_seed(seed)
        self._held = Committed(session_slot(executor, self._probe.options, n_ctx)) if held is None else held
        self._held.hide(not prefix_cache)

    @property
    def n_past(self) -> int:
        """How many tokens the session holds: all that were evaluated or given out."""
        return len(self._held)

    @property
    def tokens(self) -> list[int]:
        """The ids that the session holds, in order."""
        return self._held.ids

    @property
    def source(self) -> list[int]:
        """The ids of the source text that an encoder has read."""
        return list(self._held.latest.source)

    @property
    def captured(self) -> Captured:
        """Name -> array of the latest evaluation, one row a token where the value has one."""
        return self._held.latest.captured

    @property
    def history(self) -> list[Captured]:
        """What was captured by each evaluation, first to latest; empty unless it was asked for."""
        return list(self._held.latest.history)

    @property
    def stats(self) -> Stats:
        """Counts and speed of the latest `generate`, or of the latest `eval`."""
        return self.meter.stats()

    def set_seed(self, seed: int | None) -> None:
        """Start the random generator anew; None picks a random seed, which `seed` then holds."""
        self.seed = seed_or_random(seed)
        self.numbers = PeekableRandom(self.seed, self._tokenizer)

    def eval(self, ids: Ids, all_logits: bool = False) -> Floats:
        """Append ids and return the logits after the last one, float32 [n_vocab].

        With all_logits, those after each: float32 [len(ids), n_vocab]. The array is the caller's own. A
        prompt and a single token are the same to it. Raises UsageError for invalid token ids and
        ContextFullError without room; after an error the session is as it was. After Ctrl-C it holds either
        all of the ids or none of them: see `tokens`.
        """
        checked = checked_ids(ids, self.n_vocab, some=True)
        self.begin()
        self._compile(len(checked), all_logits)
        with self.meter.prompt(len(checked)):
            return evaluated(self, checked, all_logits)

    def encode(self, ids: Ids) -> None:
        """Have the model's encoder read a source text, which all that follows answers; no tokens are kept.

        UsageError for a model without an encoder, invalid token ids, or more ids than one step takes.
        """
        checked = checked_ids(ids, self.n_vocab)
        self.begin()
        read_source(self._executor, self._held, checked, self.n_ctx, self.meter)

    def rewind(self, n_past: int) -> None:
        """Forget all tokens but the first `n_past`; UsageError unless the session holds as many."""
        kept = count_up_to("n_past", n_past, self.n_past, "what the session holds")
        self._turn += 1
        if kept < self.n_past:
            self.slot()
            self._held.rewind(kept)

    def shift(self, keep: int, drop: int) -> None:
        """Forget `drop` tokens from number `keep` on, and move the later ones so many positions down.

        As llama.cpp shifts a context: keys rotate on, while values still know what was dropped. UsageError
        for other numbers, and for a model whose tokens cannot be moved.
        """
        check_shifts(self._executor, "shift")
        first = count_up_to("keep", keep, self.n_past, "what the session holds")
        count = count_up_to("drop", drop, self.n_past - first, "what it holds behind those")
        self._turn += 1
        self.slot()
        if count:
            shift_tokens(self._executor, self._held, first, count)
            self.numbers.kept.forget(first, count)

    def fork(self) -> Session:
        """Another session that holds the same and goes on the same way, independent of this one."""
        executor, probe, slot = self._executor, self._probe.copy(), self.slot()
        held = Committed(forked_slot(executor, probe.options, slot))
        held.take(self._held.latest)
        own = executor, self._tokenizer, self.n_vocab, self.n_ctx, self.seed, self._progress, probe, held
        made = Session(*own, self._finds, self._draft)
        made.numbers, made.stop_reason, made.chooses = self.numbers.copy(), self.stop_reason, self.chooses
        return made

    def set_lora(self, lora: Scaled) -> None:
        """Go on with these LoRA adapters (GGUF), each with its scale, in place of others; [] is without any.

        From the next token that is evaluated on; what was evaluated stays. A generation that runs ends with
        a UsageError. Errors as of `load`; then the session is as it was.
        """
        options = with_adapters(self._probe.options, self._executor.file, lora, self._executor.encodes)
        go_on_with(self, options)

    @property
    def logits(self) -> Floats:
        """The logits after the last token, float32 [n_vocab], the caller's own; computed where need be.

        UsageError for a session that holds no tokens.
        """
        return last_logits(self)

    def sample(self, params: SamplingParams | None = None) -> int:
        """Choose the id that follows the session's tokens; it is not appended (see `eval`).

        Penalties look at the session's tokens. UsageError for a session that holds none; WeightsError where
        the model's logits are no numbers.
        """
        return sampled(self, checked_params(params))

    def reads_top_k(self, params: SamplingParams) -> bool:
        """Whether the top k of a row is read to sample by these params, and not the whole row."""
        executor = self._executor
        return executor.has_top_k and samples_without_row(params, TOP_K, always=executor.recurrent)

    def generate(
        self,
        ids: Ids = (),
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        *,
        overflow: str = "stop",
        keep: int = 0,
        new: bool = True,
    ) -> Iterator[Token]:
        """Append ids, then give tokens one by one, each appended too, until something ends it.

        What ends it: an end-of-generation token or one of `params.stop_tokens`, neither of which is appended
        (it is given only if text was still held back, as its piece); a stop string, which is not shown;
        max_tokens; a full context; `cancel`; leaving the loop. See `stop_reason`. Without ids it goes on
        where the session is. An encoder reads the ids, as `encode` does; the decoder begins with its start
        token. Any other use of the session ends the generation with a UsageError, and so does a model whose
        tokens see later ones: it does not continue a text. Not `new`: a `cancel` since `begin` ends it, too.

        overflow: what a full context does: `stop`, `shift` (forget half of what is not kept, see `shift`), or
        `error`. keep: how many of the first tokens stay then, besides a begin token; -1: the prompt.
        """
        return generation(self, ids, checked_params(params), max_tokens, overflow, keep, new)

    def cancel(self) -> None:
        """End the running generation at its next token, or its prompt at the next batch; from any thread."""
        self._cancelled = True

    def save(self, path: AnyPath, chat: Mapping[str, Any] | None = None) -> None:
        """Write the session to a file, whole or not at all; `Model.restore` returns one that goes on from it.

        Captured values and patches are left out. A saved session is replaced, another file a UsageError.
        chat: what a conversation is besides.
        """
        held = self._executor, self._probe.options, self.slot(), self._held
        save_session(*held, Settings(self.n_ctx, self.seed, self.numbers, self.chooses), path, chat)

    def close(self) -> None:
        """Give the memory back, to sessions that share it while any is open; a second call does nothing."""
        self._turn += 1
        self._cancelled = True
        self._ahead = None
        self._held.close()
        self._probe.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Session({self.n_past} of {self.n_ctx} tokens)"

    def begin(self, new: bool = True) -> None:
        """A new use: what ran before is over, figures and reasons start anew; not `new`: a cancel counts."""
        self.slot()
        self._executor.programs.check_file()
        self._ahead, self._structured = None, Structured()
        self._turn += 1
        if new:
            self._cancelled = False
        self.meter = Meter()
        self.prompt, self.generated, self.shifts, self.stop_reason = [], [], [], None
        self.scores, self.logprobs, self.prompt_logprobs = [], [], []

    def _compile(self, count: int, all_logits: bool = False) -> None:
        """Have the program for so many ids ready, so that the meter counts only its running."""
        slot = self.slot()
        waiting = count + self.n_past - slot.length
        programs, options = self._executor.programs, self._probe.options
        programs.compiled_for(waiting, slot.cache.n_program(1), all_logits, options)

    def evaluation(self, ids: Array = NO_IDS) -> Evaluation:
        """Begin to evaluate the tokens that are not evaluated yet, and `ids`; `commit` ends it."""
        self.slot()
        return self._held.begin(self.n_ctx, ids)

    def commit(self, done: Evaluation, next_logits: NextLogits, all_logits: bool = False) -> None:
        """All tokens and the evaluation's ids are evaluated now, and this is known of what follows."""
        probe = self._probe
        self._held.commit(done, next_logits, probe.finish(all_logits), probe.keeps_history)

    def slot(self) -> Slot:
        """Where the keys and values are, after the step ahead is dropped; UsageError once it is closed."""
        if self._held.closed or self._executor.closed:
            raise UsageError("the session, or its model, was closed")
        if self._ahead is not None:
            self._ahead.drop()
        return self._held.rolled_back()
