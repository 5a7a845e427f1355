"""Captures that wait: a step is recorded when something happens, by taking it again."""
