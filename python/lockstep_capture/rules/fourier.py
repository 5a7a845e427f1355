"""Fourier transforms: products with matrices of cosines and sines, in FP32, rounded once.

A transform of n = a b points is one of a points, factors, and one of b points (Cooley and Tukey, Math. Comp. 19, 1965),
until a and b are small or prime. PyTorch's libraries sum in other orders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..ir.graph import Complex, Value
from .complex_numbers import COMPLEX_RULES, Operand, as_pairs, kernel, operand, short_name, times
from .context import RuleContext, rule
from .upsampling import exact_constant

_AT_ONCE = 64  # points that one matrix transforms, whatever their factors
_LIMIT = 2048  # points that do not factor


def _constant(c: RuleContext, name: str, tensor: torch.Tensor) -> Value:
    return exact_constant(c, name, tensor, of="fft")


def _circle(turns: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of 2 pi turns / n, exact at quarters."""
    turns = turns.remainder(n)
    angle = 2 * math.pi / n * turns.double()
    cos, sin = angle.cos(), angle.sin()
    return cos.masked_fill(4 * turns % (2 * n) == n, 0.0), sin.masked_fill(2 * turns % n == 0, 0.0)


def _transformed(c: RuleContext, z: Operand, sign: int) -> Complex:
    """The sum over j of z[j] exp(sign 2 pi i j k / n), along the last dimension."""
    *rest, n = z.shape
    a = next(divisor for divisor in range(math.isqrt(n), 0, -1) if n % divisor == 0)
    if n <= _AT_ONCE or a == 1:
        if n > _LIMIT:
            raise c.unsupported(
                f"{n} points, a prime factor above {_LIMIT}; pad the transform to another length (n=...)"
            )
        return _multiplied(c, z, sign)
    b = n // a
    z = _each(z, lambda x: _swapped(c, c.reshape(x, (*rest, a, b))))
    z = _transformed(c, z, sign)  # (..., j2, k1)
    cos, sin = _circle(torch.outer(torch.arange(b), torch.arange(a)), n)
    turn = Complex(_constant(c, f"cos{n}", cos), _constant(c, f"sin{sign * n}", sign * sin))
    z = _each(times(c, z, turn), lambda x: _swapped(c, x))
    z = _transformed(c, z, sign)  # (..., k1, k2)
    found = _each(z, lambda x: c.reshape(_swapped(c, x), (*rest, n)))
    assert isinstance(found, Complex)
    return found


def _multiplied(c: RuleContext, z: Operand, sign: int) -> Complex:
    n = z.shape[-1]
    cos, sin = _circle(torch.outer(torch.arange(n), torch.arange(n)), n)
    if isinstance(z, Value):
        x, matrices = z, (cos, sign * sin)
    else:
        x = c.node("cat", [z.real, z.imag], (*z.shape[:-1], 2 * n), {"dim": len(z.shape) - 1}).value()
        matrices = torch.cat([cos, -sign * sin]), torch.cat([sign * sin, cos])
    rows = math.prod(x.shape[:-1])
    flat = c.reshape(x, (rows, x.shape[-1]))
    parts = []
    for name, matrix in zip(("re", "im"), matrices, strict=True):
        of = _constant(c, f"dft_{name}{sign * n}_{len(matrix)}", matrix)
        parts.append(c.reshape(c.node("matmul", [flat, of], (rows, n)).value(), z.shape))
    return Complex(*parts)


def _each(z: Operand, body: Any) -> Any:
    return Complex(body(z.real), body(z.imag)) if isinstance(z, Complex) else body(z)


