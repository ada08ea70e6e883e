"""What a text of OpenCL C declares of a kernel: its arguments, its struct of scalars, its workgroup."""

from __future__ import annotations

import re

from graphml_gpu.language.text_header import (
    TextBuffer,
    TextError,
    TextHeader,
    line_of,
    product,
    sizes,
    without_comments,
)
from graphml_gpu.language.types import ValueType

_ARGUMENT = re.compile(r"\s*([\w\s]*?)\s*\*\s*(?:(?:restrict|__restrict|const|volatile)\b\s*)*(\w+)\s*")
_ELEMENT = re.compile(r"(float|int|uint|half)([24]?)")
_KINDS = {"float": "f32", "int": "i32", "uint": "u32", "half": "f16"}
_FIELDS = {"float": "f32", "int": "i32", "uint": "u32", "unsigned int": "u32", "unsigned": "u32"}
_GLOBAL, _CONSTANT = {"__global", "global"}, {"__constant", "constant"}
_QUALIFIERS = _GLOBAL | _CONSTANT | {"const", "volatile", "struct"}
_GROUP = re.compile(r"reqd_work_group_size\s*\(([^()]*)\)")
_LOCAL = re.compile(r"\b(?:__local|local)\s+(?:volatile\s+)?(\w+)\s*(\*?)(?=([^;]*))")
_LOCAL_TYPE = re.compile(r"u?(char|short|int|long|float|half|double)(2|3|4|8|16)?")
_LENGTH = re.compile(r"\[([^\]]*)\]")
_BYTES = {"char": 1, "short": 2, "int": 4, "long": 8, "float": 4, "half": 2, "double": 8}
_DEFINED = re.compile(r"^\s*#\s*define\s+(\w+)\s+(\d+)", re.MULTILINE)


def read_opencl(text: str, entry: str) -> TextHeader:
    """The declarations of a text; `TextError` where they are not as `text_kernels` describes them."""
    code = without_comments(text)
    match = re.search(rf"(?<![\w.]){re.escape(entry)}\s*\(([^()]*)\)\s*\{{", code)
    begin = max(code.rfind(mark, 0, match.start()) for mark in ";}") + 1 if match else 0
    before = code[begin : match.start()] if match else ""
    if match is None or not re.search(r"\b(?:__kernel|kernel)\b", before):
        raise TextError(f"wanted the entry point `__kernel void {entry}(`; there is none")
    line = line_of(text, match.start())
    group = _GROUP.search(before)
    *buffers, params = [_argument(argument, line) for argument in match[1].split(",")]
    if not params[0] & _CONSTANT:
        raise TextError(
            f"argument {params[2]}: wanted the struct of the scalars, in constant memory, last", line
        )
    return TextHeader(
        tuple(_buffer(argument, line) for argument in buffers),
        _fields(code, params[1], line),
        (match.start(), match.end()),
        sizes(code, group[1], line, _DEFINED) if group else None,
        _shared_bytes(code),
    )


def _shared_bytes(code: str) -> int | None:
    """Bytes of what is declared in local memory; None where some of it is not counted here."""
    known, total = dict(_DEFINED.findall(code)), 0
    for match in _LOCAL.finditer(code):
        kind = _LOCAL_TYPE.fullmatch(match[1])
        if match[2] == "*":
            continue
        for name in match[3].split(",") if kind else [None]:
            n = product("*".join(["1", *_LENGTH.findall(name)]), known) if name else None
            if kind is None or n is None:
                return None
            lanes = int(kind[2] or 1)
            total += n * _BYTES[kind[1]] * (4 if lanes == 3 else lanes)
    return total


def _argument(text: str, line: int) -> tuple[set[str], str, str]:
    """Qualifiers, type and name of an argument that is a pointer."""
    match = _ARGUMENT.fullmatch(text)
    if match is None:
        raise TextError(
            f"wanted pointers as arguments: the buffers, then the scalars; got {text.strip()}", line
        )
    words = match[1].split()
    return set(words) & _QUALIFIERS, " ".join(word for word in words if word not in _QUALIFIERS), match[2]


def _buffer(argument: tuple[set[str], str, str], line: int) -> TextBuffer:
    qualifiers, kind, name = argument
    match = _ELEMENT.fullmatch(kind)
    if not qualifiers & _GLOBAL or match is None:
        wanted = "wanted a pointer to global float, int, uint or half, or to vectors of two or four of them"
        raise TextError(f"argument {name}: {wanted}; got {' '.join([*sorted(qualifiers), kind])}", line)
    return TextBuffer(name, ValueType(_KINDS[match[1]], int(match[2] or 1)), "const" not in qualifiers, 0, 0)


def _fields(code: str, name: str, line: int) -> tuple[tuple[str, str], ...]:
    some = re.escape(name)
    struct = re.search(rf"\bstruct\b\s*\w*\s*\{{([^}}]*)\}}\s*{some}\s*;", code)
    struct = struct or re.search(rf"\bstruct\s+{some}\s*\{{([^}}]*)\}}", code)
    if struct is None:
        raise TextError(f"wanted a struct of the scalars called {name}; there is none", line)
    fields = []
    for field in filter(str.strip, struct[1].split(";")):
        names = [part.strip() for part in field.split(",")]
        kind, _, names[0] = names[0].rpartition(" ")
        if kind.strip() not in _FIELDS:
            raise TextError(
                f"field {names[0]} of {name}: wanted uint, int or float; got {kind.strip()}", line
            )
        fields += [(field, _FIELDS[kind.strip()]) for field in names]
    return tuple(fields)
