"""Several sequences on one model, continued together: a step reads the weights once for all of them.

Knows which session waits for what; how one samples and stops is in `session_evaluation`, `generation`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

import numpy as np

from graphml.api.draft_choice import check_no_drafts
from graphml.api.session import Session
from graphml.api.tokens import Ids, Token, checked_ids
from graphml.errors import UsageError
from graphml.ir.op import Floats
from graphml.options.argument_checks import items_of
from graphml.runtime.programs.executor import Executor
from graphml.runtime.sessions.committed import Evaluation
from graphml.runtime.sessions.evaluation import evaluate
from graphml.sampling import NextLogits, SamplingParams, TopK, checked_params
from graphml.system.closing import Closing

T = TypeVar("T")


class Batch(Closing):
    """Sessions that take their steps together. Made by `Model.batch`; for one thread at a time.

    sessions: each can be used alone too (`eval`, `sample`, `rewind`, `generate`), between steps of the batch.
    """

    def __init__(self, executor: Executor, sessions: Sequence[Session]) -> None:
        self._executor, self.sessions = executor, tuple(sessions)

    def __len__(self) -> int:
        return len(self.sessions)

    def eval(self, ids: Sequence[Ids]) -> Floats:
        """Append ids to each session, in as few steps as they fit, and return the logits after each's last.

        ids: for each session at least one. float32 [sessions, n_vocab], the caller's own. Raises UsageError
        for another number of sessions or ids that are none, ContextFullError without room; after an error no
        session holds more than before.
        """
        prompts = self._for_each("ids", ids)
        checked = [
            checked_ids(ids, session.n_vocab) for session, ids in zip(self.sessions, prompts, strict=True)
        ]
        if not all(map(len, checked)):
            raise UsageError("ids: wanted at least one token id for each session, got none for some")
        for session in self.sessions:
            session.new_use()
        begun = [session.evaluation(ids) for session, ids in zip(self.sessions, checked, strict=True)]
        self._compile(sum(len(evaluation.waiting) for evaluation in begun))
        return np.concatenate(self._evaluate(self.sessions, begun))

    def _compile(self, n_tokens: int) -> None:
        """Have the program for steps of so many tokens ready, so that meters count only its running."""
        room = self.sessions[0].sequence().room
        room.compile(n_tokens, len(self), False, self._executor.options)

    def _evaluate(
        self, sessions: Sequence[Session], begun: Sequence[Evaluation], top_k: bool = False
    ) -> list[Floats]:
        """What was evaluated, a row for each session; nothing where only the `top_k` of each is read."""
        work = [(evaluation.sequence, evaluation.waiting) for evaluation in begun]
        common = work, self._executor.options
        rows, known = list[Floats](), list[NextLogits]()
        with ExitStack() as meters:
            for session in sessions:
                meters.enter_context(session.meter.token())
            by = [(session.chooses, session.numbers) for session in sessions] if top_k else ()
            for last in evaluate(*common, by=by):
                known.append(NextLogits(last if isinstance(last, TopK) else last[-1]))
                rows += [] if isinstance(last, TopK) else [last]
        for session, evaluation, next_logits in zip(sessions, begun, known, strict=True):
            session.commit(evaluation, next_logits)
        return rows

    def generate(
        self,
        ids: Sequence[Ids],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        max_tokens: int | None = None,
    ) -> Iterator[tuple[int, Token]]:
        """Append ids to each session, then give tokens round by round: the session's number and its token.

        Each session ends by itself, as `Session.generate` says; the others go on. params: for all, or for
        each session its own.
        """
        each = [params] * len(self) if params is None or isinstance(params, SamplingParams) else params
        self._executor.check_continues()
        prompts, chosen = self._for_each("ids", ids), self._for_each("params", each)
        for param in chosen:
            check_no_drafts(checked_params(param), "a batch")
        running: dict[int, Iterator[Token]] = {
            i: session.generate(prompt, param, max_tokens)
            for i, (session, prompt, param) in enumerate(zip(self.sessions, prompts, chosen, strict=True))
        }
        return self._rounds(running)

    def _rounds(self, running: dict[int, Iterator[Token]]) -> Iterator[tuple[int, Token]]:
        self._compile(len(self))
        while running:
            for i, tokens in list(running.items()):
                token = next(tokens, None)
                if token is None:
                    del running[i]
                else:
                    yield i, token
            going_on = [self.sessions[i] for i in running if self.sessions[i].stop_reason is None]
            if going_on:
                top_k = all(session.reads_top_k(session.chooses) for session in going_on)
                self._evaluate(going_on, [session.evaluation() for session in going_on], top_k)

    def _for_each(self, name: str, items: Sequence[T]) -> Sequence[T]:
        items = items_of(name, items, f"one for each of {len(self)} sessions")
        if len(items) != len(self):
            raise UsageError(f"{name}: wanted one for each of {len(self)} sessions; got {len(items)}")
        return items

    def close(self) -> None:
        """Give the memory of all sessions back; a second call does nothing."""
        for session in self.sessions:
            session.close()
