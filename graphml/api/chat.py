"""A conversation with a model: messages in, answers out, and as little evaluated twice as possible.

The model's chat template turns the whole conversation to text at every turn. What the session has already
seen of that text is not evaluated again; what a template rewrites of earlier turns is. Of a long
one the oldest turns are left out. Knows messages and their prompt; nothing of files, backends, terminals or
formats of answers.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from os.path import commonprefix
from typing import Any, ClassVar

from graphml.api.answer_reader import AnswerReader
from graphml.api.answer_text import AnswerText
from graphml.api.chat_prompt import ChatPrompt, ChatSettings, prompt_of
from graphml.api.invoked_adapters import InvokedAdapters
from graphml.api.keywords import hinted
from graphml.api.message_list import MessageList
from graphml.api.saved_session import AnyPath, params_as_json, params_from_json
from graphml.api.seen_text import Seen
from graphml.api.session import Session
from graphml.api.template_messages import reasoning_apart
from graphml.api.tokens import StopReason
from graphml.api.tool_rounds import MAX_ROUNDS, ChatEvent, Confirm, calls_of, checked_rounds, rounds
from graphml.api.tools import tools_of
from graphml.errors import ContextFullError, UsageError
from graphml.options.argument_checks import count_or_none, mapping_of, text_of
from graphml.runtime.blocks.overflow import ChatOverflow, Overflow
from graphml.sampling import SamplingParams, changed_params
from graphml.text.answers import ContentDelta, Event
from graphml.text.chat_template import DEFAULT_NAME, ChatTemplate
from graphml.text.fenced_text import encode_fenced, fenced, without_fences
from graphml.text.messages import Message
from graphml.text.tokenizer import Tokenizer

LEAST, SPARE = 8, 4
"""A prompt is too long that leaves an answer less than 1/8 of the context; turns leave until 1/4 is free."""
WHOLE = ("end", "length", "context")  # why an answer ends, all of whose tokens are in its text


class Chat(MessageList):
    """A conversation. Made by `Model.chat`.

    The system message is trusted: it may spell control tokens, while in what users and the model say they are
    plain text. max_tokens: most tokens of an answer, None for no limit but the context. params: how answers
    are sampled that say nothing else; None: greedily. settings: further variables of the template, and how
    reasoning is told from text. `session`: where it runs. full: what a full context does; its keep of -1 is
    the first message's turn. tools: of answers that are given none, see `events`; not of `regenerate`. The
    history keeps all messages, those too that no prompt has any more: see `dropped`. rounds_used_up: whether
    the latest answer was asked for without tools, as `max_rounds` rounds of calls came before it.
    """

    _instead: ClassVar = {**MessageList._instead, **dict.fromkeys(("copy", "clone", "branch"), "fork()")}

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        templates: Mapping[str, ChatTemplate],
        max_tokens: int | None = None,
        settings: ChatSettings | None = None,
        full: ChatOverflow | None = None,
        tools: Any = None,
        params: SamplingParams | None = None,
    ) -> None:
        self.tools, self.params = tools, params
        self.session, self.max_tokens, self._invoked = session, max_tokens, InvokedAdapters(session)
        self._templates = templates
        self._full, self._n_first = full or ChatOverflow(), 0  # of the first turn, once it is known
        self._n_dropped = 0  # turns that the latest prompt left out
        self._encoded: tuple[str, bool, list[int]] = ("", False, [])  # the latest text, its ids
        self._tokenizer = tokenizer
        self._settings = settings or ChatSettings()
        self._continues = False  # the last message, which is the begin of an answer
        self.rounds_used_up = False
        self._seen = Seen()
        self._rendered: tuple[list[Message], ChatSettings, ChatPrompt] | None = None  # of these, by these
        super().__init__()

    def fork(self) -> Chat:
        """Another chat with the same history, settings and tools, which goes on in a session of its own.

        Both go on the same way and know nothing of each other. Its session is one more that uses memory.
        """
        fork = copy.copy(self)
        fork._messages, fork.session = copy.deepcopy(self._messages), self.session.fork()
        fork._invoked = InvokedAdapters(fork.session)
        return fork

    def save(self, path: AnyPath) -> None:
        """Write the conversation and its session to a file; see `Session.save` and `Model.restore`.

        Messages, `max_tokens`, `params`, `variables` and the settings of the latest answer are saved; the
        template and tools are not. UsageError for variables that JSON cannot hold.
        """
        saved = {
            "messages": self._messages, "max_tokens": self.max_tokens,
            "params": None if self.params is None else params_as_json(self.params),
            "variables": dict(self._settings.variables),
            "reasoning_format": self._settings.reasoning_format, "chat_format": self._settings.chat_format,
            "seen": self._seen.saved(), "overflow": self._full.overflow, "keep": self._full.keep,
            "n_first": self._n_first, "n_dropped": self._n_dropped,
        }  # fmt: skip
        self.session.save(path, saved)

    @staticmethod
    def restored(
        session: Session,
        tokenizer: Tokenizer,
        templates: Mapping[str, ChatTemplate],
        saved: Mapping[str, Any],
    ) -> Chat:
        """The chat of a session and what `save` wrote besides; UsageError for other values."""
        most = count_or_none("max_tokens", saved.get("max_tokens", saved.get("max_new")))  # of older files
        params = None if saved.get("params") is None else params_from_json(saved["params"])
        full = ChatOverflow(saved.get("overflow", "stop"), saved.get("keep", 0))
        settings = ChatSettings(
            variables=saved.get("variables") or {}, reasoning_format=saved.get("reasoning_format", "auto"),
            chat_format=saved.get("chat_format"),
        )  # fmt: skip
        chat = Chat(session, tokenizer, templates, most, settings, full, params=params)
        chat.history = saved.get("messages")
        chat._n_first = count_or_none("n_first", saved.get("n_first")) or 0
        chat._n_dropped = count_or_none("n_dropped", saved.get("n_dropped")) or 0
        chat._seen = Seen.restored(mapping_of("seen", saved.get("seen"), "a mapping"))
        return chat

    def __repr__(self) -> str:
        waits = bool(self._messages) and self._messages[-1]["role"] == "user"
        how = "; the last one waits for respond()" if waits else ""
        if self.text and self.stop_reason in ("length", "context"):
            how = f"; the last one was cut off: {self.stop_reason}"
        n_past, n_ctx = self.session.n_past, self.session.n_ctx
        return f"Chat({len(self._messages)} messages, {n_past} of {n_ctx} tokens{how})"

    def __str__(self) -> str:
        return self.text or repr(self)

    @property
    def text(self) -> str:
        """The text of the last message, where that is an answer; "" where none is there yet."""
        last = self._messages[-1] if self._messages else {"role": ""}
        return str(last["content"]) if last["role"] == "assistant" else ""

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the latest answer ended: "end", "stop", "length", "context", "cancel"; None before one has."""
        return self.session.stop_reason

    @property
    def template(self) -> ChatTemplate:
        """The chat template; where tools are offered, the one named tool_use is used if there is one."""
        return self._templates[DEFAULT_NAME]

    @property
    def dropped(self) -> list[Message]:
        """The oldest messages of the history, whole turns, that the latest prompt had no room for."""
        return copy.deepcopy(self._latest_turns(self._n_dropped)[1])

    def add_user(self, text: str) -> None:
        """Append a message of the user."""
        super().add_user(text)
        self._continues = False

    def add_assistant(self, text: str) -> None:
        """Append the begin of an answer, which the next answer continues (prefill)."""
        self._messages.append({"role": "assistant", "content": text_of("text", text)})
        self._continues = True

    def add_tool_result(self, id: str, content: str) -> None:
        """Append the result of a call that has this id, where the caller runs the tools."""
        called = [call for message in self._messages for call in calls_of(message) if call.id == id]
        if not called:
            raise UsageError(f"add_tool_result: wanted the id of a call, got {id!r:.80}")
        result = {"role": "tool", "content": text_of("content", content), "name": called[-1].name}
        self._messages.append({**result, "tool_call_id": id})

    def render_turn(self) -> str:
        """Return the text that the next answer begins from: what the session has not seen yet, to the letter.

        It is the end of the whole conversation as the template writes it. TemplateError if that fails.
        """
        whole = self._prompt(self._settings, self._turns_to_drop(self._settings, self.max_tokens)).fenced
        return without_fences(whole[self._place(whole)[0] :])

    def respond(
        self, text: str | SamplingParams | None = None, params: SamplingParams | None = None, **how: Any
    ) -> AnswerText:
        """Generate the answer, append it to the history and return its text; arguments as of `events`.

        The text has a `stop_reason`: "length" or "context" where it was cut off. Where tools are called, the
        text is that of the last answer, which calls none.
        """
        for _ in self.events(text, params, **how):
            pass
        return AnswerText(self.text, self.stop_reason)

    ask = respond

    def stream(
        self, text: str | SamplingParams | None = None, params: SamplingParams | None = None, **how: Any
    ) -> Iterator[str]:
        """Generate the answer's text piece by piece, without reasoning and calls; as `events` does."""
        events = self.events(text, params, **how)
        return (event.text for event in events if isinstance(event, ContentDelta))

    @hinted
    def events(
        self,
        text: str | SamplingParams | None = None,
        params: SamplingParams | None = None,
        *,
        tools: Any = None,
        tool_choice: Any = "auto",
        parallel_tool_calls: bool | None = None,
        max_rounds: int = MAX_ROUNDS,
        confirm: Confirm | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        **sampling: Any,
    ) -> Iterator[ChatEvent]:
        """Generate the answer as events: text, reasoning, tool calls; kept as far as it goes.

        text: a message of the user, which is added first; None: the last message is answered. params: how
        tokens are sampled, None: as the chat's `params` say; also taken in place of the text. sampling:
        fields of `SamplingParams` as keywords, which change either. max_tokens: most tokens of this answer;
        None: as the chat's. seed: starts the session's random generator anew.
        tools: functions, or descriptions in OpenAI's form; None: those of the chat, []: none. Functions that
        the model calls are run, their results are told to it, and it answers again, for at most max_rounds
        rounds of calls; the answer behind them is asked for without tools, which is logged and kept in
        `rounds_used_up`. An error of a function is told as text. Calls of a tool without a function end it:
        see `add_tool_result`.
        tool_choice: "auto", "none", "required" or a tool's name, for the first answer. parallel_tool_calls:
        whether an answer may have several calls; None: see `ChatSettings`.
        confirm: asked before each function is run, with the call; where it returns False, the model is told
        that the user refused.

        After an error the history is as before, and the answer can be asked for again; but messages that the
        context has no room for are removed from it: a ContextFullError says how long they are. So is `text`.
        """
        if isinstance(text, SamplingParams):
            if params is not None:
                raise UsageError("params: wanted one SamplingParams; got two")
            text, params = None, text
        chosen, most = self._chosen(params, sampling), checked_rounds(max_rounds)
        limit = self.max_tokens if max_tokens is None else count_or_none("max_tokens", max_tokens)
        settings = replace(
            self._settings, tools=tools_of(self.tools if tools is None else tools), tool_choice=tool_choice,
            parallel_tool_calls=None if parallel_tool_calls is None else bool(parallel_tool_calls),
        )  # fmt: skip
        is_answered = not self._messages or self._messages[-1]["role"] == "assistant"
        if text is None and is_answered and not (self._messages and self._continues):
            raise UsageError("chat: wanted a message to answer; add_user(text), or respond(text)")
        question = None if text is None else text_of("text", text)
        if seed is not None:
            self.session.set_seed(seed)
        if not settings.tools:
            answer: Iterator[ChatEvent] = self._answer(chosen, settings, limit)
        else:
            answer = self._with_tools(rounds(
                settings, most, lambda now: self._answer(chosen, now, limit),
                lambda: calls_of(self._messages[-1]), self._messages.append, confirm,
            ))  # fmt: skip
        return answer if question is None else self._asked(question, answer)

    def _with_tools(self, answers: Generator[ChatEvent, None, bool]) -> Iterator[ChatEvent]:
        self.rounds_used_up = yield from answers

    def _asked(self, text: str, answer: Iterator[ChatEvent]) -> Iterator[ChatEvent]:
        """Add a question and give the events; after an error all is as it was before the question."""
        n_before, continues = len(self._messages), self._continues
        self.add_user(text)
        try:
            yield from answer
        except Exception:
            del self._messages[n_before:]
            self._continues = continues
            raise

    def regenerate(self, params: SamplingParams | None = None, **how: Any) -> Iterator[str]:
        """Generate another answer to the last message, as `stream` does, in place of the one that is there.

        After an error, or where it is broken off before its first token, the history is as before. Greedy
        sampling gives the same answer again.
        """
        events = self.regenerate_events(params, **how)
        return (event.text for event in events if isinstance(event, ContentDelta))

    @hinted
    def regenerate_events(
        self,
        params: SamplingParams | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        **sampling: Any,
    ) -> Iterator[Event]:
        """The same as events, with its reasoning; arguments as of `events`."""
        self._last_of_user("regenerate")
        chosen = self._chosen(params, sampling)
        limit = self.max_tokens if max_tokens is None else count_or_none("max_tokens", max_tokens)
        if seed is not None:
            self.session.set_seed(seed)
        return self._replace(
            lambda: self._answer(chosen, self._settings, limit),
            lambda: self.session.stop_reason in (None, "cancel"),
        )

    def _chosen(self, params: SamplingParams | None, sampling: Mapping[str, Any]) -> SamplingParams:
        if params is None and self.params is not None:
            return replace(self.params, **sampling)
        return changed_params(params, sampling)

    def _begun_anew(self) -> None:
        self._n_first, self._n_dropped, self._continues = 0, 0, False

    def _answer(self, params: SamplingParams, settings: ChatSettings, limit: int | None) -> Iterator[Event]:
        """The events of one answer, which is appended to the history; limit: its most tokens."""
        self.rounds_used_up = False
        self.session.new_use()  # before the template runs, which may take seconds: a cancel meanwhile counts
        n_dropped = self._turns_to_drop(settings, limit)
        prompt = self._prompt(settings, n_dropped).sampled(params)
        reader = prompt.reader()
        ids = self._rewind_to_new(prompt.fenced)
        self._n_dropped = n_dropped
        failed = ended = False
        begins = self._seen.ids[:1] == (self._tokenizer.bos,)  # which `generate` keeps besides
        full, keep = self._full.of_answer, self._full.keep if self._full.keep >= 0 else self._n_first - begins
        try:
            ids = self._invoked.begin(ids)
            tokens = self.session.generate(ids, prompt.params, limit, overflow=full, keep=keep, new=False)
            for token in tokens:
                yield from reader.push(token)
            ended = True
            yield from reader.finish(self.session.stop_reason)
        except Exception:
            failed = True
            raise
        finally:
            self._invoked.end(self.session.shifts)
            for shift in self.session.shifts:
                self._seen = self._seen.shifted(*shift)
            if not failed:
                if not ended:
                    reader.finish("cancel")
                self._keep(reader, prompt)

    def _keep(self, reader: AnswerReader, prompt: ChatPrompt) -> None:
        message = reader.answer.message()
        if prompt.continues:
            before = reasoning_apart(self._messages.pop(), prompt.marks)
            message["content"] = before["content"] + message["content"]
            if "reasoning_content" in before:
                message["reasoning_content"] = before["reasoning_content"] + reader.answer.reasoning
            self._continues = False
        self._messages.append(message)
        if self.session.stop_reason in WHOLE:
            # Otherwise the last tokens may stand for more than the text that was let out.
            text, ids = self._seen.text + reader.raw, tuple(self.session.tokens)
            self._seen = Seen(text, ids, (*self._seen.places, (len(text), len(ids))))

    def _prompt(self, settings: ChatSettings, n_dropped: int) -> ChatPrompt:
        """The prompt without the oldest turns; made once as long as messages and settings are the same."""
        sent, _ = self._latest_turns(n_dropped)
        if self._rendered is None or self._rendered[:2] != (sent, settings):
            prompt = prompt_of(self._tokenizer, self._templates, sent, settings)
            self._rendered = copy.deepcopy(sent), settings, prompt
        return self._rendered[2]

    def _turns_to_drop(self, settings: ChatSettings, limit: int | None) -> int:
        """How many of the oldest turns the next prompt leaves out: no fewer than the latest, never the last.

        Several leave at a time: what follows them is evaluated again, as its place is another one. limit: the
        most tokens of the answer, which are to have room.
        """
        n_turns = len(self._turn_begins())
        before = self._n_dropped if self._n_dropped < n_turns else 0
        n_ctx = self.session.n_ctx
        needed = max(1, min(n_ctx // LEAST, n_ctx if limit is None else limit))

        def fits(n_dropped: int, free: int) -> bool:
            whole = self._prompt(settings, n_dropped).fenced
            characters, n_past = self._place(whole)
            return n_past + len(self._encode(whole[characters:], n_past == 0)) + free <= n_ctx

        if not self._full.drops_turns or before + 1 >= n_turns or fits(before, needed):
            return before
        choices = range(before + 1, n_turns - 1)
        return choices.start + bisect_left(choices, True, key=lambda n: fits(n, max(needed, n_ctx // SPARE)))

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
            kept, n_ctx = 0, self.session.n_ctx
            if len(known) >= n_ctx and self._full.shifts:
                kept = self._full.kept(self._n_first, known[:1] == (self._tokenizer.bos,), n_ctx)
            cut = room(self._messages, len(known), len(ids), kept, n_ctx, self._full, self._length)
        except ContextFullError:
            self._n_first = before
            raise
        places = [place for place in self._seen.places if place[0] <= characters]
        self._seen = Seen(whole, known, (*places, (len(whole), len(known)))).shifted(*cut)
        # The session may hold more of them already; the last is left, as logits come from evaluating.
        shared = _shared(self.session.tokens, self._seen.ids[:-1])
        shared = self._invoked.kept(self._seen.ids, shared)
        self.session.rewind(shared)
        return list(self._seen.ids[shared:])

    def _length(self, message: Message) -> int:
        return len(self._encode(fenced(self._tokenizer, message["content"]), begins=False))

    def _encode(self, text: str, begins: bool) -> list[int]:
        if self._encoded[:2] != (text, begins):
            self._encoded = text, begins, encode_fenced(self._tokenizer, text, begins)
        return self._encoded[2]


def _shared(ids: Sequence[int], other: Sequence[int]) -> int:
    """How many ids both begin with."""
    count = 0
    for a, b in zip(ids, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def room(
    messages: list[Message],
    n_total: int,
    n_new: int,
    kept: int,
    n_ctx: int,
    full: Overflow,
    length: Callable[[Message], int],
) -> tuple[int, int]:
    """Which ids of a conversation are left out, (keep, drop), where a full context is shifted.

    n_total, n_new: ids of the conversation, and those of them that are not held yet; kept: ids at its begin
    that stay; length: ids of a message's content. Where the last message has no room for a token of an
    answer, or nothing is shifted, unanswered messages are removed: ContextFullError.
    """
    if n_total < n_ctx:
        return 0, 0
    if full.shifts:
        if kept + n_new < n_ctx:
            return 0, 0  # the session makes room
        drop = max((n_total - kept) // 2, n_total + 1 - n_ctx)
        if kept + drop + length(messages[-1]) < n_total:
            return kept, drop
    removed: list[Message] = []
    while messages and _is_unanswered(messages[-1]):
        removed.append(messages.pop())
    n_message = min(sum(map(length, removed)), n_total)
    n_used = n_total - n_message
    used = f"of which {n_used} are used" if n_used < n_ctx else "all of which are used"
    raise ContextFullError(
        f"the message has {n_message} tokens; the context holds {n_ctx}, {used}, and an answer needs "
        "room too. Shorten it, begin anew, or give a longer context (--ctx; n_ctx in Python) if the "
        "model allows. What leaves a full context, --overflow says (overflow in Python): it is "
        f"{full.overflow!r} now"
    )


def _is_unanswered(message: Message) -> bool:
    return message["role"] in ("user", "tool") or "tool_calls" in message
