"""Where the user's script makes and sets what no op of the graph has: the optimizer and its numbers, clipping, the
scaler, modules, buffers, ties of weights, seeds, batches (docs/capture-file.md, /lines).

Nothing is patched before the loop runs: the frames that run when the capture begins, and the syntax trees of their
files and of the model's classes, have the code. A thing has several lines where its value comes from another: that of
`lr=LR`, then that of `LR = 1e-3`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from .script_source import Source, hash_of, last_name, source_of
from .user_code import Place, is_own_file, own_frames

_SEEDERS = {"manual_seed", "seed_everything", "set_seed"}
_SCHEDULES = {
    name
    for name, kind in vars(torch.optim.lr_scheduler).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler)
} | {"ReduceLROnPlateau"}
_CLIPPERS = {"clip_grad_norm_", "clip_grad_value_", "clip_gradients"}
_INITS = {name for name in vars(torch.nn.init) if name.endswith("_") and name[0] != "_"}
_FREEZES = "requires_grad_"
_SWITCHES = {_FREEZES, "train", "eval"}
_LISTS = {"parameters", "named_parameters", "modules", "named_modules", "children", "named_children"}
_MOST_NAMES = 8  # whose values are looked up for one thing


@dataclass(frozen=True)
class Line:
    """of: the thing; at: "train.py:57"; hash: of the code there; value: see docs/capture-file.md."""

    of: str
    at: str = ""
    hash: str = ""
    value: str = ""

    def json(self) -> dict[str, str]:
        return {key: text for key, text in vars(self).items() if text}


@dataclass(frozen=True)
class Caller:
    """A running frame of the user's code. is_direct: no trainer of a library runs inside of it."""

    place: Place
    is_direct: bool


@dataclass(frozen=True)
class _Switch:
    """Code that freezes a module or parameter, or has it train or evaluate. tail: the last words of the path as the code says
    them, "norm.bias" of `self.norm.bias`; "": the model, or unknown."""

    source: Source
    node: ast.AST
    tail: str
    freezes: bool

    def is_of(self, path: str) -> bool:
        """Whether it may be meant for this path, or for a module around it."""
        return not self.tail or _is_part(self.tail, path)


def callers() -> list[Caller]:
    """The innermost first. Reads no variables: `frame.f_locals` would keep their values alive."""
    return [Caller(Place(frame.f_code.co_filename, frame.f_lineno), is_direct) for frame, is_direct in own_frames()]


