"""python -m lockstep_capture.trigger FAULT.json: see answer.py."""

import sys

from .answer import main

main(sys.argv[1])
