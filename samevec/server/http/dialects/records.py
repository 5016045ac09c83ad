"""What a dialect sends back."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON body, and headers that go with it."""

    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
