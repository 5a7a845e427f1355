"""One forward pass for one signature of the batch: program, versions, graph.

Tries torch.export first, then TorchScript's tracer; both feed the same normaliser.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree

from ..errors import CaptureError, Problem, UnsupportedModelError, first_line
from ..ir.cumulative import named_momentum
from ..ir.graph import Graph
from ..ir.program import Program, StepModule
from ..ir.random_ops import ATTENTION, RandomSite, base_name, random_sites
from ..model_state import Subject
from ..normalise.interpreter import Interpreter
from ..normalise.normaliser import Normaliser
from ..normalise.observers import Snapshots, analyse
from . import frontend_export, frontend_jit
from .outside import Outside
from .step_function import StepFunction, type_of
from .survey import CONTROL_FLOW, check_in_fp32, survey
from .untouched import untouched


def leaves_of(batch: Any, device: torch.device | None = None) -> tuple[list[Any], list[str]]:
    """The batch's leaves in pytree order and their paths, "batch[0]" or "batch['ids']"."""
    found, _ = pytree.tree_flatten_with_path(batch)
    values = [leaf.to(device) if device is not None and isinstance(leaf, torch.Tensor) else leaf
              for _, leaf in found]
    return values, ["batch" + pytree.keystr(path) for path, _ in found]


def signature_of(leaves: list[Any]) -> str:
    """`f32[16,3,32,32];i64[16]`; numbers are written out, as the graph is made for them."""
    return ";".join(type_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves)


def _check_leaves(leaves: list[Any], paths: list[str]) -> None:
    strange = [f"{path} is a {type(leaf).__name__}" for leaf, path in zip(leaves, paths, strict=True)
               if not isinstance(leaf, (torch.Tensor, bool, int, float, str, type(None)))]
    if strange:
        raise CaptureError(f"batch: {', '.join(strange)}; must be tensors in tuples, lists and dicts, e.g. dict(batch)")


class Traced:
    """program, versions; after normalise(): graph and ir_of. autocast: what the loop's own block casts to."""

    def __init__(self, subject: Subject, step_fn: StepFunction, batch: Any, autocast: torch.dtype | None = None):
        self.subject, self._autocast = subject, autocast
        leaves, self.paths = leaves_of(batch, subject.device)
        _check_leaves(leaves, self.paths)
        self.signature, self.key = signature_of(leaves), self.key_of(subject, leaves)
        self.program, self._known, self.module_calls = _trace(StepModule(subject.model, step_fn), batch,
                                                              subject.device, autocast)
        self.outside = Outside(self.program, step_fn, subject.model)
        self.versions, self._types = analyse(self.program, subject.params, subject.buffer_values(), leaves)
        self.sites: list[RandomSite] = random_sites(self.program)
        self.factor: float | None = None  # of the last micro-batch's loss, see loss_factor.py
        self.graph: Graph | None = None
        self.ir_of: dict[str, str] = {}

    @staticmethod
    def key_of(subject: Subject, leaves: list[Any]) -> str:
        """One program per signature, and per choice of training and frozen parts."""
        modes = "".join("t" if module.training else "e" for module in subject.model.modules())
        frozen = "".join("g" if tensor.requires_grad else "f" for tensor in subject.params.values())
        return f"{signature_of(leaves)} {modes} {frozen}"

    def attention_count(self) -> int:
        return sum(base_name(call) == ATTENTION for call in self.program.calls if not call.is_getitem)

    @property
    def hides_masks(self) -> bool:
        """Attention with dropout, whose mask only the math backend shows."""
        return any(site.kind == "sdpa" for site in self.sites)

    def snapshots(self) -> Snapshots:
        return Snapshots(self.versions)

    def normalise(self, snapshots: Snapshots, fused_attention: int | None = None) -> None:
        """fused_attention: how many fused kernels ran, None: unknown. Throws: UnsupportedModelError with all that
        cannot be replayed."""
        math = fused_attention == 0 and self.attention_count() > 0
        made = Normaliser(self.program, self.versions, self._types, snapshots, self.subject.model, self.paths,
                          plain_attention=math)
        self.graph, self.ir_of = made.graph, made.ir_of
        if self._autocast is None:
            self.graph.close_regions()

    def support_problems(self, leaves: list[Any]) -> list[Problem]:
        """What is not supported; empty when all is."""
        snapshots = self.snapshots()
        with torch.no_grad(), torch.random.fork_rng():
            Interpreter(self.program, self.subject.params, self.subject.buffer_values(), leaves, None,
                        observer=snapshots).run()
        try:
            self.normalise(snapshots)
        except UnsupportedModelError as error:
            told = {(problem.module, problem.source) for problem in self._known if problem.what == CONTROL_FLOW}
            return self._known + [problem for problem in error.problems  # x[x > 0] is one thing, not three
                                  if (problem.module, problem.source) not in told]
        return self._known


def _trace(step: StepModule, batch: Any, device: torch.device,
           autocast: torch.dtype | None) -> tuple[Program, list[Problem], dict[str, int]]:
    """The program, what is already known to be unsupported about it, and how often each module was called.

    A forward pass that reads values is traced too, by the tracer, which follows the path of this batch. This is only
    done so that one message lists the unsupported ops as well.
    """
    batch = pytree.tree_map_only(torch.Tensor, lambda leaf: leaf.detach().to(device), batch)
    with untouched(step), named_momentum(step.model):
        seen = survey(step.model, step.step_fn, batch, device, autocast)
        if autocast is not None:
            check_in_fp32(step.model, step.step_fn, batch, device)
    with untouched(step), named_momentum(step.model):
        program, problems = _program(step, batch, autocast, seen.values, seen.functions)
    return program, problems, seen.calls


def _program(step: StepModule, batch: Any, autocast: torch.dtype | None, values: list[Problem],
             functions: list[Problem]) -> tuple[Program, list[Problem]]:
    try:
        return frontend_export.trace(step, batch, autocast), functions
    except UnsupportedModelError:
        raise
    except Exception as error:  # the tracer may manage what torch.export cannot
        problems = functions + (values if frontend_export.depends_on_values(error) else [])
        if frontend_export.depends_on_values(error) and not values:
            problems.append(Problem(CONTROL_FLOW, hint=first_line(error)))
        try:
            return frontend_jit.trace(step, batch), problems
        except UnsupportedModelError as second:
            told = {"prim::PythonOp"} if functions else set()
            told |= {frontend_jit.TRACED_SHAPE} if problems else set()  # what steers Python makes shapes, too
            known = [problem for problem in second.problems if problem.what not in told]
            raise UnsupportedModelError(problems + known) from error
        except Exception as second:
            if not problems:
                problems = [Problem(f"torch.export: {first_line(error)}",
                                    hint=f"and torch.jit.trace: {first_line(second)}")]
            raise UnsupportedModelError(problems) from error
