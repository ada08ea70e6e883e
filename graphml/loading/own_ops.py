"""Loads ops of one's own: from Python files, from `GRAPHML_OPS`, and from installed packages.

An installed package has an entry point of the group `graphml.ops` that names a module; importing it declares
its ops. Files and modules are run, so they must be trusted. Knows where declarations come from; nothing of
what they say.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from graphml import settings
from graphml.errors import GraphError, GraphmlError
from graphml.ir.graph import Graph
from graphml.ir.op import Op
from graphml.ir.own_op import OwnOp
from graphml.loading.architecture import described
from graphml.loading.discovery import installed, run_file
from graphml.passes.fusion import all_ops

GROUP = "graphml.ops"


@functools.cache
def _load_installed() -> None:
    for entry in installed(GROUP):
        try:
            entry.load()
        except GraphmlError as error:
            raise GraphError(f"entry point {entry.name!r} of {GROUP} ({entry.value}): {error}") from error
        except Exception as error:
            raise GraphError(
                f"entry point {entry.name!r} of {GROUP}: wanted a module that can be imported and declares "
                f"ops; {entry.value} raised {described(error)}"
            ) from error


def load_own_ops() -> None:
    """Declare the ops of installed packages and of the files that `GRAPHML_OPS` names, once each."""
    _load_installed()
    for name in filter(None, settings.ops().split(os.pathsep)):
        load_ops_of_file(Path(name).expanduser())


def load_ops_of_file(path: Path) -> tuple[OwnOp, ...]:
    """Declare the ops of a Python file: those that it declares or imports; the file is run."""
    module = run_file(path, "file of ops", GraphError)
    return tuple(dict.fromkeys(op for op in vars(module).values() if isinstance(op, OwnOp)))


def known_ops() -> Mapping[str, Op]:
    """Name -> op: all ops that the text of a graph may use, those of one's own included."""
    load_own_ops()
    return all_ops()


def op_files(*graphs: Graph) -> list[Path]:
    """The files that declare ops of one's own in some graphs, once each."""
    sources = [op.declared.source.file for graph in graphs for op in own_ops_in(graph)]
    return [path for path in map(Path, dict.fromkeys(sources)) if path.is_file()]


def own_ops_in(graph: Graph) -> list[OwnOp]:
    """The ops of one's own that a graph uses, once each."""
    return list(dict.fromkeys(node.op for node in graph.nodes if isinstance(node.op, OwnOp)))
