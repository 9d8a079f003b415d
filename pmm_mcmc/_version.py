"""The version, where no import of anything else is needed for it."""

__version__ = "0.1.0"
