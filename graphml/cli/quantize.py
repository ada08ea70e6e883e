"""`graphml quantize`: a model's file with its tensors in other types, by llama-quantize's mixtures."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from graphml import settings
from graphml.api.quantize_plan import EMBEDDING, OUTPUT
from graphml.cli.options import options
from graphml.cli.options.checks import check_new, check_not_read, check_target
from graphml.cli.options.chosen_types import ChoosingOptions, types_of
from graphml.cli.options.opening import find
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, say, write_json
from graphml.errors import UsageError
from graphml.system.progress_labels import size
from graphml.weights import ModelFile, open_model
from graphml.weights.type_mixes import file_type
from graphml.workshop.importance import Importance
from graphml.workshop.importance_file import read_importance
from graphml.workshop.quantized_file import (
    Change,
    WantedTypes,
    changes,
    check_not_own,
    parts_of,
    paths_of,
    planned,
    write_quantized,
)

Texts = list[str]


@grouped
def quantize(
    source: options.ModelSource,
    choosing: ChoosingOptions,
    words: Annotated[
        Texts,
        typer.Argument(
            metavar="[MODEL] OUTPUT [TYPE]", show_default=False,
            help="The model, the file to write, and its file type, such as Q4_K_M, unless types are chosen.",
        ),
    ],
    imatrix: Annotated[
        Path | None,
        typer.Option("--imatrix", metavar="FILE", show_default=False, help="Importance of columns."),
    ] = None,
    tensor_type: Annotated[
        Texts | None,
        typer.Option(
            "--tensor-type", metavar="REGEX=TYPE", show_default=False,
            help="The type of matrices whose name has it; the first that fits. May be given again.",
        ),
    ] = None,
    pure: Annotated[bool, typer.Option("--pure", help="All matrices in one type, no mixture.")] = False,
    keep_output: Annotated[
        bool, typer.Option("--leave-output-tensor", help="The output matrix stays as it is.")
    ] = False,
    requantise: Annotated[
        bool, typer.Option("--allow-requantize", help="Of a file that is quantised already.")
    ] = False,
    keep_split: Annotated[
        bool, typer.Option("--keep-split", help="In as many parts as the model has.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what each tensor would become, and write nothing.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, show_default="all processors", help="Threads.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    json: options.Json = False,
) -> None:  # fmt: skip
    """Write a model's GGUF file with its tensors in other types, chosen as llama-quantize chooses them.

    --auto chooses a type for each matrix by what it costs the model's answers, for a size.
    """
    choosing.check(force)
    is_named = source.named is not None or source.hf is not None
    model, output, kind = _words(words, is_named, choosing.chooses, dry_run)
    rules = tuple(map(_rule, tensor_type or ()))
    if choosing.chooses and (rules or pure or keep_output):
        raise UsageError(
            "--auto and --plan say each type: wanted no --tensor-type, --pure, --leave-output-tensor"
        )
    if not choosing.chooses:
        file_type(kind, "TYPE")
    check_target("OUTPUT", output, ".gguf")
    if output is not None:
        check_not_read("OUTPUT", output, imatrix, choosing.costs)
    seen = None if imatrix is None else read_importance(imatrix)
    kl: float | None = None
    with Bars() as bars:
        path = find(model, source, bars)
        if path.is_dir():
            raise UsageError(f"{path}: wanted a GGUF file; `graphml convert` writes one of a folder")
        with open_model(path) as file:
            _check_keys(file)
            names = paths_of(output, len(file.paths) if keep_split else 1) if output and not dry_run else []
            for name in names:  # before anything is measured
                check_new("OUTPUT", name, force)
            check_not_own(file, names)
            n_threads = threads or settings.threads() or os.cpu_count() or 1
            if choosing.chooses:
                chosen = types_of(choosing, path, file, seen, n_threads, bars)
                kind, seen, kl = chosen.kind.name, chosen.importance, chosen.kl
                plan = planned(file, chosen.types, requantise, seen)
            else:
                plan = changes(file, WantedTypes(kind, rules, pure, keep_output, requantise), seen)
                _say_output(keep_output, plan)
            if dry_run:
                _print(file, plan, kind, kl, json)
                return
            assert output is not None
            parts = parts_of(file, plan) if keep_split else [plan]
            paths = write_quantized(
                file, plan, kind, output, seen, str(imatrix or choosing.costs or ""), n_threads,
                bars.report, parts,
            )  # fmt: skip
            _summary(plan, paths, seen, kl, json)


def _words(
    words: list[str], is_named: bool, is_chosen: bool, dry_run: bool
) -> tuple[str | None, Path | None, str]:
    """MODEL, OUTPUT and TYPE, "" for one that is chosen; a dry run may be without OUTPUT.

    is_named: an option names the model.
    """
    names = [*([] if is_named else ["MODEL"]), "OUTPUT", *([] if is_chosen else ["TYPE"])]
    if dry_run and len(words) == len(names) - 1:
        names.remove("OUTPUT")
    if len(words) != len(names):
        raise UsageError(f"wanted {' '.join(names)}; got {' '.join(words)!r:.120}")
    by_name = dict(zip(names, words, strict=True))
    output = by_name.get("OUTPUT")
    return by_name.get("MODEL"), None if output is None else Path(output), by_name.get("TYPE", "")


def _say_output(keep_output: bool, plan: list[Change]) -> None:
    """A line where --leave-output-tensor leaves nothing: the embedding is the output matrix, too."""
    by_name = {change.tensor.name: change for change in plan}
    embedding = by_name.get(EMBEDDING)
    if keep_output and OUTPUT not in by_name and embedding and embedding.dtype != embedding.tensor.dtype:
        say(
            f"graphml: --leave-output-tensor: the model has no {OUTPUT}: {EMBEDDING}, which is its output "
            f"matrix too, becomes {embedding.dtype.upper()}; "
            f"--tensor-type token_embd={embedding.tensor.dtype.upper()} keeps it"
        )


def _rule(text: str) -> tuple[str, str]:
    """REGEX=TYPE; a regular expression may have an equals sign, a type has none."""
    expression, equals, dtype = text.rpartition("=")
    if not equals or not expression or not dtype:
        raise UsageError(f"--tensor-type: wanted REGEX=TYPE, such as ffn_down=Q6_K; got {text!r:.80}")
    return expression, dtype


def _check_keys(file: ModelFile) -> None:
    if not file.metadata.has("general.architecture"):
        raise UsageError(f"{file.path}: wanted a GGUF file of a model, with general.architecture")
    if not file.tensors:
        raise UsageError(f"{file.path}: wanted a GGUF file of a model; it has no tensors")


def _print(file: ModelFile, plan: list[Change], kind: str, kl: float | None, json: bool) -> None:
    total = sum(change.n_bytes for change in plan)
    before = sum(change.tensor.n_bytes for change in plan)
    if json:
        tensors = [
            {"name": change.tensor.name, "shape": list(change.tensor.shape), "before": change.tensor.dtype,
             "type": change.dtype, "bytes": change.n_bytes, "reason": change.reason}
            for change in plan
        ]  # fmt: skip
        write_json(
            {"model": str(file.path), "file_type": file_type(kind).name, "bytes_before": before,
             "bytes": total, "predicted_kl": kl, "tensors": tensors}
        )  # fmt: skip
        return
    width = max(len(change.tensor.name) for change in plan)
    for change in plan:
        shape = " x ".join(map(str, change.tensor.shape))
        before_it = f"{change.tensor.dtype} -> " if change.dtype != change.tensor.dtype else ""
        types = f"{before_it}{change.dtype}"
        reason = f"  {change.reason}" if change.reason else ""
        print(f"{change.tensor.name:{width}}  {shape:>16}  {types:18} {size(change.n_bytes):>10}{reason}")
    print(f"{size(before)} -> {size(total)}, {_bits(plan):.2f} bits a weight{_said(kl)}")


def _summary(
    plan: list[Change], paths: list[Path], seen: Importance | None, kl: float | None, json: bool
) -> None:
    n_bytes = sum(path.stat().st_size for path in paths)
    changed = [change for change in plan if change.dtype != change.tensor.dtype]
    unseen = [c.tensor.name for c in changed if seen is not None and c.tensor.name not in seen.sums]
    names = {change.tensor.name for change in plan}
    strange = [name for name in sorted(seen.sums) if name not in names] if seen is not None else []
    others = {change.tensor.name: change for change in plan if change.reason}
    if json:
        write_json(
            {"files": [str(path) for path in paths], "bytes": n_bytes, "bits_per_weight": _bits(plan),
             "predicted_kl": kl, "without_importance": unseen,
             "importance_of_others": strange,
             "other_types": {name: [change.dtype, change.reason] for name, change in others.items()}}
        )  # fmt: skip
        return
    mix = Counter(change.dtype for change in plan if len(change.tensor.shape) > 1)
    types = ", ".join(f"{count} {name.upper()}" for name, count in mix.most_common())
    print(f"{paths[0]}: {size(n_bytes)}, {_bits(plan):.2f} bits a weight{_said(kl)}; {types}")
    if len(paths) > 1:
        print(f"{len(paths)} parts")
    for (reason, dtype), count in Counter((c.reason, c.dtype) for c in others.values()).items():
        print(f"{count} {dtype.upper()}: {reason}")
    if unseen:
        print(f"without importance: {_listed(unseen)}")
    if strange:
        print(f"importance of matrices that the model does not have: {_listed(strange)}")


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"


def _said(kl: float | None) -> str:
    return "" if kl is None else f", KL divergence a token predicted {kl:.4f}"


def _bits(plan: list[Change]) -> float:
    elements = sum(change.tensor.n_elements for change in plan)
    return 8 * sum(change.n_bytes for change in plan) / elements if elements else 0.0
