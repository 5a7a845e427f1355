"""Hooks that change what backward() leaves are refused with their module and line, whichever step they do it in."""

import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import Capture, UnsupportedModelError, capture
from torch.nn.utils import parametrize


def halved(hook_count, after=0):
    """A hook that halves gradients from call `after` on."""

    def hook(grad):
        hook_count.append(1)
        return grad * 0.5 if len(hook_count) > after else None

    return hook


def in_place(grad):
    grad.mul_(0.5)


def of_grad(parameter):
    parameter.grad.mul_(0.5)


def steps_itself(parameter):
    with torch.no_grad():
        parameter.sub_(0.1 * parameter.grad)
    parameter.grad = None


def of_module(module, operands, results):
    return tuple(None if grad is None else grad * 0.5 for grad in operands)


def before_module(module, results):
    return tuple(grad * 0.5 for grad in results)


def before_module_in_place(module, results):
    results[0].mul_(0.5)


def of_module_in_place(module, operands, results):
    operands[0].mul_(0.5)


def of_activation(module, operands, result):
    result.register_hook(lambda grad: grad * 0.5)


HOOKS = {
    "parameter": (lambda m: m[0].weight.register_hook(halved([])), "0.weight"),
    "later": (lambda m: m[0].weight.register_hook(halved([], after=3)), "0.weight"),
    "in_place": (lambda m: m[0].weight.register_hook(in_place), "0.weight"),
    "post_accumulate": (lambda m: m[2].bias.register_post_accumulate_grad_hook(of_grad), "2.bias"),
    "optimizer_in_backward": (lambda m: m[2].bias.register_post_accumulate_grad_hook(steps_itself), "2.bias"),
    "module": (lambda m: m[2].register_full_backward_hook(of_module), "in 2 "),
    "module_before": (lambda m: m[2].register_full_backward_pre_hook(before_module), "in 2 "),
    "module_in_place": (lambda m: m[2].register_full_backward_hook(of_module_in_place), "in 2 "),
    "module_before_in_place": (lambda m: m[2].register_full_backward_pre_hook(before_module_in_place), "in 2 "),
    "activation": (lambda m: m[1].register_forward_hook(of_activation), ""),
}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def batches():
    torch.manual_seed(1)
    return [(torch.randn(16, 8), torch.randint(3, (16,))) for _ in range(6)]


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def captured(path, model):
    capture(str(path), model, torch.optim.SGD(model.parameters(), 0.1), batches(), loss_of, steps=6, quiet=True)


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_that_change_the_training_are_refused(tmp_path, kind):
    model = network()
    add, where = HOOKS[kind]
    add(model)
    with pytest.raises(UnsupportedModelError) as refused:
        captured(tmp_path / "a.lscap.h5", model)
    text = str(refused.value)
    assert "hook" in text and where in text and "test_capture_hooks.py:" in text and "hint:" in text
    assert not (tmp_path / "a.lscap.h5").exists()


def test_hooks_that_look_are_kept(lockstep, tmp_path):
    model, seen = network(), []
    model[0].weight.register_hook(lambda grad: seen.append("parameter"))
    model[2].register_full_backward_hook(lambda *_: seen.append("module"))
    model[2].bias.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    hooks = [dict(model[0].weight._backward_hooks), dict(model[2]._backward_hooks)]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(str(tmp_path / "a.lscap.h5"), model, optimizer, loss_of, steps=6, quiet=True)
    for batch in batches():
        with cap.step(batch):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert cap.finished
    assert min(map(seen.count, ("parameter", "module", "accumulated"))) >= 6
    assert hooks == [dict(model[0].weight._backward_hooks), dict(model[2]._backward_hooks)]
    lockstep("verify", tmp_path / "a.lscap.h5")


class Clamped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        return w.view_as(w)

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1e-3, 1e-3)


class ClampedWeight(torch.nn.Module):
    def forward(self, w):
        return Clamped.apply(w)


def test_the_way_out_works(lockstep, tmp_path):
    """The hint of the refusal: a parametrization trains as the hook did, and passes every gate."""
    model, hooked = network(), network()
    hooked[0].weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    parametrize.register_parametrization(model[0], "weight", ClampedWeight())
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    for m in (model, hooked):
        F.cross_entropy(m(x), y).backward()
    assert torch.equal(model[0].parametrizations.weight.original.grad, hooked[0].weight.grad)
    captured(tmp_path / "a.lscap.h5", model)
    lockstep("verify", tmp_path / "a.lscap.h5")
