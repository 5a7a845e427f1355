"""What is counted of a tensor, where it is: one exponent histogram and a few moments. Nothing waits for a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

BINS = 256  # FP32 exponent fields: 0 zero and subnormal, 255 infinity and NaN
_CHUNK = 1 << 17  # elements, so that the passes over them stay in a CPU's cache
_DEVICE_CHUNK = 1 << 24  # FP32 counts so far
_LAST = BINS - 1
_FP32_BIAS, _FP64_BIAS = 127, 1023
_FP32_DIGITS, _FP64_DIGITS = 23, 52  # stored ones of the significand
_SAFE_SQUARES = (1e-12, 1e15)  # the largest magnitude, whose square and the sum of a chunk's are FP32's


@dataclass
class Counts:
    """Of one tensor, or of several. All on its device: histogram int64[256]; numbers float64: see NUMBERS."""

    histogram: torch.Tensor
    numbers: torch.Tensor


NUMBERS = ("count", "zeros", "nan", "sum_sq")  # added up; the largest magnitude stands apart
LARGEST = len(NUMBERS)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The stored numbers in a row: the local part of a distributed tensor, the values of a sparse one."""
    local = getattr(tensor, "to_local", None)
    tensor = local() if callable(local) else tensor
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


def exponents(values: torch.Tensor) -> torch.Tensor:
    """Exponent fields of FP32, uint8. FP64 values take the field of their exponent, clamped to 0 to 255."""
    if values.dtype == torch.float64:
        field = (values.view(torch.int64) >> _FP64_DIGITS) & (2 * _FP64_BIAS + 1)
        is_finite = field != 2 * _FP64_BIAS + 1
        field = torch.where(is_finite, (field - _FP64_BIAS + _FP32_BIAS).clamp(0, _LAST), _LAST)
        return torch.where(values == 0, 0, field).to(torch.uint8)
    if values.dtype != torch.float32:
        values = values.to(torch.float32)  # exact
    return (values.view(torch.int32) >> _FP32_DIGITS).to(torch.uint8)  # drops the sign


def count(tensor: torch.Tensor) -> Counts:
    """Error: sum_sq is formed in FP32 within chunks of 131072 elements on a CPU, at most 1e-4 of the sum."""
    values = plain(tensor)
    return _on_cpu(values) if values.device.type == "cpu" else _on_device(values)


def _on_device(values: torch.Tensor) -> Counts:
    """In parts, so that its temporary tensors stay small."""
    total: Counts | None = None
    for chunk in values.split(_DEVICE_CHUNK):
        counts = _chunk_on_device(chunk)
        total = counts if total is None else merged(total, counts)
    return _chunk_on_device(values) if total is None else total


def _chunk_on_device(values: torch.Tensor) -> Counts:
    # Not bincount(), which reads its result's size on the host. Counts of a chunk are exact in FP32.
    bins = exponents(values).to(torch.float32)
    histogram = torch.histc(bins, BINS, 0, BINS).to(torch.int64)
    if values.dtype not in (torch.float32, torch.float64):
        values = values.to(torch.float32)
    is_nan, magnitude = values.isnan(), values.abs()
    zero = torch.zeros((), dtype=values.dtype, device=values.device)
    finite = torch.where(values.isfinite(), values, zero)
    largest = torch.where(is_nan, zero, magnitude).max() if values.numel() else zero
    numbers = torch.stack(
        [
            torch.full((), values.numel(), dtype=torch.float64, device=values.device),
            (values == 0).sum().to(torch.float64),
            is_nan.sum().to(torch.float64),
            torch.linalg.vector_norm(finite, dtype=torch.float64) ** 2,
            largest.to(torch.float64),
        ]
    )
    return Counts(histogram, numbers)


def _on_cpu(values: torch.Tensor) -> Counts:
    histogram = torch.zeros(BINS, dtype=torch.int64)
    zeros = nan = 0
    sum_sq = largest = 0.0
    for chunk in values.split(_CHUNK):
        if chunk.dtype not in (torch.float32, torch.float64):
            chunk = chunk.to(torch.float32)
        if not chunk.numel():
            continue
        bins = torch.bincount(exponents(chunk), minlength=BINS)
        histogram += bins
        if bins[0]:
            zeros += chunk.numel() - int(torch.count_nonzero(chunk))
        if bins[_LAST]:
            nan += int(chunk.isnan().sum())
            largest = math.inf if bool(chunk.isinf().any()) else largest
            chunk = chunk[chunk.isfinite()]
            if not chunk.numel():
                continue
        low, high = torch.aminmax(chunk)
        top = max(abs(float(low)), abs(float(high)))
        largest = max(largest, top)
        wide = None if _SAFE_SQUARES[0] < top < _SAFE_SQUARES[1] else torch.float64
        norm = float(torch.linalg.vector_norm(chunk, dtype=wide))
        sum_sq += norm * norm
    return Counts(histogram, torch.tensor([values.numel(), zeros, nan, sum_sq, largest], dtype=torch.float64))


@dataclass
class Updates:
    """Of one weight in one optimizer step. numbers, float64: see UPDATE_NUMBERS."""

    counts: Counts
    numbers: torch.Tensor


# count: of elements with a gradient that is not zero.
UPDATE_NUMBERS = ("count", "stagnant", "stagnant_bf16", "update_sq", "weight_sq")


def count_update(before: torch.Tensor, after: torch.Tensor, gradient: torch.Tensor | None) -> Updates:
    """before: the weight's plain() values, a copy. Stagnant: has a gradient that is not zero, and kept its value; the
    addend itself is not to be seen. stagnant_bf16: bf16(bf16(before) + update) would be bf16(before); of BF16 weights the same
    as stagnant."""
    after = plain(after)
    given = None if gradient is None else plain(gradient)
    size = _CHUNK if after.device.type == "cpu" else _DEVICE_CHUNK
    total: Counts | None = None
    numbers = torch.zeros(len(UPDATE_NUMBERS), dtype=torch.float64, device=after.device)
    for start in range(0, after.numel(), size):
        old, new = before[start : start + size], after[start : start + size]
        update = new.to(torch.float32) - old.to(torch.float32)  # exact where it is small
        counts = count(update)
        total = counts if total is None else merged(total, counts)
        kept = new == old
        grad = None if given is None or given.numel() != after.numel() else given[start : start + size]
        moves = torch.ones_like(kept) if grad is None else grad != 0
        stagnant = (kept & moves).sum()
        stagnant_bf16 = stagnant
        if old.dtype != torch.bfloat16:
            narrow = old.to(torch.bfloat16)
            would = (narrow.to(torch.float32) + update).to(torch.bfloat16) == narrow
            stagnant_bf16 = (would & moves & (update != 0)).sum()
        weight_sq = torch.linalg.vector_norm(old.to(torch.float32), dtype=torch.float64) ** 2
        part = [
            moves.sum().to(torch.float64),
            stagnant.to(torch.float64),
            stagnant_bf16.to(torch.float64),
            counts.numbers[NUMBERS.index("sum_sq")],
            weight_sq,
        ]
        numbers += torch.stack(part)
    return Updates(total if total is not None else count(after), numbers)


def merged(one: Counts, other: Counts) -> Counts:
    numbers = one.numbers + other.numbers
    numbers[LARGEST] = torch.maximum(one.numbers[LARGEST], other.numbers[LARGEST])
    return Counts(one.histogram + other.histogram, numbers)
