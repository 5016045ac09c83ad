"""Texts and pairs in, token rows out, with the ids that transformers gives for the same files.

The tokenizer file's own padding and truncation are switched off once, at load, and never set again: limits are
arguments of each call. (The reranker's file pads every pair to 8,000 tokens if left as it is, and settings changed on a
shared tokenizer leak between threads.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from tokenizers import Tokenizer as RawTokenizer

from samevec.errors import ArtifactCorruptError, InputError, InputTooLongError
from samevec.runtime.checks import whole_number
from samevec.runtime.long_text import (
    CALL_CHARACTERS,
    MAX_UNBROKEN_CHARACTERS,
    Content,
    UnbrokenTextError,
    call_groups,
    encode_long,
)
from samevec.runtime.rows import TokenRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tokenizers import Encoding

__all__ = ["Template", "Tokenizer", "split_longest_first"]


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A pinned tokenizer, safe to share between threads.

    Attributes
    ----------
    raw : tokenizers.Tokenizer
        Padding and truncation off.
    max_tokens : int
        The model's limit, special tokens included.
    type_ids : bool
        Whether rows carry segment ids.
    call_characters : int
        Characters tokenised in one call; longer texts are tokenised in pieces, see
        :mod:`samevec.runtime.long_text`.
    """

    raw: RawTokenizer
    max_tokens: int
    type_ids: bool = False
    call_characters: int = CALL_CHARACTERS

    @classmethod
    def from_file(cls, path: Path, *, max_tokens: int, type_ids: bool = False) -> Tokenizer:
        """Load ``tokenizer.json``.

        Raises
        ------
        ArtifactCorruptError
            The file is missing or is not a tokenizer.
        """
        try:
            raw = RawTokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every fault of the file
            raise ArtifactCorruptError(path, f"not a readable tokenizer ({error})") from error
        raw.no_padding()
        raw.no_truncation()
        return cls(raw, max_tokens, type_ids)

    def encode_texts(
        self,
        texts: Sequence[str],
        *,
        prompt: str = "",
        max_tokens: int | None = None,
        truncate: bool = True,
        field: str = "input",
    ) -> list[TokenRow]:
        """Tokenise texts.

        Parameters
        ----------
        texts : sequence of str
            The empty string is valid: it is the terminal token alone.
        prompt : str
            Put before each text as it is.
        max_tokens : int, optional
            Limit for this call, special tokens included; never above the model's own.
        truncate : bool
            Cut content tokens from the right so that the terminal token stays; False refuses instead.
        field : str
            What the caller calls the texts, for messages.

        Returns
        -------
        list of TokenRow
            In the order of `texts`.

        Raises
        ------
        InputError
            An item is not a string, holds a lone surrogate, or has more than a million characters that no word ends in.
        InputTooLongError
            An item is too long and `truncate` is false.
        """
        limit = self._limit(max_tokens, pair=False)
        _require_text(texts, field=field)
        template = Template.of(self.raw, is_pair=False)
        room = limit - template.n_tokens
        rows: list[TokenRow] = []
        for i, content in enumerate(self._contents(texts, room, field=field, prompt=prompt)):
            cut = self._cut(content, room, truncate, field=field, index=i, n_special=limit - room)
            rows.append(self._row(template, (content.ids[:room],), cut))
        return rows

    def encode_pairs(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        max_tokens: int | None = None,
        max_document_tokens: int | None = None,
        truncate: bool = True,
        field: str = "pairs",
    ) -> list[TokenRow]:
        """Tokenise (query, document) pairs.

        Parameters
        ----------
        pairs : sequence of (str, str)
        max_document_tokens : int, optional
            Most content tokens of each document; what exceeds it is cut before the pair as a whole.
        max_tokens, truncate, field
            As for :meth:`encode_texts`. Truncation is ``longest_first``: the longer side is cut until both fit, or both
            to half the room; every separator stays.

        Returns
        -------
        list of TokenRow
            In the order of `pairs`.

        Raises
        ------
        InputError, InputTooLongError
            As :meth:`encode_texts`.
        """
        limit = self._limit(max_tokens, pair=True)
        for side in (0, 1):
            _require_text([pair[side] for pair in pairs], field=field)
        # A query stands in as many pairs as it has documents.
        first_with: dict[str, int] = {}
        for i, (query, _) in enumerate(pairs):
            first_with.setdefault(query, i)
        found = self._contents(list(first_with), limit, field=field, indices=list(first_with.values()))
        queries = dict(zip(first_with, found, strict=True))
        documents = self._contents([document for _, document in pairs], limit, field=field)
        template = Template.of(self.raw, is_pair=True)
        rows: list[TokenRow] = []
        for i, ((query, _), document) in enumerate(zip(pairs, documents, strict=True)):
            room = document.n_tokens if max_document_tokens is None else max_document_tokens
            n_cut = self._cut(document, room, truncate, field=field, index=i, n_special=0)
            n_tokens = queries[query].n_tokens, document.n_tokens - n_cut
            n_kept = split_longest_first(*n_tokens, limit - template.n_tokens)
            if n_kept != n_tokens and not truncate:
                n_in_all = sum(n_tokens) + template.n_tokens
                raise InputTooLongError(field=field, index=i, n_tokens=n_in_all, limit_tokens=limit)
            kept = queries[query].ids[: n_kept[0]], document.ids[: n_kept[1]]
            rows.append(self._row(template, kept, n_cut + sum(n_tokens) - sum(n_kept)))
        return rows

    def rows_from_ids(self, id_lists: Sequence[Sequence[int]], *, field: str = "input") -> list[TokenRow]:
        """Take token ids as callers send them, ids exactly as given.

        Raises
        ------
        InputError
            A list is empty or holds something that is not a token id of this vocabulary.
        InputTooLongError
            Longer than the limit: caller's ids are never cut, since the terminal token may be anywhere.
        """
        n_vocabulary = self.raw.get_vocab_size(with_added_tokens=True)
        rows = []
        for i, ids in enumerate(id_lists):
            if not ids:
                raise InputError("no token ids", field=field, index=i)
            for value in ids:
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n_vocabulary:
                    raise InputError(f"{value!r} is not a token id (0 to {n_vocabulary - 1})", field=field, index=i)
            if len(ids) > self.max_tokens:
                raise InputTooLongError(field=field, index=i, n_tokens=len(ids), limit_tokens=self.max_tokens)
            rows.append(TokenRow(tuple(ids), (0,) * len(ids) if self.type_ids else None))
        return rows

    def _limit(self, max_tokens: int | None, *, pair: bool) -> int:
        if max_tokens is None:
            return self.max_tokens
        least = self.raw.num_special_tokens_to_add(is_pair=pair) + (2 if pair else 1)
        return whole_number(max_tokens, field="max_tokens", least=least, most=self.max_tokens)

    def _contents(
        self,
        texts: Sequence[str],
        keep_tokens: int,
        *,
        field: str,
        prompt: str = "",
        indices: Sequence[int] | None = None,
    ) -> Iterator[Content]:
        """Tokenise texts, some at a time; for messages each is the caller's item of its index, else of its position."""
        lengths = [len(prompt) + len(text) for text in texts]
        for group in call_groups(lengths, call_characters=self.call_characters):
            named = group if indices is None else [indices[i] for i in group]
            yield from self._encode([prompt + texts[i] for i in group], keep_tokens, field=field, indices=named)

    def _encode(self, texts: list[str], keep_tokens: int, *, field: str, indices: Sequence[int]) -> Iterator[Content]:
        """Tokenise a group of texts; a long one is in no group."""
        try:
            if len(texts) == 1 and len(texts[0]) > self.call_characters:
                yield encode_long(
                    self._encode_call, texts[0], keep_tokens=keep_tokens, call_characters=self.call_characters
                )
                return
            for encoding in self._encode_call(texts):
                yield Content(encoding.ids[:keep_tokens], len(encoding))
        except TypeError:
            for i, text in zip(indices, texts, strict=True):
                _require_unicode(text, field=field, index=i)
            raise
        except UnbrokenTextError as error:
            raise InputError(
                f"{error.n_characters} characters in which no word ends, the limit is {MAX_UNBROKEN_CHARACTERS}; "
                "send parts of it",
                field=field,
                index=indices[0],
            ) from None

    def _encode_call(self, texts: list[str]) -> list[Encoding]:
        return cast("list[Encoding]", self.raw.encode_batch_fast(texts, add_special_tokens=False))

    def _cut(self, content: Content, room: int, truncate: bool, *, field: str, index: int, n_special: int) -> int:
        cut = content.n_tokens - room
        if cut <= 0:
            return 0
        if not truncate:
            raise InputTooLongError(
                field=field, index=index, n_tokens=content.n_tokens + n_special, limit_tokens=room + n_special
            )
        return cut

    def _row(self, template: Template, contents: tuple[list[int], ...], cut: int) -> TokenRow:
        ids, type_ids = template.fill(contents)
        return TokenRow(tuple(ids), tuple(type_ids) if self.type_ids else None, cut)


