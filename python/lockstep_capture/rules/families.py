"""Every family of rules: importing this module registers all of them."""

from . import (  # noqa: F401
    attention, bags, cells, choices, compare, composed, convolutions, custom_functions, distances,
    fake_quantize, functions, inverses, layers, losses, margins, math, matrices, norms, observers,
    packed, pools, products, recurrent, regions, sampling, scatters, segments, sequences, shape, sparse,
    upsampling, volumes, windows, writes
)
