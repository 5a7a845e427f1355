"""Which names of the report's kinds say what was planted, and why where there are several.

The names were learnt from the program's output, not from its rules.
"""

# Planted kind: names of a finding that is right.
ACCEPTED = {
    "forward overflow": {"overflow"},
    "sum overflow": {"sum overflow"},
    "storage overflow": {"storage overflow"},
    "storage underflow": {"storage underflow"},
    "invalid operation": {"invalid operation"},
    # An eps kept as a tensor is stored as 0, and 0 / 0 follows: the report may begin with either.
    "eps stored": {"invalid operation", "storage underflow"},
    "forward underflow": {"forward underflow"},
    "gradient underflow": {"underflow"},
    "gradient vanished": {"no gradient"},
    # The same in a lane without any loss scale: that there is none is the other half of the same fault.
    "gradient underflow, no scale": {"underflow", "no scaler"},
    "gradient vanished, no scale": {"no gradient", "no scaler"},
    "no GradScaler": {"no scaler"},
    "lost updates": {"lost updates"},
    "optimizer state vanished": {"state underflow"},
    "optimizer state overflow": {"state overflow"},
    "beta2 is 1": {"lost constant"},
    "swamping in a sum": {"swamping"},
    "swamping in an add": {"swamping"},
    # The overflow that skips every step is the fault; that all steps are skipped is what follows from it.
    "every step skipped": {"overflow"},
    "scale collapse": {"scale collapse"},
    # The scale falls below 1 by the same halvings; the sentence says how far.
    "scale below one": {"scale collapse"},
    "saturation in FP8": {"saturation"},
}
# Kinds of the lane as a whole, right without a layer although the fault has one: no scaler is no layer's fault.
OF_THE_LANE = {"no GradScaler"}
