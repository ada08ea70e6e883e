"""A conversation with a model: messages in, answers out, and as little evaluated twice as possible.

The model's chat template turns the whole conversation to text at every turn. What the session has already
seen of that text is not evaluated again; what a template rewrites of earlier turns is. Knows
messages and the text that they become; knows nothing of files, backends or terminals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os.path import commonprefix
from typing import Any

from graphml.api.saved_session import AnyPath
from graphml.api.seen_text import Seen
from graphml.api.session import Session
from graphml.argument_checks import count_or_none, mapping_of, text_of
from graphml.errors import ContextFullError, UsageError
from graphml.runtime.overflow import Overflow
from graphml.sampling import SamplingParams
from graphml.text.chat_template import ChatTemplate
from graphml.text.fenced_text import encode_fenced, fenced, without_fences
from graphml.text.messages import Message, checked_messages
from graphml.text.tokenizer import Tokenizer

FENCED_ROLES = ("user", "assistant")
WHOLE = ("end", "length", "context")  # why an answer ends, all of whose tokens are in its text


class Chat:
    """A conversation. Made by `Model.chat`.

    system: the first message, if not empty; trusted: it may spell control tokens, while in what users and the
    model say they are plain text. max_new: most tokens of an answer, None for no limit but the context.
    variables: further variables of the template (`{"enable_thinking": False}`). `session`: where it runs.
    full: what a full context does; its keep of -1 is the first message's turn.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        system: str = "",
        max_new: int | None = 256,
        variables: Mapping[str, Any] | None = None,
        full: Overflow | None = None,
    ) -> None:
        self.session, self.template, self.max_new = session, template, max_new
        self._full, self._n_first = full or Overflow(), 0  # of the first turn, once it is known
        self._tokenizer = tokenizer
        self._variables = dict(mapping_of("variables", variables or {}, "a mapping from names to values"))
        self._messages: list[Message] = []
        self._system = text_of("system", system)
        self._seen = Seen()
        self._rendered: tuple[list[Message], ChatTemplate, str] | None = None  # of these, by this
        self.reset()

    def save(self, path: AnyPath) -> None:
        """Write the conversation and its session to a file; see `Session.save` and `Model.restore`.

        Messages, `max_new`, `variables` and the settings of the latest answer are saved; the template is not.
        UsageError for variables that JSON cannot hold.
        """
        saved = {
            "messages": self._messages, "max_new": self.max_new, "variables": self._variables,
            "seen": self._seen.saved(), "overflow": self._full.overflow, "keep": self._full.keep,
            "n_first": self._n_first,
        }  # fmt: skip
        self.session.save(path, saved)

    @staticmethod
    def restored(
        session: Session, tokenizer: Tokenizer, template: ChatTemplate, saved: Mapping[str, Any]
    ) -> Chat:
        """The chat of a session and what `save` wrote besides; UsageError for other values."""
        most = count_or_none("max_new", saved.get("max_new"))
        full = Overflow(saved.get("overflow", "stop"), saved.get("keep", 0))
        chat = Chat(session, tokenizer, template, max_new=most, variables=saved.get("variables"), full=full)
        chat.history = saved.get("messages")
        chat._n_first = count_or_none("n_first", saved.get("n_first")) or 0
        chat._seen = Seen.restored(mapping_of("seen", saved.get("seen"), "a mapping"))
        return chat

    @property
    def history(self) -> list[Message]:
        """The messages so far, each {"role": ..., "content": ...}, as a copy."""
        return [dict(message) for message in self._messages]

    @history.setter
    def history(self, messages: object) -> None:
        self._messages = checked_messages(messages)
        self._n_first = 0
        first = self._messages[:1]
        self._system = first[0]["content"] if first and first[0]["role"] == "system" else ""

    @property
    def system(self) -> str:
        """The system message; "" for none. Setting it keeps the other messages."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        others = [message for message in self._messages if message["role"] != "system"]
        self._system = text_of("system", text)
        self.reset()
        self._messages += others

    def reset(self) -> None:
        """Forget all messages but the system's."""
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._n_first = 0

    def add_user(self, text: str) -> None:
        """Append a message of the user."""
        self._messages.append({"role": "user", "content": text_of("text", text)})

    def undo(self) -> list[Message]:
        """Remove the last message of the user with its answer, and return both; UsageError without one."""
        index = self._last_of_user("undo")
        removed = self._messages[index:]
        del self._messages[index:]
        return removed

    def render_turn(self) -> str:
        """Return the text that the next answer begins from: what the session has not seen yet, to the letter.

        It is the end of the whole conversation as the template writes it. TemplateError if that fails.
        """
        whole = self._render()
        return without_fences(whole[self._place(whole)[0] :])

    def respond(self, params: SamplingParams | None = None) -> str:
        """Generate the answer, append it to the history and return it; greedy without params."""
        return "".join(self.stream(params))

    def stream(self, params: SamplingParams | None = None) -> Iterator[str]:
        """Generate the answer piece by piece; an answer that is broken off is kept as far as it went.

        After an error the history is as before, and the answer can be asked for again; but messages that the
        context has no room for are removed from it: a ContextFullError says how long they are.
        """
        if not self._messages or self._messages[-1]["role"] == "assistant":
            raise UsageError("chat: wanted a message to answer; add one with add_user(text)")
        return self._stream(params or SamplingParams())

    def regenerate(self, params: SamplingParams | None = None) -> Iterator[str]:
        """Generate another answer to the last message, as `stream` does, in place of the one that is there.

        After an error, or where it is broken off before its first token, the history is as before. Greedy
        sampling gives the same answer again.
        """
        self._last_of_user("regenerate")
        return self._replace(params or SamplingParams())

    def _replace(self, params: SamplingParams) -> Iterator[str]:
        before = list(self._messages)
        first = self._last_of_user("regenerate") + 1
        del self._messages[first:]
        try:
            yield from self._stream(params)
        finally:
            answers = self._messages[first:]
            broken_off = self.session.stop_reason in (None, "cancel")
            if not answers or (broken_off and not answers[0]["content"]):
                self._messages = before

    def _last_of_user(self, method: str) -> int:
        for index in range(len(self._messages) - 1, -1, -1):
            if self._messages[index]["role"] == "user":
                return index
        raise UsageError(f"{method}: wanted a message of the user, got a conversation without one")

    def _stream(self, params: SamplingParams) -> Iterator[str]:
        self.session.begin()  # before the template runs, which may take seconds: a cancel meanwhile counts
        ids = self._rewind_to_new(self._render())
        answer: list[str] = []
        failed = False
        begins = self._seen.ids[:1] == (self._tokenizer.bos,)  # which `generate` keeps besides
        full, keep = self._full.overflow, self._full.keep if self._full.keep >= 0 else self._n_first - begins
        try:
            tokens = self.session.generate(ids, params, self.max_new, overflow=full, keep=keep, new=False)
            for token in tokens:
                answer.append(token.piece)
                if token.piece:
                    yield token.piece
        except Exception:
            failed = True
            raise
        finally:
            for one in self.session.shifts:
                self._seen = self._seen.shifted(*one)
            if not failed:
                self._keep("".join(answer))

    def _keep(self, answer: str) -> None:
        self._messages.append({"role": "assistant", "content": answer})
        if self.session.stop_reason in WHOLE:
            # Otherwise the last tokens may stand for more than the text that was let out.
            text, ids = self._seen.text + answer, tuple(self.session.tokens)
            self._seen = Seen(text, ids, (*self._seen.places, (len(text), len(ids))))

    def _render(self) -> str:
        """The conversation as the template writes it, fenced; rendered once as long as it stays the same."""
        if self._rendered is None or self._rendered[:2] != (self._messages, self.template):
            messages = [
                {**one, "content": self._fenced(one["content"])} if one["role"] in FENCED_ROLES else one
                for one in self._messages
            ]
            text = self.template.render(messages, add_generation_prompt=True, **self._variables)
            self._rendered = self.history, self.template, text
        return self._rendered[2]

    def _place(self, whole: str) -> tuple[int, int]:
        """The last place, (characters, tokens), up to which the session holds the ids of this text."""
        common = len(commonprefix([self._seen.text, whole]))  # noqa: RUF071 - of texts, letter by letter
        held = _shared(self._seen.ids, self.session.tokens)
        return max(place for place in self._seen.places if place[0] <= common and place[1] <= held)

    def _rewind_to_new(self, whole: str) -> list[int]:
        """Rewind the session to what it shares with the text, and return the ids that are new."""
        characters, n_past = self._place(whole)
        ids = self._encode(whole[characters:], begins=n_past == 0)
        known = (*self._seen.ids[:n_past], *ids)
        before, self._n_first = self._n_first, self._n_first or len(known)
        try:
            cut = self._check_room(known, len(ids))
        except ContextFullError:
            self._n_first = before
            raise
        kept = [place for place in self._seen.places if place[0] <= characters]
        self._seen = Seen(whole, known, (*kept, (len(whole), len(known)))).shifted(*cut)
        # The session may hold more of them already; the last is left, as logits come from evaluating.
        shared = _shared(self.session.tokens, self._seen.ids[:-1])
        self.session.rewind(shared)
        return list(self._seen.ids[shared:])

    def _check_room(self, known: Sequence[int], n_new: int) -> tuple[int, int]:
        """Which ids of a conversation are left out, (keep, drop), where a full context is shifted.

        Where the last message has no room for a token of an answer, or nothing is shifted, unanswered
        messages are removed: ContextFullError.
        """
        total, n_ctx = len(known), self.session.n_ctx
        if total < n_ctx:
            return 0, 0
        if self._full.shifts:
            begins = known[0] == self._tokenizer.bos
            kept = self._full.kept(self._n_first, begins, n_ctx)
            if kept + n_new < n_ctx:
                return 0, 0  # the session makes room
            last = self._encode(self._fenced(self._messages[-1]["content"]), begins=False)
            drop = max((total - kept) // 2, total + 1 - n_ctx)
            if kept + drop + len(last) < total:
                return kept, drop
        removed: list[str] = []
        while self._messages and self._messages[-1]["role"] == "user":
            removed.append(self._fenced(self._messages.pop()["content"]))
        n_message = min(sum(len(self._encode(text, begins=False)) for text in removed), total)
        n_used = total - n_message
        used = f"of which {n_used} are used" if n_used < n_ctx else "all of which are used"
        raise ContextFullError(
            f"the message has {n_message} tokens; the context holds {n_ctx}, {used}, and an answer needs "
            "room too. Shorten it, begin anew, or give a longer context (--ctx; n_ctx in Python) if the "
            "model allows"
        )

    def _encode(self, text: str, begins: bool) -> list[int]:
        return encode_fenced(self._tokenizer, text, begins)

    def _fenced(self, content: str) -> str:
        return fenced(self._tokenizer, content)


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