def _swapped(c: RuleContext, x: Value) -> Value:
    return c.permute(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def _along(c: RuleContext, z: Operand, dim: int, body: Any) -> Any:
    """body of z with that dimension as the last."""
    rank = len(z.shape)
    order = [d for d in range(rank) if d != dim] + [dim]
    back = [order.index(d) for d in range(rank)]
    return _each(body(_each(z, lambda x: c.permute(x, order))), lambda x: c.permute(x, back))


def _sized(c: RuleContext, z: Operand, dim: int, n: int) -> Operand:
    """Cut at n elements along a dimension, or filled up with zeros."""

    def sized(x: Value) -> Value:
        x = c.slice(x, dim, 0, min(n, x.shape[dim]))
        if x.shape[dim] == n:
            return x
        pads = [0, 0] * (x.rank - 1 - dim) + [0, n - x.shape[dim]]
        shape = (*x.shape[:dim], n, *x.shape[dim + 1 :])
        return c.node("pad", [x], shape, {"pads": pads}).value()

    return _each(z, sized)


def _completed(c: RuleContext, z: Operand, n: int) -> Complex:
    """The n points of a real signal's spectrum, of the first n // 2 + 1: z[n - k] is the conjugate of z[k]."""
    places = torch.arange(n)
    places = torch.minimum(places, n - places)
    signs = torch.where(torch.arange(n) <= n // 2, 1.0, -1.0).masked_fill(2 * places % n == 0, 0.0)
    at = c.derive(f"halves{n}", lambda n: places, [n])

    def every(x: Value) -> Value:
        return c.node("index_select", [x, at], (*x.shape[:-1], n), {"dim": x.rank - 1}).value()

    if isinstance(z, Value):
        return Complex(every(z), c.zeros((*z.shape[:-1], n)))
    return Complex(every(z.real), c.binary("mul", every(z.imag), _constant(c, f"conjugate{n}", signs)))


def _to_real(c: RuleContext, z: Operand, n: int, sign: int) -> Value:
    return _transformed(c, _completed(c, z, n), sign).real


def _transform(
    c: RuleContext, z: Operand, kind: str, dims: Sequence[int], sizes: Sequence[int], norm: str | None
) -> Operand:
    """kind: fft, ifft, rfft, irfft, hfft or ihfft, of several dimensions."""
    forward = kind in ("fft", "rfft", "hfft")
    sign, count = (-1 if forward else 1), math.prod(sizes)
    power = {"backward": 0.0 if forward else 1.0, "ortho": 0.5, "forward": 1.0 if forward else 0.0}[norm or "backward"]
    n = sizes[-1]
    half = n // 2 + 1 if kind in ("irfft", "hfft") else n
    for dim, size in zip(dims, [*sizes[:-1], half], strict=True):
        z = _sized(c, z, dim, size)
    if kind in ("irfft", "hfft"):
        for dim in dims[:-1]:
            z = _along(c, z, dim, lambda x: _transformed(c, x, sign))
        z = _along(c, z, dims[-1], lambda x: _to_real(c, x, n, sign))
    else:
        for dim in reversed(dims):
            z = _along(c, z, dim, lambda x: _transformed(c, x, sign))
            if dim == dims[-1] and kind in ("rfft", "ihfft"):
                z = _each(z, lambda x: c.slice(x, dims[-1], 0, n // 2 + 1))
    return _each(z, lambda x: c.scalar("mul", x, count**-power)) if power else z


def _fourier(c: RuleContext) -> Any:
    name = short_name(c).removeprefix("fft_")
    kind = name.rstrip("2n")
    z = operand(c, "self")
    rank = len(z.shape)
    if name == kind:
        dims, sizes = [c.a["dim"] % rank], [c.a["n"]]
    else:
        given = c.a.get("s")
        dims = (
            list(range(rank) if given is None else range(rank - len(given), rank))
            if c.a.get("dim") is None
            else list(c.a["dim"])
        )
        dims, sizes = [dim % rank for dim in dims], list(given) if given is not None else [None] * len(dims)
    sizes = [z.shape[dim] if size in (None, -1) else int(size) for dim, size in zip(dims, sizes, strict=True)]
    if kind in ("irfft", "hfft") and (c.a.get("n") is None and (not c.a.get("s") or c.a["s"][-1] == -1)):
        sizes[-1] = 2 * (z.shape[dims[-1]] - 1)
    return kernel(c, [z], lambda z: _transform(c, z, kind, dims, sizes, c.a["norm"]), of="fft")


def _window(c: RuleContext, n: int) -> Value | None:
    """The window in the middle of n points; None: all ones."""
    length = int(c.a["win_length"] or n)
    if not c.has("window") and length == n:
        return None
    window = c.value("window") if c.has("window") else c.derive(f"ones{length}", torch.ones, [length])
    before = (n - length) // 2
    pads = [before, n - length - before]
    return window if length == n else c.node("pad", [window], (n,), {"pads": pads}).value()


def _places(c: RuleContext, frames: int, n: int, hop: int) -> Value:
    """Which points of the signal each frame reads."""
    return c.derive(
        f"frames{frames}x{n}_{hop}",
        lambda frames, n, hop: (torch.arange(frames)[:, None] * hop + torch.arange(n)).reshape(-1),
        [frames, n, hop],
    )


def _stft(c: RuleContext) -> Any:
    """Frames of n points, hop apart, times the window, transformed."""
    x, n = operand(c, "input" if "input" in c.a else "self"), int(c.a["n_fft"])
    if c.a.get("center") or c.a.get("align_to_window"):
        raise c.unsupported("call torch.stft, without align_to_window")
    hop = int(c.a["hop_length"] or n // 4)
    *batch, length = x.shape
    frames = 1 + (length - n) // hop
    onesided = isinstance(x, Value) if c.a["onesided"] is None else bool(c.a["onesided"])
    window = _window(c, n)

    def body(x: Operand, *window: Value) -> Operand:
        at = _places(c, frames, n, hop)

        def framed(x: Value) -> Value:
            picked = c.node("index_select", [x, at], (*batch, frames * n), {"dim": x.rank - 1}).value()
            x = c.reshape(picked, (*batch, frames, n))
            return c.binary("mul", x, window[0]) if window else x

        kind = "rfft" if onesided else "fft"
        z = _transform(c, _each(x, framed), kind, [len(batch) + 1], [n], "ortho" if c.a["normalized"] else None)
        return _each(z, lambda x: _swapped(c, x))

    z = kernel(c, [x, *([window] if window else [])], body, of="fft")
    return z if c.a["return_complex"] is not False else as_pairs(c, z)


def _istft(c: RuleContext) -> Any:
    """Frames transformed back, times the window, added where they overlap, over the sum of the squared windows."""
    z, n = operand(c, "self"), int(c.a["n_fft"])
    hop = int(c.a["hop_length"] or n // 4)
    *batch, _, frames = z.shape
    if c.a["return_complex"]:
        raise c.unsupported("istft to a complex signal; write its real and imaginary part as two")
    window, total = _window(c, n), n + hop * (frames - 1)
    start = n // 2 if c.a["center"] else 0
    wanted = c.out_shape()[-1]
    end = min(start + wanted, total)

    def added(x: Value) -> Value:
        """(..., frames, n) at their places."""
        lead = x.shape[:-2]
        at = _places(c, frames, n, hop)
        shape = (*lead, total)
        flat = c.reshape(x, (*lead, frames * n))
        y = c.node("index_add", [flat, at], shape, {"dim": len(lead), "shape": shape}).value()
        return c.slice(y, len(lead), start, end)

    def body(z: Operand, *window: Value) -> Operand:
        z = _each(z, lambda x: _swapped(c, x))
        norm = "ortho" if c.a["normalized"] else None
        x: Any = _transform(c, z, "irfft", [len(batch) + 1], [n], norm)  # of a two-sided spectrum its first half
        one = window[0] if window else c.expand(c.derive("number1.0", torch.tensor, [1.0]), (n,))
        y = added(c.binary("mul", x, one) if window else x)
        y = c.binary("div", y, added(c.expand(c.binary("mul", one, one), (frames, n))))
        return _sized(c, y, y.rank - 1, wanted)

    return kernel(c, [z, *([window] if window else [])], body, of="fft")


_NAMES = [f"fft_{kind}{end}" for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft") for end in ("", "2", "n")]
rule("fft_irfft", "fft_hfft")(_fourier)  # of a real spectrum
COMPLEX_RULES |= {**dict.fromkeys(_NAMES, _fourier), "stft": _stft, "istft": _istft}
