"""A program as Lockstep's graph: values without in-place ops (ssa.py), then one rule per call (normaliser.py)."""
