"""Checks of what options name, before anything is opened: a wrong name is wrong usage, and the exit code 2.

Knows names and files; nothing of models.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Final

from graphml.cli.options.options import Opening
from graphml.errors import TokenizerError, UsageError
from graphml.loading import discovery
from graphml.passes.placement_rules import named_backends, parse_rules
from graphml.system.read_files import plain_text

MOST_OF_A_PATH: Final = 200
OF_FILES: Final = 1000
"""See `bytes_of`."""
_FILE_NAME = re.compile(r"[^\s{}\"\[\]()|]+\.(json|gbnf|lark|jinja2?|j2|txt)", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def check_backends(option: str, names: str) -> None:
    """UsageError unless all these names, with commas between them, are those of installed backends."""
    for name in names.split(","):
        if not discovery.is_backend(name.strip()):
            known = ", ".join(discovery.backend_names())
            raise UsageError(f"{option}: no backend {name.strip()!r} is installed; installed: {known}")


def check_places(rules: str) -> None:
    """UsageError for rules of placement that are none, or name a backend that is not installed."""
    named = named_backends(rules)
    if not named:
        raise UsageError(f"--place: wanted BACKEND:WHAT, such as cpu:layers.0-14; got {rules!r}")
    parse_rules(rules, named)
    check_backends("--place", ",".join(named))


def check_file(option: str, path: Path | None) -> None:
    """UsageError where a file that is named is not there."""
    if path is not None and not path.is_file():
        what = "is a folder; wanted a file" if path.is_dir() else "no such file"
        raise UsageError(f"{option}: {path}: {what}")


def check_target(option: str, file: Path | None, *endings: str) -> None:
    """UsageError where a file cannot be written: what is measured for minutes should not be lost then.

    endings: those that its name may have, if it is written in one form; none for any.
    """
    if file is None:
        return
    if endings and file.suffix.lower() not in endings:
        raise UsageError(f"{option}: wanted a name that ends in {' or '.join(endings)}; got {str(file)!r}")
    if not file.parent.is_dir():
        raise UsageError(f"{option} {file}: cannot be written: {file.parent} is no folder")
    if file.is_dir():
        raise UsageError(f"{option} {file}: cannot be written: is a folder; wanted a file")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"{option} {file}: cannot be written: no permission, or a file system to read alone")


def check_folder(option: str, folder: Path | None) -> None:
    """UsageError where a file is in the place of a folder that is to be written to."""
    if folder is not None:
        there = next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)
        if not there.is_dir():
            raise UsageError(f"{option}: {folder}: cannot be written: {there} is no folder")


def check_replaced(option: str, folder: Path, file: str, of: str) -> None:
    """UsageError where a folder cannot be written, or has other files than those `of`: it lacks `file`."""
    check_folder(option, folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / file).is_file():
        raise UsageError(f"{option}: {folder}: has other files than those of {of}: wanted another name")


def check_new(option: str, path: Path, force: bool) -> None:
    """UsageError where a file or folder is there already that is not to be overwritten."""
    if path.exists() and not force:
        raise UsageError(f"{option}: {path} is there already; --force overwrites it")


def check_new_parts(option: str, output: Path, force: bool) -> None:
    """UsageError where parts of a model of that name are there already, however many they are."""
    pattern = re.compile(rf"{re.escape(output.stem)}-\d{{5}}-of-\d{{5}}\.gguf")
    for path in sorted(output.parent.glob("*.gguf")):
        if pattern.fullmatch(path.name):
            check_new(option, path, force)


def check_not_read(option: str, output: Path, *read: Path | None) -> None:
    """UsageError where a file that is read would be overwritten, --force or not."""
    for path in read:
        if path is not None and output.exists() and path.exists() and output.samefile(path):
            raise UsageError(f"{option}: {output}: is read by this command; wanted another name")


def check_limit(limit: float | None) -> None:
    """UsageError for an NMSE that is no finite number: every value would be allowed."""
    if limit is not None and not math.isfinite(limit):
        raise UsageError(f"--limit: wanted a finite number, got {limit}")


def check_opening(opening: Opening) -> None:
    """UsageError for an option that names what is not there."""
    check_backends("--backend", opening.backend)
    check_file("--arch", None if opening.arch is None else Path(opening.arch))
    if isinstance(opening.template, Path):  # else a text, of --chat-template
        check_file("--template", opening.template)
    if opening.place and opening.gpu_layers is None:  # else the CPU may join them
        parse_rules(opening.place, [name.strip() for name in opening.backend.split(",")])
    opening.compiling.fusions()
    if opening.pre is not None:
        _check_pre(opening.pre)


def _check_pre(name: str) -> None:
    from graphml.text.tokenizer.pre_tokenizers import pre_tokenizer  # only here is it needed

    try:
        pre_tokenizer(name)
    except TokenizerError as error:
        raise UsageError(f"--pre: {error}") from None


def key_of(key: str) -> str:
    """The key itself, or the one that a file has, which no list of processes shows."""
    if not key.startswith("@"):
        return key
    return text_of(Path(key[1:]), said="--api-key: ").strip()


def bytes_of(option: str, text: str, base: int = 1024) -> int:
    """The bytes of a size such as 500M or 2G, 0 for an empty text; UsageError for other texts.

    base: what a K is: 1000 for the sizes of files, as of gguf-split and transformers. Ki, Mi, Gi: of 1024.
    """
    if not text:
        return 0
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{option}: wanted a size such as 500M or 2G, got {text!r:.40}")
    return int(float(match[1]) * (1024 if match[3] else base) ** " KMGT".index(match[2].upper() or " "))


def text_of(path: Path, most: int = 64 << 20, said: str = "") -> str:
    """The text of a file in UTF-8; UsageError, beginning with `said`, for others and for more bytes."""
    try:
        return plain_text(
            path, UsageError, most, "cannot be read as UTF-8 text" if path.is_file() else "cannot be read"
        )
    except UsageError as error:
        raise UsageError(f"{said}{error}") from None


def text_or_file(option: str, text: str) -> str:
    """The text, or that of the file that it names; UsageError for the name of one that is not there."""
    if len(text) < MOST_OF_A_PATH and "\n" not in text and Path(text).is_file():
        return text_of(Path(text), said=f"{option}: ")
    if _FILE_NAME.fullmatch(text):
        raise UsageError(f"{option}: {text}: no such file; wanted a text, or a file with it")
    return text
