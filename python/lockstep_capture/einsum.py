"""einsum of one or two operands as permutations, one product, and a reshape."""

from __future__ import annotations

from typing import Any

from .ir import Value


def einsum_product(c: Any, equation: str, operands: list[Value]) -> Value:
    """Throws: Unsupported for more than two operands, ellipses and repeated letters (diagonals)."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if "." in equation or len(terms) > 2 or any(len(set(term)) != len(term) for term in terms):
        raise c.unsupported("einsum of at most two operands, without ellipsis or repeated letters")
    if not arrow:
        letters = left.replace(",", "")
        result = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    extent = {letter: size for term, x in zip(terms, operands, strict=True)
              for letter, size in zip(term, x.shape, strict=True)}
    if len(terms) == 1:
        x, term = _summed(c, operands[0], terms[0], result)
        return _arranged(c, x, term, result)
    (x, a), (y, b) = (_summed(c, operand, term, result + other)
                      for operand, term, other in ((operands[0], terms[0], terms[1]),
                                                   (operands[1], terms[1], terms[0])))
    batch = [letter for letter in a if letter in b and letter in result]
    inner = [letter for letter in a if letter in b and letter not in result]
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
    term = "".join(batch + rows + columns)
    return _arranged(c, c.reshape(out, [extent[letter] for letter in term]), term, result)


def _summed(c: Any, x: Value, term: str, kept: str) -> tuple[Value, str]:
    """Without the letters that nobody else has."""
    alone = [i for i, letter in enumerate(term) if letter not in kept]
    if not alone:
        return x, term
    return c.reduce("sum", x, alone), "".join(letter for letter in term if letter in kept)


def _arranged(c: Any, x: Value, term: str, result: str) -> Value:
    return c.permute(x, [term.index(letter) for letter in result])
