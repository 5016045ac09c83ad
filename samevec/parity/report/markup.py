"""HTML and SVG from pure functions: what is not markup already is escaped, and what cannot be seen is spelled out."""

from __future__ import annotations

import html
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Html", "element", "joined", "visible"]

# HTML's elements without an end tag that are used here (the standard lists 13).
_VOID = frozenset({"meta", "br"})

# Controls, formats (joiners, direction marks), surrogates, private use, unassigned, line and paragraph separators: they
# would change how the text around them reads, or could not be written to a file at all.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class Html(str):
    """Text that is markup already; any other text is escaped when it becomes part of markup."""

    __slots__ = ()


def visible(text: str) -> str:
    r"""Return text with everything that cannot be seen written as an escape, such as ``\x00`` or ``\u202e``.

    Parameters
    ----------
    text : str
        Anything, lone surrogates and NUL included.

    Returns
    -------
    str
        Only characters that XML 1.0 allows and that leave the text around them alone.
    """
    return "".join(_escape(char) if unicodedata.category(char) in _UNSEEN else char for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element.

    Parameters
    ----------
    name : str
    *children : object
        Markup as it is, anything else as escaped text; None is left out.
    **attributes : object
        ``class_`` for ``class``, ``aria_label`` for ``aria-label``; None and False are left out, True has no value.

    Returns
    -------
    Html
    """
    start = f"<{name}" + "".join(_attribute(key, value) for key, value in attributes.items()) + ">"
    return Html(start if name in _VOID else f"{start}{joined(children)}</{name}>")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(visible(str(value)))}"'


def joined(children: Iterable[object]) -> Html:
    """Return children one after another, escaped where they are not markup; None is left out."""
    return Html("".join(_child(child) for child in children if child is not None))


def _child(child: object) -> str:
    return child if isinstance(child, Html) else html.escape(visible(str(child)), quote=False)
