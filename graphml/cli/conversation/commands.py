"""The commands of a conversation, a value each: name, what it takes, help, function; and what Tab offers.

Knows what each does to the conversation; nothing of keys. Texts of messages go to stdout, all else to stderr.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from graphml.api.saved_session import is_saved
from graphml.cli.conversation import sampling_settings
from graphml.cli.conversation.conversation import Conversation
from graphml.cli.conversation.sampling_settings import HELP
from graphml.cli.options.checks import text_of
from graphml.cli.terminal.console import say, write
from graphml.errors import GraphmlError, UsageError, similar
from graphml.system.read_files import guarded, plain_json
from graphml.system.replaced_file import replacing
from graphml.text.messages import Message, checked_messages

LARGEST_BYTES = 1 << 26
ALL = "all"


def read_messages(path: Path) -> list[Message]:
    """Return the messages of a file; it may also be an object with them as "messages", as requests are."""
    value = plain_json(path, UsageError, LARGEST_BYTES, "cannot be read as JSON")
    if isinstance(value, dict) and "messages" in value:
        value = value["messages"]
    with guarded(path, UsageError):
        return checked_messages(value)


def write_messages(path: Path, messages: list[Message]) -> None:
    """Write the messages; a file that is there is replaced if it holds messages, and left alone otherwise.

    It is replaced whole or not at all: a full disk, or a kill, leaves what was there.
    """
    try:
        if path.exists():
            _check_replaceable(path)
        text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n"
        with replacing(path) as partial:
            partial.write_bytes(text.encode("utf-8", "replace"))  # a lone surrogate is no text
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    except ValueError as error:  # a name that no file can have
        raise UsageError(f"{str(path)!r}: cannot be written: {error}") from None


def _check_replaceable(path: Path) -> None:
    try:
        read_messages(path)
    except UsageError:
        raise UsageError(f"{path}: is there already and holds no messages; choose another name") from None


KEYS = (
    ("Enter", "sends; a paste of several lines is one message"),
    ("Alt-Enter", "begins a further line, and so does Enter after a backslash"),
    ("Tab", "completes commands, settings and files"),
    ("Up, Ctrl-R", "earlier inputs; a search in them"),
    (
        "Ctrl-C",
        "clears what is typed, stops an answer; twice at an empty line it ends the conversation",
    ),
    ("Ctrl-D", "ends the conversation"),
)
_NAME = re.compile(r"/[A-Za-z?]*")
WHOLE = ".safetensors"  # of files with a chat and all that was evaluated
_SETTING = re.compile(r"([^\s=]*)\s*=?\s*(.*)", re.DOTALL)  # NAME, NAME VALUE or NAME=VALUE


@dataclass(frozen=True)
class Command:
    """A command: its name, what it takes ("" for nothing), what it does, and the function that does it.

    others: further names that are understood.
    """

    name: str
    takes: str
    help: str
    run: Callable[[Conversation, str], None]
    others: tuple[str, ...] = ()


def take(conversation: Conversation, text: str) -> None:
    """Do what an input says: a command, or a message to answer. Errors are printed."""
    try:
        command, argument = parse(text)
        if command is not None:
            command.run(conversation, argument)
        elif text:
            conversation.answer(text)
    except GraphmlError as error:
        conversation.tell(error)


def parse(text: str) -> tuple[Command | None, str]:
    """Return the command that an input is and what follows its name; None for a message.

    A command is a slash and letters: a message may begin with a path, and pasted lines with an unknown word.
    UsageError for a command that is not known, or that takes nothing and is given something.
    """
    words = text.split(None, 1)
    name = words[0] if words else ""
    argument = words[1].strip() if len(words) > 1 else ""
    if not _NAME.fullmatch(name):
        return None, ""
    command = _by_name().get(name.lower())
    if command is None:
        if "\n" in text:
            return None, ""
        near = similar(name.lower(), (known for known in _by_name() if len(known) > len("/q")), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"unknown command {name}: {hint}/help lists the commands")
    if argument and not command.takes:
        raise UsageError(f"{command.name}: wanted nothing after it, got {argument!r:.80}")
    return command, argument


def _by_name() -> dict[str, Command]:
    return {name: command for command in COMMANDS for name in (command.name, *command.others)}


def _table(rows: Iterable[tuple[str, str]]) -> None:
    """Print two columns on stderr, the second one wrapped at the terminal's width."""
    lines = list(rows)
    first = max(len(left) for left, _ in lines)
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 1 << 16
    for left, right in lines:
        for line in textwrap.wrap(right, max(width - first - 3, 20)) or [""]:
            say(f"{left:{first}}  {line}")
            left = ""


