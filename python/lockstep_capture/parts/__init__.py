"""Modules of a model too large to capture whole, recorded where they run: see parts.py."""
