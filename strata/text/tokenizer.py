"""Text to token ids and back, from a GGUF file's vocabulary.

What lives here: the choice of the merger, special tokens in text, begin and end tokens, bytes of single tokens. What
does not: the merging itself (`bpe.py`, `sentencepiece.py`), streaming (`detokenizer.py`), templates (`chat.py`).

Special tokens. User-defined tokens are always recognised in text. Control and unknown tokens are recognised only with
`parse_special`, and never inside `literal_spans`: text from outside cannot smuggle in an end-of-turn. Longer token
texts win over shorter ones wherever they stand, as in llama.cpp.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from strata.errors import ModelError, RequestError
from strata.text.bpe import BYTE_OF_CHAR, BpeMerger
from strata.text.metadata import Metadata, read_array, read_bool, read_str
from strata.text.pretokenizers import BYTE_LEVEL_PRE, PreTokenizer, known_names
from strata.text.sentencepiece import SPACE_MARK, SentencePieceMerger
from strata.text.vocabulary import TokenKind, Vocabulary

__all__ = ["Tokenizer"]

_SUPPORTED = "gpt2 (BPE), llama (SentencePiece BPE), gemma4 (BPE on raw UTF-8)"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_HIDDEN = frozenset({TokenKind.CONTROL, TokenKind.UNKNOWN})
_ASCII_SPACE = " \t\n\v\f\r"

Span = tuple[int, int]


class _Merger(Protocol):
    def encode(self, text: str) -> list[int]: ...


class Tokenizer:
    """One model's tokenizer. Immutable after construction and safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, merger: _Merger, meta: Metadata, pre: PreTokenizer | None) -> None:
        source = vocabulary.source
        self._vocabulary = vocabulary
        self._merger = merger
        self._is_sentencepiece = pre is None
        self._marks_spaces = pre is None or pre.escape_space
        self._bytes: list[bytes | None] = [None] * len(vocabulary.texts)
        default_bos = pre.add_bos if pre is not None else True
        add_bos = read_bool(meta, source, "tokenizer.ggml.add_bos_token", default=default_bos)
        # Some gemma4 files say no by mistake; llama.cpp overrules them too.
        self.add_bos = add_bos or (pre is not None and pre.newline_runs_whole)
        self.add_eos = read_bool(meta, source, "tokenizer.ggml.add_eos_token", default=False)
        self.add_space_prefix = read_bool(meta, source, "tokenizer.ggml.add_space_prefix", default=pre is None)
        for flag, name in ((self.add_bos, "bos"), (self.add_eos, "eos")):
            if flag and name not in vocabulary.special_ids:
                raise ModelError(
                    f"{source}: tokenizer.ggml.add_{name}_token is true (or the default of this tokenizer), "
                    f"but tokenizer.ggml.{name}_token_id is missing; set one of the two"
                )
        self._right_stripped = _right_stripped(vocabulary, meta)
        self._specials = self._list_specials()

    @classmethod
    def from_metadata(cls, meta: Metadata, source: str, *, pre: str | None = None) -> Tokenizer:
        """Build the tokenizer of a GGUF file.

        Args:
            meta: GGUF keys and Python values.
            source: what to call the file in messages.
            pre: replaces `tokenizer.ggml.pre`, for files whose name is unknown or missing.

        Raises:
            ModelError: the tokenizer is missing, unsupported or inconsistent; names key, value and what is accepted.
        """
        vocabulary = Vocabulary.from_metadata(meta, source)
        _check_byte_tokens(vocabulary)
        if vocabulary.model == "llama":
            return cls(vocabulary, SentencePieceMerger(vocabulary.ids, vocabulary.scores, source), meta, None)
        if vocabulary.model not in ("gpt2", "gemma4"):
            raise ModelError(f"{source}: tokenizer.ggml.model is {vocabulary.model!r}; accepted: {_SUPPORTED}")
        merges = read_array(meta, source, "tokenizer.ggml.merges")
        if merges is None:
            raise ModelError(f"{source}: tokenizer.ggml.merges is missing; a {vocabulary.model} vocabulary needs it")
        chosen = BYTE_LEVEL_PRE["gemma4"] if vocabulary.model == "gemma4" else _choose_pre(meta, vocabulary, pre)
        return cls(vocabulary, BpeMerger(vocabulary, merges, chosen), meta, chosen)

    # -- the vocabulary

    @property
    def n_vocab(self) -> int:
        """Number of token ids."""
        return len(self._vocabulary.texts)

    @property
    def source(self) -> str:
        """What the file is called in messages."""
        return self._vocabulary.source

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed or ignored; to be announced at start."""
        return tuple(self._vocabulary.notes)

    @property
    def bos_id(self) -> int | None:
        """Begin of text."""
        return self._vocabulary.special_ids.get("bos")

    @property
    def eos_id(self) -> int | None:
        """End of text."""
        return self._vocabulary.special_ids.get("eos")

    @property
    def eot_id(self) -> int | None:
        """End of turn."""
        return self._vocabulary.special_ids.get("eot")

    @property
    def eom_id(self) -> int | None:
        """End of message (a tool call follows)."""
        return self._vocabulary.special_ids.get("eom")

    @property
    def unk_id(self) -> int | None:
        """Unknown."""
        return self._vocabulary.special_ids.get("unk")

    @property
    def pad_id(self) -> int | None:
        """Padding."""
        return self._vocabulary.special_ids.get("pad")

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every token that ends a generation."""
        return self._vocabulary.end_ids

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of the tokens that `parse_special` makes dangerous in text from outside."""
        return tuple(text for text, _, kind in self._specials if kind in _HIDDEN)

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary writes it. Raises: RequestError for an id outside the vocabulary."""
        self._check_id(token_id)
        return self._vocabulary.texts[token_id]

    def token_kind(self, token_id: int) -> TokenKind:
        """What kind of token it is. Raises: RequestError for an id outside the vocabulary."""
        self._check_id(token_id)
        return self._vocabulary.kinds[token_id]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for; of a special token, its text. Unused tokens have none.

        Raises: RequestError for an id outside the vocabulary.
        """
        self._check_id(token_id)
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def is_hidden(self, token_id: int) -> bool:
        """Whether the token is left out of text unless special tokens are asked for."""
        return self.token_kind(token_id) in _HIDDEN

    # -- encoding

    def encode(
        self, text: str, *, add_special: bool, parse_special: bool, literal_spans: Sequence[Span] = ()
    ) -> list[int]:
        """Cut `text` into token ids.

        Args:
            text: any Unicode text.
            add_special: put the begin and end tokens around it where the model wants them.
            parse_special: recognise control tokens written in the text.
            literal_spans: ascending (start, end) character ranges in which no control token is recognised.

        Raises:
            RequestError: lone surrogates, or a byte that a SentencePiece vocabulary cannot express.
        """
        ids = self._encode_text(text, parse_special, literal_spans)
        if add_special and self.add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_special and self.add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def encode_prompt(self, text: str, *, literal_spans: Sequence[Span] = ()) -> list[int]:
        """Cut a rendered chat template into ids: control tokens count, one begin token, no end token.

        Templates often write the begin token themselves; it is then not added a second time.
        Raises: as `encode`.
        """
        ids = self._encode_text(text, True, literal_spans)
        if self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of `ids`; control tokens only with `special`; broken UTF-8 becomes U+FFFD.

        The space that a SentencePiece vocabulary puts before the first word is taken off again.
        Raises: RequestError for an id outside the vocabulary.
        """
        parts: list[bytes] = []
        at_start = self.add_space_prefix
        for token_id in ids:
            hidden = self.is_hidden(token_id)
            if special or not hidden:
                piece = self.token_bytes(token_id)
                parts.append(piece.removeprefix(b" ") if at_start and not hidden else piece)
            at_start = at_start and hidden
        return b"".join(parts).decode("utf-8", errors="replace")

    def _encode_text(self, text: str, parse_special: bool, literal_spans: Sequence[Span]) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the text has a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}: not Unicode"
            ) from None
        ids: list[int] = []
        after_special = True
        for token_id, start, end in self._partition(text, parse_special, literal_spans):
            if token_id is not None:
                ids.append(token_id)
            else:
                piece = text[start:end]
                if self._is_sentencepiece:
                    prefix = " " if self.add_space_prefix and after_special else ""
                    piece = (prefix + piece).replace(" ", SPACE_MARK)
                ids.extend(self._merger.encode(piece))
            after_special = token_id is not None
        return ids

    def _partition(
        self, text: str, parse_special: bool, literal_spans: Sequence[Span]
    ) -> list[tuple[int | None, int, int]]:
        """Cut `text` at special tokens: (token id, start, end) or (None, start, end) for ordinary text."""
        parts: list[tuple[int | None, int, int]] = [(None, 0, len(text))] if text else []
        for token_text, token_id, kind in self._specials:
            hidden = kind in _HIDDEN
            if (hidden and not parse_special) or token_text not in text:
                continue
            spans = literal_spans if hidden else ()
            cut: list[tuple[int | None, int, int]] = []
            for part in parts:
                if part[0] is not None:
                    cut.append(part)
                else:
                    cut.extend(self._cut_at(text, token_text, token_id, part[1:], spans))
            parts = cut
        return parts

    def _cut_at(
        self, text: str, token_text: str, token_id: int, bounds: Span, spans: Sequence[Span]
    ) -> list[tuple[int | None, int, int]]:
        """Cut one stretch of ordinary text at every occurrence of one token."""
        start, end = bounds
        cut: list[tuple[int | None, int, int]] = []
        search_from = start
        while (found := text.find(token_text, search_from, end)) >= 0:
            after = found + len(token_text)
            if spans and _overlaps(spans, found, after):
                search_from = found + 1
                continue
            if found > start:
                cut.append((None, start, found))
            cut.append((token_id, found, after))
            start = after
            while token_id in self._right_stripped and start < end and text[start] in _ASCII_SPACE:
                start += 1
            search_from = start
        if start < end:
            cut.append((None, start, end))
        return cut

    def _list_specials(self) -> list[tuple[str, int, TokenKind]]:
        kinds = self._vocabulary.kinds
        wanted = _HIDDEN | {TokenKind.USER_DEFINED}
        found = [(text, i, kinds[i]) for i, text in enumerate(self._vocabulary.texts) if kinds[i] in wanted]
        return sorted(found, key=lambda item: -len(item[0].encode("utf-8", "surrogateescape")))

    # -- bytes of a token

    def _check_id(self, token_id: int) -> None:
        if not 0 <= token_id < len(self._vocabulary.texts):
            raise RequestError(f"token id {token_id} is outside the vocabulary: accepted 0 to {self.n_vocab - 1}")

    def _find_bytes(self, token_id: int) -> bytes:
        text, kind = self._vocabulary.texts[token_id], self._vocabulary.kinds[token_id]
        if kind in (TokenKind.UNUSED, TokenKind.UNDEFINED):
            return b""
        if kind is TokenKind.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind is TokenKind.NORMAL and self._marks_spaces:
            text = text.replace(SPACE_MARK, " ")
        elif kind is TokenKind.NORMAL and all(char in BYTE_OF_CHAR for char in text):
            return bytes(BYTE_OF_CHAR[char] for char in text)
        return text.encode("utf-8", "surrogateescape")


