"""Captures in loops that others wrote: a callback for the Trainer of Transformers, and one for Lightning's.

Each module imports its package, and names it if it is missing; lockstep_capture itself imports neither.
"""
