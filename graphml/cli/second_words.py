"""Words behind a command that other programs have, as `cache clear` and `completion bash`, and near commands.

Knows names of commands and of files; imports no command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from graphml import settings
from graphml.cli.terminal.console import say
from graphml.errors import UsageError, likeness

_REMOVES: Final = ("clear", "clean", "purge", "rm", "remove", "delete", "empty")
_LISTS: Final = ("ls", "list", "show", "info", "size")
SECOND_WORDS: Final = {
    **{("cache", word): ("cache", "--remove") for word in _REMOVES},
    **{(name, word): (name,) for name in ("cache", "models") for word in _LISTS[:2]},
    **{("cache", word): ("cache",) for word in _LISTS},
    **{("models", word): ("info",) for word in ("show", "info")},
    **{("models", word): ("pull",) for word in ("pull", "download", "get", "add")},
    **{("models", word): ("rm",) for word in ("rm", "remove", "delete")},
    **{("gguf", word): ("info",) for word in ("info", "show", "dump", "ls", "list")},
    **{("bench", word): ("bench", "compare") for word in ("diff",)},
}
"""A command and a word behind it, as other programs have them -> what it is here; more words may follow."""
FIRST_WORDS: Final = {
    **dict.fromkeys(("detokenize", "decode"), ("tokenize", "--decode")),
    **dict.fromkeys(("similarity", "similar"), ("embed", "--similarity")),
    "suggest": ("models", "--suggest"),
}
"""Another program's command -> ours with an option; more words may follow."""
SHELLS: Final = ("bash", "zsh", "fish", "powershell", "pwsh")
DESTRUCTIVE: Final = ("rm", "remove", "delete")
_NEAR: Final = 0.6
_AS_NEAR: Final = 0.15


def printed_text(words: Sequence[str]) -> str | None:
    """What `completion SHELL`, `config` and `cache dir` print; None for other words."""
    command, word = words[0], words[1] if len(words) > 1 else ""
    if command in ("completion", "completions"):
        if word not in SHELLS or len(words) > 2:
            raise UsageError(
                f"completion: wanted one of {', '.join(SHELLS)}; got {' '.join(words[1:])!r:.80}; "
                "`graphml --install-completion` installs it for this shell"
            )
        from typer._completion_shared import get_completion_script  # for this alone

        return get_completion_script(prog_name="graphml", complete_var="_GRAPHML_COMPLETE", shell=word)
    if command == "cache" and len(words) == 2 and word in ("dir", "path", "folder", "location"):
        return str(settings.cache_folder())
    if command != "config":
        return None
    path = settings.config_file()
    if len(words) > 2 or word not in ("", "path", "file", "dir", *_LISTS, "view", "cat"):
        raise UsageError(
            f"config: wanted path or show; got {' '.join(words[1:])!r:.80}; the settings are "
            f"lines of {path}, such as `temp = 0.7` below [run]"
        )
    if word not in (*_LISTS, "view", "cat"):
        if not path.is_file():
            say("graphml: config: not there yet; it may hold defaults of options, `temp = 0.7` below [run]")
        return str(path)
    if not path.is_file():
        raise UsageError(f"config: {path} is not there; it may hold defaults of options")
    from graphml.system.read_files import plain_text  # for this alone

    return plain_text(path, UsageError, 1 << 20, "wanted a file of settings in TOML").rstrip("\n")


def near_commands(name: str, commands: Iterable[str], same: dict[str, str]) -> str:
    """A question with all commands about as near as the nearest, what removes something last; "" for none.

    same: another program's command -> ours, which may be near too.
    """
    ratios = {known: likeness(name, known) for known in (*commands, *same)}
    best = max(ratios.values())
    near = [known for known, ratio in ratios.items() if ratio >= max(_NEAR, best - _AS_NEAR)]
    near.sort(key=lambda known: (known in DESTRUCTIVE, -ratios[known]))
    ours = {same.get(known, known): known for known in reversed(near)}  # the nearest name of each
    shown = [known for known in near if known in ours.values()][:3]
    return f" Did you mean {' or '.join(map(repr, shown))}?" if shown else ""
