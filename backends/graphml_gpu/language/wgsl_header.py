"""What a text of WGSL declares, and the same text with other accesses of its bindings, or with fewer of them.

Drivers decide how a binding is declared when they know where its value is: as `read_write` where the kernel
writes another part of the same buffer, and two arguments in one where they overlap.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from graphml_gpu.language.text_header import (
    TextBuffer,
    TextError,
    TextHeader,
    line_of,
    product,
    sizes,
    uses,
    without_comments,
)
from graphml_gpu.language.types import SCALARS, ValueType

_BINDING = re.compile(
    r"((?:@(?:group|binding)\s*\(\s*\d+u?\s*\)\s*){2})"
    r"var\s*<\s*(storage|uniform)\s*(?:,\s*(read_write|read|write)\s*)?>\s*(\w+)\s*:\s*([^;]+?)\s*;"
)
_NUMBER = re.compile(r"@(group|binding)\s*\(\s*(\d+)")
_ELEMENT = re.compile(
    r"array\s*<\s*(?:(f32|i32|u32|f16)|vec([24])\s*(?:<\s*(f32|i32|u32|f16)\s*>|([fiuh])))\s*>"
)
_KINDS = {"f": "f32", "i": "i32", "u": "u32", "h": "f16"}
_ENTRY = r"((?:@\w+\s*(?:\([^()]*\))?\s*)+)fn\s+{name}\s*\("
_GROUP = re.compile(r"@workgroup_size\s*\(([^()]*)\)")
_SHARED = re.compile(r"var\s*<\s*workgroup\s*>\s*\w+\s*:\s*([^;]+);")
_NUMBERS = re.compile(
    r"(?:atomic\s*<\s*)?(?:vec([234]))?(?:\s*<?\s*(?:f32|i32|u32|f16|bool)\s*>?|[fiuh])\s*>?"
)
_CONSTANT = re.compile(r"\bconst\s+(\w+)\s*(?::\s*[iu]32\s*)?=\s*(\d+)[iu]?\s*;")
_DECLARED = r"\b(?:let|var|const)\s*(?:<[^>]*>)?\s*{name}\b|(?<![\w.@]){name}\s*:(?!:)"


def read_wgsl(text: str, entry: str) -> TextHeader:
    """The declarations of a text; `TextError` where they are not as `text_kernels` describes them."""
    code = without_comments(text)
    match = re.search(_ENTRY.format(name=re.escape(entry)), code)
    if match is None or "@compute" not in match[1]:
        raise TextError(f"wanted the entry point `@compute @workgroup_size(...) fn {entry}(`; there is none")
    group = _GROUP.search(match[1])
    if group is None:
        raise TextError(f"the entry point {entry} has no @workgroup_size", line_of(text, match.start(1)))
    *buffers, params = _bindings(text, code)
    if params[2] not in ("uniform", "read"):
        raise TextError("wanted the struct of the scalars as var<uniform>", line_of(text, params[0]))
    _check_names(text, code, [name for _, _, _, name, _ in buffers])
    return TextHeader(
        tuple(
            TextBuffer(name, _element(text, name, kind, begin), access != "read", begin, end)
            for begin, end, access, name, kind in buffers
        ),
        _fields(text, code, params[4], params[0]),
        params[:2],
        sizes(code, group[1], line_of(text, match.start(1)), _CONSTANT),
        _shared_bytes(code),
    )


def _shared_bytes(code: str) -> int | None:
    known = dict(_CONSTANT.findall(code))
    array_bytes = [_bytes(kind.strip(), known) for kind in _SHARED.findall(code)]
    counted = [size for size in array_bytes if size is not None]
    return sum(counted) if len(counted) == len(array_bytes) else None


def _bytes(kind: str, known: Mapping[str, str]) -> int | None:
    """Bytes of numbers, vectors, atomics and arrays of them; None for others."""
    array = re.fullmatch(r"array\s*<(.*),([^,]*?),?\s*>", kind, re.DOTALL)
    if array is not None:
        n_bytes, length = _bytes(array[1].strip(), known), product(array[2], known)
        return None if n_bytes is None or length is None else n_bytes * length
    match = _NUMBERS.fullmatch(kind)
    if match is None:
        return None
    lanes = int(match[1] or 1)
    return (4 if lanes == 3 else lanes) * (2 if "h" in kind or "f16" in kind else 4)


def _functions(code: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each function."""
    for match in re.finditer(r"\bfn\s+\w+", code):
        depth = 0
        for at in range(match.end(), len(code)):
            depth += {"{": 1, "}": -1}.get(code[at], 0)
            if code[at] == "}" and depth == 0:
                yield match.start(), at
                break


