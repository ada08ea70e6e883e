"""Every exception that graphml raises on purpose, so that a caller needs one import to catch them.

Texts say what was wanted, what came, and name the file, key, tensor, node or argument.
"""


class GraphmlError(Exception):
    """Base of all errors that graphml raises on purpose.

    located: whether the text names the line of the user's code already.
    """

    located = False


class UsageError(GraphmlError):
    """An argument, setting or name that the caller gave is not usable."""


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
