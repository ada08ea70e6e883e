"""`graphml convert`: a model as one GGUF file, or as a folder of transformers, with adapters merged."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import graphml
from graphml.api.load_model import load_model
from graphml.authoring.file_types import AUTO
from graphml.authoring.handing_back.folder_of_model import hand_back
from graphml.authoring.handing_back.trained_weights import with_weights
from graphml.authoring.handing_on import WrittenAs, hand_on
from graphml.cli.options import options
from graphml.cli.options.checks import (
    OF_FILES,
    bytes_of,
    check_file,
    check_new,
    check_new_parts,
    check_replaced,
    check_target,
)
from graphml.cli.options.opening import find, load
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, say
from graphml.errors import UsageError
from graphml.loading.carried_definition import trusted_definition
from graphml.loading.huggingface.folder import CONFIG
from graphml.loading.open_file import open_path
from graphml.system.progress_labels import size
from graphml.weights.type_mixes import file_type

FILE = ".gguf"


@grouped
def convert(
    opening: options.Converted,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.gguf|FOLDER", show_default=False,
                     help="Output file, or a folder of transformers."),
    ],
    model: options.Model = None,
    like: Annotated[
        Path | None,
        typer.Option("--like", metavar="FOLDER", show_default=False,
                     help="Folder of transformers whose class, config.json and tokenizer the written folder "
                     "has; by default the model itself."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", metavar="FILE.safetensors", show_default=False,
                     help="Weights in place of the model's, by its names: what was trained with PyTorch."),
    ] = None,
    type: Annotated[
        str,
        typer.Option("--type", metavar="TYPE",
                     help="Of a file: its type, such as q8_0; auto: as in the model."),
    ] = AUTO,
    split: Annotated[
        str | None,
        typer.Option("--split-max-size", metavar="SIZE", show_default=False,
                     help="Of a file: parts of at most so much, such as 2G."),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option("--python", metavar="PATH", show_default=False,
                     help="Python with torch and transformers, which open the written folder, too."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file or folder.")] = False,
) -> None:  # fmt: skip
    """Write a model as one GGUF file or as a folder of transformers: adapters merged, compared first.

    A file holds the definition of --arch, runs with --trust-arch and needs nothing else.
    """
    is_file = output.suffix.lower() == FILE
    check_target("--output", output) if is_file else _check_folders(output, like, python, opening)
    if is_file and (like is not None or python is not None):
        option = "--like" if like is not None else "--python"
        raise UsageError(f"{option}: wanted where --output is a folder of transformers; got {str(output)!r}")
    most = None if split is None else bytes_of("--split-max-size", split, OF_FILES)
    if not is_file and (most is not None or type != AUTO):
        option = "--type" if most is None else "--split-max-size"
        raise UsageError(f"{option}: wanted where --output is a GGUF file; got {str(output)!r}")
    if type != AUTO:
        file_type(type)
    if most is not None:
        check_new_parts("--output", output, force)
    check_new("--output", output, force)
    check_file("--weights", weights)
    with Bars() as bars, _opened(find(model, opening, bars), opening, weights, bars) as opened:
        if is_file:
            source = None if opening.arch is None else Path(opening.arch)
            done = hand_on(opened, output, source, opening, WrittenAs(type, most, bars.report))
            parts = f" in {len(done.paths)} parts" if len(done.paths) > 1 else ""
            adapters = f"; {done.n_merged} matrices with adapters" if done.n_merged else ""
            n_bytes = sum(path.stat().st_size for path in done.paths)
            what = "logits" if opened.executor.generates else "rows"
            said = f"{size(n_bytes)}{parts}{adapters}; {what} as the model's, NMSE {done.nmse:.1e}"
            output = done.path
            if opened.tokenizer is None:
                say(f"graphml: {opened.path}: has no vocabulary, nor has the file: programs read ids with it")
        else:
            said = _folder(opened, output, like, python, opening)
    print(f"{output}: {said}")


def _opened(path: Path, opening: options.Converted, weights: Path | None, bars: Bars) -> graphml.Model:
    """The model, with other weights where a file of them is named.

    --pre names what a folder's file gets; the folder itself is opened with its tokenizer.json.
    """
    if opening.arch is None and path.is_dir():
        opening = replace(opening, pre=None)
    if weights is None:
        return load(path, opening, bars)
    file = open_path(path, None if opening.arch is None else Path(opening.arch))
    return load_model(path, opening, bars.report, with_weights(file, weights))


def _check_folders(output: Path, like: Path | None, python: Path | None, opening: options.Converted) -> None:
    """UsageError for wrong folders, before anything is opened."""
    check_replaced("--output", output, CONFIG, "a model")
    check_file("--python", python)
    if not output.is_dir() and output.suffix.lower() in (".safetensors", ".bin", ".txt", ".json"):
        raise UsageError(
            f"--output: wanted a name that ends in {FILE}, or a folder of transformers; got {str(output)!r}"
        )
    if like is not None and not (like / CONFIG).is_file():
        raise UsageError(f"--like: {like}: wanted a folder of transformers, with {CONFIG}")
    if opening.pre is not None:
        raise UsageError("--pre: wanted for a GGUF file: a folder of transformers has tokenizer.json")


def _folder(
    opened: graphml.Model, output: Path, like: Path | None, python: Path | None, opening: options.Converted
) -> str:
    """Write the folder; what is said of it."""
    if like is None and not opened.path.is_dir():
        raise UsageError(
            f"{opened.path}: convert: a GGUF file has neither config.json nor tokenizer.json: wanted --like, "
            "a folder of transformers of its class"
        )
    arch = None if opening.arch is None else Path(opening.arch)
    definition = arch or trusted_definition(opened.executor.file, opening.trust_arch)
    has_torch = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    by = str(python) if python is not None else sys.executable if has_torch else None
    done = hand_back(opened, output, like or opened.path, definition, opening, by)
    facts = [f"{done.n_written} tensors written, {done.n_copied} copied"]
    facts += [f"{done.n_merged} matrices with adapters"] if done.n_merged else []
    facts += [f"{done.n_dequantised} packed tensors as floats"] if done.n_dequantised else []
    facts += [f"tensors and graph as the model's, logits NMSE {done.nmse:.1e}"]
    facts += [
        f"{done.by}: NMSE {done.nmse_by:.1e}" if done.by else "not opened by transformers: --python names one"
    ]
    return "; ".join(facts)
