"""`graphml quantize --auto` and `--plan`: types of matrices by what they cost the model's answers.

Knows options and files; nothing of how costs are measured or files are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from graphml_quant import by_name

from graphml.api.load_model import load_model
from graphml.cli.options.checks import OF_FILES, bytes_of, check_new, check_target
from graphml.cli.options.measured_text import ids_and_beginning, text_to_measure
from graphml.cli.terminal.console import Bars, remark, say
from graphml.errors import UsageError
from graphml.runtime.programs.load_options import LoadOptions
from graphml.system.progress_labels import size
from graphml.weights import ModelFile
from graphml.weights.type_mixes import FILE_TYPES, FileType
from graphml.workshop.importance import Importance
from graphml.workshop.measured_types import (
    MeasuredTypes,
    chosen_types,
    draw_plan,
    matrices,
    measure_types,
    read_measured,
    read_plan,
    text_fingerprint,
    write_measured,
    write_plan,
)
from graphml.workshop.sensitivity import memory
from graphml.workshop.type_costs import CANDIDATES


@dataclass(frozen=True)
class ChoosingOptions:
    """How types are chosen in place of a mixture."""

    auto: Annotated[bool, typer.Option("--auto", help="Choose types by what they cost on --file.")] = False
    target_bits: Annotated[
        float | None,
        typer.Option("--target-bits", min=1, max=32, show_default=False, help="Bits a weight."),
    ] = None
    target_size: Annotated[
        str | None, typer.Option("--target-size", metavar="SIZE", show_default=False, help="Such as 3GB.")
    ] = None
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", metavar="FILE", show_default=False, help="The calibration text."),
    ] = None
    texts: Annotated[
        int | None,
        typer.Option("--texts", min=1, show_default="32", help="Pieces of 256 tokens that are read."),
    ] = None
    types: Annotated[
        str | None,
        typer.Option("--types", metavar="TYPES", show_default="all", help="Those that are chosen from."),
    ] = None
    costs: Annotated[
        Path | None,
        typer.Option(
            "--costs",
            metavar="FILE.gguf",
            show_default=False,
            help="What was measured: written where it is not there, else read.",
        ),
    ] = None
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE.json", show_default=False, help="A choice that was kept."),
    ] = None
    save_plan: Annotated[
        Path | None,
        typer.Option("--save-plan", metavar="FILE.json", show_default=False, help="Keep the choice."),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", show_default=False, help="Draw the choice (png, svg)."),
    ] = None  # fmt: skip

    @property
    def chooses(self) -> bool:
        """Whether no file type is named."""
        return self.auto or self.plan is not None

    def check(self, force: bool) -> None:
        """UsageError for options that do not go together, before anything is opened.

        force: files may be overwritten.
        """
        needs = {"--target-bits": self.target_bits, "--target-size": self.target_size, "--file": self.file,
                 "--types": self.types, "--costs": self.costs, "--texts": self.texts}  # fmt: skip
        if self.auto and self.plan is not None:
            raise UsageError("--plan: has the types already; wanted it without --auto")
        if not self.auto and (stray := [flag for flag, value in needs.items() if value is not None]):
            raise UsageError(f"{stray[0]}: wanted --auto with it")
        if not self.chooses and (self.save_plan or self.plot):
            raise UsageError(
                f"{'--save-plan' if self.save_plan else '--plot'}: wanted --auto or --plan with it"
            )
        if self.auto and (self.target_bits is None) == (self.target_size is None):
            both = " alone; got both" if self.target_bits is not None else ""
            raise UsageError(f"--auto: wanted --target-bits or --target-size{both}")
        if self.auto and self.file is None and not (self.costs and self.costs.exists()):
            raise UsageError("--auto: wanted --file, a calibration text")
        check_target("--costs", self.costs, ".gguf")
        check_target("--save-plan", self.save_plan, ".json")
        check_target("--plot", self.plot, ".png", ".svg")
        for option, path in (("--save-plan", self.save_plan), ("--plot", self.plot)):
            if path is not None:
                check_new(option, path, force)
        bytes_of("--target-size", self.target_size or "", OF_FILES)
        self.candidates()

    def candidates(self) -> tuple[str, ...]:
        """The types of --types; a UsageError for an unknown one."""
        names = (
            CANDIDATES
            if self.types is None
            else tuple(name.strip() for name in self.types.lower().split(","))
        )
        for name in names:
            if name not in CANDIDATES:
                raise UsageError(f"--types: wanted some of {', '.join(CANDIDATES).upper()}; got {name!r}")
        return names


@dataclass(frozen=True)
class ChosenTypes:
    """types: name -> type of each matrix; importance: of its columns, or None.

    kind: the file's type. kl: the predicted KL divergence a token in nats, None where a plan was read.
    """

    types: dict[str, str]
    importance: Importance | None
    kind: FileType
    kl: float | None


def types_of(
    options: ChoosingOptions, path: Path, file: ModelFile, seen: Importance | None, threads: int, bars: Bars
) -> ChosenTypes:
    """The choice of --auto or --plan. seen: that of --imatrix; None for what --auto has measured."""
    kl: float | None = None
    if options.plan is not None:
        types = read_plan(options.plan, file)
    else:
        measured = _measured(options, path, file, threads, bars)
        n_elements = sum(tensor.n_elements for tensor in file.tensors.values())
        by_size = bytes_of("--target-size", options.target_size or "", OF_FILES)
        head = file.n_bytes - file.n_weight_bytes  # a tokenizer takes its part of a file's size
        if 0 < by_size <= head:
            raise UsageError(f"--target-size: the file's keys take more than that: {size(head)}")
        wanted = by_size - head if by_size else int((options.target_bits or 0) * n_elements / 8)
        types, kl = chosen_types(measured, file, wanted, options.candidates())
        seen = seen or measured.importance
    if options.save_plan is not None:
        write_plan(options.save_plan, types)
    if options.plot is not None:
        draw_plan(options.plot, file, types)
    return ChosenTypes(types, seen, _file_type(file, types), kl)


def _check_measured(options: ChoosingOptions, kept: MeasuredTypes, file: ModelFile) -> None:
    """Say which options are about a measurement that is there; UsageError for types that it lacks."""
    widths = {tensor.shape[-1] for tensor in matrices(file)}
    has = {dtype for of_types in kept.costs.values() for dtype in of_types}
    lacks = [
        name
        for name in options.candidates()
        if name not in has and any(width % by_name(name).block_elements == 0 for width in widths)
    ]
    known = ", ".join(name.upper() for name in CANDIDATES if name in has)
    if lacks and options.types is not None:
        raise UsageError(
            f"--types: {options.costs} was measured without {', '.join(lacks).upper()}: wanted some of "
            f"{known}, or another --costs"
        )
    if lacks:
        say(f"graphml: --costs: {options.costs} was measured with {known}: types are chosen from these alone")
    if options.texts not in (None, kept.importance.n_chunks):
        say(
            f"graphml: --texts: {options.costs} was measured on {kept.importance.n_chunks} pieces, which stay"
        )


def _measured(
    options: ChoosingOptions, path: Path, file: ModelFile, threads: int, bars: Bars
) -> MeasuredTypes:
    kept = None
    if options.costs is not None and options.costs.exists():
        kept = read_measured(options.costs, file)
        _check_measured(options, kept, file)
        if options.file is None:
            return kept
    text = text_to_measure(options.file)
    with load_model(path, LoadOptions(threads=threads), bars.report) as model:
        ids, _ = ids_and_beginning(model, text)
        if kept is not None:
            if kept.text != text_fingerprint(ids):
                raise UsageError(f"--costs: {options.costs} was measured on another text than {options.file}")
            return kept
        names = [tensor.name for tensor in matrices(file)]
        remark(f"gradients of {len(names)} matrices take about {size(memory(model, names))} of memory")
        measured = measure_types(
            model, ids, str(options.file), options.candidates(), options.texts or 32, threads, bars.report
        )
    if options.costs is not None:
        write_measured(options.costs, measured)
    return measured


def _file_type(file: ModelFile, types: Mapping[str, str]) -> FileType:
    """The file type that is named after the type of most weights."""
    weights: Counter[str] = Counter()
    for name, dtype in types.items():
        weights[dtype] += file.tensors[name].n_elements
    most = weights.most_common(1)[0][0]
    return next(kind for kind in FILE_TYPES.values() if kind.format == most)
