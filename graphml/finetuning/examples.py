"""Examples of a file of JSON lines: the ids of each text, and which of them a model is to learn.

Of a conversation these are the assistant's messages with the token that ends each, of a prompt and its
completion the completion, of a text all ids. Knows tokenizers and chat templates; nothing of torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphml.api.chat_prompt import ChatSettings, prompt_of
from graphml.api.model import Model
from graphml.api.tools import tools_of
from graphml.errors import GraphmlError, TokenizerError, UsageError
from graphml.ir.op import Array
from graphml.system.read_files import reason
from graphml.text.messages import checked_messages
from graphml.text.tokenizer import Tokenizer

LONGEST_LINE = 1 << 24
FORMS = '{"messages": [...]}, {"prompt": "...", "completion": "..."} or {"text": "..."}'


@dataclass(frozen=True, eq=False)
class Example:
    """ids: int32 [T]. learned: the positions, from 1 on, of those that count in the loss, int32."""

    ids: Array
    learned: Array


@dataclass(frozen=True)
class Examples:
    """What a file has. n_cut: texts that were longer; n_left_out: those with nothing to learn after it."""

    name: str
    texts: tuple[Example, ...]
    fingerprint: str
    n_cut: int = 0
    n_left_out: int = 0

    @property
    def n_tokens(self) -> int:
        """Of all texts."""
        return sum(len(text.ids) for text in self.texts)

    @property
    def n_learned(self) -> int:
        """Tokens of all texts that count in the loss."""
        return sum(len(text.learned) for text in self.texts)


def read_examples(source: Path | Iterable[Any], model: Model, longest: int) -> Examples:
    """The examples of a file of JSON lines, or of as many mappings.

    longest: tokens of a text, of which the end of a longer one is cut. UsageError with file and line for what
    is none, and for a source without any; TokenizerError for a model without a vocabulary.
    """
    if model.tokenizer is None:
        raise TokenizerError(f"{model.path}: wanted a model with a vocabulary, to encode examples")
    name = str(source) if isinstance(source, Path) else "data"
    lines = _lines(source) if isinstance(source, Path) else enumerate(source, 1)
    whole: list[tuple[list[int], list[tuple[int, int]]]] = []
    for number, fields in lines:
        try:
            whole += _encoded(fields, model, model.tokenizer)
        except GraphmlError as error:
            raise UsageError(f"{name}:{number}: {error}") from error
    texts = [_cut(ids, spans, longest) for ids, spans in whole]
    learned = [text for text in texts if len(text.learned)]
    if not learned:
        raise UsageError(f"{name}: wanted examples with tokens to learn, one a line: {FORMS}; there are none")
    digest = hashlib.sha256()
    for text in learned:
        for array in (text.ids, text.learned):
            digest.update(len(array).to_bytes(8, "little") + array.tobytes())
    n_cut = sum(len(ids) > longest for ids, _ in whole)
    return Examples(name, tuple(learned), digest.hexdigest(), n_cut, len(texts) - len(learned))


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise UsageError(f"{path}:{number}: wanted lines of at most {LONGEST_LINE:,} characters")
                if line.strip():
                    yield number, _parsed(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {reason(error)}") from None


def _parsed(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: wanted a JSON object, {FORMS}; {reason(error)}") from None


def _encoded(
    fields: Any, model: Model, tokenizer: Tokenizer
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """The ids of one example, and from where to where to learn.

    Several of a conversation whose template changes earlier turns.
    """
    keys = set(fields) - {"tools"} if isinstance(fields, Mapping) else set()
    if keys == {"messages"}:
        yield from _conversation(fields, model, tokenizer)
    elif keys == {"prompt", "completion"}:
        prompt, completion = (_text(fields, key) for key in ("prompt", "completion"))
        ids = tokenizer.encode(prompt, add_special=True, parse_special=False)
        learned = tokenizer.encode(completion, add_special=False, parse_special=False) + _end(tokenizer)
        yield ids + learned, [(len(ids), len(ids) + len(learned))]
    elif keys == {"text"}:
        ids = tokenizer.encode(_text(fields, "text"), add_special=True, parse_special=False)
        ids += _end(tokenizer) if ids[-1:] != _end(tokenizer) else []
        yield ids, [(1, len(ids))]
    else:
        came = f"the keys {', '.join(sorted(map(str, keys)))}" if keys else f"{fields!r:.80}"
        raise UsageError(f"wanted {FORMS}; got {came:.200}")


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str):
        raise UsageError(f"{key}: wanted a text; got {value!r:.80}")
    return value


def _end(tokenizer: Tokenizer) -> list[int]:
    return [] if tokenizer.eos is None else [tokenizer.eos]


def _conversation(
    fields: Mapping[str, Any], model: Model, tokenizer: Tokenizer
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    messages, tools = checked_messages(fields["messages"]), tools_of(fields.get("tools"))
    asking = ChatSettings(tools)
    answered = ChatSettings(tools, variables={"add_generation_prompt": False})
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = prompt_of(tokenizer, model.templates, messages[:number], asking).ids if number else []
        after = prompt_of(tokenizer, model.templates, messages[: number + 1], answered).ids
        if after[: len(before)] != before:
            raise UsageError(
                f"messages[{number}]: the chat template writes this answer otherwise than behind its prompt "
                f"({tokenizer.decode(before[-8:])!r}): the model would learn what it is never asked; wanted "
                "prompt and completion in place of messages, or another chat template"
            )
        if after[: len(ids)] != ids:  # earlier turns are written otherwise in longer conversations
            yield ids, spans
            spans = []
        ids = after
        spans.append((len(before), _answer_end(after, len(before), tokenizer)))
    if not spans:
        raise UsageError("messages: wanted one of the assistant; there is none")
    yield ids, spans


def _answer_end(ids: list[int], start: int, tokenizer: Tokenizer) -> int:
    """Behind the token that ends an answer; what a template writes after it is not said by the model."""
    ends = [at for at in range(start, len(ids)) if ids[at] in tokenizer.end_tokens]
    return ends[-1] + 1 if ends else len(ids)


def _cut(ids: list[int], spans: list[tuple[int, int]], longest: int) -> Example:
    kept = np.array(ids[:longest], np.int32)
    learned = [at for start, stop in spans for at in range(max(start, 1), min(stop, len(kept)))]
    return Example(kept, np.array(learned, np.int32))
