"""A user's source file as a syntax tree: which code stands in a line, and where a name in it gets its value."""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
from collections.abc import Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.Lambda, ast.Module)
MOST_VALUES = 64  # of one name


def hash_of(node: ast.AST) -> str:
    """The same for equal code: white space, comments and line numbers do not count."""
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()[:16]


def last_name(node: ast.AST) -> str:
    """ "AdamW" of `torch.optim.AdamW`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def paired(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """`a` with 1 and `b` with 2 of `a, b = 1, 2`."""
    if isinstance(target, (ast.Tuple, ast.List)):
        is_split = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for number, one in enumerate(target.elts):
            yield from paired(one, value.elts[number] if is_split else value)  # type: ignore[attr-defined]
    else:
        yield target, value


class Source:
    """A file that cannot be read, or is not Python, has an empty tree."""

    def __init__(self, file: str, text: str):
        self.file = file
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError):
            self.tree = ast.Module([], [])
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._calls: dict[ast.AST, list[ast.Call]] = {}  # by what they are in
        self._bound: dict[tuple[ast.AST, bool], list[tuple[ast.AST, ast.AST]]] = {}

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """From the inside to the module."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def at(self, line: int) -> list[ast.AST]:
        """The nodes over this line, the innermost last."""
        found = [node for node in ast.walk(self.tree) if _first(node) <= line <= getattr(node, "end_lineno", 0)]
        return sorted(found, key=lambda node: (_first(node), -node.end_lineno))  # type: ignore[attr-defined]

    def calls(self, names: set[str], within: ast.AST | None = None) -> list[ast.Call]:
        """In the order of the file."""
        place = within or self.tree
        if place not in self._calls:
            found = [node for node in ast.walk(place) if isinstance(node, ast.Call)]
            self._calls[place] = sorted(found, key=lambda node: (node.lineno, node.col_offset))
        return [call for call in self._calls[place] if last_name(call.func) in names]

    def _bindings(self, scope: ast.AST, inside: bool = False) -> list[tuple[ast.AST, ast.AST]]:
        key = (scope, inside)
        if key not in self._bound:
            self._bound[key] = list(_bindings(scope, inside))
        return self._bound[key]

    def call_at(self, line: int, names: set[str]) -> ast.AST | None:
        """The call of one of these that runs in this line; else the statement."""
        nodes = self.at(line)
        for node in reversed(nodes):
            if isinstance(node, ast.Call) and last_name(node.func) in names:
                return node
        return next((node for node in reversed(nodes) if isinstance(node, ast.stmt)), None)

    def values_of(self, name: ast.AST, near: ast.AST) -> list[ast.AST]:
        """What a name, or an attribute of some object, is given in this file: in the function around `near`, else in those
        around that, else in the module."""
        if isinstance(name, ast.Attribute):
            return self._values_of_attribute(name)[:MOST_VALUES]
        if not isinstance(name, ast.Name):
            return []
        for scope in (node for node in self.around(near) if isinstance(node, _SCOPES)):
            found = [
                value
                for target, value in self._bindings(scope)
                if isinstance(target, ast.Name) and target.id == name.id and value is not near
            ]
            if found:
                return found[:MOST_VALUES]
        return []

    def _values_of_attribute(self, name: ast.Attribute) -> list[ast.AST]:
        """`self.eps = 1e-5`; `eps: float = 1e-5` of a dataclass; `add_argument("--eps", default=1e-5)`."""
        found = [
            value
            for target, value in self._bindings(self.tree, inside=True)
            if (isinstance(target, ast.Attribute) and target.attr == name.attr)
            or (
                isinstance(target, ast.Name)
                and target.id == name.attr
                and isinstance(next(self.around(target), None), ast.AnnAssign)
            )
        ]
        for call in self.calls({"add_argument"}):
            options = [
                word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            ]
            if name.attr in (word.lstrip("-").replace("-", "_") for word in options):
                found += [word.value for word in call.keywords if word.arg == "default"] or [call]
        return found

    def values_set(self, name: str, body: ast.AST) -> list[ast.AST]:
        """Of `self.name = ...` in a class."""
        return [
            value
            for target, value in self._bindings(body, inside=True)
            if isinstance(target, ast.Attribute)
            and target.attr == name
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        ]

    def functions(self, name: str) -> list[ast.AST]:
        return [node for node in ast.walk(self.tree) if isinstance(node, _FUNCTIONS) and node.name == name]

    def class_at(self, line: int) -> ast.ClassDef | None:
        return next((node for node in reversed(self.at(line)) if isinstance(node, ast.ClassDef)), None)


def source_of(file: str) -> Source:
    return _parsed(file, "".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=64)
def _parsed(file: str, text: str) -> Source:
    return Source(file, text)


def _first(node: ast.AST) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([getattr(node, "lineno", 1 << 30), *(one.lineno for one in decorators)])


def _bindings(scope: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Target and value of what a scope itself binds; inside: also what the scopes in it bind."""
    if isinstance(scope, (*_FUNCTIONS, ast.Lambda)):
        yield from _defaults(scope.args)
    for node in _own_nodes(scope, inside):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from paired(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, _FUNCTIONS):
            yield ast.Name(node.name), node


def _defaults(arguments: ast.arguments) -> Iterator[tuple[ast.AST, ast.AST]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    for argument, value in pairs:
        if value is not None:
            yield ast.Name(argument.arg), value


def _own_nodes(scope: ast.AST, inside: bool) -> Iterator[ast.AST]:
    """In the order of the file."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if inside or not isinstance(child, (*_SCOPES, ast.ClassDef)):
            yield from _own_nodes(child, inside)