def _check_names(text: str, code: str, names: Sequence[str]) -> None:
    """A function may declare the name of a binding where it uses no other: names are replaced by others."""
    for begin, end in _functions(code):
        body = code[begin:end]
        for name in names:
            again = re.search(_DECLARED.format(name=re.escape(name)), body)
            other = next((binding for binding in names if binding != name and any(uses(body, binding))), None)
            if again is not None and other is not None:
                wanted = f"{name} is declared where {other} is used; wanted another name than a binding's"
                raise TextError(wanted, line_of(text, begin + again.start()))


_Binding = tuple[int, int, str, str, str]
"""Begin and end of a declaration; its access or `uniform`, its name, its type."""


def _bindings(text: str, code: str) -> list[_Binding]:
    """In the order of their numbers; the last is the struct of the scalars."""
    by_number: dict[int, _Binding] = {}
    for match in _BINDING.finditer(code):
        places = {what: int(n) for what, n in _NUMBER.findall(match[1])}
        line = line_of(text, match.start())
        if places.get("group") != 0 or places.get("binding") in (None, *by_number):
            raise TextError(f"{match[4]}: wanted @group(0) and a binding of its own", line)
        access = "uniform" if match[2] == "uniform" else match[3] or "read"
        by_number[places["binding"]] = match.start(), match.end(), access, match[4], match[5]
    if sorted(by_number) != list(range(len(by_number))) or not by_number:
        raise TextError(
            f"wanted bindings 0, 1, ... of group 0, the last the scalars; got {sorted(by_number)}"
        )
    return [by_number[i] for i in range(len(by_number))]


def _element(text: str, name: str, kind: str, at: int) -> ValueType:
    match = _ELEMENT.fullmatch(kind)
    if match is None:
        wanted = "wanted an array<...> of f32, i32, u32, f16, or of vectors of two or four of them"
        raise TextError(f"binding {name}: {wanted}; got {kind}", line_of(text, at))
    return ValueType(match[1] or match[3] or _KINDS[match[4]], int(match[2] or 1))


def _fields(text: str, code: str, name: str, at: int) -> tuple[tuple[str, str], ...]:
    struct = re.search(rf"\bstruct\s+{re.escape(name)}\s*\{{([^}}]*)\}}", code)
    if struct is None:
        raise TextError(f"wanted a struct of the scalars in the last binding; got {name}", line_of(text, at))
    pairs = [declaration.partition(":") for declaration in struct[1].split(",") if declaration.strip()]
    fields = tuple((field.strip(), kind.strip()) for field, _, kind in pairs)
    for field, kind in fields:
        if kind not in SCALARS:
            line = line_of(text, struct.start())
            raise TextError(f"field {field} of {name}: wanted {', '.join(SCALARS)}; got {kind}", line)
    return fields


def bound_wgsl(
    text: str, header: TextHeader, written: Collection[str], shares: Mapping[str, str], stored: bool
) -> str:
    """The text with its bindings as a driver binds them. Lines stay where they are.

    written: bindings that are read_write. shares: buffers that have the binding of another, of the same
    elements. stored: the scalars are in a storage buffer.
    """
    code = without_comments(text)
    changes: dict[tuple[int, int], str] = {}
    kept = [buffer for buffer in header.buffers if buffer.name not in shares]
    for i, buffer in enumerate(kept):
        access = "read_write" if buffer.name in written else "read"
        kind = code[buffer.begin : buffer.end].partition(":")[2]
        changes[buffer.begin, buffer.end] = (
            f"@group(0) @binding({i}) var<storage, {access}> {buffer.name}:{kind}"
        )
    space = "storage, read" if stored else "uniform"
    begin, end = header.params
    declared = code[begin:end].partition(">")[2]
    changes[begin, end] = f"@group(0) @binding({len(kept)}) var<{space}>{declared}"
    for buffer in header.buffers:
        if buffer.name in shares:
            changes[buffer.begin, buffer.end] = "\n" * code.count("\n", buffer.begin, buffer.end)
            for first, last in _functions(code):
                spans = (use.span() for use in uses(code[first:last], buffer.name))
                changes |= {(first + at, first + to): shares[buffer.name] for at, to in spans}
    parts, last = [], 0
    for (begin, end), other in sorted(changes.items()):
        parts += [text[last:begin], other]
        last = end
    return "".join([*parts, text[last:]])
