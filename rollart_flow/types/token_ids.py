"""TokenIds: ids of tokens in one buffer, of which a prefix is shared at no cost."""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, overload

_CODE: Final = "i"
"""Code of integers of 32 bits, which the column `token_ids` has, too."""
_NUMPY_CODE = f"{'<' if sys.byteorder == 'little' else '>'}i4"
_BLOCK: Final = 4096
"""Tokens that are compared at once."""
_ROOM: Final = 1024
"""Tokens that a buffer which begins with others has room for, beside a part of their number."""


class TokenIds(Sequence[int]):
    """Ids of tokens that never change, equal to a tuple of the same ids.

    NumPy takes the buffer as it is, and pickling copies it as a whole, where a tuple of Python's
    integers costs time for each of them.

    Args:
        view: a view of integers of 32 bits that nothing changes, from the first of its object on.
    """

    __slots__ = ("_view",)

    def __init__(self, view: "memoryview[int]") -> None:
        self._view = view

    @classmethod
    def of(cls, token_ids: Iterable[int]) -> "TokenIds":
        """Return ids that are copied.

        Raises:
            OverflowError: an id has more than 32 bits.
        """
        return cls(memoryview(array(_CODE, token_ids)))

    def prefix(self, length: int) -> "TokenIds":
        """Return the first tokens, without a copy."""
        return TokenIds(self._view[:length])

    def common(self, other: "TokenIds") -> int:
        """Return the length of the longest common beginning.

        It costs nothing if both were read from the same buffer.
        """
        one, two = self._view, other._view
        most, start = min(len(one), len(two)), 0
        if one.obj is two.obj:
            return most
        while start < most:
            end = min(start + _BLOCK, most)
            if one[start:end].tobytes() != two[start:end].tobytes():
                return start + common_tokens(one[start:end], two[start:end])
            start = end
        return most

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._view)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        """Return an id, or a tuple of those of a slice."""
        found = self._view[index]
        return tuple(found.tolist()) if isinstance(found, memoryview) else found

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ids."""
        return iter(self._view)

    def __eq__(self, other: object) -> bool:
        """Whether the other one has the same ids, as a tuple or as `TokenIds`."""
        if isinstance(other, TokenIds):
            return self._view == other._view
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        """Hash of a tuple of the same ids."""
        return hash(tuple(self))

    def __repr__(self) -> str:
        """Text of a tuple of the same ids."""
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_bytes, (self._view.tobytes(),)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The buffer as NumPy takes it: int32 [tokens]."""
        shape = (len(self._view),)
        return {"version": 3, "shape": shape, "typestr": _NUMPY_CODE, "data": self._view}


class TokenBuffer:
    """Ids of tokens that become more; what was read of them stays as it is.

    Args:
        first: tokens that it begins with, which are copied as a whole.
    """

    __slots__ = ("_array", "_length", "_read")

    def __init__(self, first: TokenIds | None = None) -> None:
        self._array: array[int] = array(_CODE)
        self._length = self._read = 0
        """Number of tokens, and of those in `_array` that somebody has read."""
        if first:
            self._array.frombytes(first._view.cast("B"))
            self._length = len(first)
            self._array.frombytes(bytes(self._array.itemsize * (_ROOM + self._length // 8)))

    def __len__(self) -> int:
        """Number of tokens."""
        return self._length

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add tokens at the end; the cost is theirs, spread over all calls.

        Raises:
            OverflowError: an id has more than 32 bits.
        """
        new = memoryview(array(_CODE, token_ids))
        start, end = self._length, self._length + len(new)
        if end > len(self._array) or start < self._read:
            grown = array(_CODE, bytes(2 * end * self._array.itemsize))
            memoryview(grown)[:start] = memoryview(self._array)[:start]
            self._array, self._read = grown, 0
        memoryview(self._array)[start:end] = new
        self._length = end

    def cut(self, length: int) -> None:
        """Remove the tokens from an index on, if there are any."""
        self._length = min(self._length, length)

    def read(self) -> TokenIds:
        """Return the tokens, without a copy."""
        self._read = max(self._read, self._length)
        return TokenIds(memoryview(self._array)[: self._length].toreadonly())


def common_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common beginning of two chains."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _from_bytes(data: bytes) -> TokenIds:
    return TokenIds(memoryview(data).cast(_CODE))


NO_TOKENS: Final = TokenIds.of(())
