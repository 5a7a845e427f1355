"""Writes to views: loss and gradients of the graph compared with PyTorch's, which writes in place; their replay."""

import pytest
import torch
from lockstep_capture import capture, check
from test_capture_composed import ordered
from test_capture_ops import Weights, compare, x

ROWS = (4, 6)


def in_place(body):
    """y of the same values as t, after body(y, t)."""

    def run(t):
        y = t * 1.0
        body(y, t)
        return y

    return run


def filled_in_a_loop(make):
    def run(t):
        out = make(t)
        for i in range(4):
            out[i] = t[i] ** 2 + i
        return out * out

    return run


def filled_in_boxes(t):
    out = torch.empty(2, 4, 6)
    out[0, :, :2], out[0, :, 2:] = t[:, 4:], t[:, :4] * 2
    out[1] = 0.5
    out[1, 1:3, ::2] = t[1:3, 3:]
    return out


def two_views(t):
    y = t * 1.0
    y[:3].mul_(t[1:])
    y[1:].add_(1)
    return y


def view_made_before(t):
    y = t * 1.0
    row, flat, turned = y[1], y.view(3, 8), y.t()
    before = row * 2
    y.mul_(t)
    turned[0].add_(row[:4])
    return y * flat.sum() + row + before + turned.t()


def pieces_made_before(t):
    y = t * 1.0
    left, right = y.detach().chunk(2, 1), y.detach().split([2, 4], 1)
    y[:, 1] = t[:, 0]
    return torch.cat([left[0] * t[:, :3], right[1] * t[:, :4], y], 1)


def counted_with(t):
    """A mask of the written values, which a lane compares by itself."""
    y = torch.zeros(ROWS)
    y[:, ::2] = t[:, :3]
    return (y > 0.1) * y * t


WRITES = {
    "column": in_place(lambda y, t: y[:, 0].add_(t[:, 1])),
    "item": in_place(lambda y, t: y.__setitem__((0, 1), t[1, 1] * 2)),
    "number": in_place(lambda y, t: y.__setitem__((slice(1, 3), 2), 5.0)),
    "every_second": in_place(lambda y, t: y[:, ::2].mul_(t[:, 3:])),
    "sum": in_place(lambda y, t: y.__setitem__((slice(None), 0), y[:, 0] + t[:, 1])),
    "zero": in_place(lambda y, t: y[1:].zero_()),
    "copy": in_place(lambda y, t: y[:2].copy_(t[2:] * t[2:])),
    "broadcast": in_place(lambda y, t: y[:2].copy_(t[2])),
    "relu": in_place(lambda y, t: y[:2].relu_()),
    "masked_fill": in_place(lambda y, t: y[:2].masked_fill_(t[:2] > 0, 0.5)),
    "view_of_view": in_place(lambda y, t: y[:3][:, 1].add_(t[1:, 2])),
    "turned": in_place(lambda y, t: y.t()[1].mul_(t[:, 0])),
    "turned_whole": in_place(lambda y, t: y.view(2, 2, 6).permute(2, 0, 1).mul_(t.reshape(6, 2, 2))),
    "flat": in_place(lambda y, t: y.view(24)[3:9].add_(t[0])),
    "diagonal": in_place(lambda y, t: y.diagonal().mul_(t[:, 0])),
    "fill_diagonal": in_place(lambda y, t: y.fill_diagonal_(0.5)),
    "indexed": in_place(lambda y, t: y[1:].index_put_((torch.tensor([0, 2]),), t[:2] * 2)),
    "mask": in_place(lambda y, t: y.__setitem__(t > 0, 0.0)),
    "own_mask": in_place(lambda y, t: y[:, 1:].masked_scatter_(x(4, 5) > 0, t * 3)),
    "fill": in_place(lambda y, t: y[1].fill_(t.sum())),
    "zeros": filled_in_a_loop(lambda t: torch.zeros(ROWS)),
    "empty": filled_in_a_loop(lambda t: torch.empty(ROWS)),
    "new_zeros": filled_in_a_loop(lambda t: t.new_zeros(ROWS)),
    "clone": filled_in_a_loop(lambda t: x(*ROWS).clone()),
    "boxes": filled_in_boxes,
    "two_views": two_views,
    "view_before": view_made_before,
    "pieces_before": pieces_made_before,
    "mask_of_written": counted_with,
    "copy_is_no_view": lambda t: (lambda y, z: (z.mul_(2), y * z)[1])(t * 1.0, (t * 1.0).t().contiguous().t()),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_views(name):
    compare(Weights(ROWS), lambda m, b: ordered(WRITES[name](m.w0 * 1.0)), ())


def test_a_reshape_that_copies_is_no_view():
    def step(m, b):
        y = m.w0 * 1.0
        flat = y.t().reshape(24)
        flat.mul_(3)
        return ordered(flat) + ordered(y)

    compare(Weights(ROWS), step, ())


@pytest.mark.parametrize("start", [torch.zeros_like, lambda x: torch.zeros(x.shape)])
def test_images_padded_to_one_size_are_an_input(start):
    """Arithmetic on the batch that is written to a part: Python does all of it."""

    def step(m, b):
        whole = start(b)
        for i in range(2):
            whole[i, :, :4].copy_((b[i, :, :4] - 0.5) / 2)
        return ordered(m.w0 * whole)

    compare(Weights((2, 3, 6)), step, x(2, 3, 6))


class Rolled(torch.nn.Module):
    """A recurrence that keeps its states in a tensor made before, and a moving average in a row of a buffer."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = torch.nn.GRUCell(3, 4), torch.nn.Linear(4, 1)
        self.register_buffer("means", torch.zeros(2, 4))

    def forward(self, b):
        states = b.new_zeros(5, 6, 4)
        h = torch.zeros(6, 4)
        for i in range(5):
            h = self.cell(b[i], h)
            states[i] = h
        states[:, :, 0] *= 0.5
        with torch.no_grad():
            self.means[1].lerp_(states.mean((0, 1)), 0.1)
        return self.head(states + self.means[1]).float()


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_replays(lockstep, tmp_path, autocast):
    torch.manual_seed(0)
    model, path = Rolled(), tmp_path / "rolled.lscap.h5"
    batches = [torch.randn(5, 6, 3) for _ in range(2)]
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        batches,
        lambda m, b: m(b).square().mean(),
        steps=2,
        autocast=autocast,
    )
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and all(f"{gate}  PASS" in said for gate in ("V1", "V3", "V4"))


def test_a_write_that_the_gradient_passes_by_is_refused():
    said = check(Weights(ROWS), lambda m, b: ordered(in_place(lambda y, t: torch.no_grad()(y[0].zero_)())(m.w0)), ())
    assert "write to a detached copy" in str(said) and "test_capture_views.py" in str(said)
