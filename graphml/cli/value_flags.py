"""Options that a command lacks and whose name says what is meant: a value of one of its options, a near name.

Reads the words of an option from its completions. Knows click's options; nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from graphml.errors import UsageError, similar
from graphml.options.keyword_arguments import OTHER_NAMES

FORM_FLAGS: Final = ("--format", "--embd-output-format", "--output")
"""Options whose words are forms of what is printed; --output is one where it names no file."""
SAME_FORMS: Final = {"markdown": "md", "table": "md", "txt": "text", "plain": "text", "ndjson": "jsonl"}
"""Another name of a form -> ours."""
_PLAIN: Final = ("text", "txt", "plain", "table", "md", "markdown", "human")
"""Forms that a command which has --json alone prints without it."""
_OTHER_NAMES: Final = ("--format", "--output-format", "--out-format", "-o", "--output", "-f")
"""What other programs call the option for the form."""


def words_of(option: Any) -> tuple[str, ...]:
    """The words that an option takes; none where it takes others too."""
    complete = getattr(option, "_custom_shell_complete", None)
    return tuple(item.value for item in complete(None, option, "")) if complete is not None else ()


def form_flag(own: Mapping[str, Any]) -> str | None:
    """A command's option for the form of what it prints; None where it has none."""
    return next((flag for flag in FORM_FLAGS if flag in own and words_of(own[flag])), None)


def as_form(own: Mapping[str, Any], word: str, left: list[str]) -> list[str] | None:
    """`--json`, `--html FILE` or `--format json` as the command has it; None for an option of another kind.

    left: what values are taken from. A file is taken where the command writes some, and the word behind the
    option ends as a file's name does.
    """
    option, equals, value = word.partition("=")
    flag = form_flag(own)
    if option in _OTHER_NAMES and (value or left) and option not in own:
        asked = value if equals else left[0]
        if flag is not None and _form(own, flag, asked) is not None:
            return [flag, str(_form(own, flag, value if equals else left.pop(0)))]
        if flag is None and "--json" in own and (asked in ("json", *_PLAIN) or "format" in option):
            asked = value if equals else left.pop(0)
            if asked not in ("json", *_PLAIN):
                raise UsageError(f"{option}: wanted json, which is --json, or text; got {asked!r:.80}")
            return ["--json"] if asked == "json" else []
        return [flag, asked if equals else left.pop(0)] if flag is not None and "format" in option else None
    form = None if flag is None or not option.startswith("--") else _form(own, flag, option[2:])
    if form is None:
        return None
    writes = "--output" in own and flag != "--output"
    if not equals and writes and left and left[0][:1] != "-" and PurePath(left[0]).suffix:
        equals, value = "=", left.pop(0)
    return [str(flag), form, *(["--output", value] if equals and writes else [])]


def _form(own: Mapping[str, Any], flag: str, asked: str) -> str | None:
    words = words_of(own[flag])
    return next((word for word in (asked, SAME_FORMS.get(asked)) if word in words), None)


def value_hint(own: Mapping[str, Any], option: str) -> str:
    """What to say of an option that is a value of one of a command's: "did you mean `--quant q8`?"."""
    name = option.lstrip("-")
    meant = {
        f"`{max(param.opts, key=len)} {name}`"
        for param in own.values()
        if len(name) > 1 and name in words_of(param)
    }
    return f"no such option; did you mean {' or '.join(sorted(meant))}?" if meant else ""


def near_flags(own: Mapping[str, Any], option: str) -> Sequence[str]:
    """The options with a name near to a wrong one: in letters, or with the same words; at most three."""
    name = option.lstrip("-").replace("_", "-")
    meant = [f"--{other.replace('_', '-')}" for other in OTHER_NAMES.get(name.replace("-", "_"), ())]
    if any(flag in own for flag in meant):
        return [flag for flag in meant if flag in own]
    by_name = {flag.strip("-"): flag for flag in own if flag.startswith("--")}
    words = {word for word in name.split("-") if len(word) > 3}
    near = [
        known for known in by_name
        if any(similar(word, known.split("-"), 1, 0.8) for word in words)
        or (len(name) > 3 and known.startswith(name))
    ]  # fmt: skip
    spelled = similar(name, by_name, 3, 0.75)
    return [by_name[known] for known in dict.fromkeys((*spelled, *sorted(near, key=len)))][:3]


_WANTED: Final = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "finite": "a finite number",
}  # fmt: skip
_BOUNDS: Final = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


def wrong_value(error: Any) -> str | None:
    """What to say of a value that pydantic refuses: what was wanted and what came; None for other errors."""
    reasons = getattr(error.__cause__, "errors", None)
    if reasons is None:
        return None
    reason = reasons()[0]
    bounds = [
        f"{word} {reason['ctx'][key]:g}" for key, word in _BOUNDS.items() if key in reason.get("ctx", {})
    ]
    wanted = " and ".join(bounds) or _WANTED.get(reason["type"].partition("_")[0])
    return None if wanted is None else f"wanted {wanted}; got {reason['input']!r:.80}"
