"""Every family of rules: whoever imports this has all of them registered."""

from . import (  # noqa: F401
    attention, bags, cells, choices, compare, composed, convolutions, custom_functions, distances,
    functions, layers, losses, margins, math, matrices, norms,
    packed, pools, products, recurrent, regions, sampling, scatters, segments, sequences, shape,
    upsampling, volumes, windows, writes
)
