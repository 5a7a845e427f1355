"""torch.autograd.Function: its forward and its backward pass are recorded as they ran; what cannot be is refused."""

import json

import h5py
import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from capture_loops import train
from lockstep_capture import Capture, CaptureError, check

nn = torch.nn
torch.set_num_threads(1)


def function(forward, backward):
    return type(
        "Own", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def saving(result):
    def forward(ctx, x, *numbers):
        ctx.save_for_backward(x)
        ctx.numbers = numbers
        return result(x, *numbers)

    return forward


def clipped(ctx, dy):
    (x,) = ctx.saved_tensors
    return dy * (x.abs() <= 1)


def written(ctx, dy):
    """The tutorial's relu."""
    (x,) = ctx.saved_tensors
    dx = dy.clone()
    dx[x < 0] = 0
    return dx


class Quantised(torch.autograd.Function):
    @staticmethod
    def forward(x, scale):
        return torch.sign(x) * scale, x.abs() > scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy, _):
        x, scale = ctx.saved_tensors
        return dy, (dy * torch.sign(x)).sum().reshape(1) if ctx.needs_input_grad[1] else None


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        ctx.set_materialize_grads(False)
        return x @ w.t() + b

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        return dy @ w, dy.t() @ x, dy.sum(0)


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y, 2 * x

    @staticmethod
    def backward(ctx, dy, dz):
        (y,) = ctx.saved_tensors
        return (dy * y).clamp(-0.01, 0.01) + 3 * dz


ONE_OPERAND = {
    "straight_through": function(lambda ctx, x: torch.sign(x), lambda ctx, dy: dy),
    "clipped_straight_through": function(saving(torch.sign), clipped),
    "reversal": function(lambda ctx, x: x.view_as(x), lambda ctx, dy: -0.5 * dy),
    "returns_its_operand": function(lambda ctx, x: x, lambda ctx, dy: 2 * dy),
    "tutorial_relu": function(saving(lambda x: x.clamp(min=0)), written),
    "surrogate": function(
        saving(lambda x: (x > 0.5).to(x.dtype)), lambda ctx, dy: dy / (1 + 10 * (ctx.saved_tensors[0] - 0.5).abs()) ** 2
    ),
}


