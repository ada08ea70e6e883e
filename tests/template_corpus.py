"""A corpus of chat templates of public models, and what transformers renders of them.

`python -m tests.template_corpus` renders the stored templates anew and needs transformers (no torch);
`python -m tests.template_corpus FOLDER` reads all *.jinja of a folder first, such as llama.cpp's
`models/templates`. Both files are written beside the other templates of the tests.
"""

from __future__ import annotations

import copy
import json
import lzma
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "templates"
CORPUS, RENDERED = DATA / "corpus.json.xz", DATA / "corpus-rendered.json.xz"
NOW = datetime(2026, 1, 2, 3, 4, 5)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# Of licences that forbid commercial use, or no model's own.
LEFT_OUT = ("Cohere", "llama-cpp-")

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a <city> & 'more'",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Köln or 東京"},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Köln", "days": 3}},
}
USER = {"role": "user", "content": "Weather?"}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": '{"t": 3}', "tool_call_id": "abcdef123", "name": "weather"}
TURNS = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "  Yo "},
    {"role": "user", "content": "Go on\n"},
]
REASONED = [USER, {"role": "assistant", "content": "Fine.", "reasoning_content": "hm"}, USER]
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "question": {"messages": [USER]},
    "turns": {"messages": TURNS},
    "answered": {"messages": TURNS[1:3], "add_generation_prompt": False},
    "tools": {"messages": [*TURNS[:1], USER], "tools": [WEATHER]},
    "called": {"messages": [USER, CALLING], "tools": [WEATHER], "add_generation_prompt": False},
    "result": {"messages": [USER, CALLING, RESULT], "tools": [WEATHER]},
    "thinking": {"messages": [USER], "enable_thinking": True, "thinking": True},
    "no thinking": {"messages": [USER], "enable_thinking": False, "thinking": False},
    "reasoned": {"messages": REASONED},
}


def corpus() -> dict[str, str]:
    """The templates by the name of their model."""
    return dict(json.loads(lzma.decompress(CORPUS.read_bytes())))


def rendered() -> dict[str, dict[str, str | None]]:
    """Of each template and conversation what transformers renders; None where it raises an error."""
    return dict(json.loads(lzma.decompress(RENDERED.read_bytes())))


def _write(path: Path, value: object) -> None:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _render(source: str, conversation: dict[str, Any]) -> str | None:
    from transformers.utils import chat_template_utils

    given = copy.deepcopy({"tools": None, "add_generation_prompt": True, **conversation, **TOKENS})
    messages = given.pop("messages")
    try:
        found = chat_template_utils.render_jinja_template([messages], chat_template=source, **given)
    except Exception as error:
        print("refused:", f"{type(error).__name__}: {error}"[:100])
        return None
    return str(found[0][0] if isinstance(found, tuple) else found[0])


def main() -> None:
    """Write both files."""
    from transformers.utils import chat_template_utils

    class Fixed(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return NOW

    chat_template_utils.datetime = Fixed  # type: ignore[attr-defined]
    if len(sys.argv) > 1:
        files = sorted(Path(sys.argv[1]).glob("*.jinja"))
        _write(
            CORPUS, {one.stem: one.read_text("utf-8") for one in files if not one.stem.startswith(LEFT_OUT)}
        )
    every = {
        name: {told: _render(source, one) for told, one in CONVERSATIONS.items()}
        for name, source in corpus().items()
    }
    _write(RENDERED, every)
    print(len(every), "templates", CORPUS.stat().st_size, RENDERED.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
