"""XXH3 (64 bits, with a seed) of the rows of an array, all rows at once, as Yann Collet's specification defines it.
Knows nothing of files."""

from __future__ import annotations

import numpy as np

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_U = np.uint64
_P32 = [_U(p) for p in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)]
_P64 = [
    _U(p) for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
]
_MX1, _MX2 = _U(0x165667919E3779F9), _U(0x9FB21C651E98DF25)
_LOW = _U(0xFFFFFFFF)
_STRIPE, _BLOCK_STRIPES = 64, 16
_ACCUMULATORS = np.array([_P32[2], *_P64[:4], _P32[1], _P64[4], _P32[0]], _U)
_SWAPPED = [1, 0, 3, 2, 5, 4, 7, 6]


def _secret(at: int, count: int = 1) -> np.ndarray:
    return np.frombuffer(_SECRET, "<u8", count, at)


def _shift(x: np.ndarray, bits: int) -> np.ndarray:
    return x ^ (x >> _U(bits))


def _folded_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The halves of the 128 bits of a * b, combined by exclusive or."""
    half = _U(32)
    a0, a1, b0, b1 = a & _LOW, a >> half, b & _LOW, b >> half
    low, mid, high = a0 * b0, a1 * b0, a1 * b1
    cross = (low >> half) + (mid & _LOW) + a0 * b1
    return ((cross << half) | (low & _LOW)) ^ ((mid >> half) + (cross >> half) + high)


def _avalanche(h: np.ndarray) -> np.ndarray:
    return _shift(_shift(h, 37) * _MX1, 32)


def _avalanche64(h: np.ndarray) -> np.ndarray:
    return _shift(_shift(_shift(h, 33) * _P64[1], 29) * _P64[2], 32)


def _words(data: np.ndarray, at: int, count: int = 1) -> np.ndarray:
    """(rows, count): 64-bit words from a byte on."""
    return np.ascontiguousarray(data[:, at : at + 8 * count]).view("<u8")


def _mixed(data: np.ndarray, at: int, secret: int, seeds: np.ndarray) -> np.ndarray:
    words, keys = _words(data, at, 2), _secret(secret, 2)
    return _folded_product(words[:, 0] ^ (keys[0] + seeds), words[:, 1] ^ (keys[1] - seeds))


def _short(data: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Of 0 to 16 bytes."""
    size = data.shape[1]
    if size == 0:
        return _avalanche64(seeds ^ (_secret(56) ^ _secret(64)))
    if size <= 3:
        first, middle, last = (data[:, at].astype(_U) for at in (0, size >> 1, size - 1))
        combined = (first << _U(16)) | (middle << _U(24)) | last | _U(size << 8)
        keys = _secret(0)
        return _avalanche64(combined ^ (((keys & _LOW) ^ (keys >> _U(32))) + seeds))
    if size <= 8:
        swapped = (seeds & _LOW).astype("<u4").byteswap().astype(_U)
        ends = [np.ascontiguousarray(data[:, at : at + 4]).view("<u4")[:, 0].astype(_U) for at in (0, size - 4)]
        h = (ends[1] + (ends[0] << _U(32))) ^ ((_secret(8) ^ _secret(16)) - (seeds ^ (swapped << _U(32))))
        h ^= ((h << _U(49)) | (h >> _U(15))) ^ ((h << _U(24)) | (h >> _U(40)))
        h *= _MX2
        h ^= (h >> _U(35)) + _U(size)
        return _shift(h * _MX2, 28)
    low = _words(data, 0)[:, 0] ^ ((_secret(24) ^ _secret(32)) + seeds)
    high = _words(data, size - 8)[:, 0] ^ ((_secret(40) ^ _secret(48)) - seeds)
    return _avalanche(_U(size) + low.byteswap() + high + _folded_product(low, high))


def _middle(data: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Of 17 to 240 bytes."""
    size = data.shape[1]
    acc = np.full(len(data), _U(size)) * _P64[0]
    if size <= 128:
        for i in range((size - 1) // 32 + 1):
            acc += _mixed(data, 16 * i, 32 * i, seeds) + _mixed(data, size - 16 * (i + 1), 32 * i + 16, seeds)
        return _avalanche(acc)
    for i in range(8):
        acc += _mixed(data, 16 * i, 16 * i, seeds)
    acc = _avalanche(acc)
    for i in range(8, size // 16):
        acc += _mixed(data, 16 * i, 16 * (i - 8) + 3, seeds)
    return _avalanche(acc + _mixed(data, size - 16, 136 - 17, seeds))


def _long(data: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    rows, size = data.shape
    pairs = np.tile(_secret(0, 24), (rows, 1))
    pairs[:, 0::2] += seeds[:, None]
    pairs[:, 1::2] -= seeds[:, None]
    secret = pairs.view(np.uint8)
    keys = [_words(secret, 8 * i, 8) for i in range(_BLOCK_STRIPES)]
    scrambling = _words(secret, len(_SECRET) - _STRIPE, 8)
    acc = np.tile(_ACCUMULATORS, (rows, 1))

    def accumulate(words: np.ndarray, key: np.ndarray) -> None:
        nonlocal acc
        keyed = words ^ key
        acc += words[:, _SWAPPED] + (keyed & _LOW) * (keyed >> _U(32))

    stripes = (size - 1) // _STRIPE
    for stripe in range(stripes):
        accumulate(_words(data, _STRIPE * stripe, 8), keys[stripe % _BLOCK_STRIPES])
        if stripe % _BLOCK_STRIPES == _BLOCK_STRIPES - 1:
            acc = (_shift(acc, 47) ^ scrambling) * _P32[0]
    accumulate(_words(data, size - _STRIPE, 8), _words(secret, len(_SECRET) - _STRIPE - 7, 8))
    merging = acc ^ _words(secret, 11, 8)
    result = np.full(rows, _U(size)) * _P64[0]
    for i in range(0, 8, 2):
        result += _folded_product(merging[:, i], merging[:, i + 1])
    return _avalanche(result)


def xxh3(data: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """data: (rows, bytes) of uint8; seeds: (rows,) of uint64. Returns: (rows,) of uint64."""
    size = data.shape[1]
    return (_short if size <= 16 else _middle if size <= 240 else _long)(data, seeds)