def _help(conversation: Conversation, argument: str) -> None:
    _table(
        (
            f"{command.name} {command.takes}".rstrip(),
            command.help + (f"; also {', '.join(command.others)}" if command.others else ""),
        )
        for command in COMMANDS
    )
    if sys.stdin.isatty():
        say("")
        _table(KEYS)


def _system(conversation: Conversation, argument: str) -> None:
    chat = conversation.chat
    if argument:
        chat.system = "" if argument in ('""', "''") else argument
        say("the system message is changed from the next answer on")
    elif chat.system:
        write(f"system: {chat.system}\n")
    else:
        say("there is no system message; /system TEXT sets one")


def _regenerate(conversation: Conversation, argument: str) -> None:
    conversation.regenerate()


def _undo(conversation: Conversation, argument: str) -> None:
    (message, *_) = conversation.chat.undo()
    say(f"taken back: {textwrap.shorten(message['content'], 60, placeholder=' ...')}")


def _reset(conversation: Conversation, argument: str) -> None:
    conversation.chat.reset()
    say("a new conversation" + ("; the system message is kept" if conversation.chat.system else ""))


def _history(conversation: Conversation, argument: str) -> None:
    for message in conversation.chat.history:
        write(f"{message['role']}: {message['content']}\n")


def _save(conversation: Conversation, argument: str) -> None:
    path = _file("/save", conversation, argument)
    messages = conversation.chat.history
    if not messages:
        raise UsageError("/save: wanted messages, got a conversation without one")
    if path.suffix == WHOLE:
        conversation.save(path)
    else:
        write_messages(path, messages)
    conversation.file = path
    say(f"{_count(len(messages))} saved to {path}")


def load_chat(conversation: Conversation, argument: str) -> None:
    """What `/load` does; UsageError for a file that holds no conversation."""
    path = _file("/load", conversation, argument)
    if argument and not os.path.lexists(path):
        raise UsageError(
            f"/load {argument:.80}: no such file; /load reads a saved conversation; for another model leave "
            "and run `graphml chat NAME`"
        )
    if is_saved(path):
        conversation.restore(path)
    else:
        conversation.chat.history = read_messages(path)
    messages, conversation.file = conversation.chat.history, path
    say(f"{_count(len(messages))} loaded from {path} in place of those that were there")
    if messages and messages[-1]["role"] == "user":
        say("the last one has no answer: /regenerate answers it")


def _read(conversation: Conversation, argument: str) -> None:
    if not argument:
        raise UsageError("/read: wanted the name of a text file, such as /read notes.txt")
    text = text_of(_file("/read", conversation, argument)).removesuffix("\n")
    conversation.read = (*conversation.read, text)
    say(f"{len(text)} characters of {argument} go with the next message")


def _file(command: str, conversation: Conversation, argument: str) -> Path:
    if not argument and conversation.file is None:
        raise UsageError(f"{command}: wanted the name of a file, such as {command} talk.json")
    try:
        return Path(argument).expanduser() if argument or conversation.file is None else conversation.file
    except RuntimeError as error:  # ~name of nobody
        raise UsageError(f"{command} {argument}: {error}") from None


def _count(n: int) -> str:
    return f"{n} message{'' if n == 1 else 's'}"


def _set(conversation: Conversation, argument: str) -> None:
    match = _SETTING.match(argument.removeprefix("parameter "))  # as ollama has it
    assert match is not None  # every text matches
    name, value = match.groups()
    if name == "system":
        _system(conversation, value)
        return
    sources, every = conversation.sampling.sources, list(sampling_settings.HELP)
    if argument and (name != ALL or value):
        names = [sampling_settings.named(name)]
    else:
        stated = sampling_settings.STATED
        names = [key for key in every if argument or key in sources or key not in stated]
    if value:
        now = conversation.sampling
        now = sampling_settings.changed(names[0], value, conversation.chat, now, conversation.defaults)
        conversation.check(now)
        conversation.sampling = now
    values = [sampling_settings.value_of(name, conversation.chat, conversation.sampling) for name in names]
    left = max(map(len, names)), max(map(len, values))
    _table(
        (f"{name:{left[0]}}  {value:{left[1]}}", sampling_settings.HELP[name])
        for name, value in zip(names, values, strict=True)
    )
    if not argument:
        say(f"{len(every) - len(names)} more have their defaults: /set {ALL} shows them")


