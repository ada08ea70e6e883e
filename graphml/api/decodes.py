"""`Decodes`: what ways of decoding use of a model. Knows the names; does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from graphml.api.engine import Engine
from graphml.api.prompt_encoder import Prompt
from graphml.api.session import Session
from graphml.runtime.programs.executor import Executor
from graphml.text.tokenizer import Tokenizer


class Decodes(Protocol):
    """A `Model`."""

    executor: Executor
    path: Path
    n_ctx: int
    n_vocab: int

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, if there is one."""

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text."""

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The ids of a text, of messages, or of ids."""

    def session(self, n_ctx: int | None = None, seed: int | None = None) -> Session:
        """A session."""

    def engine(self, *, n_ctx: int | None = None) -> Engine:
        """An engine."""
