"""SVG elements from pure functions; text is escaped, invisible characters too."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["element", "joined", "visible"]

# Controls, formats (joiners, direction marks), surrogates, private use, unassigned, line and paragraph separators: they
# would change how the text around them reads, or could not be written to a file at all.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    r"""Return any text with invisible and non-XML characters written as escapes, such as ``\x00`` or ``\u202e``."""
    return "".join(_escape(char) if unicodedata.category(char) in _UNSEEN else char for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element; children that are no markup are escaped, None is left out.

    Attributes are named ``class_`` for ``class`` and ``aria_label`` for ``aria-label``; those of None are left out.
    """
    written = joined(_attribute(key, value) for key, value in attributes.items() if value is not None)
    return Markup(f"<{name}{written}>{joined(children)}</{name}>")  # noqa: S704  # every part is escaped


def _attribute(key: str, value: object) -> Markup:
    return Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), visible(str(value)))


def joined(children: Iterable[object]) -> Markup:
    """Return children one after another, escaped unless they are markup; None is left out."""
    return Markup("").join(_child(child) for child in children if child is not None)


def _child(child: object) -> Markup:
    return child if isinstance(child, Markup) else escape(visible(str(child)))
