"""Variables of a chat template, as `--chat-template-kwargs` writes them: one JSON object.

Knows the form; what the variables mean, the template knows.
"""

from __future__ import annotations

import json
from typing import Any

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
