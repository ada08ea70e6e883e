"""A conversation with a model: messages in, answers out, and as little evaluated twice as possible.

The model's chat template turns the whole conversation to text at every turn. What the session has already
seen of that text is not fed again; a template that rewrites earlier turns costs what it rewrote. Knows
messages and the text that they become; knows nothing of files, backends or terminals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from os.path import commonprefix
from typing import Any

from graphml.errors import UsageError
from graphml.generate.arguments import text_of
from graphml.generate.chat_template import ChatTemplate
from graphml.generate.messages import Message, checked_messages
from graphml.generate.sampling import SamplingParams
from graphml.generate.session import Session
from graphml.generate.tokenizer import Tokenizer

# Unicode keeps these two free for use inside a program: they fence off, through the template, what spells a
# control token in a message, so that it is encoded as the plain text that it is.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
_FENCED = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_FENCES = re.compile(f"[{OPEN}{CLOSE}]")
FENCED_ROLES = ("user", "assistant")


class Chat:
    """A conversation. Made by `Model.chat`.

    system: the first message, if not empty; trusted: it may spell control tokens, while in what users and the
    model say they are plain text. max_new: most tokens of an answer, None for no limit but the context.
    variables: further variables of the template (`{"enable_thinking": False}`). `session`: where it runs.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        system: str = "",
        max_new: int | None = 256,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.session, self.template, self.max_new = session, template, max_new
        self._tokenizer = tokenizer
        self._variables = dict(variables or {})
        self._messages: list[Message] = []
        self._system = text_of("system", system)
        # The rendered text that the session has seen, and places in it where so many tokens stand for it.
        self._seen = ""
        self._places: list[tuple[int, int]] = [(0, 0)]
        self.reset()

    @property
    def history(self) -> list[Message]:
        """The messages so far, each {"role": ..., "content": ...}, as a copy."""
        return [dict(message) for message in self._messages]

    @history.setter
    def history(self, messages: object) -> None:
        self._messages = checked_messages(messages)
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
        return _FENCES.sub("", whole[self._place(whole)[0] :])

    def respond(self, params: SamplingParams | None = None) -> str:
        """Generate the answer, append it to the history and return it; greedy without params."""
        return "".join(self.stream(params))

    def stream(self, params: SamplingParams | None = None) -> Iterator[str]:
        """Generate the answer piece by piece; an answer that is broken off is kept as far as it went.

        After an error the history is as before, and the answer can be asked for again.
        """
        if not self._messages or self._messages[-1]["role"] == "assistant":
            raise UsageError("chat: wanted a message to answer; add one with add_user(text)")
        return self._stream(params or SamplingParams())

    def regenerate(self, params: SamplingParams | None = None) -> Iterator[str]:
        """Generate another answer to the last message, as `stream` does, in place of the one that is there.

        After an error the history is as before. Greedy sampling gives the same answer again.
        """
        self._last_of_user("regenerate")
        return self._replace(params or SamplingParams())

    def _replace(self, params: SamplingParams) -> Iterator[str]:
        index = self._last_of_user("regenerate") + 1
        replaced = self._messages[index:]
        del self._messages[index:]
        try:
            yield from self._stream(params)
        except Exception:
            self._messages += replaced
            raise

    def _last_of_user(self, method: str) -> int:
        for index in range(len(self._messages) - 1, -1, -1):
            if self._messages[index]["role"] == "user":
                return index
        raise UsageError(f"{method}: wanted a message of the user, got a conversation without one")

    def _stream(self, params: SamplingParams) -> Iterator[str]:
        whole = self._render()
        ids = self._rewind_to_new(whole)
        answer: list[str] = []
        failed = False
        try:
            for token in self.session.generate(ids, params, self.max_new):
                answer.append(token.piece)
                if token.piece:
                    yield token.piece
        except Exception:
            failed = True
            raise
        finally:
            if not failed:
                self._keep(whole, "".join(answer))

    def _keep(self, whole: str, answer: str) -> None:
        self._messages.append({"role": "assistant", "content": answer})
        self._seen = whole + answer
        if self.session.stop_reason in ("end", "length", "context"):
            # Otherwise the last tokens may stand for more than the text that was let out.
            self._places.append((len(self._seen), self.session.n_past))

    def _render(self) -> str:
        messages = [
            {**one, "content": self._fenced(one["content"])} if one["role"] in FENCED_ROLES else one
            for one in self._messages
        ]
        return self.template.render(messages, add_generation_prompt=True, **self._variables)

    def _place(self, whole: str) -> tuple[int, int]:
        """The last known place, (characters, tokens), up to which the session has seen this text."""
        common = len(commonprefix([self._seen, whole]))  # noqa: RUF071 - of texts, letter by letter
        return max(place for place in self._places if place[0] <= common)

    def _rewind_to_new(self, whole: str) -> list[int]:
        """Rewind the session to what it shares with the text, and return the ids that are new."""
        characters, n_past = self._place(whole)
        ids = self._encode(whole[characters:], begins=n_past == 0)
        place = (len(whole), n_past + len(ids))
        shared = 0
        # The session may hold more of them already; the last is left, as logits come from evaluating.
        for known, new in zip(self.session.tokens[n_past:], ids[:-1], strict=False):
            if known != new:
                break
            shared += 1
        self.session.rewind(n_past + shared)
        self._places = [one for one in self._places if one[0] <= characters] + [place]
        self._seen = whole
        return ids[shared:]

    def _encode(self, text: str, begins: bool) -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(_FENCED.split(text)):
            if part:
                ids += self._tokenizer.encode(
                    _FENCES.sub("", part), add_special=False, parse_special=index % 2 == 0
                )
        bos = self._tokenizer.bos
        # Templates often write the begin token out; it must not stand there twice.
        if begins and bos is not None and ids[:1] != [bos] and self._adds_bos():
            ids.insert(0, bos)
        return ids

    def _adds_bos(self) -> bool:
        return self._tokenizer.encode("", add_special=True)[:1] == [self._tokenizer.bos]

    def _fenced(self, content: str) -> str:
        """The text with fences around whatever in it would be read as a control token."""
        content = _FENCES.sub("\ufffd", content)
        ids = self._tokenizer.encode(content, add_special=False, parse_special=True)
        spelled = {self._tokenizer.piece(one) for one in set(ids) if self._tokenizer.is_special(one)} - {""}
        if not spelled:
            return content
        longest_first = sorted(spelled, key=lambda text: (-len(text), text))
        return re.sub("|".join(map(re.escape, longest_first)), rf"{OPEN}\g<0>{CLOSE}", content)
