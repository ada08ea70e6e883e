"""The small model that the package brings along, which writes stories."""

from __future__ import annotations

from graphml.loading.fetch import resolve

STORIES = resolve("stories260k")
