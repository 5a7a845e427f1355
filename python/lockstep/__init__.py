"""The program lockstep, which the wheel has. `python -m lockstep demo` shows what it does. PyTorch is not needed."""

from .program import program_path

__all__ = ["program_path"]
