"""Converts the recordings of tensor cores to vectors.

Writes their dot products with the columns of mma_vectors.csv, so that `lockstep verify --hardware --vectors` runs
their operands again on the local GPU. Usage: recordings_to_csv.py FOLDER [FIRST_ID] > FILE
(no header line: the rows go after those of mma_vectors.csv). Knows nothing of models.

FOLDER/<GPU>/<format>/<a|b|c|d>_<GPU>_<kind>.txt.gz: a and b are K hexadecimal FP32 patterns a line,
c and d 32 binary digits.
"""

import gzip
import pathlib
import struct
import sys

# GPU: hardware.
HARDWARE = {"V100": "volta", "A100": "ampere", "Ada": "ada", "H100": "hopper"}
# The recordings' names of formats: Lockstep's names.
TYPES = {"fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "E4M3": "fp8_e4m3", "E5M2": "fp8_e5m2"}


def float_of(pattern):
    return struct.unpack("<f", struct.pack("<I", pattern))[0]


def fp8_codes(exponent_bits, fraction_bits, bias):
    """Value to code, for positive and negative finite numbers."""
    codes = {}
    for code in range(1 << (exponent_bits + fraction_bits)):
        field, fraction = code >> fraction_bits, code & ((1 << fraction_bits) - 1)
        if exponent_bits == 5 and field == 31:
            continue  # infinity, NaN
        significand = fraction if field == 0 else fraction + (1 << fraction_bits)
        value = significand * 2.0 ** (max(field, 1) - bias - fraction_bits)
        codes[value] = code
        if value != 0:
            codes[-value] = code | 0x80
    return codes


E4M3, E5M2 = fp8_codes(4, 3, 7), fp8_codes(5, 2, 15)


def fp16_code(value):
    return struct.unpack("<H", struct.pack("<e", value))[0]  # to nearest even, exact for factors


def word(pattern, kind):
    if kind == "tf32":
        return f"{pattern:08x}"
    if kind == "bf16":
        return f"{pattern >> 16:04x}"
    if kind == "fp16":
        return f"{fp16_code(float_of(pattern)):04x}"
    return f"{(E4M3 if kind == 'E4M3' else E5M2)[float_of(pattern)]:02x}"


def lines(path):
    with gzip.open(path, "rt") as stream:
        return [line.split() for line in stream]


def instruction(gpu, kind, result):
    # On Hopper, FP8 to FP16 is mma.sync, made of FP16 instructions; FP8 to FP32 is wgmma.
    if gpu == "H100" and kind in ("E4M3", "E5M2"):
        return "mma.sync.m16n8k32-emulated" if result == "fp16" else "wgmma.k32"
    return "mma"


def main():
    folder = pathlib.Path(sys.argv[1])
    number = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for gpu, hardware in HARDWARE.items():
        for kind, type_ab in TYPES.items():
            place = folder / gpu / kind
            for result in ("fp32", "fp16"):
                path = place / f"d_{gpu}_{result}.txt.gz"
                if not path.exists():
                    continue
                a = lines(place / f"a_{gpu}_{kind}.txt.gz")
                b = lines(place / f"b_{gpu}_{kind}.txt.gz")
                name = instruction(gpu, kind, result)
                # Those were recorded from zero; c is not used.
                c = [["0"]] * len(a) if name == "wgmma.k32" else lines(place / f"c_{gpu}_fp32.txt.gz")
                for row in zip(a, b, c, lines(path), strict=True):
                    x, y = ([word(int(p, 16), kind) for p in row[i]] for i in (0, 1))
                    z, d = (float_of(int(row[i][0], 2)) for i in (2, 3))
                    short = result == "fp16"
                    end = [f"{fp16_code(v):04x}" if short else struct.pack(">f", v).hex() for v in (z, d)]
                    cells = [
                        number,
                        hardware,
                        name,
                        type_ab,
                        "f16" if short else "f32",
                        len(x),
                        "",
                        "",
                        "",
                        "",
                        " ".join(x),
                        " ".join(y),
                        *end,
                        f"recorded_{gpu}",
                        "hw",
                    ]
                    print(",".join(str(cell) for cell in cells))
                    number += 1


main()
