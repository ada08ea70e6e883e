"""A process that records the values of llama.cpp, by llama-cpp-python: the other end is `verify.record`.

Knows nothing of graphml, so that it runs with any Python that has llama-cpp-python. Values inside come from
the callback that llama.cpp calls for each node of its graph (`cb_eval`); weights are the file's, keys and
values f32, flash attention is off.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from peer_talk import RefusedError, serve


class GgmlTensor(ctypes.Structure):
    """ggml_tensor, declared like in ggml.h of llama.cpp 0.5.0."""

    _fields_ = [
        ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4), ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32), ("src", ctypes.c_void_p * 10), ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
    ]  # fmt: skip


def ggml(llama_cpp: Any) -> Any:
    """The ggml library, which llama-cpp-python has loaded already."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    for pattern in ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll", "libggml-base.so*"):
        for path in sorted(folder.glob(pattern)):
            library = ctypes.CDLL(str(path))
            library.ggml_op_name.restype = ctypes.c_char_p
            library.ggml_get_name.restype = ctypes.c_char_p
            library.ggml_get_name.argtypes = [ctypes.c_void_p]
            library.ggml_nbytes.restype = ctypes.c_size_t
            library.ggml_nbytes.argtypes = [ctypes.c_void_p]
            library.ggml_backend_tensor_get.argtypes = [
                ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
            ]  # fmt: skip
            return library
    raise RefusedError(f"no ggml-base library in {folder}")


class Recorder:
    """Records the values of the nodes that have a place in a record."""

    def __init__(self, library: Any, count: int) -> None:
        import numpy

        self.np, self.library, self.count = numpy, library, count
        self.values: dict[str, Any] = {}
        self.failed = ""
        self._stream, self._begun = 0, False
        self._ops: dict[int, str] = {}

    def __call__(self, pointer: int, ask: bool, data: Any) -> bool:
        """The callback: whether a node is wanted if `ask`, else record its value."""
        try:
            places = self._places(pointer)
            if not ask:
                for place, at in places.items():
                    array = self._read(at)
                    if array is not None:
                        self.values[place] = array
            return bool(places) or not ask
        except Exception as error:  # an exception cannot pass through C
            self.failed = self.failed or repr(error)
            return not ask

    def _places(self, pointer: int) -> dict[str, int]:
        """Places of a record -> the tensors that have their values once this node is computed."""
        tensor = GgmlTensor.from_address(pointer)
        name, op = tensor.name.decode(errors="replace"), self._op(tensor.op)
        if op == "MUL_MAT":
            self._begun = True
            weight = GgmlTensor.from_address(tensor.src[0]).name.decode(errors="replace")
            if weight.endswith(".weight"):
                stem = weight[: -len(".weight")]
                return {f"{stem}.in": tensor.src[1], f"{stem}.out": pointer}
        places = {}
        if op in ("ADD", "MUL") and tensor.src[1]:
            stem, _, kind = (
                GgmlTensor.from_address(tensor.src[1]).name.decode(errors="replace").rpartition(".")
            )
            if kind in ("bias", "scale") and f"{stem}.out" in self.values:
                places[f"{stem}.out"] = pointer
        head, _, layer = name.rpartition("-")
        if head == "l_out" and layer.isdigit():
            places[f"stream.{int(layer) + 1}"] = pointer
        elif pointer == self._stream or self._begins(tensor, op):
            self._stream = pointer
            places["stream.0"] = pointer
        return places

    def _begins(self, tensor: GgmlTensor, op: str) -> bool:
        """Whether this is the embedding, or computed from it before the first layer's first product."""
        if self._begun:
            return False
        if op == "GET_ROWS":
            return bool(GgmlTensor.from_address(tensor.src[0]).name == b"token_embd.weight")
        head, _, layer = tensor.name.decode(errors="replace").rpartition("-")
        if layer.isdigit():  # of a layer, except bloom's norm of the embedding
            return bool(head.startswith("inp_"))
        stream = self._stream and GgmlTensor.from_address(self._stream)
        return bool(stream and self._stream in tensor.src[:2] and list(stream.ne) == list(tensor.ne))

    def _op(self, number: int) -> str:
        if number not in self._ops:
            self._ops[number] = self.library.ggml_op_name(number).decode()
        return self._ops[number]

    def _read(self, pointer: int) -> Any:
        """The value as f32 [T, n]; None for another kind or shape."""
        tensor = GgmlTensor.from_address(pointer)
        shape = tuple(tensor.ne[i] for i in range(4))
        if tensor.type != 0 or shape[2] != 1 or shape[3] != 1 or shape[1] != self.count:
            return None
        size = self.library.ggml_nbytes(pointer)
        buffer = self.np.empty(size, self.np.uint8)
        self.library.ggml_backend_tensor_get(pointer, buffer.ctypes.data, 0, size)
        strides = (tensor.nb[1], tensor.nb[0])
        view = self.np.lib.stride_tricks.as_strided(
            buffer.view(self.np.float32), (shape[1], shape[0]), strides
        )
        return view.copy()


def record(request: dict[str, Any]) -> dict[str, Any]:
    """Run the tokens in one batch and write the record to the path `out`; returns the engine's version."""
    try:
        import llama_cpp
        import numpy
    except ImportError as error:
        problem = "llama-cpp-python is not installed; in a clone of graphml: pip install '.[peers]'"
        raise RefusedError(f"{problem}, or name --python ({error})") from None

    ids = request["ids"]
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    if hasattr(params, "use_extra_bufts"):
        params.use_extra_bufts = False  # weights stay as they are, not repacked
    model = llama_cpp.llama_model_load_from_file(request["model"].encode(), params)
    if not model:
        raise RefusedError(f"{request['model']}: llama.cpp cannot load the model")
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    recorder = Recorder(ggml(llama_cpp), len(ids))
    callback = llama_cpp.llama_cpp.ggml_backend_sched_eval_callback(recorder)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = -(-len(ids) // 256) * 256
    settings.type_k = settings.type_v = 0
    settings.cb_eval = callback
    if hasattr(settings, "flash_attn_type"):
        settings.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        raise RefusedError("llama.cpp cannot make a context for the model")
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, 1
    status = llama_cpp.llama_decode(context, batch)
    if status:
        raise RefusedError(f"llama_decode gave {status} for {len(ids)} tokens")
    pointer = llama_cpp.llama_get_logits(context)
    logits = numpy.ctypeslib.as_array(pointer, (len(ids), n_vocab)).copy()
    if recorder.failed:
        raise RefusedError(f"values cannot be read: {recorder.failed}")
    with Path(request["out"]).open("wb") as file:
        numpy.savez(file, logits=logits, **recorder.values)
    return {"by": f"llama.cpp (llama-cpp-python {llama_cpp.__version__})"}


if __name__ == "__main__":
    serve(record)
