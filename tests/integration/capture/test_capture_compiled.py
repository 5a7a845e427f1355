"""Loops with torch.compile, which cannot compile while a capture watches: captured steps run uncompiled, and say so."""

import re
import warnings

import pytest
import torch
from capture_loops import Images, image_batches, steps_in
from lockstep_capture import Capture

FULL = {"fullgraph": True, "backend": "eager"}  # PyTorch's own kernels: the same bits, compiled or not
MODEL, IN_PLACE, PART, LOSS, LOOP, OPTIMIZER, RULE = "model", "in place", "part", "loss", "loop", "optimizer", "rule"


class CompiledRule(torch.optim.SGD):
    """As torchao's AdamW8bit: step() compiles its rule."""

    @torch.no_grad()
    def step(self, closure=None):
        rule = torch.compile(lambda p, grad: p - 0.1 * grad, **FULL)
        for p in self.param_groups[0]["params"]:
            p.copy_(rule(p, p.grad))


def trained(path, what, seen):
    torch.manual_seed(3)
    net, loss_fn = Images(), torch.nn.functional.cross_entropy
    optimizer = (CompiledRule if what == RULE else torch.optim.SGD)(net.parameters(), 0.1)
    model, step = net, optimizer.step
    if what == MODEL:
        model = torch.compile(net, **FULL)
    if what == PART:
        net.fc = torch.compile(net.fc, **FULL)
    if what == IN_PLACE:
        net.compile(**FULL)
    if what == LOSS:
        loss_fn = torch.compile(lambda scores, labels: torch.nn.functional.cross_entropy(scores, labels), **FULL)
    if what == OPTIMIZER:
        step = torch.compile(optimizer.step, backend="eager")

    def loss_of(model, batch):
        return loss_fn(model(batch[0]), batch[1])

    cap = None if path is None else Capture(path, model, optimizer, loss_of, steps=2)
    in_loop = torch.compile(net, **FULL) if what == LOOP else model  # which the capture does not know
    losses = []
    for batch in image_batches(4):
        with warnings.catch_warnings(record=True) as caught, cap.step(batch) if cap else warnings.catch_warnings():
            warnings.simplefilter("always")
            loss = loss_of(in_loop, batch)
            loss.backward()
            step()
            optimizer.zero_grad()
        seen += [str(each.message) for each in caught if "lockstep_capture" in str(each.message)]
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("what", [MODEL, IN_PLACE, PART, LOSS, LOOP, OPTIMIZER, RULE])
def test_a_compiled_loop_trains_as_without_a_capture(tmp_path, what):
    """Captured steps run everything uncompiled but the rule of an optimizer, and one warning says so."""
    seen, path = [], tmp_path / "a.h5"
    same = 1 if what == OPTIMIZER else None  # torch 2.6 compiles the optimizer's step to other formulas
    assert trained(path, what, seen)[:same] == trained(None, what, [])[:same]
    assert steps_in(path)[0] == 2
    file = "capture_loops.py" if what == PART else "test_capture_compiled.py"
    assert len(seen) == (what != RULE), seen
    assert not seen or re.search(rf"the code that is called at {file}:\d+ uncompiled, which may change", seen[0]), seen
