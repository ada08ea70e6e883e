"""The options of a gap that is filled: the text behind it, other files, the order of the parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from graphml.errors import UsageError


@dataclass(frozen=True)
class Gap:
    """What is behind a gap that is filled, other files, and the order of the parts."""

    suffix: str
    files: tuple[tuple[str, str], ...]
    order: str


@dataclass(frozen=True)
class InfillOptions:
    """As they are given; `gap` checks them."""

    suffix: Annotated[
        str | None,
        typer.Option(help="Write what stands between the prompt and this text (infill).", show_default=False),
    ] = None
    infill_extra: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Another file that --suffix may look at; may be given again."),
    ] = None
    spm_infill: Annotated[
        bool, typer.Option("--spm-infill", help="The suffix comes first in an infill prompt.")
    ] = False

    def gap(self) -> Gap | None:
        """The gap; None where a text is continued."""
        extra = self.infill_extra or []
        if self.suffix is None:
            if extra or self.spm_infill:
                raise UsageError(
                    "--infill-extra, --spm-infill: wanted --suffix besides, the text behind the gap"
                )
            return None
        try:
            files = tuple((one.name, one.read_text("utf-8")) for one in extra)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--infill-extra: wanted files with texts; {error}") from None
        return Gap(self.suffix, files, "spm" if self.spm_infill else "psm")
