"""Damage done to valid files by seed: bits, lengths, cuts; values of JSON; other things in the file's place.

Knows bytes, JSON and the file system; nothing of what a file means.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Numbers = random.Random

RAW = {
    "@@deep list@@": "[" * 100_000 + "]" * 100_000,
    "@@deep object@@": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "@@nested@@": "[" * 400 + "]" * 400,
    "@@digits@@": "9" * 5000,
    "@@infinity@@": "1e999",
    "@@nan@@": "NaN",
    "@@minus infinity@@": "-Infinity",
}
"""Texts that stand in JSON for what `json.dumps` does not write."""
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 7, 255, 2**31, 2**32, 2**63, 2**64, 2**200, 0.5, -0.0, 1e-320,
    1e38, 1e308, "", "a", "x" * 5000, "\ud800", "\x00", "../../etc/passwd", "/dev/zero", "é" * 300, [], {},
    [[]], [None], [1, "a"], {"": 0}, [[1, [2, [3]]]], list(range(3000)), *RAW,
)  # fmt: skip


def damaged_json(text: str, numbers: Numbers) -> str:
    """The JSON with one to three of its values, keys or lists changed."""
    value = json.loads(text)
    for _ in range(numbers.choice((1, 1, 1, 2, 3))):
        value = _changed(value, numbers)
    written = json.dumps(value)
    for name, raw in RAW.items():
        written = written.replace(f'"{name}"', raw)
    return written


def _changed(value: Any, numbers: Numbers) -> Any:
    places = _places(value) if isinstance(value, dict | list) else []
    if not places:
        return copy.deepcopy(numbers.choice(VALUES))
    holder, key = numbers.choice(places)
    old = holder[key]
    what = numbers.randrange(8)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[numbers.choice(("", "x" * 3000, "\ud800", str(key) + "s", "0"))] = holder.pop(key)
    elif what == 2:
        holder[key] = numbers.choice(
            ([old], {"a": old}, str(old), [old, copy.deepcopy(old)], [copy.copy(old)] * 9)
        )
    elif what == 3 and isinstance(old, int | float) and not isinstance(old, bool):
        holder[key] = numbers.choice((-old, old + 1, old - 1, old * 2**32, old * 1e300, float(old), str(old)))
    else:
        holder[key] = copy.deepcopy(numbers.choice(VALUES))
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder and key within a value; of long lists a few alone."""
    found: list[tuple[Any, Any]] = []
    left = [value]
    while left:
        holder = left.pop()
        keys = list(holder) if isinstance(holder, dict) else list(range(min(len(holder), 40)))
        for key in keys[:400]:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                left.append(holder[key])
    return found


def damaged_bytes(content: bytes, numbers: Numbers, head: int = 4096) -> bytes:
    """The bytes with bits flipped, lengths made huge, parts cut, doubled or emptied; most within `head`."""
    data = bytearray(content)
    for _ in range(numbers.choice((1, 1, 2, 3, 8))):
        at = numbers.randrange(max(1, min(len(data), head if numbers.random() < 0.9 else len(data))))
        what = numbers.randrange(7)
        length = numbers.choice((1, 4, 8, 64))
        if what == 0:
            del data[at:]
        elif what == 1:
            data[at : at + length] = data[at : at + length] * 2
        elif what == 2:
            data[at : at + length] = bytes(len(data[at : at + length]))
        elif what == 3:
            huge = numbers.choice((2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1, 0, 1))
            data[at : at + 8] = struct.pack("<Q", huge)[: len(data[at : at + 8])]
        elif what == 4:
            data[at:at] = numbers.randbytes(length)
        elif at < len(data):
            data[at] = numbers.randrange(256) if what == 5 else data[at] ^ 1 << numbers.randrange(8)
    return bytes(data)


