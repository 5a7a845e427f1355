"""`python -m lockstep ARGUMENTS`: the same as `lockstep ARGUMENTS`."""

from .program import main

main()
