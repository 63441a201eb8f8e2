"""llama.cpp's tokenizer as a judge, through the C API that the `xllamacpp` extension exports. Tests only."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from pathlib import Path

import pytest

_PARAMS_BYTES = 1024


class _Params(ctypes.Structure):
    """Larger than any parameter struct; passed by value it lies on the stack (x86-64 System V)."""

    _fields_ = [("data", ctypes.c_ubyte * _PARAMS_BYTES)]


@functools.cache
def _library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        pytest.skip("no llama.cpp to compare with: the package xllamacpp is not installed")
    library = ctypes.CDLL(str(Path(spec.origin).parent / "xllamacpp.abi3.so"), mode=ctypes.RTLD_GLOBAL)
    library.keep_alive = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    library.llama_log_set(library.keep_alive, None)
    library.llama_backend_init()
    for name in ("llama_model_load_from_file", "llama_model_get_vocab", "llama_model_default_params"):
        getattr(library, name).restype = ctypes.c_void_p
    library.llama_model_default_params.argtypes = [ctypes.c_void_p]
    library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _Params]
    library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    library.llama_model_free.argtypes = [ctypes.c_void_p]
    library.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
    text_and_ids = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32]
    library.llama_tokenize.argtypes = [*text_and_ids, ctypes.c_bool, ctypes.c_bool]
    library.llama_token_to_piece.argtypes = [
        *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_bool)
    ]
    library.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.llama_vocab_is_eog.restype = ctypes.c_bool
    return library


class PeerVocabulary:
    """The vocabulary of a GGUF file as llama.cpp sees it. A context manager."""

    def __init__(self, path: Path) -> None:
        self._library = library = _library()
        params = _Params()
        library.llama_model_default_params(ctypes.addressof(params))
        # The booleans vocab_only, check_tensors, use_extra_bufts, no_host are found by their default values.
        data = bytes(params.data)
        start = next(o for o in range(40, 160, 8) if data[o : o + 4] in (b"\0\0\1\0", b"\0\0\1\1"))
        params.data[start] = 1
        self._model = library.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        self._vocab = library.llama_model_get_vocab(self._model)
        self.n_vocab = int(library.llama_vocab_n_tokens(self._vocab))

    def __enter__(self) -> PeerVocabulary:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.llama_model_free(self._model)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        ids = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(self._vocab, data, len(data), ids, room, add_special, parse_special)
        assert count >= 0
        return list(ids[:count])

    def token_bytes(self, token_id: int, *, special: bool = True) -> bytes:
        buffer = ctypes.create_string_buffer(1024)
        count = self._library.llama_token_to_piece(self._vocab, token_id, buffer, 1024, 0, special)
        assert count >= 0
        return buffer.raw[:count]

    def eog_ids(self) -> frozenset[int]:
        return frozenset(i for i in range(self.n_vocab) if self._library.llama_vocab_is_eog(self._vocab, i))