class ScriptLines:
    """The lines of one captured loop."""

    def __init__(
        self, made_at: Place | None, model: torch.nn.Module, optimizer: Any, scaler: Any, step_fn: Callable[..., Any]
    ):
        """made_at: where the Capture was made."""
        self._made_at, self._running = made_at, callers()
        self._model, self._step_fn = model, step_fn
        self._optimizer, self._scaler = optimizer, scaler
        self._seed = torch.initial_seed()
        self._classes: dict[str, tuple[Source, ast.ClassDef] | None] = {}  # by path of a module

    def rows(
        self,
        places: Mapping[str, Place],
        ties: Iterable[list[str]],
        params: Iterable[str],
        values: Mapping[str, str],
    ) -> list[Line]:
        """places: where the first step called backward(), clipped, …; ties: paths of one parameter each; params: paths of
        parameters and buffers; values: of things, in words."""
        ties = [paths for paths in ties if len(paths) > 1]
        kinds = {type(module): None for _, module in self._model.named_modules()}
        classes = {kind: _class_of(kind) for kind in kinds}
        self._classes = {path: classes[type(module)] for path, module in self._model.named_modules()}
        found = [
            *(Line(thing, value=value) for thing, value in values.items()),
            *self._optimizer_lines(),
            *self._made("scaler", self._scaler, {"GradScaler"}),
            *self._called(places),
            *self._batches(),
            *self._seeds(),
            *self._ties(ties),
            *self._modules(params, ties),
        ]
        return [*dict.fromkeys(found), *self._code()]

    def _sources(self) -> list[Source]:
        """The files of the running frames, then those of the model's classes."""
        files = [caller.place.file for caller in self._running]
        files += [found[0].file for found in self._classes.values() if found is not None]
        return [source_of(file) for file in dict.fromkeys(files)]

    # ---- what the frames made

    def _made(self, thing: str, value: Any, kinds: set[str]) -> Iterator[Line]:
        made = self._maker(thing, kinds) if value is not None else None
        if made is not None:
            yield from _explained(thing, *made)

    def _maker(self, thing: str, kinds: set[str]) -> tuple[Source, ast.AST] | None:
        """The call that made it: what its name was given where the loop runs; else the only call of its class."""
        source, near, name = self._argument(thing)
        for value in reversed(source.values_of(name, near)) if name is not None else []:
            inner = source.calls(kinds, value)
            if inner or isinstance(value, ast.Call):
                return self._inside(source, inner[0] if inner else value, kinds)
        found = [(source, call) for source in self._sources() for call in source.calls(kinds)]
        return found[0] if len(found) == 1 else None

    def _argument(self, thing: str) -> tuple[Source, ast.AST, ast.AST | None]:
        """What `Capture(...)` was given for it: `optimizer`, `self.opt`."""
        place = self._made_at or Place("", 0)
        source = source_of(place.file)
        call = source.call_at(place.line, {"Capture"})
        if not isinstance(call, ast.Call):
            return source, source.tree, None
        given = dict(zip(("path", "model", "optimizer"), call.args, strict=False))
        given |= {word.arg: word.value for word in call.keywords if word.arg}
        return source, call, given.get(thing)

    @staticmethod
    def _inside(source: Source, call: ast.AST, kinds: set[str]) -> tuple[Source, ast.AST]:
        """Of `optimizer = make_optimizer(...)`, a function of the same file, the call in it."""
        if isinstance(call, ast.Call) and last_name(call.func) not in kinds:
            for made in source.functions(last_name(call.func)):
                if inner := source.calls(kinds, made):
                    return source, inner[-1]
        return source, call

    def _optimizer_lines(self) -> Iterator[Line]:
        optimizer = self._optimizer
        if optimizer is None:
            return
        kinds = {kind.__name__ for kind in type(optimizer).__mro__ if kind not in (object, torch.optim.Optimizer)}
        made = self._maker("optimizer", kinds)
        yield from self._rates(made)
        if made is None:
            return
        source, call = made
        yield from _explained("optimizer", source, call)
        for key, value in _keywords(call):
            if key == "betas" and isinstance(value, ast.Tuple) and len(value.elts) == 2:
                for number, beta in enumerate(value.elts, 1):
                    yield from _explained(f"optimizer beta{number}", source, beta)
            elif key != "lr":
                yield from _explained(f"optimizer {key}", source, value)

    def _rates(self, made: tuple[Source, ast.AST] | None) -> Iterator[Line]:
        """The schedules, the last one first, which decide the rate of a step; then the optimizer's own number."""
        thing, groups = "optimizer lr", self._optimizer.param_groups
        for source in self._sources() if any("initial_lr" in group for group in groups) else []:
            for call in reversed(source.calls(_SCHEDULES)):
                yield from _explained(thing, source, call)
        for source in self._sources():
            for node in ast.walk(source.tree):
                if isinstance(node, (ast.Assign, ast.AugAssign)) and any(map(_is_rate, _targets(node))):
                    yield from _explained(thing, source, node)
        if made is not None:
            for value in (value for key, value in _keywords(made[1]) if key == "lr"):
                yield from _explained(thing, made[0], value)

    # ---- what the loop called

    def _called(self, places: Mapping[str, Place]) -> Iterator[Line]:
        names = {"backward": {"backward"}, "step": {"step"}, "clipping": _CLIPPERS, "autocast": {"autocast"}}
        found = {}
        for name, place in places.items():
            source = source_of(place.file)
            node = source.call_at(place.line, names[name])
            found[name] = [Line("", f"{os.path.basename(place.file)}:{place.line}")]
            if node is not None:
                found[name] = list(_explained("", source, node))
            if name == "step" and node is not None:
                yield from self._accumulation(source, node)
        things = {
            "factor of the loss": "backward",
            "clipping": "clipping" if "clipping" in found else "step",
            "autocast": "autocast",
            "optimizer step": "step",
        }
        for thing, name in things.items():
            yield from (Line(thing, line.at, line.hash) for line in found.get(name, []))

    @staticmethod
    def _accumulation(source: Source, step: ast.AST) -> Iterator[Line]:
        """The condition of the optimizer's step."""
        test = next((node.test for node in source.around(step) if isinstance(node, ast.If)), None)
        if test is not None:
            yield from _explained("accumulate", source, test)

    def _batches(self) -> Iterator[Line]:
        """The loop around the running line, and the functions that it takes its batches from."""
        for caller in (caller for caller in self._running if caller.is_direct):
            source = source_of(caller.place.file)
            loop = next((node for node in reversed(source.at(caller.place.line)) if isinstance(node, ast.For)), None)
            if loop is not None:
                for thing in ("batches", "batch"):  # what they hold, and their size
                    yield from _explained(thing, source, loop.iter, statements=True)
                return

    def _seeds(self) -> Iterator[Line]:
        yield Line("seed", value=str(self._seed))
        for caller in self._running:
            source = source_of(caller.place.file)
            for call in source.calls(_SEEDERS):
                is_generators = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)
                if not is_generators:  # torch.Generator().manual_seed(...)
                    yield from _explained("seed", source, call)

    # ---- what the model's classes made

    def _ties(self, ties: list[list[str]]) -> Iterator[Line]:
        value = ", ".join(sorted(" = ".join(paths) for paths in ties)) or "none"
        yield Line("tied weights", value=value)
        paths = [path for names in ties for path in names]
        for source in self._sources() if ties else []:
            for node in ast.walk(source.tree):
                is_one_more = isinstance(getattr(node, "value", None), (ast.Attribute, ast.Subscript))
                for target in _targets(node) if is_one_more else []:
                    tail = _tail_of(source, target)
                    if tail and any(_is_part(tail, path) for path in paths):
                        yield from _explained("tied weights", source, node)

    def _modules(self, params: Iterable[str], ties: list[list[str]]) -> Iterator[Line]:
        owners = []
        switches = self._switches()
        freezes = [switch for switch in switches if switch.freezes]
        for path in params:
            owner, _, name = path.rpartition(".")
            owners.append(owner)
            for source, call in self._inits(path):
                yield _line(f"tensor {path}", source, call)
            if (found := self._in_class(owner, name, {"register_buffer", "register_parameter"})) is not None:
                yield from _explained(f"tensor {path}", *found)
        leaves = [path for path, module in self._model.named_modules() if not any(module.children())]
        names = {path: paths for paths in ties for path in paths}
        for path, _ in self._model.named_parameters(remove_duplicate=False):
            of_it = [one for one in freezes if any(map(one.is_of, names.get(path, [path])))]
            yield from (_line(f"frozen {path}", one.source, one.node) for one in of_it)
        for path in dict.fromkeys([*owners, *leaves]):
            if (found := self._module(path)) is not None:
                yield from _explained(f"module {path}", *found)
            of_part = [switch for switch in switches if switch.tail and switch.is_of(path)]
            yield from (_line(f"module {path}", one.source, one.node) for one in of_part)

    def _switches(self) -> list[_Switch]:
        """`model.fc1.requires_grad_(False)`, `self.norm.bias.requires_grad = False`, `model.bn.eval()`."""
        source, _, given = self._argument("model")
        model = _tail_of(source, given) if given is not None else ""  # "net" of a trainer's `self.net`
        found = []

        def add(source: Source, node: ast.AST, of: ast.AST, freezes: bool) -> None:
            tail = _tail_of(source, of)
            tail = "" if tail == model else tail.removeprefix(f"{model}.")
            found.append(_Switch(source, node, tail, freezes))

        for source in self._sources():
            for call in source.calls(_SWITCHES):
                if isinstance(call.func, ast.Attribute):
                    add(source, call, call.func.value, call.func.attr == _FREEZES)
            for node in ast.walk(source.tree):
                for target in _targets(node):
                    if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
                        add(source, node, target.value, True)
        return found

    def _code(self) -> Iterator[Line]:
        """What the classes of the user's modules do, statement by statement, and the function of the step."""
        for path, found in self._classes.items():
            if found is not None:
                yield Line(f"module {path}", value=f"class {found[1].name}")
        for source, body in {id(found[1]): found for found in self._classes.values() if found is not None}.values():
            for method in body.body:
                if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                    yield from (_line(f"class {body.name}", source, part) for part in _parts(method))
        code = getattr(self._step_fn, "__code__", None)
        if code is not None and is_own_file(code.co_filename):
            source = source_of(code.co_filename)
            for function in source.functions(code.co_name):
                yield from (_line("step_fn", source, part) for part in _parts(function))

    def _inits(self, path: str) -> Iterator[tuple[Source, ast.AST]]:
        """`nn.init.normal_(self.embed.weight)` in the classes of the modules above."""
        parts = path.split(".")
        for count in range(len(parts)):
            if (found := self._classes.get(".".join(parts[:count]))) is None:
                continue
            source, body = found
            for call in source.calls(_INITS, body):
                if call.args and ast.unparse(call.args[0]) == f"self.{'.'.join(parts[count:])}":
                    yield source, call

    def _module(self, path: str) -> tuple[Source, ast.AST] | None:
        """What made it in the nearest module above that is of a user's class, or the model where the loop runs."""
        while path:
            above, _, name = path.rpartition(".")
            if (found := self._in_class(above, name, {"add_module", "register_module"})) is not None:
                return found
            path = above
        return self._maker("model", {kind.__name__ for kind in type(self._model).__mro__[:-2]})

    def _in_class(self, path: str, name: str, registers: set[str]) -> tuple[Source, ast.AST] | None:
        """`self.name = ...` or `self.register_buffer("name", ...)` of the module's class."""
        found = self._classes.get(path)
        if found is None:
            return None
        source, body = found
        for call in source.calls(registers, body):
            if call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == name:
                return source, call
        return next(((source, value) for value in source.values_set(name, body)), None)


