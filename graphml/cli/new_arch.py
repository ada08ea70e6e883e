"""`graphml new-arch`: the first draft of an architecture file, and a tiny model to try it on."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from graphml.authoring.draft.write import draft
from graphml.authoring.gguf_file import write_tiny
from graphml.cli.options.checks import check_file, check_target
from graphml.cli.terminal.console import say, write_file
from graphml.errors import ArchitectureError, UsageError
from graphml.loading import discovery
from graphml.loading.huggingface.json_files import read_json


def new_arch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its general.architecture in GGUF files.")],
    like: Annotated[
        str | None,
        typer.Option("--like", metavar="ARCH", show_default=False, help="An architecture to extend."),
    ] = None,
    from_hf: Annotated[
        Path | None,
        typer.Option(
            "--from-hf", metavar="CONFIG.json", show_default=False, help="Config of a Hugging Face model."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.py", help="Output file; by default NAME.py.",
                     show_default=False),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option("--sample", metavar="FILE.gguf", show_default=False,
                     help="Also write a tiny model of this architecture with random weights."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files.")] = False,
) -> None:  # fmt: skip
    """Generate an architecture file from a config.json or an architecture, and list what it leaves out."""
    if from_hf is None and like is None and Path(name).suffix == ".json" and Path(name).is_file():
        from_hf, name = Path(name), "" if output is None else output.stem
        if not name:
            raise UsageError("NAME: wanted a name before config.json, or -o NAME.py")
    check_file("--from-hf", from_hf)
    check_target("--output", output, ".py")
    check_target("--sample", sample, ".gguf")
    if like is None and from_hf is None and name.replace("_", "-") in discovery.architecture_names():
        like = name.replace("_", "-")  # a plain decoder of that name would compute something else
        said = f"graphml: {like} is an architecture here: the file begins from it, as by --like"
        print(said, file=sys.stderr)
    if like is not None:
        try:
            discovery.architecture(like)
        except ArchitectureError as error:
            raise UsageError(f"--like: {error}") from None
    drafted = draft(name, like, from_hf)
    path = output or Path(f"{drafted.name}.py")
    for file in (path, sample):
        if file is not None and file.exists() and not force:
            raise UsageError(f"{file}: is there already; --force overwrites it")
    write_file(path, drafted.text)
    known = discovery.architecture_from_file(path)
    if sample is not None:
        assert known.sample is not None
        write_tiny(sample, name, known.sample(name)[0])
        shown, run = f"`graphml graph {sample} --arch {path}`", f"`graphml bench -m {sample} --arch {path}`"
        remark = f"graphml: {sample}: random weights, no vocabulary; {shown} shows it, {run} runs it"
        print(remark, file=sys.stderr)
    if from_hf is not None:
        kind = read_json(from_hf).get("model_type")
        if kind in discovery.families():
            print(f"graphml: {kind} runs as it is: `graphml run {from_hf.parent}`", file=sys.stderr)
        weights = any(from_hf.parent.glob("*.safetensors"))
        wanted = "torch at hand" if weights else "torch at hand and the weights beside config.json"
        hint = f"`graphml import hf:{from_hf.parent} -o {path}` makes and proves it from the model's own code"
        print(f"graphml: with {wanted}, {hint}", file=sys.stderr)
    for line in drafted.left:
        print(f"graphml: not in the draft: {line}", file=sys.stderr)
    print(path)
    shown = shlex.quote(str(path))
    say(
        f"graphml: next: `graphml run --arch {shown} MODEL.gguf`, and `graphml verify MODEL.gguf "
        f"--arch {shown} --against llama.cpp` (or hf:CHECKPOINT), which names the first wrong layer"
    )
