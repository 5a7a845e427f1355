"""einsum as permutations, products of two, and a reshape."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import torch

from ..ir.graph import Value


def einsum_product(c: Any, equation: str, operands: list[Value]) -> Value:
    """From left to right, two operands at a time; of a letter that an operand repeats, the diagonal."""
    terms, result = _letters(equation.replace(" ", ""), operands)
    pairs = [_without_repeats(c, x, term) for x, term in zip(operands, terms, strict=True)]
    operands, terms = [x for x, _ in pairs], [term for _, term in pairs]
    extent: dict[str, int] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, size in zip(term, x.shape, strict=True):
            extent[letter] = max(extent.get(letter, 1), size)
    # An extent of 1 is repeated, as in other ops.
    wide = [c.expand(x, [extent[letter] for letter in term]) for term, x in zip(terms, operands, strict=True)]
    x, term = wide[0], terms[0]
    for i in range(1, len(terms)):
        x, term = _product(c, (x, term), (wide[i], terms[i]), result + "".join(terms[i + 1 :]))
    x, term = _summed(c, x, term, result)
    return _arranged(c, x, term, result)


def _letters(equation: str, operands: list[Value]) -> tuple[list[str], str]:
    """The terms and the result, with a letter for each dimension of an ellipsis."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    ranks = [x.rank - len(term.replace("...", "")) for term, x in zip(terms, operands, strict=True) if "..." in term]
    free = [letter for letter in ascii_letters if letter not in equation][: max(ranks, default=0)]
    dots = "".join(free)
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        result = "..." * bool(ranks) + "".join(sorted(a for a in set(letters) if letters.count(a) == 1))

    def spelled(term: str, rank: int) -> str:
        own = len(term.replace("...", ""))
        return term.replace("...", dots[len(dots) - (rank - own) :] if rank > own else "")

    return ([spelled(term, x.rank) for term, x in zip(terms, operands, strict=True)], result.replace("...", dots))


def _without_repeats(c: Any, x: Value, term: str) -> tuple[Value, str]:
    while (again := next((i for i, letter in enumerate(term) if letter in term[:i]), None)) is not None:
        first = term.index(term[again])
        left = [d for d in range(x.rank) if d not in (first, again)]
        extent = x.shape[first]
        flat = c.reshape(c.permute(x, [*left, first, again]), (*(x.shape[d] for d in left), extent * extent))
        places = c.derive(f"diagonal{extent}", lambda n: torch.arange(n) * (n + 1), [extent])
        x = c.node("index_select", [flat, places], (*flat.shape[:-1], extent), {"dim": flat.rank - 1}).value()
        term = "".join(term[d] for d in left) + term[first]
    return x, term


def _product(c: Any, first: tuple[Value, str], second: tuple[Value, str], kept: str) -> tuple[Value, str]:
    """The product of two, summed over the letters that are no longer needed."""
    x, a = _summed(c, *first, kept + second[1])
    y, b = _summed(c, *second, kept + first[1])
    extent = dict(zip(a + b, x.shape + y.shape, strict=True))
    batch = [letter for letter in a if letter in b and letter in kept]
    inner = [letter for letter in a if letter in b and letter not in kept]
    rows = [letter for letter in a if letter not in b]
    columns = [letter for letter in b if letter not in a]

    def size(letters: list[str]) -> int:
        total = 1
        for letter in letters:
            total *= extent[letter]
        return total

    x = c.permute(x, [a.index(letter) for letter in batch + rows + inner])
    y = c.permute(y, [b.index(letter) for letter in batch + inner + columns])
    x = c.reshape(x, (size(batch), size(rows), size(inner)))
    y = c.reshape(y, (size(batch), size(inner), size(columns)))
    out = c.node("matmul", [x, y], (size(batch), size(rows), size(columns))).value()
    letters = batch + rows + columns
    return c.reshape(out, [extent[letter] for letter in letters]), "".join(letters)


def _summed(c: Any, x: Value, term: str, kept: str) -> tuple[Value, str]:
    """Without the letters that no other term has."""
    alone = [i for i, letter in enumerate(term) if letter not in kept]
    if not alone:
        return x, term
    return c.reduce("sum", x, alone), "".join(letter for letter in term if letter in kept)


def _arranged(c: Any, x: Value, term: str, result: str) -> Value:
    return c.permute(x, [term.index(letter) for letter in result])
