"""Records training steps as they happen: `with cap.step(batch):` around an unchanged loop body.

The loop computes, nobody else: a block only watches. After the forward pass it is repeated once from the traced
graph, and must give the loop's loss bit for bit (gate V0); a capture that is not faithful is never written.
"""

from __future__ import annotations

import atexit
import contextlib
import warnings
import weakref
from typing import Any, Callable, ContextManager, Iterable, Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from .errors import CaptureError, UnsupportedModelError
from .hooks import Events, gradient_factor, watch
from .interpreter import Interpreter
from .loss_factor import loss_factor
from .mask_tap import MaskTap
from .model_state import Subject, State
from .normalise import Snapshots
from .recorder import Micro, Recorder, Step
from .reference import MicroBatch
from .traced import StepFunction, Traced, leaves_of, signature_of

_NOTHING: ContextManager[None] = contextlib.nullcontext()
_DTYPES = {"float16": torch.float16, "fp16": torch.float16, "half": torch.float16,
           "bfloat16": torch.bfloat16, "bf16": torch.bfloat16}


class Capture:
    """Captures `steps` optimizer steps of a loop into `path`.

    step_fn(model, batch) gives the loss that the loop computes for a batch: the mean over the micro-batch, not
    divided by the number of micro-batches, not scaled. autocast: dtype of the torch.autocast block that the LOOP
    opens around the forward pass ("float16", "bfloat16"), None where it opens none; blocks inside step_fn or the
    model are found by themselves. verify: numbers of the steps that get reference gradients, default the first,
    the middle and the last. on_unsupported: "error" raises UnsupportedModelError at the first block, "report"
    warns with the same text and captures nothing.

    One block per micro-batch; a step ends with the block in which the optimizer was asked to step. The file is
    there when `steps` steps are in; for a loop that ends earlier, call finish() or leave `with Capture(...)`.
    """

    def __init__(self, path: str, model: torch.nn.Module, optimizer: Any, step_fn: StepFunction, *,
                 scaler: Any = None, autocast: str | torch.dtype | None = None, steps: int = 8,
                 verify: Iterable[int] | None = None, on_unsupported: str = "error"):
        problems = []
        if steps < 1:
            problems.append(f"steps: is {steps}, must be at least 1")
        if on_unsupported not in ("error", "report"):
            problems.append(f"on_unsupported: is {on_unsupported!r}, must be 'error' or 'report'")
        if isinstance(autocast, str) and autocast not in _DTYPES:
            problems.append(f"autocast: is {autocast!r}, must be one of {', '.join(_DTYPES)} or None")
        self._verify = {0, steps // 2, steps - 1} if verify is None else set(verify)
        outside = sorted(number for number in self._verify if not 0 <= number < steps)
        if outside:
            problems.append(f"verify: has {outside}, must be in [0, {steps})")
        if problems:
            raise CaptureError("; ".join(problems))
        self._path, self._step_fn, self._steps = path, step_fn, steps
        self._model, self._optimizer, self._scaler = model, optimizer, scaler
        self._dtype = _DTYPES[autocast] if isinstance(autocast, str) else autocast
        self._report = on_unsupported == "report"
        self._subject: Subject | None = None
        self._initial: State | None = None
        self._initial_hyper: list[dict[str, Any]] = []
        self._recorder: Recorder | None = None
        self._traced: dict[str, tuple[Traced, int]] = {}
        self._step: Step | None = None
        self._done, self._closed = 0, False
        self._warned_clip = False
        atexit.register(_finish_at_exit, weakref.ref(self))

    @property
    def finished(self) -> bool:
        """True once the file is written, or nothing will be."""
        return self._closed

    def step(self, batch: Any) -> ContextManager[None]:
        """Around the body of the loop for one (micro-)batch; does nothing after the last captured step."""
        return _NOTHING if self._closed else self._block(batch)

    def finish(self) -> None:
        """Writes the file with the steps so far. Micro-batches without an optimizer step are left out."""
        if self._closed:
            return
        self._closed = True
        if self._recorder is None:
            warnings.warn(f"lockstep_capture: no step was captured, {self._path} was not written", stacklevel=2)
            return
        self._recorder.finish(self._done)

    close = finish

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._done:
            self.finish()

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.finish()
        else:
            self._abandon()

    def _abandon(self) -> None:
        self._closed = True
        if self._recorder is not None:
            self._recorder.writer.abandon()
            self._recorder = None

    def _refuse(self, error: CaptureError) -> None:
        """Nothing is left behind; the loop goes on where that was asked for."""
        self._abandon()
        if not self._report:
            raise error
        warnings.warn(f"lockstep_capture: {error}", stacklevel=4)

    @contextlib.contextmanager
    def _block(self, batch: Any) -> Iterator[None]:
        try:
            traced = self._prepare(batch)
        except CaptureError as error:
            self._refuse(error)
            yield
            return
        subject = self._subject
        assert subject is not None and self._step is not None
        watcher = _Watcher(self, traced, batch, {p: b.clone() for p, b in subject.buffer_values().items()})
        try:
            with contextlib.ExitStack() as stack:
                if any(site.kind == "sdpa" for site in traced.sites):
                    stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused kernels hide their mask
                stack.enter_context(watch(subject, watcher.events, watcher.on_backward, watcher.on_gradients))
                stack.enter_context(watcher.tap)
                yield
        except BaseException:
            self._abandon()
            raise
        try:
            self._take(watcher)
        except CaptureError as error:
            self._refuse(error)

    def _prepare(self, batch: Any) -> Traced:
        """Before the body runs: the graph for this batch, and the state before the step."""
        if self._subject is None:
            self._subject = Subject(self._model, self._optimizer, self._scaler)
        subject = self._subject
        signature = signature_of(leaves_of(batch)[0])
        if signature not in self._traced:
            traced = Traced(subject, self._step_fn, batch, self._dtype)
            problems = traced.support_problems(leaves_of(batch, subject.device)[0])
            if problems:
                raise UnsupportedModelError(problems)
            traced.graph = None  # made anew from the loop's own run: constants may depend on its autocast
            self._traced[signature] = (traced, -1)
        if self._initial is None:
            self._initial, self._initial_hyper = subject.state(), subject.hyper()
        if self._step is None:
            self._step = Step(self._done, Events(), [], subject.scale())
            if self._done in self._verify:
                self._step.pre = subject.state()
        return self._traced[signature][0]

    @property
    def autocast(self) -> tuple[str, torch.dtype] | None:
        if self._dtype is None or self._subject is None:
            return None
        return self._subject.device.type, self._dtype

    def _graph_number(self, traced: Traced) -> int:
        """Writes what stands once in the file, and each graph once."""
        found, number = self._traced[traced.signature]
        if number < 0:
            if self._recorder is None:
                assert self._subject is not None and self._initial is not None
                self._recorder = Recorder(self._path, self._subject, traced, self._initial, self._initial_hyper,
                                          self.autocast)
            number = self._recorder.add_graph(traced)
            self._traced[traced.signature] = (found, number)
        return number

    def _take(self, watcher: "_Watcher") -> None:
        """After the body: the micro-batch, and the step if it ended."""
        step, subject = self._step, self._subject
        assert step is not None and subject is not None
        micro = watcher.result()
        micro.graph = self._graph_number(micro.batch.traced)
        step.micro.append(micro)
        if not watcher.events.ended:
            return
        step.events = watcher.events
        if step.events.clipping.stage == "scaled" and not self._warned_clip:
            self._warned_clip = True
            warnings.warn("lockstep_capture: gradients were clipped before scaler.unscale_(optimizer): the norm "
                          "is that of scaled gradients", stacklevel=4)
        assert self._recorder is not None
        self._recorder.step(step)
        self._step, self._done = None, self._done + 1
        if self._done == self._steps:
            self.finish()


class _Watcher:
    """One block: what was drawn, the loss, the gradients."""

    def __init__(self, capture: Capture, traced: Traced, batch: Any, buffers: dict[str, torch.Tensor]):
        subject = capture._subject
        assert subject is not None and capture._step is not None
        self._capture, self._subject, self._step = capture, subject, capture._step
        self._traced, self._buffers = traced, buffers
        self._leaves = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf
                        for leaf in leaves_of(batch, subject.device)[0]]
        self.tap, self.events = MaskTap(), Events()
        self._micro: Micro | None = None
        self._error: CaptureError | None = None

    def on_backward(self, loss: torch.Tensor) -> None:
        """Before the first backward: weights are still those of the forward pass."""
        self.tap.active = False
        self.events.loss = loss.detach()
        try:
            with _disable_current_modes():
                self._micro = self._replay(loss)
        except CaptureError as error:  # told at the end of the block; the loop's step goes on
            self._error = error

    def _replay(self, loss: torch.Tensor) -> Micro:
        """Gate V0, which also gives the values that Python computes for the graph."""
        traced, draws = self._traced, self._draws()
        snapshots = Snapshots(traced.versions)
        # With gradients, as in the loop: some kernels (LSTM on the CPU) compute other bits without.
        with torch.enable_grad(), sdpa_if(traced):
            run = Interpreter(traced.program, self._subject.params, self._buffers, self._leaves, draws,
                              autocast=self._capture.autocast, observer=snapshots)
            replayed = run.run().detach()
        factor = loss_factor(replayed, loss)
        if traced.graph is None:
            traced.normalise(snapshots)
        assert traced.graph is not None
        inputs = [entry.compute(*[snapshots.values[name] for name in entry.operands])
                  for entry in traced.graph.inputs]
        torch_ops = {site.call: op for site, op in zip(traced.sites, self._ops(), strict=True)}
        return Micro(MicroBatch(traced, self._leaves, draws, factor), 0, float(replayed.double()), inputs, torch_ops)

    def _draws(self) -> dict[str, list[torch.Tensor]]:
        """The k-th draw belongs to the k-th call that draws."""
        left = list(self.tap.draws)
        wanted = sum(site.draws for site in self._traced.sites)
        if len(left) != wanted:
            raise CaptureError(f"random numbers: {len(left)} draws were seen, the graph has {wanted}; the forward "
                               "pass in the block must be step_fn's, once, before backward")
        found = {}
        for site in self._traced.sites:
            found[site.call] = [left.pop(0).value for _ in range(site.draws)]
        return found

    def _ops(self) -> list[str]:
        ops, place = [], 0
        for site in self._traced.sites:
            ops.append(self.tap.draws[place].op)
            place += site.draws
        return ops

    def on_gradients(self) -> None:
        """The gradients that enter optimizer.step, or on a skipped step those that would have."""
        self._check_gradients()
        step, factor = self._step, gradient_factor(self._subject)
        step.hyper = self._subject.hyper()
        for path, grad in self._subject.gradients().items():
            step.grad_norms[path] = float(grad.double().norm()) * factor
            if step.pre is not None:
                step.grads[path] = (grad.detach().float() * factor).cpu() if factor != 1 else grad.detach().cpu().clone()

    def result(self) -> Micro:
        """Throws: CaptureError for what the block did that a capture cannot hold."""
        if self._error is not None:
            raise self._error
        if self.events.problems:
            raise UnsupportedModelError(self.events.problems)
        if self._micro is None:
            raise CaptureError("the block of cap.step() called no backward(), must call it once")
        if self.events.backward_count > 1:
            raise CaptureError(f"the block of cap.step() called backward() {self.events.backward_count} times, must "
                               "call it once: give every micro-batch a block of its own")
        return self._micro

    def _check_gradients(self) -> None:
        """A parameter with a gradient that no graph of the step knows would be forgotten silently."""
        traced = [micro.batch.traced for micro in self._step.micro] + [self._traced]
        known = {name for one in traced if one.graph is not None for name, *_ in one.graph.params}
        lost = [path for path, grad in self._subject.gradients().items() if path not in known and bool(grad.any())]
        if lost and self._error is None:
            self._error = CaptureError(f"{len(lost)} parameters got a gradient that the graph does not explain, e.g. "
                                       f"{lost[0]}: step_fn must compute all that the loop calls backward on")


