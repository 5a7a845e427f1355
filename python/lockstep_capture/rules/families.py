"""Every family of rules: whoever imports this has all of them registered."""

from . import (  # noqa: F401
    attention, bags, cells, choices, compare, composed, convolutions, custom_functions, distances,
    fake_quantize, functions, inverses, layers, losses, margins, math, matrices, norms, observers,
    packed, pools, products, recurrent, regions, sampling, scatters, segments, sequences, shape, sparse,
    upsampling, volumes, windows, writes
)
