"""Checks that weights, buffers and gradients change only where a capture looks.

A replay takes the captured steps from the first captured state. It cannot know of other changes: to the state in
between (a second optimizer, clamped weights, a forward pass in training mode outside of the block), or to the
gradients between backward() and the optimizer's step. Bits are compared, because neither calls nor the version
counters of tensors show them all: a write through `.data` counts no version.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import CaptureError
from ..ir.graph import Graph
from ..model_state import Subject
from ..normalise.ssa import Versions

# |buffer - its repetition| / |repetition|, as in gate V4: on a CPU both have the same bits, GPUs sum in any order.
BUFFER_BOUND = 1e-5
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTORS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9)  # odd
_places: dict[torch.device, torch.Tensor] = {}  # odd numbers: the longest list that was needed

_HINT = "write self.{0}.copy_(...) in forward, without .data and .set_(), and run the forward pass once per block"
MOST_NAMES = 4  # in a message
_OTHERS_HINT = (
    "a second optimizer (GAN) or an average that the loop updates (teacher) may change them after optimizer.step() and "
    "before the next step's block"
)

Prints = dict[str, int]


def prints_of(tensors: Mapping[str, torch.Tensor]) -> Prints:
    """A sum of each tensor's bits, taken as integers of 64, each times a number of its place, modulo 2^64. The numbers are
    odd, so that no bit is lost, and follow no rule: rows that change places change the sum, and so does a factor on all
    elements (-1 and 2 add one bit to each, which regular places cancel)."""
    sums = [_print_of(_words(tensor)).cpu() for tensor in tensors.values()]
    return {path: int(total) for path, total in zip(tensors, sums, strict=True)}


def _print_of(words: torch.Tensor) -> torch.Tensor:
    places = _places.get(words.device)
    if places is None or places.numel() < words.numel():
        places = torch.arange(1, words.numel() + 1, dtype=torch.int64, device=words.device)
        places = _places[words.device] = (_mixed(_mixed(places, _FACTORS[0]), _FACTORS[1])) | 1
    places = places[: words.numel()]
    # A CPU's dot makes no copies, CUDA has none for integers.
    return torch.dot(words, places) if words.device.type == "cpu" else (words * places).sum()


def _mixed(x: torch.Tensor, factor: int) -> torch.Tensor:
    x = x * factor
    return x ^ (x >> 29)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(_INTEGERS[tensor.element_size()])


def _words(tensor: torch.Tensor) -> torch.Tensor:
    bits, size = _bits(tensor).reshape(-1), tensor.element_size()
    fits = size * bits.numel() % 8 == 0 and size * bits.storage_offset() % 8 == 0
    return bits.view(torch.int64) if fits else bits.long()


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))


def _off_by(value: torch.Tensor, reference: torch.Tensor) -> float:
    """|value - reference| / |reference|, infinite for other shapes and where one alone is not a number."""
    if _same_bits(value, reference):
        return 0.0
    if value.shape != reference.shape or not torch.equal(value.isnan(), reference.isnan()):
        return float("inf")
    a, b = value.double().nan_to_num(), reference.double().nan_to_num()
    return float((a - b).norm() / b.norm())


class Continuity:
    """Is called where changes are allowed; reports all others."""

    def __init__(self, subject: Subject):
        self._subject = subject
        self._weights: Prints | None = None
        self._buffers: Prints | None = None
        self._read: set[str] = set()  # buffers that some forward pass reads
        self._unseen: set[str] = set()  # buffers that a forward pass changed and its graph did not
        self._gradients: Prints | None = None

    def note_weights(self) -> list[str]:
        """After the optimizer's step. Returns: those that it changed."""
        before, self._weights = self._weights or {}, prints_of(self._subject.weights())
        return [path for path, found in self._weights.items() if before.get(path) != found]

    def take_others(self) -> list[str]:
        """Before a step. Returns: weights outside of the optimizer that changed after its last step."""
        if self._weights is None:
            return []
        held = self._subject.held()
        now = prints_of({path: tensor for path, tensor in self._subject.weights().items() if path not in held})
        changed = [path for path, found in now.items() if self._weights.get(path) != found]
        self._weights |= now
        return changed

    def note_buffers(self) -> None:
        """After the forward pass."""
        self._buffers = prints_of(self._subject.buffer_values())

    def note_gradients(self) -> None:
        """After backward(), and after each change of gradients that a replay makes, too."""
        self._gradients = prints_of(self._subject.gradients())

    def note_clamped(self, limit: float) -> None:
        """Before clip_grad_value_, after which there is no call."""
        self._gradients = {}
        for path, grad in self._subject.gradients().items():
            self._gradients |= prints_of({path: grad.detach().clamp(-limit, limit)})

    @property
    def knows_gradients(self) -> bool:
        return self._gradients is not None

    def forget_gradients(self) -> None:
        """The optimizer has read the gradients: the loop may now change them."""
        self._gradients = None

    @property
    def known(self) -> bool:
        return self._weights is not None

    def holds(self) -> bool:
        """Whether everything is as it was noted, but for weights outside of the optimizer."""
        weights, held = self._subject.weights(), self._subject.held()
        now = prints_of({path: weights[path] for path in held})
        return (
            all((self._weights or {}).get(path) == found for path, found in now.items())
            and prints_of(self._subject.buffer_values()) == self._buffers
        )

    def check_masters(self) -> None:
        """Where the optimizer steps FP32 masters, the model computes with these, rounded."""
        if unrounded := self._subject.masters.unrounded():
            raise CaptureError(
                f"{len(unrounded)} weights are not their FP32 masters, rounded, e.g. {unrounded[0]}: the loop "
                "must copy the optimizer's tensors into the model after each step, in the block"
            )

    def check_weights(self, when: str, *, others: bool = True) -> None:
        """others: also those outside of the optimizer."""
        now = prints_of(self._subject.weights())
        held = self._subject.held()
        outside = {path: now.pop(path) for path in list(now) if path not in held}
        if others:
            self._compare("weights outside of the optimizer", self._weights, outside, when, _OTHERS_HINT)
        self._compare(
            "weights",
            self._weights,
            now,
            when,
            "optimizer.step() must be called in the block, once, on the optimizer that was given; weights changed by "
            "hand cannot be replayed",
        )

    def check_buffers(self, when: str) -> None:
        self._compare(
            "buffers",
            self._buffers,
            prints_of(self._subject.buffer_values()),
            when,
            "only the forward pass in the block may change them. Was the model run in training mode outside of it, as "
            "the networks of a GAN are? Then capture one step: steps=1",
        )

    def check_forward(
        self, graph: Graph, versions: Versions, before: Mapping[str, torch.Tensor], repeated: Mapping[str, torch.Tensor]
    ) -> None:
        """After the forward pass: the graph, or the program with integers, changes the buffers as the model did.

        Buffers that no loss depends on (a counter of calls) may change freely. before: all of them before it; repeated:
        their values after the traced program. Throws: CaptureError.
        """
        now, read = self._subject.buffer_values(), versions.read_buffers
        mutated = {path for path, *_ in graph.mutations} | versions.integer_state
        self._read |= read
        self._unseen |= {path for path in now if path not in mutated and not _same_bits(now[path], before[path])}
        off = {path: _off_by(now[path], repeated[path]) for path in sorted(mutated)}
        wrong = [path for path, distance in off.items() if not distance <= BUFFER_BOUND]
        if lost := sorted(self._unseen & self._read):
            raise CaptureError(
                f"{len(lost)} buffers are changed by the forward pass in ways that its graph does not show, "
                f"e.g. {lost[0]}: {_HINT.format(lost[0].rpartition('.')[2])}"
            )
        if wrong:
            raise CaptureError(
                f"{len(wrong)} buffers differ from the graph's, e.g. {wrong[0]}: relative "
                f"difference {off[wrong[0]]:.1e}, must be at most {BUFFER_BOUND:.0e}; "
                f"{_HINT.format(wrong[0].rpartition('.')[2])}"
            )

    def check_gradients(self, when: str) -> None:
        """The gradients must still be those of backward(). A replay of a few steps would not show a change."""
        before = self._gradients
        if before is None:
            return
        now = self._subject.gradients()
        prints = prints_of(now)
        found = [
            f"{path} is gone" if path not in now else f"{path} (norm now {float(now[path].double().norm()):.3g})"
            for path in {**before, **prints}
            if before.get(path) != prints.get(path)
        ]
        if found:
            more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
            raise CaptureError(
                f"{len(found)} of {len(prints)} gradients changed {when}: {', '.join(found[:MOST_NAMES])}{more}; between "
                "backward() and optimizer.step() only GradScaler.unscale_, torch.nn.utils.clip_grad_norm_ and "
                "clip_grad_value_ may change them. A weight decay is the optimizer's weight_decay, a factor belongs "
                "before the loss"
            )

    @staticmethod
    def _compare(what: str, before: Prints | None, now: Prints, when: str, hint: str) -> None:
        if before is None:
            return
        changed = [path for path, found in now.items() if before.get(path) != found]
        if changed:
            raise CaptureError(f"{len(changed)} {what} changed {when}, e.g. {changed[0]}: {hint}")