@contextlib.contextmanager
def sdpa_if(traced: Traced) -> Iterator[None]:
    with sdpa_kernel(SDPBackend.MATH) if any(site.kind == "sdpa" for site in traced.sites) \
            else contextlib.nullcontext():
        yield


def _finish_at_exit(reference: Callable[[], Capture | None]) -> None:
    capture = reference()
    if capture is not None and not capture.finished and capture._done:
        capture.finish()


def capture(path: str, model: torch.nn.Module, optimizer: Any, loader: Iterable[Any], step_fn: StepFunction, *,
            steps: int = 8, scaler: Any = None, autocast: str | torch.dtype | None = None,
            clip_grad_norm: float | None = None, accumulate: int = 1, **options: Any) -> None:
    """Trains a copy for `steps` steps with a loop of its own, and captures it; the model given is left as it is.

    accumulate: micro-batches per optimizer step. Further options as in Capture. Throws: CaptureError where the
    loader ends before the first step.
    """
    import copy

    original = Subject(model, optimizer, scaler)
    twin, twin_optimizer, twin_scaler = copy.deepcopy((original.model, optimizer, scaler))
    cap = Capture(path, twin, twin_optimizer, step_fn, scaler=twin_scaler, autocast=autocast, steps=steps, **options)
    device = original.device.type
    with torch.random.fork_rng(), cap:
        for number, batch in enumerate(loader):
            if cap.finished:
                break
            with cap.step(batch):
                with torch.autocast(device, dtype=cap._dtype, enabled=cap._dtype is not None):
                    loss = step_fn(twin, batch) / accumulate if accumulate > 1 else step_fn(twin, batch)
                (twin_scaler.scale(loss) if twin_scaler is not None else loss).backward()
                if (number + 1) % accumulate == 0:
                    _optimizer_step(twin, twin_optimizer, twin_scaler, clip_grad_norm)
        if not cap.finished and not cap._done:
            raise CaptureError("loader: ended before the first optimizer step, must hold at least "
                               f"{accumulate} batches")


def _optimizer_step(model: torch.nn.Module, optimizer: Any, scaler: Any, clip_grad_norm: float | None) -> None:
    if clip_grad_norm is not None:
        if scaler is not None:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_grad_norm)
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
