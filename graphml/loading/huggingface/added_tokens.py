"""Tokens that only tokenizer_config.json, added_tokens.json or special_tokens_map.json name.

They are added to those of tokenizer.json as `TokenizersBackend` of transformers 5.24 does: by their numbers,
then the special ones. Knows the files; encodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graphml.errors import WeightsError
from graphml.loading.huggingface.json_files import read_json

Entry = dict[str, Any]
"""An added token as tokenizer.json has it, without its id."""
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
ADDED, SPECIAL = "added_tokens.json", "special_tokens_map.json"
LARGEST_ID = 1 << 22


def numbered_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[int, Entry]:
    """The tokens that have a number: of `added_tokens_decoder`, else of added_tokens.json, in order."""
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        listed = [(id, _entry(token)) for id, token in decoder.items()]
    else:
        special = {entry["content"] for entry in special_tokens(folder, settings)}
        contents = read_json(folder / ADDED) if (folder / ADDED).is_file() else {}
        listed = [(id, _entry(content, content in special)) for content, id in contents.items()]
    numbered: dict[int, Entry] = {}
    for id, entry in listed:
        if not str(id).isdecimal() or not int(id) < LARGEST_ID:
            raise WeightsError(
                f"{folder}: id of the added token {entry['content'][:80]!r}: wanted a number below "
                f"{LARGEST_ID}; got {str(id)[:40]!r}"
            )
        numbered[int(id)] = entry
    return dict(sorted(numbered.items()))


def special_tokens(folder: Path, settings: Mapping[str, Any]) -> Iterator[Entry]:
    """Special tokens by their names (`eos_token`, `image_token`), then those without one."""
    texts = dict(settings)
    if "added_tokens_decoder" not in settings and (folder / SPECIAL).is_file():
        texts |= read_json(folder / SPECIAL)
    further = texts.get("extra_special_tokens") or texts.get("additional_special_tokens") or []
    if not isinstance(further, list | dict):
        raise WeightsError(f"{folder}: additional_special_tokens: wanted added tokens; got {further!r:.60}")
    named = [*ROLES, *(name for name in texts if name.endswith("_token") and name not in ROLES)]
    tokens = [texts.get(name) for name in named]
    tokens += [*(further.values() if isinstance(further, dict) else further)]
    yield from (_entry(token, True) for token in tokens if isinstance(token, str | dict) and token)


def add_tokens(
    folder: Path, settings: Mapping[str, Any], added: list[Any], vocabulary: Mapping[str, int]
) -> bool:
    """Add what the other files name to the added tokens of tokenizer.json; whether there was any.

    vocabulary: ids of the other tokens. A new token gets the number behind all others, whatever its file
    says, as the library has it; one that is there with other flags gets the stated ones.
    """
    known = {token["content"]: token for token in added}
    changed, last = False, max((token["id"] for token in added), default=-1)
    numbered = [*numbered_tokens(folder, settings).values()]
    present = {*known, *(entry["content"] for entry in numbered)}
    named = [entry for entry in special_tokens(folder, settings) if entry["content"] not in present]
    for entry in (*numbered, *named):
        old = known.get(entry["content"])
        if old is not None and {**old, **entry} == old:
            continue
        id = old["id"] if old is not None else vocabulary.get(entry["content"])
        if id is None:
            id = max(last + 1, len(vocabulary))
        last, changed = max(last, id), True
        known[entry["content"]] = {"id": id, **entry}
    added[:] = sorted(known.values(), key=lambda token: int(token["id"]))
    return changed


def _entry(token: Any, special: bool = False) -> Entry:
    """A token that is a text, or an object with flags, as transformers' `AddedToken` has them."""
    fields = {"content": token} if isinstance(token, str) else token if isinstance(token, dict) else {}
    content = fields.get("content")
    if not isinstance(content, str):
        raise WeightsError(f"added token: wanted a text, or an object with content; got {str(token)[:80]!r}")
    special = special or fields.get("special") is True
    flags = {flag: fields.get(flag) is True for flag in FLAGS}
    if not isinstance(fields.get("normalized"), bool):
        flags["normalized"] = not special
    return {"content": content, **flags, "special": special}
