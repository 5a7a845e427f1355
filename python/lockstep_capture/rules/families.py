"""Every family of rules: whoever imports this has all of them registered."""

from . import (attention, bags, cells, choices, compare, composed, convolutions, custom_functions, distances, layers, losses, math,  # noqa: F401
               norms, pools, products, recurrent, scatters, shape, windows)
