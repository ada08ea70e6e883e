"""`graphml adapter`: a LoRA adapter from a folder of PEFT to a GGUF file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from graphml.cli.options import options
from graphml.cli.options.checks import check_new, check_not_read, check_replaced, check_target
from graphml.cli.options.opening import find
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars
from graphml.errors import UsageError
from graphml.loading.huggingface.peft_config import CONFIG
from graphml.system.progress_labels import size
from graphml.workshop.adapter_formats import adapter_to_gguf, adapter_to_peft

FILE = ".gguf"


@grouped
def adapter(
    source: options.ModelSource,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE.gguf|FOLDER", show_default=False,
                     help="Output file of a folder of PEFT, or output folder of a file."),
    ],
    model: options.Model = None,
    adapter: Annotated[
        str | None,
        typer.Argument(metavar="ADAPTER", show_default=False, help="A folder of PEFT, or a GGUF file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file or folder.")] = False,
) -> None:  # fmt: skip
    """Convert a LoRA adapter of MODEL: a folder of PEFT to a GGUF file, or a GGUF file to a folder of PEFT.

    MODEL is a folder of transformers, or, for a GGUF file to write, a GGUF file of the model.
    """
    by_option = source.named is not None or source.hf is not None
    if adapter is None and by_option:
        model, adapter = None, model
    if adapter is None:
        raise UsageError(
            "ADAPTER: wanted a folder of PEFT or a GGUF file: graphml adapter MODEL ADAPTER -o OUTPUT"
        )
    path, to_file = Path(adapter), output.suffix.lower() == FILE
    if path.is_dir() != to_file or not path.exists():
        what = "a folder of PEFT" if to_file else "a GGUF file"
        wanted = f"wanted {what} for --output {output}"
        raise UsageError(f"ADAPTER: {path}: {wanted if path.exists() else 'no such file or folder'}")
    if to_file:
        check_target("--output", output)
    else:
        check_replaced("--output", output, CONFIG, "an adapter")
    check_new("--output", output, force)
    with Bars() as bars:
        of = find(model, source, bars)
    check_not_read("--output", output, of, path)
    done = (adapter_to_gguf if to_file else adapter_to_peft)(path, of, output)
    files = [output] if to_file else list(output.iterdir())
    multiplied = f", A of {done.n_multiplied} multiplied for one alpha" if done.n_multiplied else ""
    print(f"{output}: {size(sum(file.stat().st_size for file in files))}, {done.n_pairs} pairs{multiplied}")
