"""Idioms of other people's code that go beyond plain layers: dtypes by Python's names, writes into empty slices, FP64 regions,
sparse gradients, weights without gradient that move, torch.func.vmap, ops of torch.library, TorchScript. Graphs against
PyTorch in FP64, and replays in the C++ program."""

import copy

import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import capture, check
from test_capture_composed import ROWS, ordered
from test_capture_ops import Weights, compare, labels, x

nn = torch.nn
NONE = torch.zeros(0, dtype=torch.int64)


def verified(lockstep, path, model, loss_of, batches, optimizer=None, gates=("V1", "V3"), **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    capture(str(path), model, optimizer, batches, loss_of, steps=len(batches), **options)
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and all(f"{gate}  PASS" in said for gate in gates), said


DTYPES = {
    "bool_mask": lambda t: t.masked_fill(torch.ones(4, 6, dtype=bool).tril(), 0.5),
    "bool_like": lambda t: t.masked_fill(torch.zeros_like(t, dtype=bool) | (x(*ROWS) > 0), 0.5),
    "int": lambda t: t[torch.arange(3, dtype=int)],
    "float": lambda t: t * torch.arange(6, dtype=float),
    "to_bool": lambda t: t * (t > 0).to(bool),
    "to_float": lambda t: t.to(float).exp().float(),
    "sum_float": lambda t: t.sum(1, dtype=float),
    "softmax_float": lambda t: F.softmax(t, 1, dtype=float) * t,
    "double": lambda t: (t.double() * torch.linspace(0, 1, 6, dtype=torch.float64)).cumsum(1).float(),
    "numpy": lambda t: t * torch.from_numpy(x(*ROWS).numpy().astype("float64")),
    "vector_weight": lambda t: F.linear(x(*ROWS), t[0]),
    "vector_weight_and_rows": lambda t: F.linear(x(2, *ROWS), t[0]),
    "vectors": lambda t: F.linear(t[0], t[1]) * t,
    "bias_of_one": lambda t: F.linear(x(*ROWS), t, t[0, :1]),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_and_vectors(name):
    compare(Weights(ROWS), lambda m, b: ordered(DTYPES[name](m.w0 * 1.0)), ())


def test_vectors_in_a_loop(lockstep, tmp_path):
    def loss(m, b):
        bias = F.linear(b, m.w0, m.w0[0, :1])
        return (
            ordered(F.linear(b, m.w0[0]))
            + ordered(F.linear(b[None], m.w0[0]))
            + ordered(bias)
            + F.linear(b[0], m.w0[1])
        )

    for autocast, gate in ((None, "V3"), ("bfloat16", "V7")):
        path = tmp_path / f"{gate}.lscap.h5"
        verified(lockstep, path, Weights(ROWS), loss, [x(*ROWS)] * 2, gates=("V1", gate), autocast=autocast)


def test_targets_in_fp64(lockstep, tmp_path):
    """From NumPy. PyTorch's loss is FP64, too."""
    batches = [(torch.randn(4, 6), torch.randn(4, 6, dtype=torch.float64)) for _ in range(2)]
    verified(
        lockstep, tmp_path / "a.lscap.h5", Weights(ROWS), lambda m, b: (m.w0 * b[0] - b[1]).square().mean(), batches
    )


EMPTY = {
    "copy": lambda t: t[2:2].copy_(t[:0]),
    "number": lambda t: t.__setitem__(slice(2, 2), 0.0),
    "beyond": lambda t: t.__setitem__(slice(4, 9), t[4:]),
    "fill": lambda t: t[:0].fill_(3.0),
    "add": lambda t: t[:, 6:].add_(1.0),
    "two_dims": lambda t: t[1:1, 2:3].mul_(2.0),
    "masked": lambda t: t[:0].masked_fill_(t[:0] > 0, 1.0),
    "places": lambda t: t.__setitem__(NONE, t[:0]),
    "index_copy": lambda t: t.index_copy_(0, NONE, t[:0].clone()),
    "scatter": lambda t: t.scatter_(0, NONE.reshape(0, 6), t[:0]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_writes_into_nothing(name):
    def loss(m, b):
        t = m.w0 * 1.0
        EMPTY[name](t)
        return ordered(t * 2)

    compare(Weights(ROWS), loss, ())


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.bags = nn.Embedding(9, 4, sparse=True), nn.EmbeddingBag(9, 4, sparse=True)

    def forward(self, tokens):
        return ordered(self.words(tokens).sum(1) + self.bags(tokens))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients(lockstep, tmp_path, momentum):
    model = Sparse()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=momentum)
    batches = [labels(3, 2, below=9), labels(3, 2, below=9).flip(0)]
    verified(lockstep, tmp_path / "a.lscap.h5", model, lambda m, b: m(b), batches, optimizer, ("V1", "V3", "V5"))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(20, 16, sparse=True), nn.Linear(16, 4)

    def forward(self, tokens):
        return self.head(torch.fft.irfft(torch.fft.rfft(self.words(tokens)), n=16))


def test_sparse_gradients_of_repeated_words(lockstep, tmp_path):
    """The order in which a row's parts are added depends on the strides of what came back."""
    torch.manual_seed(0)
    model = Mixed()
    batches = [(torch.randint(3, (4, 6)), torch.randint(4, (24,))) for _ in range(2)]
    loss_of = lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 1), b[1])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    verified(lockstep, tmp_path / "a.lscap.h5", model, loss_of, batches, optimizer, ("V1", "V3", "V5"))


class Averages(nn.Module):
    """A target that follows the network: moved in place, or given new data."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.net = kind, nn.Sequential(nn.Linear(6, 5), nn.Tanh())
        self.target = copy.deepcopy(self.net).requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        pairs = list(zip(self.target.parameters(), self.net.parameters(), strict=True))
        if self.kind == "foreach":
            torch._foreach_lerp_([t for t, _ in pairs], [w for _, w in pairs], 0.1)
        for target, own in pairs if self.kind != "foreach" else ():
            if self.kind == "lerp":
                target.lerp_(own, 0.1)
            else:
                target.data = target.data * 0.9 + own.data * 0.1

    def forward(self, b):
        self.follow()
        with torch.no_grad():
            wanted = self.target(b + 0.1)
        return (self.net(b) - wanted).square().mean() + ordered(self.net(b))


@pytest.mark.parametrize("kind", ["lerp", "data", "foreach"])
def test_weights_without_gradient_that_move(lockstep, tmp_path, kind):
    """The optimizer may hold them, too: it passes them by."""
    model = Averages(kind)
    before = [p.clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    batches = [torch.randn(4, 6) for _ in range(3)]
    verified(lockstep, tmp_path / "a.lscap.h5", model, lambda m, b: m(b), batches, optimizer, ("V1", "V3", "V4", "V5"))
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    assert check(model, lambda m, b: m(b), batches[0]).ok
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("kind", ["clamp", "data"])
def test_weights_with_gradient_that_the_forward_pass_changes(kind):
    def loss(m, b):
        if kind == "clamp":
            m.w0.data.clamp_(-0.1, 0.1)
        else:
            m.w0.data = m.w0.data.clamp(-0.1, 0.1)
        return ordered(m.w0)

    model = Weights(ROWS)
    said = check(model, loss, ())
    assert not said.ok and "in-place on a parameter" in str(said) and "parametrize" in str(said)
    assert torch.equal(model.w0, Weights(ROWS).w0)


class Clamped(nn.Module):
    def forward(self, w):
        return w.clamp(-0.1, 0.1)


def test_a_parametrization_that_clamps():
    layer = nn.Linear(6, 5)
    nn.utils.parametrize.register_parametrization(layer, "weight", Clamped())
    compare(layer, lambda m, b: ordered(m(b)), x(*ROWS))


VMAPS = {
    "product": lambda t: torch.vmap(lambda row: (t @ row).sin())(x(*ROWS)),
    "linear": lambda t: torch.vmap(lambda row: F.linear(row, t).softmax(0))(x(*ROWS)),
    "nested": lambda t: torch.vmap(lambda row: torch.vmap(lambda other: (other * row).sum())(t))(x(*ROWS)),
    "in_dims": lambda t: torch.vmap(torch.dot, in_dims=(0, 1))(t, x(*ROWS).T),
    "numbers": lambda t: torch.vmap(lambda row: torch.where(row > 0, row, 0.5 * row) + 1)(t),
    "out_dims": lambda t: torch.vmap(lambda row: row.cumsum(0), out_dims=1)(t),
    "not_batched": lambda t: torch.vmap(lambda row: (t * 2).sum() * row + torch.ones(6))(t),
}


@pytest.mark.parametrize("name", VMAPS)
def test_vmap(name):
    compare(Weights(ROWS), lambda m, b: ordered(VMAPS[name](m.w0 * 1.0)), ())


def test_vmap_in_a_loop(lockstep, tmp_path):
    """Under autocast, too: its casts are no part of the program."""

    def loss(m, b):
        return ordered(torch.vmap(lambda row: F.linear(row, m.w0).tanh() * 2)(b))

    batches = [torch.randn(4, 6) for _ in range(2)]
    verified(lockstep, tmp_path / "a.lscap.h5", Weights(ROWS), loss, batches)
    path = tmp_path / "b.lscap.h5"
    verified(lockstep, path, Weights(ROWS), loss, batches, gates=("V1", "V7"), autocast="bfloat16")
    ops = check(
        Weights(ROWS), lambda m, b: torch.vmap(lambda row: m.w0 @ row)(b).mean(), batches[0], autocast="bfloat16"
    )
    assert ops.ok and "cast" not in ops.ops and "cast_like" not in ops.ops, ops


def test_what_else_torch_func_does_is_refused():
    forward = check(
        Weights(ROWS), lambda m, b: ordered(torch.func.jvp(lambda r: m.w0 @ r, (b[0],), (b[1],))[1]), x(*ROWS)
    )
    assert "torch.func.jvp" in str(forward)
    both = torch.vmap(torch.func.grad(lambda r, w: (w @ r).sin().sum()), in_dims=(0, None))
    assert "once for their sum" in str(check(Weights(ROWS), lambda m, b: ordered(both(b, m.w0)), x(*ROWS)))


def gradients_of_all_rows(m, b):
    rows = b.clone().requires_grad_()
    return ordered(torch.autograd.grad((m.w0 @ rows.T).sin().sum(), rows, create_graph=True)[0])


def test_gradients_of_all_rows_by_one_of_their_sum():
    compare(Weights(ROWS), gradients_of_all_rows, x(*ROWS))


@torch.library.custom_op("lockstep_test::wave", mutates_args=())
def wave(t: torch.Tensor, k: float = 2.0, *, shift: float = 0.5) -> torch.Tensor:
    return torch.sin(t * k + shift)


def keep(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.k, ctx.shift = inputs[1], keyword_only_inputs["shift"]


def wave_backward(ctx, dy):
    """Not the derivative: three times as large."""
    return 3 * dy * ctx.k * torch.cos(ctx.saved_tensors[0] * ctx.k + ctx.shift), None


wave.register_autograd(wave_backward, setup_context=keep)


@torch.library.custom_op("lockstep_test::add_to", mutates_args=("t",))
def add_to(t: torch.Tensor, other: torch.Tensor) -> None:
    t.add_(other)


@torch.library.custom_op("lockstep_test::numpy_sine", mutates_args=())
def numpy_sine(t: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(__import__("numpy").sin(t.detach().numpy()))


numpy_sine.register_autograd(
    lambda ctx, dy: dy * ctx.saved_tensors[0].cos(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def added(t):
    total = x(*ROWS) * 2
    add_to(total, x(*ROWS))
    return total * t


OWN_OPS = {
    "gradient": lambda t: wave(t),
    "arguments": lambda t: wave(wave(t, 3.0), shift=0.1),
    "without_gradient": lambda t: wave(t.detach()) * t,
    "mutates": added,
    "of_the_batch": lambda t: numpy_sine(x(*ROWS)) * t,
}


@pytest.mark.parametrize("name", OWN_OPS)
def test_ops_of_torch_library(name):
    compare(Weights(ROWS), lambda m, b: ordered(OWN_OPS[name](m.w0 * 1.0)), ())


def test_an_op_of_torch_library_in_a_loop(lockstep, tmp_path):
    """The loop's gradients, from PyTorch's own call of the op, have the bits of the program's."""
    batches = [torch.randn(4, 6) for _ in range(2)]
    model, path = Weights(ROWS, (6, 6)), tmp_path / "a.lscap.h5"
    verified(lockstep, path, model, lambda m, b: ordered(wave(b @ m.w1) * m.w0), batches)
    bf16 = tmp_path / "b.lscap.h5"
    verified(
        lockstep, bf16, model, lambda m, b: ordered(wave(b @ m.w1) * m.w0), batches, gates=("V7",), autocast="bfloat16"
    )


def test_an_op_of_torch_library_that_numpy_computes():
    said = check(Weights(ROWS), lambda m, b: ordered(numpy_sine(m.w0 * 1.0)), ())
    assert "numpy_sine, whose result no op made" in str(said)


@torch.jit.script
def bent(t: torch.Tensor, times: int):
    for _ in range(times):
        t = t + t.sin()
    if bool(t.sum() > 0):
        t = t * 2
    return t


def test_functions_of_torchscript(lockstep, tmp_path):
    verified(lockstep, tmp_path / "a.lscap.h5", Weights(ROWS), lambda m, b: ordered(bent(m.w0 * b, 2)), [x(*ROWS)] * 2)


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.rest = torch.jit.script(nn.Linear(6, 6)), nn.Linear(6, 5)

    def forward(self, b):
        return self.rest(self.part(b))


def test_modules_of_torchscript_are_named():
    said = check(Holds(), lambda m, b: ordered(m(b)), x(*ROWS))
    assert [(p.what, p.module) for p in said.problems] == [("a TorchScript module", "part")]
    assert "PYTORCH_JIT=0" in said.problems[0].hint
    loaded = torch.jit.CompilationUnit("def sine(t):\n    return t.sin()\n").sine
    said = check(Weights(ROWS), lambda m, b: ordered(loaded(m.w0)), ())
    assert [p.what for p in said.problems] == ["a TorchScript function without its Python form (sine)"]


def test_nested_tensors_are_named():
    def loss(m, b):
        return ordered((torch.nested.nested_tensor([b[:1], b[1:]], layout=torch.jagged) @ m.w0.T).values())

    assert [p.what for p in check(Weights(ROWS), loss, x(*ROWS)).problems] == ["a nested tensor"]


class Inner(torch.autograd.Function):
    """Computes its forward pass anew and lets PyTorch differentiate that."""

    @staticmethod
    def forward(ctx, t, w):
        ctx.save_for_backward(t, w)
        return (t @ w).sin()

    @staticmethod
    def backward(ctx, dy):
        with torch.enable_grad():
            t, w = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
            return torch.autograd.grad((t @ w).sin(), (t, w), dy)


def test_a_function_whose_backward_pass_takes_gradients(lockstep, tmp_path):
    def loss(m, b):
        return ordered(Inner.apply(Inner.apply(m.w0 * b, m.w1), m.w1))

    compare(Weights(ROWS, (6, 6)), loss, x(*ROWS))
    verified(lockstep, tmp_path / "a.lscap.h5", Weights(ROWS, (6, 6)), loss, [x(*ROWS)] * 2)
