"""Every exception that graphml raises on purpose, so that a caller needs one import to catch them.

Texts say what was wanted, what came, and name the file, key, tensor, node or argument; a hint says which
name may be meant.
"""

from __future__ import annotations

from collections.abc import Iterable


class GraphmlError(Exception):
    """Base of all errors that graphml raises on purpose.

    located: whether the text names the line of the user's code already.
    """

    located = False


class UsageError(GraphmlError):
    """An argument, setting or name that the caller gave is not usable."""


class ArgumentError(UsageError, TypeError):
    """A function or class has no argument of this name; the text names the nearest that it has."""


class ModelNotFoundError(UsageError, FileNotFoundError):
    """There is no file of the model that was named."""


class NameNotFoundError(UsageError, KeyError):
    """A mapping has no value of this name; the text names the nearest that it has."""

    __str__ = Exception.__str__  # a KeyError's is the repr of its text


class ControlTokenWarning(UserWarning):
    """A text spells control tokens of the model and is encoded as plain text."""


class BusyError(GraphmlError):
    """Too much of the same kind waits already; another try may succeed."""


class WeightsError(GraphmlError):
    """A model file is damaged, hostile or of an unknown kind."""


class ArchitectureError(GraphmlError):
    """An architecture is unknown, or the file's metadata and tensors do not fit it."""


class GraphError(GraphmlError):
    """A graph is not well formed."""


class ShapeError(GraphError):
    """The operands of an op do not fit each other."""


class BackendError(GraphmlError):
    """A backend cannot be used or cannot run a graph."""


class StatesLostError(BackendError):
    """A device has ended or started anew: what its states held is gone."""


class TokenizerError(GraphmlError):
    """A vocabulary cannot be read or a text cannot be encoded with it."""


class TemplateError(GraphmlError):
    """A chat template is missing, fails, or goes over its limits."""


class DownloadError(GraphmlError):
    """A model could not be fetched."""


class ServerError(GraphmlError):
    """A server cannot be reached, refuses a request, or breaks an answer off."""


class ContextFullError(GraphmlError):
    """A session has no room for more tokens."""


_LONGEST = 256  # characters of a wrong name that are looked at: a file may hold a megabyte of them


def similar(name: str, known: Iterable[str], most: int = 3, least: float = 0.5) -> list[str]:
    """The known names most similar to a wrong one, the most similar first; none where none is near.

    least: the share of letters that agree, as `difflib.SequenceMatcher.ratio` has it.
    """
    import difflib  # not for each start: it is needed for errors alone

    return difflib.get_close_matches(name[:_LONGEST], list(known), most, least)


def likeness(name: str, known: str) -> float:
    """The share of letters that agree, as `similar` counts it."""
    import difflib

    return difflib.SequenceMatcher(None, name[:_LONGEST], known).ratio()


def did_you_mean(name: str, known: Iterable[str], most: int = 3) -> str:
    """A question to add to an error message: " Did you mean 'a' or 'b'?"; empty where none is near."""
    close = similar(name, known, most)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


JSON_TYPES = {
    bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object",
}  # fmt: skip


def json_type(value: object) -> str:
    """What a wrong value of a message or request is, in JSON's words; other types by Python's name."""
    if value is None:
        return "null or missing"
    return JSON_TYPES.get(type(value), type(value).__name__)
