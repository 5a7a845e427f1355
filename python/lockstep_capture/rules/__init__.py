"""How each ATen op is expressed in Lockstep's ops: one file per family, context.py for all of them."""