@dataclass(frozen=True, slots=True)
class Template:
    """What a tokenizer's post-processor makes of one text or a pair.

    Asked of it once a call and filled in here: the library's own truncation keeps everything that it cuts off, in
    parts, and for a pair makes a row of every part of one side with every part of the other.

    Attributes
    ----------
    special : tuple of list of (int, int)
        Ids and segment ids of the special tokens before the first content, after it, and after the second.
    content_types : tuple of int
        Segment id of each content.
    """

    special: tuple[list[tuple[int, int]], ...]
    content_types: tuple[int, ...]

    @classmethod
    def of(cls, raw: RawTokenizer, *, is_pair: bool) -> Template:
        """Read it off a processed example."""
        content = raw.encode("a", add_special_tokens=False)
        encoding = raw.post_process(content, content) if is_pair else raw.post_process(content)
        special: tuple[list[tuple[int, int]], ...] = tuple([] for _ in range(3 if is_pair else 2))
        content_types: list[int] = []
        for id_, type_id, is_special in zip(encoding.ids, encoding.type_ids, encoding.special_tokens_mask, strict=True):
            if is_special:
                special[len(content_types) // len(content)].append((id_, type_id))
            else:
                content_types.append(type_id)
        return cls(special, tuple(content_types[:: len(content)]))

    @property
    def n_tokens(self) -> int:
        """How many special tokens there are."""
        return sum(map(len, self.special))

    def fill(self, contents: tuple[list[int], ...]) -> tuple[list[int], list[int]]:
        """Return ids and segment ids of a row."""
        ids, type_ids = ([one[i] for one in self.special[0]] for i in (0, 1))
        for content, type_id, special in zip(contents, self.content_types, self.special[1:], strict=True):
            ids += content
            ids += [id_ for id_, _ in special]
            type_ids += [type_id] * len(content)
            type_ids += [id_ for _, id_ in special]
        return ids, type_ids


def _require_text(texts: Sequence[str], *, field: str) -> None:
    for i, text in enumerate(texts):
        if not isinstance(text, str):  # asked first: the library takes a tuple of two strings for a pair
            raise InputError(f"{type(text).__name__} given, text is needed", field=field, index=i)


def _require_unicode(text: str, *, field: str, index: int) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"not valid Unicode text: {error.reason}", field=field, index=index) from error


def split_longest_first(n_query: int, n_document: int, room: int) -> tuple[int, int]:
    """Return how many content tokens each side of a pair keeps.

    Parameters
    ----------
    n_query, n_document : int
        Content tokens before truncation.
    room : int
        Content tokens that fit, special tokens already taken off.

    Returns
    -------
    (int, int)
        Kept tokens; their sum is at most `room`. The shorter side is cut only when it alone exceeds the room left by an
        even split, and then both keep half (an odd token goes to the longer side).

    References
    ----------
    The rule of ``TruncationStrategy::LongestFirst`` in the tokenizers library (0.22, ``utils/truncation.rs``), which
    transformers applies for ``truncation=True``; tests compare the two on random lengths.
    """
    if n_query + n_document <= room:
        return n_query, n_document
    shorter, longer = sorted((n_query, n_document))
    longer = shorter if shorter > room else max(shorter, room - shorter)
    if shorter + longer > room:
        shorter = room // 2
        longer = shorter + room % 2
    return (longer, shorter) if n_query > n_document else (shorter, longer)
