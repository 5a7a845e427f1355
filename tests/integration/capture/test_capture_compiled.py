"""Loops with torch.compile, which cannot compile while a capture watches: captured steps run uncompiled, and say so."""

import warnings

import pytest
import torch
from capture_loops import Images, image_batches, steps_in
from lockstep_capture import Capture

FULL = {"fullgraph": True, "backend": "eager"}  # PyTorch's own kernels: the same bits, compiled or not
MODEL, IN_PLACE, LOSS, OPTIMIZER, RULE = "model", "the model", "loss_fn", "optimizer.step", ""


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
    if what == "fc":
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
    losses = []
    for batch in image_batches(4):
        with warnings.catch_warnings(record=True) as caught, cap.step(batch) if cap else warnings.catch_warnings():
            warnings.simplefilter("always")
            loss = loss_of(model, batch)
            loss.backward()
            step()
            optimizer.zero_grad()
        seen += [str(each.message) for each in caught if "lockstep_capture" in str(each.message)]
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("what", [MODEL, IN_PLACE, "fc", LOSS, OPTIMIZER, RULE])
def test_a_compiled_loop_trains_as_without_a_capture(tmp_path, what):
    seen, path = [], tmp_path / "a.h5"
    assert trained(path, what, seen) == trained(None, what, [])
    assert steps_in(path)[0] == 2
    assert len(seen) == (what != RULE), seen
    assert not seen or f"{what} uncompiled, which may change" in seen[0]
