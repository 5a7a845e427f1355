"""Ops that PyTorch itself writes out as others, on none of autocast's lists: recorded as those others."""

from __future__ import annotations

from typing import Any

_JOINED_OR_CUT = {"atleast_1d", "atleast_2d", "atleast_3d", "block_diag", "cartesian_prod", "column_stack", "combinations",
                  "diagflat", "dsplit", "dstack", "fliplr", "flipud", "hsplit", "hstack", "meshgrid", "msort", "pad_sequence",
                  "ravel", "row_stack", "swapdims", "take_along_dim", "unsafe_chunk", "vander", "vsplit", "vstack"}
_ARITHMETIC = {"corrcoef", "cov", "cumulative_trapezoid", "diff", "float_power", "gradient", "inner", "kron", "ldexp",
               "linalg_matmul", "linalg_matrix_power", "linalg_norm", "linalg_vander", "logdet", "matrix_power", "nanmean",
               "norm_except_dim", "positive", "special_logit", "special_logsumexp", "special_multigammaln", "special_xlogy",
               "sum_to_size", "trapezoid", "trapz"}
_OTHER_NAMES = {"absolute", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "fix",
                "special_digamma", "special_erf", "special_erfc", "special_erfinv", "special_exp2", "special_expit",
                "special_expm1", "special_gammaln", "special_log1p", "special_psi", "special_round", "special_sinc"}
_NAMES = {f"aten::{name}{end}" for name in _JOINED_OR_CUT | _ARITHMETIC | _OTHER_NAMES for end in ("", "_")}


def is_spelled_out(func: Any) -> bool:
    """Is the op recorded as the ops that func.decompose() calls?"""
    return func._schema.name in _NAMES and func.has_kernel_for_dispatch_key("CompositeImplicitAutograd")