def _overlaps(spans: Sequence[Span], start: int, end: int) -> bool:
    """Whether any of the ascending, disjoint spans shares a character with [start, end)."""
    nearest = bisect_right(spans, end - 1, key=lambda span: span[0]) - 1
    return nearest >= 0 and spans[nearest][1] > start


def _choose_pre(meta: Metadata, vocabulary: Vocabulary, override: str | None) -> PreTokenizer:
    """The pre-tokenizer by name. Like llama.cpp, a missing name means `default`, and that is announced."""
    name = override if override is not None else read_str(meta, vocabulary.source, "tokenizer.ggml.pre")
    if not name:
        vocabulary.notes.append(
            "tokenizer.ggml.pre is missing: text is cut by the pre-tokenizer 'default', "
            "which is wrong for most models and degrades answers; name the right one with --tokenizer-pre"
        )
        name = "default"
    if name in BYTE_LEVEL_PRE:
        return BYTE_LEVEL_PRE[name]
    what = "the pre-tokenizer override" if override is not None else "tokenizer.ggml.pre"
    raise ModelError(
        f"{vocabulary.source}: {what} is {name!r}; accepted: {known_names()}. If the model's tokenizer.json splits "
        "text like one of these, name it with --tokenizer-pre; guessing one would degrade every answer"
    )


def _check_byte_tokens(vocabulary: Vocabulary) -> None:
    for token_id, kind in enumerate(vocabulary.kinds):
        if kind is TokenKind.BYTE and not _BYTE_TOKEN.fullmatch(vocabulary.texts[token_id]):
            raise ModelError(
                f"{vocabulary.source}: tokenizer.ggml.tokens[{token_id}] is {vocabulary.texts[token_id]!r} "
                "and of type byte; accepted: <0x00> to <0xFF>"
            )


def _right_stripped(vocabulary: Vocabulary, meta: Metadata) -> frozenset[int]:
    """Tokens that swallow the white space after them: Phi-3's special tokens, which files mark by name only."""
    name = (read_str(meta, vocabulary.source, "general.name") or "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    stripped = {
        token_id
        for token_id, kind in enumerate(vocabulary.kinds)
        if kind in _HIDDEN or kind is TokenKind.USER_DEFINED or vocabulary.texts[token_id] == "</s>"
    }
    return frozenset(i for i in stripped if vocabulary.texts[i] not in ("<unk>", "<s>", "<|endoftext|>"))
