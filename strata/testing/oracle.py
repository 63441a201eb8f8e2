"""llama.cpp as a judge: logits and token ids of a GGUF file through the C API that the package xllamacpp exports.

Tests and tools use this; nothing shipped in the engine does. x86-64 Linux: parameter structs travel by value on the
stack. No struct layout is compiled in: fields are found in the defaults that the library itself fills in.
"""

from __future__ import annotations

import ctypes as c
import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Llama", "dequantised", "kl_divergence", "logits", "tokenise"]

Floats = NDArray[np.float32]
PARAMS_BYTES = 1024  # more than any parameter struct has
FLASH_ATTENTION_OFF = 0
TYPE_F32 = 0
N_MICROBATCH = 512


class _Params(c.Structure):
    _fields_ = [("data", c.c_ubyte * PARAMS_BYTES)]

    def words(self) -> NDArray[np.int32]:
        return np.frombuffer(self.data, np.int32)

    def bytes_(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.data, np.uint8)


class _Batch(c.Structure):
    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.c_void_p),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    ]


_LOG_FUNCTION = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)


def _library(path: Path | None) -> c.CDLL:
    if path is not None:
        return c.CDLL(str(path), mode=c.RTLD_GLOBAL)
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the judge needs the package xllamacpp (pip install strata-moe[test])")
    return c.CDLL(str(Path(spec.origin).parent / "xllamacpp.abi3.so"), mode=c.RTLD_GLOBAL)


class Llama:
    """One loaded model with one sequence. Use as a context manager.

    exact: KV cache in F32, no flash attention, no repacked weights; else the library's own defaults.
    library: another build of libllama than xllamacpp's, with its loadable backends beside it.
    Raises: RuntimeError with llama.cpp's log when the model does not load.
    """

    def __init__(
        self,
        path: str | Path,
        n_ctx: int = 0,
        n_threads: int = 2,
        exact: bool = True,
        library: Path | None = None,
    ) -> None:
        self._log: list[str] = []
        self._keep = _LOG_FUNCTION(self._on_log)  # kept alive as long as the library may call it
        self._lib = lib = _library(library)
        lib.llama_log_set(self._keep, None)
        if library is not None:
            lib.ggml_backend_load_all_from_path(str(library.parent).encode())
        lib.llama_backend_init()
        for name in (
            "llama_model_load_from_file",
            "llama_init_from_model",
            "llama_model_get_vocab",
            "llama_get_memory",
        ):
            getattr(lib, name).restype = c.c_void_p
        lib.llama_get_logits_ith.restype = c.POINTER(c.c_float)
        self._model = c.c_void_p(lib.llama_model_load_from_file(str(path).encode(), self._model_params(exact)))
        self._context = c.c_void_p()
        if not self._model:
            raise RuntimeError(f"llama.cpp does not load {path}: {''.join(self._log)[-2000:]}")
        self._context = c.c_void_p(
            lib.llama_init_from_model(self._model, self._context_params(n_ctx, n_threads, exact))
        )
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context for {path}: {''.join(self._log)[-2000:]}")
        self._vocab = c.c_void_p(lib.llama_model_get_vocab(self._model))
        self.n_vocab = int(lib.llama_vocab_n_tokens(self._vocab))
        self._n_past = 0

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._context:
            self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def tokenise(self, text: str, special: bool = True, add_special: bool = True) -> list[int]:
        """Token ids of a text; special: control tokens are recognised in it; add_special: BOS and the like."""
        data = text.encode()
        room = (c.c_int32 * (len(data) + 16))()
        n = self._lib.llama_tokenize(
            self._vocab, data, len(data), room, len(room), c.c_bool(add_special), c.c_bool(special)
        )
        if n < 0:
            raise RuntimeError(f"llama_tokenize wants {-n} tokens for {len(data)} bytes")
        return list(room[:n])

    def logits(self, tokens: Sequence[int], chunk: int = N_MICROBATCH) -> Floats:
        """Append tokens to the sequence, `chunk` at a time; their logits, float32 [n_tokens, n_vocab]."""
        rows: list[Floats] = []
        for start in range(0, len(tokens), chunk):
            rows.extend(self._decode(list(tokens[start : start + chunk])))
        return np.stack(rows)

    def feed(self, tokens: Sequence[int], chunk: int = N_MICROBATCH) -> None:
        """Append tokens; logits are computed for the last one of each chunk only, and dropped (benchmarks)."""
        for start in range(0, len(tokens), chunk):
            self._decode(list(tokens[start : start + chunk]), last_only=True)

    def forget(self) -> None:
        """Start the sequence anew."""
        self._lib.llama_memory_clear(c.c_void_p(self._lib.llama_get_memory(self._context)), c.c_bool(True))
        self._n_past = 0

    def _on_log(self, _level: int, text: bytes, _data: int | None) -> None:
        self._log.append(text.decode(errors="replace"))

    def _decode(self, part: list[int], last_only: bool = False) -> list[Floats]:
        n = len(part)
        zero = (c.c_int32 * 1)(0)
        sequence = c.cast(zero, c.POINTER(c.c_int32))
        batch = _Batch(
            n,
            (c.c_int32 * n)(*part),
            None,
            (c.c_int32 * n)(*range(self._n_past, self._n_past + n)),
            (c.c_int32 * n)(*[1] * n),
            (c.POINTER(c.c_int32) * n)(*[sequence] * n),
            (c.c_int8 * n)(*([0] * (n - 1) + [1] if last_only else [1] * n)),
        )
        status = self._lib.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode gives {status}: {''.join(self._log)[-2000:]}")
        self._n_past += n
        wanted = [n - 1] if last_only else range(n)
        rows = (self._lib.llama_get_logits_ith(self._context, i) for i in wanted)
        return [np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows]

    def _defaults(self, function: str) -> _Params:
        params = _Params()
        fill = getattr(self._lib, function)
        fill.restype, fill.argtypes = c.c_void_p, [c.c_void_p]  # the hidden result pointer is the first argument
        fill(c.addressof(params))
        return params

    def _model_params(self, exact: bool) -> _Params:
        params = self._defaults("llama_model_default_params")
        flags = params.bytes_()
        # vocab_only, use_mmap or check_tensors, use_extra_bufts: off, off, on and a last bool, eight bytes aligned
        at = next(k for k in range(40, 160, 8) if tuple(flags[k : k + 4]) in ((0, 0, 1, 0), (0, 0, 1, 1)))
        if exact:
            flags[at + 2] = 0
        return params

    def _context_params(self, n_ctx: int, n_threads: int, exact: bool) -> _Params:
        params = self._defaults("llama_context_default_params")
        words = params.words()
        if tuple(words[:3]) != (512, 2048, N_MICROBATCH):
            raise RuntimeError(f"llama_context_params has another layout: {words[:12].tolist()}")
        threads = next(
            k for k in range(3, 16) if words[k] == words[k + 1] > 0 and tuple(words[k + 3 : k + 7]) == (-1, -1, -1, -1)
        )
        flash = threads + 6
        cache = (flash + 10) // 2 * 2 + 4  # eight float words, then two pointers, which are aligned; then both types
        if tuple(words[cache : cache + 2]) != (1, 1):
            raise RuntimeError("llama_context_params keeps the cache types elsewhere")
        words[0], words[1], words[2] = n_ctx, 2048, N_MICROBATCH
        words[threads] = words[threads + 1] = n_threads
        if exact:
            words[flash] = FLASH_ATTENTION_OFF
            words[cache] = words[cache + 1] = TYPE_F32
        return params


