"""The one place that states the version (CHANGELOG.md must agree; a test compares them)."""

__version__ = "0.1.0"
