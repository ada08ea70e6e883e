"""The program of the process that renders chat templates: requests on its input, texts on its output.

Hugging Face's settings and helper functions on Jinja's immutable sandbox. Knows Jinja and what a request
says; imports of graphml the loop of such processes alone (`kept_program`).

A request is what `marshal` makes of the tuple (source, variables, now); `variables` is what it makes of a
mapping, or empty: that asks for the names that the template reads. An answer is TEXT: the text or the names
in lines, or FAILURE: a line number (0: unknown), a space and the reason.
"""

from __future__ import annotations

import functools
import json
import marshal
from collections.abc import Callable
from datetime import datetime
from types import GeneratorType
from typing import Any, NoReturn

import jinja2.debug  # which Jinja imports when a template fails: then no file can be opened any more
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox

from graphml.system.kept_program import FAILURE, TEXT, answer_requests

LONGEST_REASON = 2000  # characters; a reason may quote the template's values
KEPT_TEMPLATES = 8
FILE_NAME = "<chat template>"

_READABLE = (
    str, int, float, list, tuple, dict, range, jinja2.Undefined, jinja2.utils.Cycler, jinja2.utils.Namespace,
    jinja2.utils.Joiner, jinja2.runtime.LoopContext, jinja2.runtime.Macro, jinja2.runtime.TemplateReference,
)  # fmt: skip


class _RefusalError(Exception):
    """What a template says by `raise_exception`."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`, which marks the assistant's text: rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - the name and the kind of value are Jinja's

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Return the tag's content as a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Hugging Face's environment of chat templates, narrowed: only values of templates have attributes."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols, _GenerationTag],
            loader=jinja2.FunctionLoader(_no_template),
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read this attribute: never one of a function, class or module.

        Lists may grow, as llama.cpp's templates for Kimi K2 have it: they are of this request, and limited.
        """
        if type(obj) is list and attr in ("append", "pop"):
            return True
        return isinstance(obj, _READABLE) and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse an attribute at once: an undefined value would only print nothing."""
        raise jinja2.exceptions.SecurityError(
            f"attribute {attribute!r} of a {type(obj).__name__} is out of a template's reach"
        )


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON in the form of Hugging Face's chat templates: no HTML escapes, ASCII escapes on demand."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys,
        default=_listed,
    )  # fmt: skip


def _listed(value: Any) -> list[Any]:
    """What a filter such as `map` gives, which JSON has no form for; llama.cpp's filters give lists."""
    if isinstance(value, GeneratorType):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _no_template(name: str) -> NoReturn:
    raise _RefusalError(f"a chat template cannot load {name!r:.80}")


def _raise_exception(message: object) -> NoReturn:
    raise _RefusalError(str(message)[:LONGEST_REASON])


def _strftime(now: str) -> Callable[[str], str]:
    def strftime_now(date_format: str) -> str:
        return datetime.fromisoformat(now).strftime(date_format)

    return strftime_now


ENVIRONMENT = _Environment()


@functools.lru_cache(KEPT_TEMPLATES)
def _compiled(source: str) -> jinja2.Template:
    code = ENVIRONMENT.compile(source, filename=FILE_NAME)
    return jinja2.Template.from_code(ENVIRONMENT, code, ENVIRONMENT.make_globals(None))


@functools.lru_cache(KEPT_TEMPLATES)
def names_in(source: str) -> str:
    """The names that a template reads, its own among them, in lines; compiles it, too."""
    _compiled(source)
    tree = ENVIRONMENT.parse(source)
    return "\n".join({name.name for name in tree.find_all(jinja2.nodes.Name) if name.ctx == "load"})


def rendered(source: str, variables: dict[str, Any], now: str) -> str:
    """The text that a template makes of these variables at this time, in ISO's form."""
    template = _compiled(source)
    return "".join(
        template.root_render_func(template.new_context({"strftime_now": _strftime(now), **variables}))
    )


def reason_of(error: Exception) -> str:
    """The template's line, 0 where none is known, and why it failed."""
    if isinstance(error, RecursionError):
        text = "the template calls itself too deeply, or is nested too deeply"
    elif isinstance(error, SyntaxError):
        text = f"the template does not compile: {error.msg}"
    elif isinstance(error, (_RefusalError, jinja2.TemplateError)):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error}"
    return f"{_line(error)} {text[:LONGEST_REASON]}"


def _line(error: Exception) -> int:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.lineno
    line, trace = 0, error.__traceback__
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if trace.tb_frame.f_code.co_filename == FILE_NAME and template is not None:
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def _answer(request: bytes) -> tuple[int, bytes]:
    source, variables, now = marshal.loads(request)
    try:
        text = rendered(source, marshal.loads(variables), now) if variables else names_in(source)
    except MemoryError:
        raise
    except Exception as error:
        return FAILURE, reason_of(error).encode("utf-8", "surrogatepass")
    return TEXT, text.encode("utf-8", "surrogatepass")


if __name__ == "__main__":
    rendered("{{ 'warm' }}", {}, "")  # Jinja's imports on first use
    answer_requests(_answer)