class Own(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.a, self.b, self.body = nn.Linear(8, 6), nn.Linear(6, 3), body
        self.scale = nn.Parameter(torch.tensor([0.5]))

    def forward(self, x):
        return self.b(self.body(self, self.a(x)))


def quantised(m, h):
    y, outside = Quantised.apply(h, m.scale)
    return torch.where(outside, y, h)


def pair(m, h):
    y, z = Pair.apply(h)
    return y + m.scale * z


applied = ONE_OPERAND["clipped_straight_through"].apply  # as libraries keep it
BODIES = {name: (lambda own: lambda m, h: own.apply(h))(own) for name, own in ONE_OPERAND.items()} | {
    "setup_context": quantised,
    "kept_apply": lambda m, h: applied(h),
    "weights_as_operands": lambda m, h: Product.apply(h, m.b.weight[:, :].repeat(2, 1), m.scale.expand(6)),
    "two_results": pair,
    "one_of_two_results": lambda m, h: Pair.apply(h)[0] * m.scale,
    "twice_in_a_row": lambda m, h: Pair.apply(ONE_OPERAND["reversal"].apply(h).tanh())[1] * m.scale,
    "frozen": lambda m, h: h + Pair.apply(h.detach())[0] * m.scale,
    "reentrant_checkpoint": lambda m, h: torch.utils.checkpoint.checkpoint(
        lambda h: m.scale * F.dropout(h.tanh(), 0.2), h, use_reentrant=True
    ),
}


def batches(steps=3):
    generator = torch.Generator().manual_seed(2)
    return [(torch.randn(5, 8, generator=generator), torch.randint(3, (5,), generator=generator)) for _ in range(steps)]


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def made(body):
    torch.manual_seed(7)
    return Own(body)


@pytest.mark.parametrize("autocast", [None, "bfloat16"])
@pytest.mark.parametrize("name", BODIES)
def test_functions_are_replayed_as_they_ran(tmp_path, lockstep, name, autocast):
    """All gates that apply: V1 and V3 compare the recorded backward pass with PyTorch's gradients."""
    path, losses = tmp_path / "run.lscap.h5", []
    for captured in (False, True):
        model = made(BODIES[name])
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        cap = Capture(path, model, optimizer, loss_of, steps=3, autocast=autocast) if captured else None
        losses.append(train(model, optimizer, loss_of, batches(), cap, dtype=torch.bfloat16 if autocast else None))
    assert losses[0] == losses[1]
    gates = verified(lockstep, path)
    assert gates["V1"] == gates["V3"] == "PASS" and gates["V7"] == ("PASS" if autocast else "n/a"), gates


def verified(lockstep, path):
    done = lockstep("verify", path)
    return {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if line[0] == "V"}


def test_gradient_of_the_forward_ops_is_not_used():
    """Two results: a node of its own ends the function."""
    assert check(made(pair), loss_of, batches()[0]).ops["custom_gradient"] == 1


def numpy_forward(ctx, x):
    return torch.from_numpy(x.detach().numpy().copy())


def by_value(ctx, dy):
    return dy if float(dy.sum()) > 0 else -dy


def in_place(ctx, x):
    ctx.mark_dirty(x)
    return x.mul_(2)


def inner_gradient(ctx, dy):
    with torch.enable_grad():
        x = ctx.saved_tensors[0].detach().requires_grad_()
        x.sin().backward(dy)
    return x.grad


@pytest.mark.parametrize(
    "own, what",
    [
        (function(numpy_forward, lambda ctx, dy: dy), "whose result no op made"),
        (
            function(lambda ctx, x: 2 * x, lambda ctx, dy: torch.from_numpy(dy.numpy() * 2)),
            "whose backward returns a gradient that no op",
        ),
        (function(lambda ctx, x: 2 * x, by_value), "a backward pass that reads values of its gradient"),
        (function(in_place, lambda ctx, dy: dy), "which changes its operand"),
        (function(saving(torch.sin), inner_gradient), "its backward could not be recorded"),
        (function(lambda ctx, x: 2 * x, lambda ctx, dy: dy * torch.rand_like(dy)), "draws random numbers"),
    ],
    ids=["numpy", "numpy_backward", "by_value", "in_place", "inner_gradient", "random"],
)
def test_what_cannot_be_recorded_is_refused_with_its_line(own, what):
    support = check(made(lambda m, h: own.apply(h * 1)), loss_of, batches()[0])
    assert not support.ok and what in str(support) and "test_capture_functions.py:" in str(support), str(support)


def test_a_number_that_changes_is_another_graph(tmp_path, lockstep):
    """The schedule of a gradient reversal."""
    own = function(lambda ctx, x, a: (setattr(ctx, "a", a), x.view_as(x))[1], lambda ctx, dy: (-ctx.a * dy, None))
    model = made(lambda m, h: own.apply(h, m.strength))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with Capture(tmp_path / "run.lscap.h5", model, optimizer, loss_of, steps=3) as cap:
        for number, batch in enumerate(batches()):
            model.strength = number / 4
            with cap.step(batch):
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    with h5py.File(tmp_path / "run.lscap.h5") as file:
        graphs = [json.loads(bytes(file[f"graphs/{k}/json"][:])) for k in file["graphs"]]
    passes = [node["backward"] for graph in graphs for node in graph["nodes"] if node["op"] == "custom_gradient"]
    assert sorted(each["nodes"][0]["attrs"]["scalar"] for each in passes) == [-0.5, -0.25, -0.0]
    assert verified(lockstep, tmp_path / "run.lscap.h5")["V1"] == "PASS"


def test_a_changed_backward_pass_is_found_on_a_verify_step(tmp_path):
    """What is recorded is compared with the loop's own gradients."""

    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, dy):
            return dy * (2.0 if torch._C._current_autograd_node() is not None else 3.0)

    model = made(lambda m, h: Odd.apply(h))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with pytest.raises(CaptureError, match="away from that of step_fn's loss"):
        train(model, optimizer, loss_of, batches(), Capture(tmp_path / "run.h5", model, optimizer, loss_of, steps=2))
