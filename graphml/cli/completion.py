"""`graphml completion`: the script that lets a shell complete commands, options and names."""

from __future__ import annotations

from typing import Annotated

import typer
from typer._completion_shared import Shells, get_completion_script

from graphml.cli.options.typer_options import beginning_with
from graphml.errors import UsageError

SHELLS = tuple(Shells)


def completion(
    shell: Annotated[
        str,
        typer.Argument(
            metavar="SHELL", help=f"One of {', '.join(SHELLS)}.", autocompletion=beginning_with(SHELLS)
        ),
    ],
) -> None:
    """Print a script of completion for a shell, as `source <(graphml completion bash)` reads it.

    `graphml --install-completion` installs it for the shell that runs it.
    """
    if shell not in SHELLS:
        raise UsageError(f"completion: wanted one of {', '.join(SHELLS)}; got {shell!r:.80}")
    print(get_completion_script(prog_name="graphml", complete_var="_GRAPHML_COMPLETE", shell=shell))
