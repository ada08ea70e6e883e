"""What numba knows of the types of builtin functions, found once for each list of argument types.

To type `a + b` numba tries every declaration of `+` in turn, those of arrays, lists, sets and strings too,
and does so again for every operator of a kernel. The answer depends on the types alone. Knows numba; nothing
of kernels.
"""

from __future__ import annotations

from typing import Any

from numba.core import types, typing
from numba.core.datamodel import models, register_default
from numba.core.errors import NumbaError
from numba.core.typing import mathdecl


class KnownFunction(types.Function):
    """A builtin function that remembers what calls of it have been typed, failures included."""

    def __init__(self, templates: Any) -> None:
        super().__init__(templates)
        self._known: dict[Any, Any] = {}

    def augment(self, other: Any) -> KnownFunction | None:
        """With another declaration's types besides, of which nothing is known yet."""
        return (
            KnownFunction(self.templates + other.templates) if other.typing_key == self.typing_key else None
        )

    def get_call_type(self, context: Any, args: Any, kws: Any) -> Any:
        """The signature for these argument types; raises numba's error where there is none."""
        if kws:
            return super().get_call_type(context, args, kws)
        if args not in self._known:
            try:
                self._known[args] = super().get_call_type(context, args, kws)
            except NumbaError as error:
                self._known[args] = error
        known = self._known[args]
        if isinstance(known, NumbaError):
            raise known.with_traceback(None)  # else each time adds to it
        return known


register_default(KnownFunction)(models.OpaqueModel)


class TypingContext(typing.Context):  # type: ignore[misc]
    """Numba's typing context without what arrays, lists, sets and dictionaries declare."""

    def load_additional_registries(self) -> None:
        """Functions of numbers alone."""
        self.install_registry(mathdecl.registry)

    def _insert_global(self, gv: Any, gty: Any) -> None:
        super()._insert_global(gv, KnownFunction(gty.templates) if type(gty) is types.Function else gty)