def damaged_text(text: str, numbers: Numbers) -> bytes:
    """The text with words doubled, cut or replaced, or with damaged bytes."""
    if numbers.random() < 0.3:
        return damaged_bytes(text.encode(), numbers)
    words = text.split(" ")
    for _ in range(numbers.choice((1, 2, 5))):
        at = numbers.randrange(len(words))
        words[at] = numbers.choice(
            ("", words[at] * 3, "\x00", "-1", "99999999999999999999", "nan", "inf", "[[", "]", "{", '"', "=",
             "\n", "é" * 300, "x" * 5000, "(" * 3000, "[" * 3000, "-" * 3000,
             words[numbers.randrange(len(words))])
        )  # fmt: skip
    return " ".join(words).encode()


def damaged_safetensors(content: bytes, numbers: Numbers) -> bytes:
    """The header's JSON changed under a right length, with the hash of graphml's own description made new."""
    if numbers.random() < 0.3:
        return damaged_bytes(content, numbers)
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    own = header.get("__metadata__", {})
    if "graphml" in own and numbers.random() < 0.8:
        text = damaged_json(own["graphml"], numbers)
        own |= {"graphml": text, "sha256": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()}
        changed = json.dumps(header).encode()
    else:
        changed = damaged_json(json.dumps(header), numbers).encode("utf-8", "replace")
    return struct.pack("<Q", len(changed)) + changed + content[8 + length :]


def damaged_npz(content: bytes, numbers: Numbers) -> bytes:
    """The archive's bytes, or a member's: its array header, its data, or the JSON that it holds."""
    if numbers.random() < 0.4:
        head = len(content)
        return damaged_bytes(content, numbers, head)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = "header.npy" if "header.npy" in members and numbers.random() < 0.6 else numbers.choice([*members])
    start = 10 + struct.unpack("<H", members[name][8:10])[0]
    if name == "header.npy" and numbers.random() < 0.8:
        import numpy as np

        text = damaged_json(members[name][start:].decode(), numbers).encode("utf-8", "replace")
        with io.BytesIO() as file:
            np.save(file, np.frombuffer(text, np.uint8))
            members[name] = file.getvalue()
    elif numbers.random() < 0.5:
        fields = members[name][10:start].decode("latin-1")
        new = damaged_text(fields.replace(",", " , ").replace("(", " ( "), numbers)[:60_000]
        members[name] = members[name][:8] + struct.pack("<H", len(new)) + new + members[name][start:]
    else:
        members[name] = damaged_bytes(members[name], numbers, 200)
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", numbers.choice((0, 8, 12, 14))) as archive:
            for member, data in members.items():
                archive.writestr(member, data)
        return file.getvalue()


def replaced(path: Path, numbers: Numbers) -> str:
    """Put another thing in the file's place: a pipe, a folder, a link to nothing or itself; which it is."""
    path.unlink()
    what = numbers.choice(
        (
            "nothing",
            "pipe",
            "folder",
            "empty",
            "loop",
            "dangling",
            "deep",
            "zeros",
            "endless",
            "socket",
        )
    )
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "dangling":
        path.symlink_to("nothing here")
    elif what == "endless":
        path.symlink_to("/dev/zero")
    elif what == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as sock:
            here = Path.cwd()
            try:  # the name of a socket is short
                os.chdir(path.parent)
                sock.bind(path.name)
            finally:
                os.chdir(here)
    elif what != "nothing":
        path.write_bytes({"deep": b"[" * 200_000, "zeros": bytes(100_000), "empty": b""}[what])
    return what


KINDS: dict[str, Callable[[bytes, Numbers], bytes]] = {
    "json": lambda content, numbers: (
        damaged_json(content.decode(), numbers).encode("utf-8", "surrogatepass")
        if numbers.random() < 0.8
        else damaged_bytes(content, numbers)
    ),
    "bytes": damaged_bytes,
    "text": lambda content, numbers: damaged_text(content.decode(), numbers),
    "safetensors": damaged_safetensors,
    "npz": damaged_npz,
}
"""Kind of file -> what damages it."""


def damage(path: Path, kind: str, numbers: Numbers) -> str:
    """Damage a file in one way, by `numbers`; what was done, in words."""
    if numbers.random() < 0.08:
        return replaced(path, numbers)
    path.write_bytes(KINDS[kind](path.read_bytes(), numbers))
    return f"other {kind}"