def _class_of(module_class: type[torch.nn.Module]) -> tuple[Source, ast.ClassDef] | None:
    """The first class of the user's that it is of."""
    for kind in module_class.__mro__:
        for method in vars(kind).values():
            if not isinstance(method, FunctionType) or not is_own_file(method.__code__.co_filename):
                continue
            source = source_of(method.__code__.co_filename)
            if (body := source.class_at(method.__code__.co_firstlineno)) is not None:
                return source, body
    return None


def _explained(thing: str, source: Source, node: ast.AST, statements: bool = False) -> Iterator[Line]:
    """The line of a piece of code, then those of the values that its names have. statements: of a function each line of its
    body, and objects."""
    yield _line(thing, source, node)
    names, inside = {ast.dump(name): name for name in _names(node)}, set(ast.walk(node))
    for name in list(names.values())[:_MOST_NAMES]:
        for value in source.values_of(name, node):
            if isinstance(value, ast.FunctionDef):
                yield from (_line(thing, source, part) for part in _parts(value) if statements)
            elif value not in inside and (statements or not _makes_object(value)):
                yield _line(thing, source, value)


def _tail_of(source: Source, node: ast.AST) -> str:
    """ "blocks.0.norm" of `self.blocks[0].norm`; of the variable of a loop over `model.head.parameters()` "head"."""
    words: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            words.insert(0, node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            if not isinstance(node.slice, ast.Constant):
                return ".".join(words) or _tail_of(source, node.value)
            words.insert(0, str(node.slice.value))
            node = node.value
        else:
            break
    if words or not isinstance(node, ast.Name):
        return ".".join(words)
    for loop in source.around(node):
        if isinstance(loop, ast.For) and any(name.id == node.id for name in _walk_names(loop.target)):
            listed = loop.iter
            if isinstance(listed, ast.Call) and last_name(listed.func) in _LISTS:
                return _tail_of(source, listed.func.value) if isinstance(listed.func, ast.Attribute) else ""
            return _tail_of(source, listed)
    return ""


def _is_part(tail: str, path: str) -> bool:
    """Whether the path may be of what the code calls so: "norm" of "blocks.0.norm.bias"."""
    return f".{tail}." in f".{path}."


def _walk_names(node: ast.AST) -> Iterator[ast.Name]:
    return (name for name in ast.walk(node) if isinstance(name, ast.Name))


def _names(node: ast.AST) -> Iterator[ast.AST]:
    """Whose values matter: not `nn.Linear` of a call, nor the target of an assignment."""
    if isinstance(node, ast.Assign):
        yield from _names(node.value)
        return
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Call) and child is node.func and isinstance(child, ast.Attribute)):
            yield from _names(child)
        elif not isinstance(child.value, ast.Name):
            yield from _names(child.value)  # `(loss / 4).backward()`


def _makes_object(value: ast.AST) -> bool:
    """`Net()`, `torch.optim.AdamW(...)`: things with lines of their own."""
    return isinstance(value, ast.Call) and (isinstance(value.func, ast.Call) or last_name(value.func)[:1].isupper())


def _parts(function: ast.AST) -> Iterator[ast.AST]:
    """Its statements; of a block the heads alone."""
    for node in ast.walk(function):
        if isinstance(node, (ast.For, ast.While, ast.If, ast.With)):
            yield from (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
        elif isinstance(node, ast.stmt) and node is not function:
            yield node


def _line(thing: str, source: Source, node: ast.AST) -> Line:
    return Line(thing, f"{os.path.basename(source.file)}:{getattr(node, 'lineno', 1)}", hash_of(node))


def _keywords(call: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Of a call, and of the dicts of groups in it."""
    for node in ast.walk(call):
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value != "params":
                    yield key.value, value


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []


def _is_rate(target: ast.AST) -> bool:
    """`group["lr"]`."""
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "lr"
