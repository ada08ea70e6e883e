"""What commands of conversations say of the chat template: its variables, and one in place of the model's.

Knows the form; what the variables mean, the template knows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from graphml.cli.options import Opening
from graphml.errors import UsageError


def template_variables(text: str | None) -> dict[str, Any] | None:
    """Return the variables of a JSON object; None for none, UsageError for other texts."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        example = '{"enable_thinking": false}'
        raise UsageError(f"--chat-template-kwargs: wanted a JSON object such as {example}; got {text!r:.80}")
    return found


def with_template(opening: Opening, given: str | None) -> Opening:
    """The options with the template that is given by name or as a text; UsageError for two of them."""
    if given is None:
        return opening
    if not given:
        raise UsageError("--chat-template: wanted a name or Jinja text, got an empty one")
    if opening.template is not None:
        raise UsageError("--chat-template, --template: wanted one of them; got both")
    return replace(opening, template=given)
