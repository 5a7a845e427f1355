"""Every family of rules: whoever imports this has all of them registered."""

from . import (attention, bags, cells, choices, compare, composed, convolutions, custom_functions, distances, functions, layers,  # noqa: F401
               losses, margins, math, matrices, norms, packed, pools, products, recurrent, sampling, scatters, segments, sequences, shape,
               upsampling, volumes, windows, writes)
