"""`graphml gguf`: a key of a GGUF file set, a file split, parts merged, two compared, a part taken out."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from graphml.cli.help_pages import HelpedCommand, HelpedGroup
from graphml.cli.options.checks import (
    OF_FILES,
    bytes_of,
    check_new,
    check_new_parts,
    check_not_read,
    check_target,
    text_of,
)
from graphml.cli.options.options import Json
from graphml.cli.terminal.console import Bars, say, write_file, write_json
from graphml.errors import UsageError
from graphml.system.progress_labels import size
from graphml.system.read_files import reason
from graphml.system.replaced_file import replacing
from graphml.weights import open_model
from graphml.workshop.gguf_files.changed_keys import set_key
from graphml.workshop.gguf_files.differences import file_differences
from graphml.workshop.gguf_files.extracted import keys_of, template_of, tensor_named, vocabulary_of
from graphml.workshop.gguf_files.whole_files import merge_parts, split_file

gguf = typer.Typer(
    cls=HelpedGroup,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)
File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A GGUF file.")]
Written = Annotated[
    Path, typer.Argument(metavar="OUTPUT", show_default=False, help="The GGUF file to write.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files.")]


@gguf.callback()
def gguf_command() -> None:
    """Change a key of a GGUF file, split it, merge parts, compare two, take a part out."""


def _check_output(output: Path, force: bool, option: str = "OUTPUT") -> None:
    check_target(option, output, ".gguf")
    check_new(option, output, force)


@gguf.command("set", cls=HelpedCommand)
def set_(
    file: File,
    key: Annotated[str, typer.Argument(metavar="KEY", show_default=False, help="The key.")],
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", show_default=False, help="The value, or a JSON list; @FILE: a file's text."
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option("--type", metavar="TYPE", show_default=False, help="Of a new key, as u32 or f32."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.gguf", show_default=False,
                     help="The file to write; by default FILE is replaced."),
    ] = None,
    force: Force = False,
) -> None:  # fmt: skip
    """Set a key of a GGUF file; the file is written anew, and replaced when it is whole."""
    if output is not None:
        _check_output(output, force, "--output")
    text = text_of(Path(value[1:])) if value.startswith("@") else value
    was = set_key(file, key, text, kind, output or file)
    print(f"{output or file}: {key}: {was.text} -> {text if len(text) < 60 else f'{len(text)} characters'}")
    if was.near:
        say(f"graphml: {key}: is a new key of type {was.new_type}.{was.near}")


@gguf.command("split", cls=HelpedCommand)
def split(
    file: File,
    output: Written,
    most: Annotated[
        str | None,
        typer.Option("--split-max-size", metavar="SIZE", show_default=False, help="Size of a part, as 2G."),
    ] = None,
    tensors: Annotated[
        int | None,
        typer.Option(
            "--split-max-tensors", metavar="N", min=1, show_default=False, help="Tensors of a part."
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Write a model in parts OUTPUT-00001-of-0000N.gguf, as gguf-split does."""
    if (most is None) is (tensors is None):
        raise UsageError("wanted one of --split-max-size and --split-max-tensors")
    check_target("OUTPUT", output, ".gguf")
    check_new_parts("OUTPUT", output, force)
    limit = None if most is None else bytes_of("--split-max-size", most, OF_FILES)
    with Bars() as bars, open_model(file) as model:
        paths = split_file(model, output, limit, tensors, bars.report)
    print(f"{paths[0]}: {len(paths)} parts, {size(sum(path.stat().st_size for path in paths))}")


@gguf.command("merge", cls=HelpedCommand)
def merge(file: File, output: Written, force: Force = False) -> None:
    """Write the parts of a split model as one file; FILE is any of them."""
    _check_output(output, force)
    with Bars() as bars, open_model(file) as model:
        merge_parts(model, output, bars.report)
        count = len(model.paths)
    print(f"{output}: of {count} parts, {size(output.stat().st_size)}")


@gguf.command("diff", cls=HelpedCommand)
def diff(
    file: File,
    other: Annotated[Path, typer.Argument(metavar="OTHER", show_default=False, help="Another one.")],
    json: Json = False,
) -> None:
    """Compare keys and tensors of two files: types, shapes and values. The exit code is 1 if they differ."""
    with open_model(file) as left, open_model(other) as right:
        differences = [*file_differences(left, right)]
    if json:
        write_json({"differences": [vars(of) for of in differences]})
    for of in () if json else differences:
        print(f"{of.what} {of.name}: {of.left or 'nothing'} | {of.right or 'nothing'}")
    if not differences and not json:
        print("no difference")
    raise typer.Exit(1 if differences else 0)


@gguf.command("extract", cls=HelpedCommand)
def extract(
    file: File,
    metadata: Annotated[
        bool, typer.Option("--metadata", help="Keys with types and values, as JSON.")
    ] = False,
    tensor: Annotated[
        str | None, typer.Option("--tensor", metavar="NAME", show_default=False, help="A tensor, as .npy.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option("--template", metavar="NAME", show_default=False, help="A chat template, as default."),
    ] = None,
    tokenizer: Annotated[
        bool, typer.Option("--tokenizer", help="The vocabulary: tokenizer.json, or its keys as JSON.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", show_default=False, help="File; by default stdout."),
    ] = None,
    force: Force = False,
) -> None:
    """Write one part of a GGUF file: its keys, a tensor, a chat template or the vocabulary."""
    if sum((metadata, tensor is not None, template is not None, tokenizer)) != 1:
        raise UsageError("wanted one of --metadata, --tensor NAME, --template NAME and --tokenizer")
    if output is not None:
        check_target("--output", output)
        check_new("--output", output, force)
    with open_model(file) as model:
        if output is not None:
            check_not_read("--output", output, *model.paths)
        if tensor is not None:
            if output is None or output.suffix != ".npy":
                raise UsageError(f"--output: wanted a name that ends in .npy; got {str(output or '')!r}")
            values = tensor_named(model, tensor).numpy()
            try:
                with replacing(output) as partial, partial.open("wb") as stream:
                    np.save(stream, values)
            except OSError as error:
                raise UsageError(f"--output {output}: cannot be written: {reason(error)}") from None
            print(output)
            return
        if template is not None:
            text = template_of(model, template)
        else:
            part = keys_of(model) if metadata else vocabulary_of(model)
            text = part if isinstance(part, str) else json_format.dumps(part, ensure_ascii=False, indent=1)
    if output is None:
        print(text)
        return
    write_file(output, text, "--output")
    print(output)