def _info(conversation: Conversation, argument: str) -> None:
    if argument not in ("", "info"):
        raise UsageError(f"/show: wanted info or nothing, got {argument!r:.80}; /system shows the message")
    _table(conversation.about())
    say("")
    _set(conversation, "")


def _stats(conversation: Conversation, argument: str) -> None:
    if argument not in ("", "on", "off"):
        raise UsageError(f"/stats: wanted on, off or nothing, got {argument!r:.80}")
    conversation.shows_stats = not conversation.shows_stats if not argument else argument == "on"
    if conversation.shows_stats and conversation.chat.session.stats.n_gen:
        say(conversation.stats())
    say(f"a line about the speed after each answer: {'on' if conversation.shows_stats else 'off'}")


def _tools(conversation: Conversation, argument: str) -> None:
    if not conversation.tools:
        raise UsageError("/tools: there are none; the options --tools and --mcp offer some")
    _table((tool.name, textwrap.shorten(tool.description, 300)) for tool in conversation.tools)


def _exit(conversation: Conversation, argument: str) -> None:
    conversation.ended = True


COMMANDS = (
    Command("/help", "", "lists the commands and keys", _help, ("/?",)),
    Command("/system", "[TEXT]", 'shows or changes the system message; "" removes it', _system),
    Command(
        "/regenerate", "", "asks for another answer to the last message", _regenerate, ("/retry", "/regen")
    ),
    Command("/undo", "", "takes back the last message and its answer", _undo),
    Command("/reset", "", "begins anew, with the same system message", _reset, ("/clear", "/new")),
    Command("/history", "", "shows the messages so far", _history),
    Command(
        "/save",
        "[FILE]",
        "writes the messages as JSON; to FILE.safetensors the whole chat",
        _save,
    ),
    Command("/read", "FILE", "sends the text of a file with the next message", _read),
    Command("/load", "[FILE]", "goes on from a file that /save wrote", load_chat),
    Command(
        "/set",
        "[NAME [VALUE]]",
        "shows or changes how tokens are sampled; `/set all` shows defaults, too",
        _set,
    ),
    Command("/info", "", "shows the model, the context in use and the settings", _info),
    Command("/show", "[info]", "does the same", _info),
    Command("/stats", "[on|off]", "switches a line about the speed after each answer", _stats),
    Command("/tools", "", "lists the tools that the model may call", _tools),
    Command("/exit", "", "ends the conversation", _exit, ("/quit", "/bye", "/q")),
)


def completions(typed: str) -> list[str]:
    """Return the lines that the typed beginning of one can become."""
    if not typed.startswith("/"):
        return []
    name, space, argument = typed.partition(" ")
    if not space:
        return [
            command.name + (" " if command.takes else "")
            for command in COMMANDS
            if command.name.startswith(name)
        ]
    if name in ("/save", "/load", "/read"):
        endings = _paths(argument)
    elif name == "/set":
        endings = [f"{setting} " for setting in HELP if setting.startswith(argument)]
    elif name == "/show":
        endings = [word for word in ("info",) if word.startswith(argument)]
    elif name == "/stats":
        endings = [word for word in ("on", "off") if word.startswith(argument)]
    else:
        endings = []
    return [f"{name} {ending}" for ending in endings]


def _paths(typed: str) -> list[str]:
    folder, slash, start = typed.rpartition("/")
    with suppress(OSError, RuntimeError, ValueError):
        return sorted(
            f"{folder}{slash}{path.name}{'/' if path.is_dir() else ''}"
            for path in Path(f"{folder}{slash}").expanduser().iterdir()
            if path.name.startswith(start) and (start or not path.name.startswith("."))
        )
    return []
