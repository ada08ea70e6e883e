"""`graphml verify`: an architecture against another program, layer by layer, and what is likely wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import graphml
from graphml.api.model import Model
from graphml.authoring.verify import record as records
from graphml.authoring.verify.record import PEERS, record_of
from graphml.authoring.verify.runs import RecordRuns
from graphml.authoring.verify.search import EXACT
from graphml.authoring.verify.search import verify as verify_model
from graphml.authoring.verify.verdict_text import as_json, as_text
from graphml.cli.options import compared_runs as numbers
from graphml.cli.options import options
from graphml.cli.options.checks import check_file, check_limit, check_target
from graphml.cli.options.opening import find
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write_json
from graphml.errors import UsageError
from graphml.inspect.bisect.coverage import windows_of
from graphml.loading import discovery
from graphml.loading.huggingface.family import Family

N_TOKENS, FAR, TORCH = 16, 1024, "torch"
HALF, QUANTISED = 1e-4, 5e-3  # the NMSE that a part may have, by the weights of the model; else EXACT


@grouped
def verify(
    source: options.ModelSource,
    model: options.Model = None,
    against: Annotated[
        str,
        typer.Option(
            "--against", metavar="hf|llama.cpp|module|torch|FILE", show_default=False,
            help="Reference: hf[:CHECKPOINT], llama.cpp[:FILE.gguf], module:FILE.py:factory (which is run), "
            "torch (the same graph by PyTorch's ops), or a file of --record.",
        ),
    ] = "",
    prompt: numbers.Prompt = numbers.TEXT,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=1, show_default=f"{N_TOKENS}, more to cross each window up to {FAR}",
                     help="Number of tokens, run in one batch."),
    ] = None,
    limit: Annotated[
        float | None,
        typer.Option("--limit", min=0.0, metavar="NMSE", show_default=False,
                     help="Tolerance of each part as NMSE; by default as the weights' types need."),
    ] = None,
    recording: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE.npz",
                     help="Save the values of the reference; without --against those of the model itself."),
    ] = None,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", show_default=False, help="Python that has it.")
    ] = sys.executable,
    format: numbers.Format = "md",
    arch: options.Architecture = None,
    trust_arch: options.TrustArchitecture = False,
) -> None:  # fmt: skip
    """Compare a model with a reference implementation, and locate the first difference and its cause.

    Exit code 1: a part is wrong.
    """
    numbers.check_format(format)
    if not against and recording is None:
        raise UsageError(
            "--against: wanted what to compare with: `--against llama.cpp` (by llama-cpp-python), "
            "`--against hf:CHECKPOINT` (transformers; a folder or a name of the hub), "
            "`--against module:FILE.py:factory`, `--against torch`, or `--against FILE.npz`, which --record "
            "wrote; got nothing"
        )
    check_limit(limit)
    check_file("--arch", arch)
    check_target("--record", recording, ".npz")
    with Bars() as bars:
        path = find(model, source, bars)
        with graphml.load(
            path, "reference", kv="f32", arch=arch, trust_arch=trust_arch, progress=bars.report
        ) as opened:
            executor = opened.executor
            record = _record(opened, path, against, prompt, tokens, python, arch)
            if recording is not None:
                records.save(record, recording)
            if not against:
                return
            allowed = _limit(opened) if limit is None else limit
            verdict = verify_model(executor, record, allowed, bars.report)
            name = executor.architecture.name
    if format == "json":
        write_json({"model": str(path), "architecture": name, **as_json(verdict, record)})
    else:
        print(as_text(verdict, record, path.name, name), end="")
    if not verdict.agrees:
        raise typer.Exit(1)


def _record(
    model: Model,
    path: Path,
    against: str,
    prompt: str | None,
    tokens: int | None,
    python: str,
    arch: Path | None,
) -> records.PeerRecord:
    if not against or against == TORCH or against.partition(":")[0] in PEERS:
        if tokens is None:
            reached = [size for size in windows_of(model.graph("build")) if size <= FAR]
            tokens = min(max(N_TOKENS, *(size + 5 for size in reached), 0), model.context_length)
        ids = tuple(numbers.ids_of(model, prompt, tokens))
        if not against:
            return RecordRuns(model.executor, ids).record(f"graphml {graphml.__version__}")
        if against == TORCH:
            return _in_torch(model, ids)
        architecture = model.executor.file.metadata.text("general.architecture")
        return record_of(against, path, architecture, ids, python, _family(architecture, arch))
    return records.read(Path(against))


def _family(architecture: str, arch: Path | None) -> Family | None:
    """The names of checkpoints of an architecture: as its file says, or a family of folders."""
    own = None if arch is None else discovery.family_from_file(arch)
    every = discovery.families().values()
    return own or next((family for family in every if family.architecture == architecture), None)


def _in_torch(model: Model, ids: tuple[int, ...]) -> records.PeerRecord:
    """The logits of the same graph by PyTorch's ops, in float64."""
    module = graphml.to_torch(model).double()
    logits = module(np.array(ids)).detach().numpy()
    return records.PeerRecord("its graph by PyTorch's ops", ids, logits.astype(np.float32))


def _limit(model: Model) -> float:
    """What rounding alone may do: other programs convert activations to the format that weights ask for."""
    kinds = {tensor.dtype for tensor in model.executor.file.tensors.values() if len(tensor.shape) > 1}
    if kinds <= {"f32"}:
        return EXACT
    return HALF if kinds <= {"f32", "f16", "bf16"} else QUANTISED
