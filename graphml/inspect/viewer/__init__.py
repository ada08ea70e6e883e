"""The viewer: a described graph as one HTML file that needs no network and no server.

Knows the document (`graphml.inspect.dumps.document`) by its keys alone, and the browser's rules; no graphs.
"""

from graphml.inspect.viewer.page import render

__all__ = ["render"]
