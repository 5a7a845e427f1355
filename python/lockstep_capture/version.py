"""The version of this package, which captures carry."""

__version__ = "0.1.0"
