"""Turns of a coding agent's session, as a model of each format writes them, and what a client must end with.

Knows formats of answers; nothing of protocols.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import graphml
from graphml import SamplingParams
from graphml.server.options.server_options import ServerOptions
from tests import template_corpus, tiny_model
from tests.server.clients.wished_answers import Wishes
from tests.server.running_server import Running, running

Call = tuple[str, dict[str, Any]]
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "<|im_end|>", "<|im_start|>")


def _json_call(call: Call) -> str:
    return json.dumps({"name": call[0], "arguments": call[1]}, ensure_ascii=False)


def _hermes(call: Call) -> str:
    return f"<tool_call>\n{_json_call(call)}\n</tool_call>"


def _parameters(call: Call) -> str:
    def text(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    values = "".join(f"<parameter={name}>\n{text(value)}\n</parameter>\n" for name, value in call[1].items())
    return f"<tool_call>\n<function={call[0]}>\n{values}</function>\n</tool_call>"


@dataclass(frozen=True)
class Format:
    """How a model writes an answer. between: a text and a call, None: never both; begun: by the prompt.

    reasons: whether it reasons. calls: what several calls are.
    """

    call: Callable[[Call], str]
    between: str | None
    begun: str = ""
    reasons: bool = True
    calls: Callable[[Sequence[str]], str] = "\n".join


FORMATS = {
    "Qwen3.5-4B": Format(_parameters, "\n\n", "<think>\n"),
    "Qwen-Qwen3-0.6B": Format(_hermes, "\n"),
    "none": Format(
        _json_call,
        None,
        reasons=False,
        calls=lambda calls: f"[{', '.join(calls)}]" if calls[1:] else calls[0],
    ),
}
"""By the name of a template; none: of a model whose template knows no tools."""


@dataclass(frozen=True)
class Turn:
    """An answer: its parts as a client must read them."""

    reasoning: str
    text: str = ""
    calls: tuple[Call, ...] = ()


@dataclass
class Agent:
    """A server of a tiny model that writes the turns of a session in one format."""

    wishes: Wishes
    format: Format

    @property
    def server(self) -> Running:
        assert self.wishes.server is not None
        return self.wishes.server

    @property
    def prompts(self) -> list[str]:
        return self.wishes.prompts

    def written(self, turn: Turn) -> str:
        calls = self.format.calls([*map(self.format.call, turn.calls)]) if turn.calls else ""
        said = (self.format.between or "").join(filter(None, (turn.text, calls)))
        return f"<think>\n{turn.reasoning}\n</think>\n\n{said}" if turn.reasoning else said

    def formed(self, turn: Turn) -> Turn:
        """The turn, without what the format has no place for."""
        bare = self.format.between is None and bool(turn.calls)
        return Turn(turn.reasoning if self.format.reasons else "", "" if bare else turn.text, turn.calls)

    def play(self, *turns: Turn) -> None:
        self.wishes.forget()
        self.wishes.say(*map(self.written, turns))

    def n_written(self, turn: Turn, part: str = "") -> int:
        """Bytes that the model writes, up to the end of this part; the prompt may begin the reasoning."""
        text = self.written(turn).removeprefix(self.format.begun)
        return len(text[: text.index(part) + len(part) if part else None].encode())

    def counted(self, turn: Turn, n_tokens: int) -> bool:
        """Whether so many tokens are the turn's: one of each byte, but a grammar may force pairs of them."""
        return 0 <= self.n_written(turn) - n_tokens <= 4 * len(turn.calls)

    def n_reasoning(self, turn: Turn) -> int:
        """Tokens of the reasoning with its marks."""
        return self.n_written(turn, "</think>") if turn.reasoning else 0

    def continues(self, turn: Turn) -> bool:
        """Whether the latest prompt goes on from the one before and the turn that the model wrote."""
        return self.prompts[-1].startswith(self.prompts[-2] + "<|im_start|>assistant\n" + self.written(turn))


@contextmanager
def agent_of(name: str, folder: Path) -> Iterator[Agent]:
    """An agent's server with the template of this name."""
    path = tiny_model.write(folder / "tiny.gguf", n_ctx=8192)
    template = template_corpus.corpus().get(name)
    with graphml.load(path, "cpu", threads=1, n_batch=256, template=template) as model:
        wishes = Wishes(model)
        options = ServerOptions(parallel=2, n_ctx=8192, params=SamplingParams(function=wishes))
        with running(options, model) as server:
            wishes.server = server
            yield Agent(wishes, FORMATS[name])
