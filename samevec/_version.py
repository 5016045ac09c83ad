"""The one place of the version; CHANGELOG.md must agree, which a test checks."""

__version__ = "0.1.0"
