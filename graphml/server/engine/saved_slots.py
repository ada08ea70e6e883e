"""Slots in files: what a slot's latest request left in the engine's blocks, saved, restored and erased.

Nothing stays in a slot of the engine, whose prefixes are shared; so what is kept of a slot is the ids of the
latest request that ran there, or named it (`id_slot`). Knows names of files and llama-server's replies.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphml.api.engine import Engine
from graphml.errors import UsageError
from graphml.server.options.server_options import ServerOptions
from graphml.server.requests.request_fields import SlotFile
from graphml.server.responses.api_errors import wrong_field
from graphml.system.replaced_file import remove_stale

ACTIONS = ("save", "restore", "erase")
OF_KEYS = ".keys"  # no file's name: those begin with no dot
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\-]{0,127}", re.ASCII)


class SavedSlots:
    """The ids of each slot's latest request, and whose it was. Nothing is kept without `--slot-save-path`."""

    def __init__(self, options: ServerOptions) -> None:
        self._folder, self._count = options.slot_save_path, options.parallel
        self._ids: dict[int, tuple[str | None, list[int]]] = {}
        if self._folder is not None:
            remove_stale([self._folder, *self._folder.glob(f"{OF_KEYS}/*")])

    def ended(self, number: int, key: str | None, ids: list[int]) -> None:
        """A request of this slot, and of a key, has ended with these ids."""
        if self._folder is not None and 0 <= number < self._count:
            self._ids[number] = key, ids

    def owner(self, number: int, otherwise: str | None) -> str | None:
        """The key whose request was the latest of a slot."""
        return self._ids.get(number, (otherwise, []))[0]

    def path(self, file: SlotFile, of_key: str = "") -> Path:
        """A file of the folder; ApiError 400 for a name that could be elsewhere.

        of_key: the name of a folder within it, for a key whose files no other one reads or replaces.
        """
        assert self._folder is not None
        if not NAME.fullmatch(file.filename):
            raise wrong_field("filename", "wanted letters, digits and ._+- without a folder, at most 128")
        folder = self._folder / OF_KEYS / of_key if of_key else self._folder
        return folder / file.filename

    def change(
        self,
        engine: Engine,
        action: str,
        number: int,
        extra_of: Callable[[str | None], bytes],
        path: Path | None,
        key: str | None,
        whose: str | None = None,
    ) -> dict[str, Any]:
        """Save, restore or erase a slot: llama-server's reply.

        extra_of: of a key's prefixes, as of `Engine.prefix_extra`. key: who asks. whose: the key whose slots
        alone are saved and erased; others' look empty. None: all are.
        """
        files, begin = engine.prefix_files(), time.monotonic()
        owner, ids = self._ids.get(number, (key, []))
        ids = ids if whose in (None, owner) else []
        extra = extra_of(key if action == "restore" else owner)
        if path is None:
            n_erased = files.forget(ids, extra)
            if ids:
                self._ids.pop(number, None)
            return {"id_slot": number, "n_erased": n_erased}
        reply: dict[str, Any] = {"id_slot": number, "filename": path.name}
        if action == "save":
            self._make_folder_of(path)
            reply["n_saved"], reply["n_written"] = files.save(ids, extra, path)
        else:
            ids, reply["n_read"] = files.restore(path, extra)
            self._ids[number], reply["n_restored"] = (key, ids), len(ids)
        return {**reply, "timings": {f"{action}_ms": (time.monotonic() - begin) * 1e3}}

    def _make_folder_of(self, path: Path) -> None:
        """Make a key's folder, readable for the user of this process alone; UsageError where that fails."""
        if path.parent == self._folder:
            return
        try:
            path.parent.parent.mkdir(mode=0o700, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{path.name}: cannot be written: {error.strerror or error}") from None
