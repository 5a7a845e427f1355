"""One forward pass for one signature of the batch: program, versions, graph.

Steps that take different paths, or read other numbers, have a program each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..errors import CaptureError, Problem, UnsupportedModelError
from ..ir.attributes import Attribute
from ..ir.cumulative import named_momentum
from ..ir.gradients import differentiated
from ..ir.graph import Graph
from ..ir.program import StepModule
from ..ir.random_ops import ATTENTION, RandomSite, base_name, random_sites
from ..model_state import Subject
from ..normalise.interpreter import Interpreter
from ..normalise.normaliser import Normaliser
from ..normalise.observers import Snapshots, analyse
from ..normalise.ssa import GRAPH
from .batches import leaves_of, with_tensors
from .frontend_run import Observed, trace
from .other_dtype import weights_as
from .outside import Outside
from .step_function import StepFunction, type_of
from .survey import check_in_fp32, survey
from .untouched import untouched


def signature_of(leaves: list[Any]) -> str:
    """`f32[16,3,32,32];i64[16]`; numbers are written out, as the graph is made for them."""
    return ";".join(type_of(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves)


def _check_leaves(leaves: list[Any], paths: list[str]) -> None:
    strange = [
        f"{path} is a {type(leaf).__name__}"
        for leaf, path in zip(leaves, paths, strict=True)
        if not isinstance(leaf, (torch.Tensor, bool, int, float, str, type(None)))
    ]
    if strange:
        raise CaptureError(f"batch: {', '.join(strange)}; must be tensors in tuples, lists, mappings and dataclasses")


@dataclass
class Seen:
    """A batch's forward pass, seen once: its leaves and its path."""

    step: StepModule
    batch: Any
    leaves: list[Any]
    paths: list[str]
    path: Observed
    key: str  # of the program that serves it


def see(subject: Subject, step_fn: StepFunction, batch: Any, autocast: torch.dtype | None = None) -> Seen:
    """Runs step_fn once and undoes what it did. Throws: CaptureError for step_fn's own errors."""
    leaves, paths = leaves_of(batch, subject.device)
    _check_leaves(leaves, paths)
    step = StepModule(subject.model, step_fn, subject.attributes, subject.trains)
    own = with_tensors(lambda leaf: leaf.detach().to(subject.device), batch)
    with named_momentum(step.model):
        path = survey(step, own, subject.device, autocast)
    return Seen(step, own, leaves, paths, path, f"{_layout_of(subject, leaves)} {path.key}")


def unknown_state(subject: Subject, seen: Seen) -> list[Attribute]:
    """Attributes of modules that the pass read and changed: to be given to the subject."""
    return list({found.path: found for found in seen.path.changed if found.path not in subject.buffers}.values())


def _layout_of(subject: Subject, leaves: list[Any]) -> str:
    """The signature, and the choice of training and frozen parts."""
    modes = "".join("t" if module.training else "e" for module in subject.model.modules())
    frozen = "".join("g" if tensor.requires_grad else "f" for tensor in subject.params.values())
    return f"{signature_of(leaves)} {modes} {frozen}"


class Traced:
    """program, versions; after normalise(): graph and ir_of. autocast: what the loop's own block casts to."""

    def __init__(self, subject: Subject, seen: Seen, autocast: torch.dtype | None = None):
        self.subject, self._autocast = subject, autocast
        self.paths, self.key, self.signature = seen.paths, seen.key, signature_of(seen.leaves)
        step = seen.step
        with named_momentum(step.model):
            if autocast is not None and subject.narrow is None:
                with untouched(step), weights_as(step, autocast, torch.float32):  # buffers that are results of a step
                    check_in_fp32(step, seen.batch, subject.device)
            observed = trace(step, seen.batch, subject.device, autocast, subject.narrow)
        self.program, self.module_calls = observed.program, observed.calls
        self.outside = Outside(self.program, step.step_fn, subject.model, observed.left)
        buffers = subject.buffer_values()
        self._buffers = {
            path: torch.empty(buffer.shape, dtype=buffer.dtype, device="meta") for path, buffer in buffers.items()
        }
        self.versions, self._types = analyse(
            self.program, subject.params, buffers, seen.leaves, single=subject.narrow is not None
        )
        self.sites: list[RandomSite] = random_sites(self.program)
        self.factor: float | None = None  # of the last micro-batch's loss, see loss_factor.py
        self.graph: Graph | None = None
        self.ir_of: dict[str, str] = {}

    def attention_count(self) -> int:
        return sum(base_name(call) == ATTENTION for call in self.program.calls if not call.is_getitem)

    @property
    def hides_masks(self) -> bool:
        """Attention with dropout, whose mask only the math backend shows. On a CPU PyTorch takes that one by itself."""
        return self.subject.device.type != "cpu" and any(site.kind == "sdpa" for site in self.sites)

    @property
    def computes_narrow(self) -> bool:
        """What the model draws or makes may have fewer than 32 bits, where the FP32 reference has all."""
        return (
            self.subject.narrow is not None
            or self._autocast is not None
            or any(call.autocast is not None for call in self.program.calls)
        )

    def notes(self) -> dict[str, str]:
        """What a user should know of the graph, by its line: floats that Python read from activations."""
        found: dict[str, str] = {}
        for number in self.program.numbers:
            if self.versions.kind.get(number.name) != GRAPH or number.place.source in found:
                continue
            what = "numbers" if number.value is None else f"{number.value:.6g}"
            layer = f" from layer {number.place.module}" if number.place.module else ""
            found[number.place.source] = (
                f"Python read {what}{layer} ({number.place.source}): whatever the model computes with it "
                "is PyTorch's number in every lane"
            )
        return found

    def snapshots(self) -> Snapshots:
        return Snapshots(self.versions)

    def normalise(self, snapshots: Snapshots, fused_attention: int | None = None) -> None:
        """fused_attention: how many fused kernels ran, None: unknown. Throws: UnsupportedModelError with all that
        cannot be replayed."""
        math = fused_attention == 0 and self.attention_count() > 0
        made = Normaliser(
            self.program,
            self.versions,
            self._types,
            snapshots,
            self.subject.model,
            self._buffers,
            self.paths,
            plain_attention=math,
            graded=self.subject.graded_inputs,
        )
        self.graph, self.ir_of = made.graph, made.ir_of
        if self._autocast is None:
            self.graph.close_regions()

    def support_problems(self, leaves: list[Any]) -> list[Problem]:
        """What is not supported; empty when all is."""
        snapshots = self.snapshots()
        with torch.set_grad_enabled(bool(differentiated(self.program))), torch.random.fork_rng():
            Interpreter(
                self.program,
                self.subject.params,
                self.subject.buffer_values(),
                leaves,
                None,
                decisions=self.program.decisions,
                observer=snapshots,
                single=self.subject.narrow is not None,
                kind=self.versions.kind,
            ).run()
        try:
            self.normalise(snapshots)
        except UnsupportedModelError as error:
            return error.problems
        return []
