"""What llama.cpp has and graphml lacks, by the sources of llama-cpp-python: a tool for developers.

    python -m tests.llama_cpp_names [--record]

It asks PyPI for the newest release. Where that is another than the recorded one, its sources are fetched
(80 MB) and the architectures and the kinds of GGUF tokenizers are told that are new there, and what graphml
lacks of all. `--record` writes `tests/data/llama_cpp_names.txt` anew, which `test_llama_cpp_names.py` holds
graphml to. Of the recorded release nothing is fetched. It ends with `NOT_ASKED` where pip cannot ask or
fetch, and with another number, as any program, where it fails itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from graphml.loading.discovery import architecture_names, drafters
from graphml.text.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from graphml.text.tokenizer.vocabulary import KINDS, NO_VOCABULARY

PACKAGE = "llama-cpp-python"
RECORD = Path(__file__).parent / "data" / "llama_cpp_names.txt"
SOURCES = "vendor/llama.cpp/src"
# Kind of a name -> the file of the sources that has them, and how they are written there.
PLACES = {
    "architecture": ("llama-arch.cpp", re.compile(r'\{\s*LLM_ARCH_\w+,\s*"([^"]+)"')),
    "tokenizer": ("llama-vocab.cpp", re.compile(r'tokenizer_model == "([^"]+)"')),
    "pre": ("llama-vocab.cpp", re.compile(r'tokenizer_pre == "([^"]+)"')),
}
NOT_ASKED = 75  # EX_TEMPFAIL of sysexits.h
LEFT_OUT = ("clip", "(unknown)", "gptj", "test")
"""A name of its quantiser, of its reader, one without a graph there, and one of its own tests."""
Names = Mapping[str, list[str]]


def ours() -> dict[str, set[str]]:
    """The names that graphml has, by kind, with - for _, as which files' architectures are read."""
    return {
        "architecture": {*architecture_names(), *drafters()},
        "tokenizer": {*KINDS, *NO_VOCABULARY},
        "pre": {*PRE_TOKENIZERS},
    }


def lacking(names: Names) -> list[str]:
    """What graphml lacks, as "kind name"."""
    known = ours()
    return [
        f"{kind} {name}"
        for kind in PLACES
        for name in names[kind]
        if name not in known[kind] and name.replace("_", "-") not in known[kind]
    ]


def recorded() -> tuple[str, Names]:
    """The recorded release, and its names by kind."""
    release, *lines = RECORD.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" ", 1) for line in lines]
    return release, {kind: [name for of, name in pairs if of == kind] for kind in PLACES}


def newest() -> str:
    """The newest release on PyPI."""
    return _pip("index", "versions", PACKAGE).split()[1].strip("()")


def fetched(release: str) -> Names:
    """The names of a release from its sources."""
    with tempfile.TemporaryDirectory() as folder:
        _pip("download", "--no-deps", "--no-binary", ":all:", "-d", folder, f"{PACKAGE}=={release}")
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as sources:
            root = sources.getnames()[0].partition("/")[0]
            texts = {file: _text(sources, f"{root}/{SOURCES}/{file}") for file, _ in PLACES.values()}
    return {
        kind: sorted({*pattern.findall(texts[file])} - {*LEFT_OUT})
        for kind, (file, pattern) in PLACES.items()
    }


def _text(sources: tarfile.TarFile, path: str) -> str:
    file = sources.extractfile(path)
    assert file is not None, path
    return file.read().decode()


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(record: bool) -> None:
    """Tell the difference; record: write the names of the newest release."""
    release = newest()
    known, names = recorded()
    if release != known:
        before, names = names, fetched(release)
        came = [f"{kind} {name}" for kind in PLACES for name in names[kind] if name not in before[kind]]
        print(f"{PACKAGE} {release}: new since {known}: {', '.join(came) or 'nothing'}")
    if record:
        lines = [f"{kind} {name}" for kind in PLACES for name in names[kind]]
        RECORD.write_text("\n".join([release, *lines]) + "\n", encoding="utf-8")
    print(f"graphml lacks of {PACKAGE} {release}: {', '.join(lacking(names)) or 'nothing'}")


def run(record: bool) -> int:
    """`main`, and the number that the program ends with."""
    try:
        main(record)
    except subprocess.CalledProcessError as error:  # of pip, whose own words are on stderr
        print(f"pip {' '.join(error.cmd[3:5])} failed: {error}", file=sys.stderr)
        return NOT_ASKED
    return 0


if __name__ == "__main__":
    sys.exit(run("--record" in sys.argv[1:]))
