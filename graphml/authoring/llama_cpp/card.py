"""What a folder's README says of the model, as keys `general.*`: licence, tags, languages, base models.

The front matter is YAML, of which the part that model cards are written in is read: texts and lists of texts
at the top. Knows fields and keys; nothing of weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from graphml.errors import UsageError
from graphml.system.read_files import plain_text
from graphml.weights.metadata import StoredValue, stored

README, LARGEST = "README.md", 16 << 20
Fields = dict[str, list[str]]
_KEY = re.compile(r"([A-Za-z_][\w-]*):(?:\s+(.*))?$")
_ITEM = re.compile(r"\s*-\s+(.*)$")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def card_values(folder: Path, n_parameters: int) -> dict[str, StoredValue]:
    """The keys of a folder; n_parameters: of all its tensors."""
    fields = front_matter(folder / README)
    values = {"general.size_label": stored(size_label(n_parameters))}
    for field in ("license", "license_name", "license_link"):
        if fields.get(field):
            values[f"general.{field.replace('_', '.')}"] = stored(fields[field][0])
    tags = [*dict.fromkeys([*fields.get("tags", []), *fields.get("pipeline_tag", [])])]
    if tags:
        values["general.tags"] = stored(tags)
    if fields.get("language"):
        values["general.languages"] = stored(fields["language"])
    for field, key in (("base_model", "base_model"), ("datasets", "dataset")):
        names = fields.get(field, [])
        if names:
            values[f"general.{key}.count"] = stored(len(names), "u32")
        for number, name in enumerate(names):
            values |= {f"general.{key}.{number}.{part}": stored(text) for part, text in _of_hub(name)}
    return values


def _of_hub(name: str) -> Iterator[tuple[str, str]]:
    """The parts of a repository's name."""
    owner, slash, rest = name.rpartition("/")
    yield "name", (rest if slash else name).replace("-", " ")
    if _REPOSITORY.fullmatch(name):
        yield "organization", owner.replace("-", " ")
        yield "repo_url", f"https://huggingface.co/{name}"


def size_label(count: int) -> str:
    """A number of parameters as llama.cpp's file names have it: 135M, 8.0B."""
    for unit, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= unit:
            number = count / unit
            return f"{number:.1f}{letter}" if number < 10 else f"{number:.0f}{letter}"
    return f"{count / 1000:.1f}K" if count < 10_000 else f"{count / 1000:.0f}K"


def front_matter(readme: Path) -> Fields:
    """Field -> its texts, of the fields that are a text or a list of texts; empty without a front matter."""
    if not readme.is_file():
        return {}
    lines = plain_text(readme, UsageError, LARGEST, "wanted a README in UTF-8").splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    fields: Fields = {}
    key = ""
    for line in lines[1:]:
        if line.strip() in ("---", "..."):
            break
        if (match := _KEY.match(line)) is not None:
            key, text = match[1], (match[2] or "").strip()
            fields[key] = [*_texts(text)]
        elif (item := _ITEM.match(line)) is not None and key:
            text = item[1].strip()
            if _KEY.match(text) is None or text.startswith(("'", '"')):
                fields[key] += [*_texts(text)]
        elif line.strip() and not line.startswith("#"):
            continue  # of an object within, as of results
    return {name: texts for name, texts in fields.items() if texts}


def _texts(text: str) -> Iterator[str]:
    text = text if text.startswith(("'", '"')) else text.partition(" #")[0].strip()
    if text.startswith("[") and text.endswith("]"):
        for part in text[1:-1].split(","):
            yield from _texts(part.strip())
        return
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if text and text not in ("|", ">", "null", "~"):
        yield text