def dequantised(source: str | Path, target: str | Path) -> None:
    """Write `source` again with every tensor in F32 and all metadata kept."""
    import gguf

    reader: Any = gguf.GGUFReader(source)
    writer: Any = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    writer.add_key_value("general.file_type", 0, gguf.GGUFValueType.UINT32)
    for tensor in reader.tensors:
        shape = tuple(reversed(tensor.shape.tolist()))
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(
    path: str | Path,
    tokens: Sequence[int],
    *,
    dequant: bool = False,
    chunk: int = N_MICROBATCH,
    n_ctx: int = 0,
    n_threads: int = 2,
) -> Floats:
    """llama.cpp's logits of one prompt, float32 [n_tokens, n_vocab].

    dequant: on the same weights in F32, so that no rounding of activations is left. n_ctx 0: the model's own.
    """
    if not dequant:
        with Llama(path, n_ctx=n_ctx, n_threads=n_threads) as model:
            return model.logits(tokens, chunk)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "f32.gguf"
        dequantised(path, plain)
        return logits(plain, tokens, chunk=chunk, n_ctx=n_ctx, n_threads=n_threads)


def tokenise(path: str | Path, text: str, special: bool = True) -> list[int]:
    """llama.cpp's token ids of a text, BOS included where the file asks for it."""
    with Llama(path) as model:
        return model.tokenise(text, special)


def kl_divergence(reference: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
    """KL(reference || other) of each row in nats, float64 [n_tokens]."""
    p, q = _log_softmax(reference), _log_softmax(other)
    return (np.exp(p) * (p - q)).sum(-1)


def _log_softmax(rows: NDArray[Any]) -> NDArray[np.float64]:
    x = rows.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))
