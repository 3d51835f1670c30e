"""Texts of the demonstration run, some of them hostile, as those of a model can be."""

import struct
import zlib
from hashlib import sha256

from rollart_flow.types import Image

HOSTILE = (
    "<script>document.title = 'owned'</script>"
    '<img src="https://example.invalid/pixel.png" onerror="document.title=\'owned\'">'
    '<a href="javascript:alert(1)">42</a> \x1b[31mred\x1b[0m\x07 \u202ekcab\u202c '
    "[42](javascript:alert(1)) ${7*7} {{7*7}} \x00end"
)
"""Markup, escape sequences of terminals, a right-to-left override and a null character."""
LONG_LINE = "wide " * 4_000
"""A line of 20,000 characters."""

LAKE = ("SFFF\nFHFH\nFFFH\nHFFG", "-SFF\nFHFH\nFFFH\nHFFG", "--SF\nFHFH\nFFFH\nHFFG")
"""Observations of the lake: S is the place of the walker, H a hole, G the goal."""

BUG = (
    "tests/test_parse.py::test_empty fails: parse('') raises IndexError. Make it return []. "
    "Do not change the tests."
)
LISTING = "parse.py\nsetup.cfg\ntests/test_parse.py\n"
SOURCE = (
    "def parse(text):\n    head = text.split(',')[0]\n    return [head] + text.split(',')[1:]\n"
)
PASSED = "2 passed in 0.03s\n"
FAILED = "FAILED tests/test_parse.py::test_empty - IndexError: list index out of range\n"
DIFF = (
    "--- a/parse.py\n+++ b/parse.py\n@@ -1,3 +1,2 @@\n def parse(text):\n"
    "-    head = text.split(',')[0]\n-    return [head] + text.split(',')[1:]\n"
    "+    return text.split(',') if text else []\n"
)
CHEAT = (
    "--- a/tests/test_parse.py\n+++ b/tests/test_parse.py\n@@ -4,2 +4,2 @@\n"
    " def test_empty():\n-    assert parse('') == []\n+    assert True\n"
)
THINKING = (
    "The split of an empty text gives one empty part. I could return early, or filter the parts. "
    "Filtering would drop empty fields in the middle, so I return early."
)
SUMMARY = "So far: parse.py splits an empty text into one part; a guard on empty text is needed."

_COMMON = (
    "a and are as at be bug by call can change code could def do down early edit else empty "
    "end expected fails field fields file filter find first fix for from gives give guard "
    "hole how I if in index is it its left line list make may me move needed not of on one or "
    "out part parts parse pass passed path picture read reads return right run says see shows "
    "since so split step test tests text that the then there this to up walk walker was what "
    "where which with would write you"
)
WORDS = tuple(_COMMON.split())
"""Words that are one token each; all other text is a token for each character."""


def picture(number: int, size: int = 48) -> Image:
    """Return an image of two colours, without Pillow: a PNG file in RGB."""
    rows = []
    for y in range(size):
        inside = [(x - 12 - 6 * (number % 4)) ** 2 + (y - 24) ** 2 < 100 for x in range(size)]
        pixels = (b"\xd9\x48\x41" if each else b"\xe8\xee\xf4" for each in inside)
        rows.append(b"\x00" + b"".join(pixels))
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    parts = (("IHDR", head), ("IDAT", zlib.compress(b"".join(rows), 6)), ("IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_part(name.encode(), data) for name, data in parts)
    return Image(sha256(png).hexdigest(), png)


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
