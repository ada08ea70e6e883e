"""What each node must have before an engine starts there: the same code, the model, room in memory.

Knows nodes, files and versions; nothing of engines.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from graphml.cluster.model_copies import CHUNK, ModelFiles, code_digest, facts_of, file_digest, local_copy
from graphml.cluster.ray_cluster import NAMESPACE, RayCluster, RayNode, described, python_version
from graphml.errors import GraphmlError, UsageError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.system.pages import free_memory

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """Of every node. others: files besides the model that options name, with their hashes by path.

    n_bytes: memory that an engine takes; 0: not known.
    """

    code: str
    python: str
    model: ModelFiles
    others: tuple[tuple[str, str], ...]
    n_bytes: int


class FileSource:
    """An actor on the machine that has the model: sends its files in parts."""

    def __init__(self, facts: ModelFiles) -> None:
        root = facts.path if facts.is_folder else facts.path.parent
        self._paths = [root / file.name for file in facts.files]

    def started(self) -> None:
        """Answers when it can be found by its name."""

    def read(self, number: int, offset: int) -> bytes:
        """A part of a file."""
        with self._paths[number].open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK)


def wanted_files(path: Path, tensor_files: Sequence[Path], options: LoadOptions) -> Wanted:
    """What nodes must have to open a model as options say. tensor_files: those that hold its tensors."""
    others = [options.arch, options.draft_model, options.template]
    others += [path for path, _ in (*(options.lora or ()), *(options.control_vectors or ()))]
    paths = [Path(other) for other in others if isinstance(other, str | os.PathLike) and Path(other).exists()]
    if folders := [other for other in paths if other.is_dir()]:
        raise UsageError(f"--ray: {folders[0]}: wanted files besides the model; folders are not compared")
    facts = facts_of(path, tensor_files)
    hashes = tuple((str(other.resolve()), file_digest(other)) for other in paths)
    return Wanted(code_digest(), python_version(), facts, hashes, facts.n_bytes)


class FileSender:
    """The actor that sends the model's files from this machine, for as long as this object lives.

    Others have its name: an actor that is given another one's handle may not be able to start again.
    """

    def __init__(self, cluster: RayCluster, model: ModelFiles) -> None:
        self.name = f"graphml files {secrets.token_hex(8)}"
        here = RayCluster.on(ray.get_runtime_context().get_node_id())
        actor: Any = ray.remote(FileSource)
        self._actor = actor.options(name=self.name, num_cpus=0, scheduling_strategy=here).remote(model)
        cluster.get(self._actor.started.remote())


def ready_nodes(
    cluster: RayCluster, nodes: Sequence[RayNode], wanted: Wanted, source: FileSender
) -> list[RayNode]:
    """Have nodes ready; those that have left the cluster in the meantime are left out.

    UsageError that names the first node that cannot be ready, and why.
    """
    task = ray.remote(_problem)
    calls = []
    for node in nodes:
        there = task.options(num_cpus=0, max_retries=0, scheduling_strategy=RayCluster.on(node.id))
        calls.append(there.remote(wanted, source.name))
    ready = []
    for node, call in zip(nodes, calls, strict=True):
        try:
            problem = cluster.get(call)
        except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
            LOG.warning("node %s has left the cluster", node)
            continue
        except ray.exceptions.RayError as error:
            problem = described(error)
            if "No module named 'graphml" in problem:
                problem = "graphml is not installed there"
        if problem:
            raise UsageError(f"--ray: node {node}: {problem}")
        ready.append(node)
    if not ready:
        raise UsageError("--ray: all nodes have left the cluster")
    return ready


def prepared(wanted: Wanted, source: str) -> Path:
    """On a node: the model's path there. UsageError where it cannot run there."""
    if (code := code_digest()) != wanted.code:
        raise UsageError(f"wanted graphml of the same commit ({wanted.code}); it has another one ({code})")
    if (python := python_version()) != wanted.python:
        raise UsageError(f"wanted Python {wanted.python}; it has {python}")
    for name, digest in wanted.others:
        if not Path(name).is_file():
            raise UsageError(f"{name}: there is no such file there, and only the model itself is sent")
        if file_digest(Path(name)) != digest:
            raise UsageError(f"{name}: another file there than here")

    def read(number: int, offset: int) -> bytes:
        part: bytes = ray.get(ray.get_actor(source, NAMESPACE).read.remote(number, offset))
        return part

    path = local_copy(wanted.model, read)
    if (free := free_memory()) < wanted.n_bytes:
        raise UsageError(
            f"wanted {wanted.n_bytes >> 20} MiB of memory for the model; {free >> 20} MiB are free"
        )
    return path


def _problem(wanted: Wanted, source: str) -> str:
    """On a node: why it cannot be ready, "" if it can."""
    try:
        prepared(wanted, source)
    except GraphmlError as error:
        return str(error)
    return ""
