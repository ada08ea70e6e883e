"""A conversation at work: the chat, its settings, and an answer shown with what there is to say about it.

Knows the chat and where its text goes; nothing of commands or keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import graphml
from graphml.api.tools import Tool
from graphml.bench.describe import describe_file
from graphml.cli.conversation.server_chat import ServerChat, ServerSession, fields_of
from graphml.cli.terminal.console import Bars, print_error, remark, say, write
from graphml.cli.terminal.denoising_view import with_view
from graphml.cli.terminal.shown_answer import TokenColours, speed, text_of
from graphml.errors import GraphmlError, UsageError
from graphml.options.option_fields import options_of
from graphml.sampling.settings.sampling_defaults import ChosenSampling
from graphml.sampling.structured.params_structure import matcher_of
from graphml.system.signals import interrupts
from graphml.text.answers import ToolCall


@dataclass
class Conversation:
    """A chat with a model or a server, how its tokens are sampled, and what the commands change.

    sampling: of a server, the settings that it is told are those with a source. defaults: without a flag.
    shows_stats: a line about the speed follows each answer; shows_denoising: a diffusion model's answer is
    drawn as it is denoised. file: what was saved or loaded last. read: texts of files that go with the next
    message, before it. failed: a message or a command was answered by an error. tools: offered with each
    message; may_call: asked before one of them is called. model: None of a server.
    """

    model: graphml.Model | None
    chat: graphml.Chat | ServerChat
    sampling: ChosenSampling
    bars: Bars
    shows_stats: bool = False
    shows_denoising: bool = False
    file: Path | None = None
    read: tuple[str, ...] = ()
    ended: bool = False
    failed: bool = False
    tools: tuple[Tool, ...] = ()
    may_call: Callable[[ToolCall], bool] | None = None
    defaults: ChosenSampling = ChosenSampling(graphml.SamplingParams())  # noqa: RUF009 - a frozen value

    def params(self) -> graphml.SamplingParams:
        """How the next answer is sampled; a server's chat is told which settings to send."""
        if isinstance(self.chat, ServerChat):
            self.chat.stated = frozenset(self.sampling.sources)
        return self.sampling.params

    def answer(self, text: str) -> None:
        """Show the answer to a message; one that has none because of an error is removed."""
        before = len(self.chat.history)
        read, self.read = self.read, ()
        with _interrupt_cancels(self.chat.session):
            self.chat.add_user("\n\n".join([*read, text]))
            events = self.chat.events(self.params(), tools=self.tools, confirm=self.may_call)
            if self._show(text_of(events, self.bars)):
                return
            if len(self.chat.history) > before:  # else it had no room, and is removed already
                self.chat.undo()
            remark("the message was removed")

    def regenerate(self) -> None:
        """Show another answer to the last message."""
        before = self.chat.history[-1:]
        with _interrupt_cancels(self.chat.session):
            done = self._show(text_of(self.chat.regenerate_events(self.params()), self.bars))
        known = self.model is not None or "temperature" in self.sampling.sources  # else the server's
        if done and known and self.sampling.params.greedy and self.chat.history[-1:] == before:
            remark("the same answer: at temperature 0 the most likely token is taken; /set temperature 0.8")

    def save(self, path: Path) -> None:
        """Write the chat with all that was evaluated to a file."""
        if not isinstance(self.chat, ServerChat):
            self.chat.session.chooses = self.sampling.params
        self.chat.save(path)

    def restore(self, path: Path) -> None:
        """Go on from a saved chat, with its settings, in place of the one that is there."""
        if self.model is None or isinstance(self.chat, ServerChat):
            raise UsageError(f"{path}: wanted a file of messages: a whole chat goes on with a model alone")
        restored = self.model.restore(path)
        if not isinstance(restored, graphml.Chat):
            restored.close()
            raise UsageError(f"{path}: wanted a saved chat, got a session without messages")
        self.chat.session.close()
        params, usual = restored.session.chooses, graphml.SamplingParams()
        changed = {name for name in options_of(type(usual)) if getattr(params, name) != getattr(usual, name)}
        sources = dict.fromkeys(["temperature", *sorted(changed)], path.name)
        self.chat, self.sampling = restored, ChosenSampling(params, sources)

    def check(self, sampling: ChosenSampling) -> None:
        """UsageError for a grammar that is wrong, or a setting that the server cannot be told."""
        if self.model is None:
            fields_of(sampling.params, sampling.sources)
        else:
            matcher_of(sampling.params, self.model.tokenizer)

    def tell(self, error: GraphmlError) -> None:
        """Print an error; the conversation goes on."""
        self.failed = True
        print_error(error)

    def stats(self) -> str:
        """The figures of the latest answer, how much of the context is in use, and what has no room in it."""
        session, count = self.chat.session, self._n_dropped()
        left = f"; the oldest {count} messages are not sent" if count else ""
        size = session.n_ctx or "an unknown number"
        return f"{speed(session.stats)}; context {session.n_past} of {size}{left}"

    def about(self) -> list[tuple[str, str]]:
        """What talks and how much of its context is in use, as names and values."""
        session = self.chat.session
        rows = [("context", f"{session.n_past} of {session.n_ctx or 'an unknown number of'} tokens")]
        if isinstance(self.chat, ServerChat) or self.model is None:
            return rows
        file = self.model.executor.file
        arch, size, level = describe_file(file)["model_type"].rsplit(" ", 2)
        return [
            ("model", str(self.model.path)), ("architecture", arch), ("parameters", size),
            ("quantization", level), ("backend", self.model.executor.backend.name), *rows,
        ]  # fmt: skip

    def _n_dropped(self) -> int:
        return 0 if isinstance(self.chat, ServerChat) else len(self.chat.dropped)

    def _show(self, pieces: Iterator[str]) -> bool:
        """Write the pieces as they come; whether there was no error."""
        session, before = self.chat.session, self._n_dropped()
        end = "" if sys.stdout.isatty() else "\n"  # a line each for what reads a pipe, an answer or none
        error = None
        pieces = with_view(pieces, session, self.model, self.shows_denoising)
        try:
            colours = TokenColours(session)
            for piece in pieces:
                self.bars.close()
                end = "\n"
                colours.write(piece)
        except GraphmlError as raised:
            error = raised
        self.bars.close()
        write(end)
        if error is not None:
            self.tell(error)
            return False
        if session.stop_reason == "cancel":
            remark("stopped: what was said is kept; /regenerate answers again, /undo takes it back")
        elif session.stop_reason == "length":
            count = self.chat.max_tokens or session.stats.n_gen  # of a diffusion model that nobody limits
            remark(f"ended at {count} tokens: /set max_tokens N allows more")
        elif session.stop_reason == "context":
            of = f" of {session.n_ctx} tokens" if session.n_ctx else ""
            say(f"graphml: the context{of} is full: /undo, /reset or a larger --ctx")
        if self._n_dropped() and not before:  # told once
            say(
                f"graphml: the context of {session.n_ctx} tokens is full: the oldest messages are no longer "
                "sent from now on (--overflow drop_turns; others: stop, shift, error; --ctx makes it larger)"
            )
        if self.shows_stats:
            say(self.stats())
        return True


@contextmanager
def _interrupt_cancels(session: graphml.Session | ServerSession) -> Iterator[None]:
    """Within, Ctrl-C ends the answer at its next token and raises nothing."""

    def cancel(number: int, frame: Any) -> None:
        session.cancel()

    with interrupts(cancel):
        yield
