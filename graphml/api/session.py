"""A session: one sequence of tokens on a model, evaluated, continued, rewound.

Knows ids, logits and, where the model has a tokenizer, the text of single tokens. Knows nothing of files,
chat templates or architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from graphml.api.generation import generation
from graphml.api.invoked_adapters import go_on_with
from graphml.api.keywords import hinted
from graphml.api.prompt_encoder import Prompt, spelled
from graphml.api.saved_session import AnyPath, SessionSettings, save_session
from graphml.api.session_evaluation import EvaluatedSession
from graphml.api.tokens import Ids, TokenIterator, checked_ids
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.options.argument_checks import count_up_to
from graphml.other_attributes import NamesOthers
from graphml.runtime.programs.adapter_options import Scaled, with_adapters
from graphml.runtime.sessions.committed import Committed
from graphml.runtime.sessions.sequence_arrays import copy_sequence
from graphml.runtime.sessions.shared_room import session_sequence
from graphml.runtime.steps.cell_mover import check_shifts
from graphml.sampling import SamplingParams, changed_params, checked_params
from graphml.system.closing import Closing


class Session(EvaluatedSession, NamesOthers, Closing):
    """A sequence of tokens, its keys, values and states. Made by `Model.session`; for one thread at a time.

    `n_ctx`: how many tokens it holds at most. `seed`: of the random generator, also where none was given;
    `numbers`: that generator. `tokens`: the ids it holds. `source`: those that an encoder has read.
    `stop_reason`: why the latest generation ended: "end" (an end-of-generation token), "stop" (a stop string
    or token), "length" (max_tokens), "context" (n_ctx) or "cancel"; None while it runs or if it was left.
    Of the latest generation too: prompt_ids, the ids that it began from; generated, those that it gave;
    shifts, what its full context made it forget, (keep, drop) each time; logprobs, of each generated id, and
    prompt_logprobs, of each of the prompt (None for those that were there before, and the very first), where
    its params ask for them. `on_denoised`: called after each step of a diffusion model's answer, with that
    answer, whose `answer` are its ids so far.
    """

    _made_by: ClassVar = "graphml.load(path).session()"
    _instead: ClassVar = {
        "logits": "eval(prompt), which returns the logits",
        "load": "Model.restore(path)", "reset": "rewind(0)", "clear": "rewind(0)",
        "prompt": "generate(prompt); prompt_ids has the ids of the latest one", "history": "tokens",
        "text": "Model.decode(session.tokens)", "decode": "eval(prompt), or Model.decode for text",
        "undo": "rewind(n_past)", "kv_cache": "n_past and save(path)", "seed": "set_seed(seed)",
        "respond": "Model.chat", "ask": "Model.chat", "activations": "captured", "cache": "captured",
        **dict.fromkeys(("begin", "start", "send"), "generate(prompt), or eval(prompt)"),
        **dict.fromkeys(("restore", "load_state", "load_session", "from_file"), "Model.restore(path)"),
        **dict.fromkeys(("copy", "clone", "branch"), "fork()"),
    }  # fmt: skip
    _same: ClassVar = {
        "()": "eval",
        "forward": "eval",
        "stream": "generate",
        **dict.fromkeys(("append", "add", "extend", "feed", "push", "prefill"), "eval"),
        "n_tokens": "n_past",
        "position": "n_past",
    }

    def eval(self, ids: Prompt, all_logits: bool = False) -> Floats:
        """Append ids and return the logits after the last one, float32 [n_vocab].

        A text or messages count as their ids, as of `generate`. With all_logits, those after each: float32
        [len(ids), n_vocab]. The array is the caller's own. A prompt and a single token are the same to it.
        Raises UsageError for invalid token ids and ContextFullError without room; after an error the session
        is as it was. After Ctrl-C it holds either all of the ids or none of them: see `tokens`.
        """
        if spelled(ids):
            ids = self._prompts.ids(ids, not self.n_past)
        checked = checked_ids(ids, self.n_vocab, some=True)  # type: ignore[arg-type]
        self.new_use()
        self._compile(len(checked), all_logits)
        with self.meter.prompt(len(checked)):
            return self.evaluated(checked, all_logits)

    def encode(self, ids: Ids) -> None:
        """Have the model's encoder read a source text, which all that follows answers; no tokens are kept.

        UsageError for a model without an encoder, invalid token ids, or more ids than one step takes.
        """
        checked = checked_ids(ids, self.n_vocab)
        self.new_use()
        self.read_source(checked)

    def rewind(self, n_past: int) -> None:
        """Forget all tokens but the first `n_past`; UsageError unless the session holds as many."""
        kept = count_up_to("n_past", n_past, self.n_past, "what the session holds")
        self._turn += 1
        if kept < self.n_past:
            self.sequence()
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
        self.sequence()
        if count:
            self._held.shift(first, count)
            self.numbers.kept.forget(first, count)

    def _check_read(self, what: str) -> None:
        """UsageError for a generation that nobody has read: neither its prompt nor a token is there yet."""
        if self._unread == self._turn:
            raise UsageError(
                f"{what}: the generation before was not read: iterate over it, read its .text, or close() it"
            )

    def fork(self) -> Session:
        """Another session that holds the same and goes on the same way, independent of this one.

        UsageError after a `generate` that was not read.
        """
        self._check_read("fork")
        executor, probe, sequence = self._executor, self._probe.copy(), self.sequence()
        copy = session_sequence(executor, probe.options, self.n_ctx)
        if not sequence.shares:
            copy.share_nothing()  # what it holds may have been computed with adapters that are set no more
        copy_sequence(sequence, copy)
        held = Committed(copy)
        held.take(self._held.latest)
        own = executor, self._prompts, self.n_ctx, self.seed, self._progress, probe, held
        fork = Session(*own, self._finds, self._draft)
        fork.numbers, fork.stop_reason, fork.chooses = self.numbers.copy(), self.stop_reason, self.chooses
        return fork

    def set_lora(self, lora: Scaled) -> None:
        """Go on with these LoRA adapters (GGUF), each with its scale, in place of others; [] is without any.

        From the next token that is evaluated on; what was evaluated stays. A generation that runs ends with
        a UsageError. Errors as of `load`; then the session is as it was.
        """
        options = with_adapters(self._probe.options, self._executor.file, lora, self._executor.encodes)
        go_on_with(self, options)

    def sample(self, params: SamplingParams | None = None) -> int:
        """Choose the id that follows the session's tokens; it is not appended (see `eval`).

        Penalties look at the session's tokens. UsageError for a session that holds none; WeightsError where
        the model's logits are no numbers.
        """
        return self.sampled(checked_params(params))

    @hinted
    def generate(
        self,
        prompt: Prompt = (),
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        *,
        seed: int | None = None,
        overflow: str = "stop",
        keep: int = 0,
        new: bool = True,
        **sampling: Any,
    ) -> TokenIterator:
        """Append a prompt, then give tokens one by one, each appended too, until something ends it.

        The text of a `Token` is its `piece`, and the iterator's `text`, or `str`, that of all. Nothing is
        computed before a token is asked for: UsageError for another `generate` before that.

        What ends it: an end-of-generation token or one of `params.stop_tokens`, neither of which is appended
        (it is given only if text was still held back, as its piece); a stop string, which is not shown;
        max_tokens; a full context; `cancel`; leaving the loop. See `stop_reason`. Any other use of the
        session ends the generation with a UsageError. A diffusion model denoises an answer to all that the
        session holds, and gives its tokens as they are settled; other models whose tokens see later ones
        continue no text, a UsageError. Not `new`: a `cancel` since `new_use` ends it, too.

        prompt: ids, a text, or messages, which the chat template renders; a begin token is added where the
        session is empty. Without a prompt it goes on where the session is. An encoder reads the prompt, as
        `encode` does; the decoder begins with its start token. sampling: fields of `SamplingParams` as
        keywords, which change `params`. seed: starts the random generator anew.

        overflow: what a full context does: `stop`, `shift` (forget half of what is not kept, see `shift`), or
        `error`. keep: how many of the first tokens stay then, besides a begin token; -1: the prompt.
        """
        self._check_read("generate")
        begins = self._executor.encodes or not self.n_past
        ids, chosen = self._prompts.read(prompt, changed_params(params, sampling), begins)
        tokens = generation(self, ids, chosen, max_tokens, overflow, keep, new)
        self._unread = turn = self._turn
        if seed is not None:
            self.set_seed(seed)
        return TokenIterator(tokens, lambda: self._begun(turn))

    def _begun(self, turn: int) -> None:
        if self._unread == turn:
            self._unread = None

    def __len__(self) -> int:
        """How many tokens it holds, `n_past`."""
        return self.n_past

    def __bool__(self) -> bool:
        """True, though it may hold no tokens."""
        return True

    def cancel(self) -> None:
        """End the running generation at its next token, or its prompt at the next batch; from any thread."""
        self._cancelled = True

    def go_on_from(self, other: Session) -> None:
        """Hold what another session does; UsageError if that is of another model.

        Its tokens are evaluated again here: nothing is read from its device, which may have failed.
        """
        mine, theirs = self._executor.file, other._executor.file
        if mine.fingerprint != theirs.fingerprint:
            raise UsageError(
                f"moved: wanted a session of {mine.path}; got one of another model, {theirs.path}"
            )
        if other.source:
            self.encode(other.source)
        if other.tokens:
            self.eval(other.tokens)
        self.seed, self.numbers, self.chooses = other.seed, other.numbers.copy(), other.chooses

    def save(self, path: AnyPath, chat: Mapping[str, Any] | None = None) -> None:
        """Write the session to a file, whole or not at all; `Model.restore` returns one that goes on from it.

        Captured values and patches are left out. A saved session is replaced, another file a UsageError, and
        so is a `generate` before it that was not read. chat: what a conversation is besides.
        """
        self._check_read("save")
        held = self._executor, self._probe.options, self.sequence(), self._held
        save_session(*held, SessionSettings(self.n_ctx, self.seed, self.numbers, self.chooses), path, chat)

    def close(self) -> None:
        """Give the memory back, to sessions that share it while any is open; a second call does nothing."""
        self._turn += 1
        self._cancelled = True
        self._next = None
        self._held.close()
        self._probe.close()

    def __repr__(self) -> str:
        return f"Session({self.n_past} of {self.n_ctx} tokens)"
