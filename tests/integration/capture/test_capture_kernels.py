"""Ops that are one in PyTorch and several in a graph: in which formats they compute, against PyTorch under autocast.

The classes of CPU autocast are asked of the PyTorch that runs here; those of CUDA stand in its autocast_mode.h.
"""

import json

import h5py
import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import capture

N, C = 8, 12
LABELS = torch.arange(N)
SIGNS = torch.ones(N, C)
SIGNS[::3] = -1


class Behind(torch.nn.Module):
    """f of a product, which autocast gives in low precision, and a product of that again."""

    def __init__(self, f):
        super().__init__()
        self.first, self.second, self.f = torch.nn.Linear(C, C), torch.nn.Linear(C, C), f

    def forward(self, x):
        return self.f(self.first(x), self.second)


def captured(path, f, autocast=None, steps=2, scale=1.0):
    torch.manual_seed(0)
    model = Behind(f)
    batches = [torch.randn(N, C) * scale for _ in range(steps)]
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    capture(str(path), model, optimizer, batches, lambda m, b: m(b).float().sum(), steps=steps, autocast=autocast)
    return path


# One kernel: f, and the format of its result under CUDA autocast (fp16), from its operands' formats.
KERNELS = {
    "mish": (lambda y, m: F.mish(y), "fp16"),
    "log_sigmoid": (lambda y, m: F.logsigmoid(y), "fp16"),
    "selu": (lambda y, m: F.selu(y), "fp16"),
    "glu": (lambda y, m: F.glu(y, 1), "fp16"),
    "std": (lambda y, m: y.std(1), "fp16"),
    "std_mean": (lambda y, m: torch.std_mean(y, 1)[0], "fp16"),
    "lerp": (lambda y, m: y.lerp(y * y, 0.3), "fp16"),
    "lerp_weights": (lambda y, m: y.lerp(y * y, y), "fp16"),
    "norm": (lambda y, m: y.norm(dim=1), "fp32"),
    "norm_1": (lambda y, m: y.norm(p=1, dim=1), "fp32"),
    "norm_all": (lambda y, m: torch.linalg.vector_norm(y), "fp32"),
    "norm_inf": (lambda y, m: y.norm(p=float("inf"), dim=1), "fp32"),
    "log2": (lambda y, m: (y * y + 1).log2(), "fp32"),
    "log10": (lambda y, m: (y * y + 1).log10(), "fp32"),
    "addcmul": (lambda y, m: y.addcmul(y, y, value=0.3), "fp16"),
    "addcmul_wide": (lambda y, m: torch.addcmul(y.float(), y, y), "fp32"),
    "addcdiv": (lambda y, m: y.addcdiv(y, y * y + 1), "fp16"),
    "nll_loss": (lambda y, m: F.nll_loss(y.log_softmax(1), LABELS), "fp32"),
    "weight_norm": (lambda y, m: torch._weight_norm(y, y[:, :1].contiguous(), 0), "fp16"),
}
# Several kernels: the operands are cast by the class of the whole, each part rounds as the kernel that it is.
LISTED = {
    "triplet_margin_loss": (lambda y, m: F.triplet_margin_loss(y[:2], y[2:4], y[4:6]), "fp32"),
    "cosine_embedding_loss": (lambda y, m: F.cosine_embedding_loss(y, y * y, SIGNS[:, 0]), "fp32"),
    "margin_ranking_loss": (lambda y, m: F.margin_ranking_loss(y, y * y, SIGNS), "fp32"),
    "hinge_embedding_loss": (lambda y, m: F.hinge_embedding_loss(y, SIGNS), "fp32"),
    "soft_margin_loss": (lambda y, m: F.soft_margin_loss(y, SIGNS), "fp32"),
    "cosine_similarity": (lambda y, m: F.cosine_similarity(y, y * y), "fp32"),
    "soft_targets": (lambda y, m: F.cross_entropy(y, SIGNS.softmax(1)), "fp32"),
    "pairwise_distance": (lambda y, m: F.pairwise_distance(y, y * y), "fp32"),
    "logsumexp": (lambda y, m: y.logsumexp(1), "fp32"),
}


class Explained:
    def __init__(self, lockstep, path, policy):
        program = json.loads(lockstep("explain", path, "--policy", policy, "--json").stdout)
        self.ops = [op for op in program["ops"] if not op["backward"]]
        made = {op["outputs"][0]["value"]: op["outputs"][0]["format"] for op in self.ops}
        widened = next(op for op in reversed(self.ops) if op["op"] == "cast")  # .float() of the result
        self.result = made[widened["inputs"][0]["value"]]

    def named(self, op):
        return [found for found in self.ops if found["op"] == op]

    def between_borders(self):
        inside = [i for i, op in enumerate(self.ops) if op["op"].startswith("composed_")]
        return [op for op in self.ops[inside[0] : inside[-1]] if not op["op"].startswith("composed_")]


def in_torch(f):
    """The format of the result under CPU autocast."""
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        found = Behind(f)(torch.randn(N, C)).dtype
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}[found]


@pytest.mark.parametrize("name", KERNELS | LISTED)
def test_result_has_the_class_of_the_whole(lockstep, tmp_path, name):
    f, on_cuda = (KERNELS | LISTED)[name]
    path = captured(tmp_path / "a.lscap.h5", f, steps=1)
    assert Explained(lockstep, path, "torch-autocast-fp16").result == on_cuda
    assert Explained(lockstep, path, "torch-autocast-bf16-cpu").result == in_torch(f)
    assert Explained(lockstep, path, "fp32").result == "fp32"
    if name in KERNELS and "wide" not in name:
        assert Explained(lockstep, path, "pure-fp16").result == "fp16"


IN_TORCH = {
    "norm": "linalg_vector_norm",
    "std": "std.correction",
    "lerp": "lerp.Scalar",
    "weight_norm": "_weight_norm",
    "upsample": "upsample_bicubic2d",
    "sparse_mm": "addmm",
    "fake_quantize": "fake_quantize_per_tensor_affine",
    "fake_quantize_by_tensors": "fake_quantize_per_channel_affine",
    "grouped_mm": "_grouped_mm",
    "fft": "fft_fft",
    "complex": "polar",
    "grid_sample3d": "grid_sampler",
}
# CUDA's autocast does not list them: kernels of BF16 do not exist there, those of FP16 for some sizes alone.
ON_CPUS_ALONE = {"fft", "complex"}


def test_table_agrees_with_pytorchs_own(lockstep):
    """PyTorch's dispatcher knows what CUDA autocast wraps, on machines without CUDA, too."""
    rows = json.loads(lockstep("list", "ops", "--json").stdout)
    composed = [row for row in rows if row["source"].endswith("between composed_operand and composed_result")]
    assert {"mish", "norm", "addcmul", "nll_loss"} <= {row["op"] for row in composed}
    for row in composed:
        table = torch._C._dispatch_dump("aten::" + IN_TORCH.get(row["op"], row["op"]))
        device = "CPU" if row["op"] in ON_CPUS_ALONE else "CUDA"
        assert (f"\nAutocast{device}" in table) == (row["class"] != "follow"), row


@pytest.mark.parametrize("name", ["mish", "log_sigmoid", "std", "norm", "addcmul", "glu", "weight_norm", "nll_loss"])
@pytest.mark.parametrize("policy", ["torch-autocast-fp16", "torch-autocast-bf16-cpu", "pure-fp16", "apex-o2"])
def test_a_kernel_is_fp32_inside(lockstep, tmp_path, name, policy):
    def body(y, m):
        z = KERNELS[name][0](y, m)
        return (
            F.mse_loss(z, torch.ones(z.shape)) if policy == "apex-o2" else z.float().square()
        )  # its model ends in a loss

    parts = Explained(lockstep, captured(tmp_path / "a.lscap.h5", body, steps=1), policy).between_borders()
    assert parts
    for op in parts:
        assert {out["format"] for out in op["outputs"]} <= {"fp32", "int"}, op


def test_nothing_is_rounded_before_the_whole_is_widened(lockstep, tmp_path):
    """Losses of the FP32 list: no part in low precision, the gradient rounded once, where it leaves."""
    for name in ("triplet_margin_loss", "cosine_embedding_loss", "margin_ranking_loss", "hinge_embedding_loss"):
        path = captured(tmp_path / f"{name}.lscap.h5", LISTED[name][0], steps=1)
        explained = Explained(lockstep, path, "torch-autocast-fp16")
        for op in explained.between_borders():
            if op["op"] not in ("slice", "mul") or op["inputs"][0]["as"] == "fp32":
                assert op["outputs"][0]["format"] in ("fp32", "int"), (name, op)
        first = next(op for op in explained.ops if op["op"] == "composed_operand")
        assert first["outputs"][0]["format"] == "fp32"


def residual(f):
    """A number from the result that depends on each element, after a product of the sum of both."""

    def body(y, m):
        z = f(y, m)
        return m(y + z).square() if z.shape == y.shape else z.square()

    return body


REVIEWED = {
    **{name: residual(f) for name, (f, _) in (KERNELS | LISTED).items()},
    "normalize": lambda y, m: m(F.normalize(y, dim=-1)),
    "softmin": lambda y, m: F.softmin(y, 1).square(),
    "log_softmax": lambda y, m: y.log_softmax(1).square(),
    "log_softmax_first": lambda y, m: y.log_softmax(0).square(),
    "distillation": lambda y, m: F.kl_div((y * 4).log_softmax(1), SIGNS.softmax(1), reduction="batchmean"),
}


@pytest.mark.parametrize("name", REVIEWED)
def test_as_pytorch_in_bf16(lockstep, tmp_path, name):
    """V7: the emulated run compared with the captured one, BF16 autocast on the CPU."""
    path = captured(tmp_path / "a.lscap.h5", REVIEWED[name], autocast=torch.bfloat16, steps=3)
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and "V1  PASS" in said and "V7  PASS" in said


@pytest.mark.parametrize("exponent", [3, -2, 0.5, 4, -1])
def test_powers_round_where_pytorch_does(lockstep, tmp_path, exponent):
    """x**3 is two products and its gradient three kernels: nothing is left but sums in another order. Rounded once, the
    gradients are 0.002 to 0.02 of their bound away."""
    torch.manual_seed(0)
    model, path = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)), tmp_path / "a.lscap.h5"
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(64, 16) for _ in range(3)],
        lambda m, x: m[1]((m[0](x).abs() + 0.5) ** exponent).float().square().mean(),
        steps=3,
        verify=range(3),
        autocast=torch.bfloat16,
    )
    line = next(line for line in lockstep("verify", path).stdout.splitlines() if line.startswith("V7"))
    assert float(line.split("gradients ")[1].split()[0]) < 1e-3, line


class Picked(torch.nn.Module):
    def __init__(self, f):
        super().__init__()
        self.rows, self.f = torch.nn.Parameter((torch.rand(20, 40) + 0.5).bfloat16()), f

    def forward(self, ids):
        return self.f(self.rows, ids)


def across(ids):
    return ids[:, None].expand(-1, 40)


# f(rows (20,40), 1000 ids): sums, or gradients that are.
INDEXED = {
    "x[i]": lambda w, ids: w[ids],
    "x[:, i]": lambda w, ids: w.t()[:, ids],
    "x[i, j]": lambda w, ids: w[ids, ids % 40],
    "take": lambda w, ids: w.take(ids),
    "index_select": lambda w, ids: w.index_select(0, ids),
    "index_select in the middle": lambda w, ids: w.reshape(2, 10, 40).index_select(1, ids // 2),
    "gather": lambda w, ids: w.gather(0, across(ids)),
    "embedding": lambda w, ids: F.embedding(ids, w),
    "pad": lambda w, ids: F.pad(w[None], (500, 0), mode="replicate"),
    "repeat_interleave": lambda w, ids: w[:, 0].repeat_interleave(ids.bincount(minlength=20)),
    "index_add": lambda w, ids: w.new_zeros(20, 40).index_add(0, ids, w.repeat(50, 1)),
    "index_add of numbers": lambda w, ids: w.new_zeros(20).index_add(0, ids, w.repeat(50, 1)[:, 0]),
    "index_add in the middle": lambda w, ids: w.new_zeros(1, 20, 40).index_add(1, ids, w.repeat(50, 1)[None]),
    "scatter_add": lambda w, ids: w.new_zeros(20, 40).scatter_add(0, across(ids), w.repeat(50, 1)),
    "scatter_reduce": lambda w, ids: w.new_zeros(20, 40).scatter_reduce(0, across(ids), w.repeat(50, 1), "sum"),
    "index_put": lambda w, ids: w.new_zeros(20, 40).index_put((ids,), w.repeat(50, 1), accumulate=True),
    "fold": lambda w, ids: F.fold(w.t()[None], (1, 59), (1, 40)),
}


@pytest.mark.parametrize("name", INDEXED)
def test_indexed_sums_as_pytorchs_cpu(lockstep, tmp_path, name):
    """Some kernels add 16-bit numbers in 16 bits, and some in FP32: what most places get is seen in every bit."""
    torch.manual_seed(0)
    model, path = Picked(INDEXED[name]), tmp_path / "a.h5"
    data = [torch.where(torch.rand(1000) < 0.9, 3, torch.randint(20, (1000,))) for _ in range(2)]
    shares = (torch.rand(model(data[0]).shape) + 0.5).bfloat16()
    sgd = torch.optim.SGD(model.parameters(), 2**-9)
    capture(str(path), model, sgd, data, lambda m, ids: (m(ids) * shares).float().square().mean() * 512, steps=2)
    loss, far, gradients = v7(lockstep, path)
    assert gradients < 1e-3, (loss, far, gradients)


@pytest.mark.parametrize("norm", ["layer", "group"])
def test_norms_without_weights_save_statistics_in_bf16(lockstep, tmp_path, norm):
    """The backward pass of PyTorch's CPU reads them rounded. In FP32, gradients would be 0.007 to 0.013 of their bound away."""
    torch.manual_seed(0)
    model, path = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)), tmp_path / "a.lscap.h5"
    f = {"layer": lambda y: F.layer_norm(y, (32,)), "group": lambda y: F.group_norm(y, 4)}[norm]
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(64, 16) for _ in range(3)],
        lambda m, x: m[1](f(m[0](x) + 2)).float().square().mean(),
        steps=3,
        verify=range(3),
        autocast=torch.bfloat16,
    )
    line = next(line for line in lockstep("verify", path).stdout.splitlines() if line.startswith("V7"))
    assert float(line.split("gradients ")[1].split()[0]) < 3e-3, line


def v7(lockstep, path, code=0):
    """(distance of the losses, distance of captured and FP32, gradients' share of their bound)"""
    line = next(line for line in lockstep("verify", path, code=code).stdout.splitlines() if line.startswith("V7"))
    return tuple(
        float(line.split(before)[1].split()[0].rstrip(",;)")) for before in ("loss ", "captured to FP32 ", "gradients ")
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_layer_norm_adds_weight_gradients_in_bf16(lockstep, tmp_path, threads):
    """Every thread rounds after each of its rows. Summed in FP32, the gradients would be 2 times their bound away."""
    torch.manual_seed(0)
    model, path = (
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 8)),
        tmp_path / "a.h5",
    )
    torch.set_num_threads(threads)
    try:
        capture(
            str(path),
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            [torch.randn(1000, 16) for _ in range(2)],
            lambda m, x: m(x).float().square().mean(),
            steps=2,
            autocast=torch.bfloat16,
        )
    finally:
        torch.set_num_threads(1)
    assert v7(lockstep, path)[2] < 0.05


@pytest.mark.parametrize("norm", ["batch of rows", "batch of images", "instance"])
def test_batch_statistics_without_weights_are_bf16(lockstep, tmp_path, norm):
    """PyTorch's CPU normalises with rounded statistics. In FP32 the losses would be 0.1 to 0.6 of the rounding apart."""
    torch.manual_seed(0)
    f = {
        "batch of rows": lambda y: F.batch_norm(y.flatten(1)[:, :32].contiguous(), None, None, training=True).unflatten(
            1, (32, 1, 1)
        ),
        "batch of images": lambda y: F.batch_norm(y, None, None, training=True),
        "instance": F.instance_norm,
    }[norm]
    model, path = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.Conv2d(32, 4, 1)), tmp_path / "a.lscap.h5"
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(20, 3, 9, 9) for _ in range(3)],
        lambda m, x: (m[1](f(m[0](x) + 3)) + 1).float().square().mean(),
        steps=3,
        verify=range(3),
        autocast=torch.bfloat16,
    )
    own, rounding, _ = v7(lockstep, path)
    assert own < rounding / 16, (own, rounding)


@pytest.mark.parametrize("training", [True, False])
def test_a_batch_norm_of_constant_channels(lockstep, tmp_path, training):
    """PyTorch's CPU computes fma(x, a, b): the error of a product, whose sign the relu sees. The formula of CUDA, which the
    lane fp32 has (V1 and V3 fail), gives zero, and no gradient of the bias."""
    torch.manual_seed(0)
    model, path = torch.nn.Sequential(torch.nn.BatchNorm2d(64), torch.nn.Conv2d(64, 4, 1)), tmp_path / "a.lscap.h5"
    torch.nn.init.uniform_(model[0].weight, 0.5, 1.5)
    constant = torch.randn(64, 1, 1).bfloat16().float()
    model[0].running_mean.copy_(constant.flatten())
    model[0].train(training)
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [constant.expand(4, 64, 3, 3).contiguous()] * 2,
        lambda m, x: (m[1](m[0](x).relu()) + 1).float().square().mean(),
        steps=2,
        autocast=torch.bfloat16,
    )
    assert v7(lockstep, path, code=1)[2] < 0.5


def test_running_statistics_are_read_as_they_are(lockstep, tmp_path):
    """Of a frozen batch norm in a BF16 model. Rounded as those of a batch, the loss would be twice its bound away."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.BatchNorm2d(32), torch.nn.Conv2d(32, 4, 1))
    torch.nn.init.uniform_(model[1].running_var, 0.1, 0.3)
    model, path = model.bfloat16(), tmp_path / "a.lscap.h5"
    model[1].eval()
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(20, 3, 9, 9).bfloat16() for _ in range(3)],
        lambda m, x: (m(x).float() + 1).square().mean(),
        steps=3,
        verify=range(3),
    )
    own, rounding, _ = v7(lockstep, path)
    assert own < rounding / 16, (own, rounding)


class Times(torch.nn.Module):
    """A product of a matrix with a learnt vector."""

    def __init__(self):
        super().__init__()
        self.a, self.v, self.s = (
            torch.nn.Linear(16, 32),
            torch.nn.Parameter(torch.randn(32)),
            torch.nn.Parameter(torch.randn(64)),
        )

    def forward(self, x):
        return torch.dot(torch.mv(self.a(x).float(), self.v), self.s)


def test_mv_and_dot_have_classes_of_their_own(lockstep, tmp_path):
    """CPU autocast lists neither; CUDA autocast casts mv's operands and promotes dot's."""
    torch.manual_seed(0)
    model, path = Times(), tmp_path / "a.lscap.h5"
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.01),
        [torch.randn(64, 16)],
        lambda m, x: m(x),
        steps=1,
        autocast=torch.bfloat16,
    )
    own, rounding, _ = v7(lockstep, path)
    assert own < rounding / 16, (own, rounding)
    made = {
        policy: [op["outputs"][0]["format"] for op in Explained(lockstep, path, policy).named("matmul")]
        for policy in ("torch-autocast-bf16-cpu", "torch-autocast-fp16")
    }
    assert made == {"torch-autocast-bf16-cpu": ["fp32", "fp32"], "torch-autocast-fp16": ["fp16", "fp32"]}


class Scaled(torch.nn.Module):
    """A number that training learns, as the first or the second operand of an elementwise op."""

    def __init__(self, body):
        super().__init__()
        self.body, self.a, self.b = body, torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)
        self.s = torch.nn.Parameter(torch.tensor(1.0049))  # BF16: 1.0078

    def forward(self, x):
        return self.b(self.body(self.a(x), self.s))


@pytest.mark.parametrize("op", ["mul", "div", "add", "sub"])
@pytest.mark.parametrize("first", [True, False])
def test_numbers_are_read_as_pytorchs_cpu_reads_them(lockstep, tmp_path, op, first):
    """mul and div read a second operand without dimensions in FP32, and everything else in BF16."""
    torch.manual_seed(0)
    f, path = getattr(torch, op), tmp_path / "a.lscap.h5"
    model = Scaled((lambda y, s: f(s, y)) if first else f)
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(64, 16) for _ in range(3)],
        lambda m, x: m(x).float().square().mean(),
        steps=3,
        verify=range(3),
        autocast=torch.bfloat16,
    )
    line = next(line for line in lockstep("verify", path).stdout.splitlines() if line.startswith("V7"))
    own, rounding = (float(line.split(before)[1].split()[0].rstrip(",;)")) for before in ("loss ", "captured to FP32 "))
    assert own < rounding / 16, line


class Between(torch.nn.Module):
    """f of a product and of weights, and a product of that."""

    def __init__(self, f, features=32, **shapes):
        super().__init__()
        self.f, self.first, self.last = f, torch.nn.Linear(16, features), torch.nn.Linear(features, 8)
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(*shape)))

    def forward(self, x):
        return self.last(self.f(self, self.first(x)))


def judged(lockstep, path, model, rows=64):
    """Two steps in BF16 on the CPU: how far V7's loss is as a share of what rounding did, its gradients, its line."""
    torch.manual_seed(0)
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(rows, 16) for _ in range(2)],
        lambda m, x: m(x).float().square().mean(),
        steps=2,
        verify=range(2),
        autocast=torch.bfloat16,
    )
    line = next(line for line in lockstep("verify", path).stdout.splitlines() if line.startswith("V7"))
    loss, rounding, gradients = (
        float(line.split(before)[1].split()[0].rstrip(",;)")) for before in ("loss ", "captured to FP32 ", "gradients ")
    )
    return loss / rounding, gradients, line


ADDED_PRODUCTS = {
    "addmm": (lambda m, y: torch.addmm(m.c, y, m.w), (32, 32), (64, 32)),
    "addmm_row": (lambda m, y: torch.addmm(m.c, y, m.w, beta=0.3), (32, 32), (32,)),
    "addmm_alpha": (lambda m, y: torch.addmm(m.c, y, m.w, alpha=0.7), (32, 32), (64, 32)),
    "addmm_both": (lambda m, y: torch.addmm(m.c, y, m.w, beta=0.3, alpha=0.7), (32, 32), (64, 32)),
    "baddbmm": (lambda m, y: torch.baddbmm(m.c, y.view(4, 16, 32), m.w).view(64, 32), (4, 32, 32), (4, 1, 32)),
    "baddbmm_both": (
        lambda m, y: torch.baddbmm(m.c, y.view(4, 16, 32), m.w, beta=0.3, alpha=0.7).view(64, 32),
        (4, 32, 32),
        (4, 16, 32),
    ),
    "addbmm": (lambda m, y: torch.addbmm(m.c, y.view(4, 16, 32), m.w).repeat(4, 1), (4, 32, 32), (16, 32)),
}


@pytest.mark.parametrize("name", ADDED_PRODUCTS)
def test_a_product_and_what_is_added_round_once(lockstep, tmp_path, name):
    """Rounded twice, losses would be a sixth of what rounding did away and more, gradients 0.007 of their bound."""
    f, w, c = ADDED_PRODUCTS[name]
    torch.manual_seed(0)
    loss, gradients, line = judged(lockstep, tmp_path / "a.lscap.h5", Between(f, w=w, c=c))
    assert loss < 1 / 64 and gradients < 1e-3, line


NUMBERS = {
    "add": lambda m, y: y + 0.5723,
    "sub": lambda m, y: y - 0.5723,
    "rsub": lambda m, y: 0.5723 - y,
    "mul": lambda m, y: y * 0.5723,
    "div": lambda m, y: y / 0.5723,
    "rdiv": lambda m, y: 0.5723 / (y.abs() + 0.5),
    "alpha": lambda m, y: torch.add(m.w, y, alpha=0.5723),
    "pow": lambda m, y: (y.abs() + 0.5) ** 0.5723,
    "greater": lambda m, y: y * (y.detach().clamp(-1, 1) > 0.5723).type_as(y),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_pythons_numbers_are_read_as_pytorchs_cpu_reads_them(lockstep, tmp_path, name):
    """Those of mul and div in FP32, all others in BF16: 0.5723 is 0.5742 there."""
    torch.manual_seed(0)
    model = Between(NUMBERS[name], w=(1, 32)).bfloat16() if name == "alpha" else Between(NUMBERS[name])
    loss, gradients, line = judged(lockstep, tmp_path / "a.lscap.h5", model)
    assert loss < 1 / 64 and gradients < 1e-3, line


def moved_grid(m, y):
    theta = (y[:, :6].view(64, 2, 3) * 0.3 + torch.eye(2, 3)).to(y.dtype)
    return F.affine_grid(theta, [64, 1, 4, 4], align_corners=m.corners).reshape(64, 32)


@pytest.mark.parametrize("corners", [True, False])
def test_a_grid_is_made_in_the_format_of_its_matrix(lockstep, tmp_path, corners):
    torch.manual_seed(0)
    model = Between(moved_grid)
    model.corners = corners
    loss, gradients, line = judged(lockstep, tmp_path / "a.lscap.h5", model)
    assert loss < 1 / 64 and gradients < 1e-3, line


def counted(m, y):
    """How often each row is named, in the activations' type, and seen in another shape."""
    names = torch.arange(64) ** 2 % 64
    counts = torch.zeros(64, dtype=y.dtype).scatter_add_(0, names, torch.ones(64, dtype=y.dtype))
    return y * torch.log(counts.view(-1, 1) + 1)


def masked_in_place(m, y):
    """A mask of the smallest number, which is added in place; the probabilities go back to the scores' type."""
    scores = y * 2
    mask = torch.zeros_like(y).masked_fill(torch.arange(32) > 20, torch.finfo(y.dtype).min)
    scores += mask
    return F.dropout(scores.softmax(-1, dtype=torch.float32).type_as(scores), 0.1) * y


@pytest.mark.parametrize("f", [counted, masked_in_place])
def test_what_is_made_in_an_activations_type_has_its_format(lockstep, tmp_path, f):
    torch.manual_seed(0)
    loss, gradients, line = judged(lockstep, tmp_path / "a.lscap.h5", Between(f))
    assert loss < 1 / 64 and gradients < 1e-3, line


SEVERAL_KERNELS = {
    **{
        name: lambda m, y, f=getattr(torch, name): f(y.abs() + 0.5)
        for name in ("reciprocal", "rsqrt", "log1p", "expm1", "exp2", "sinh", "cosh", "asinh", "lgamma")
    },
    **{name: lambda m, y, f=getattr(torch, name): f(y * 0.7) for name in ("sin", "cos", "tan", "atan", "erf")},
    "acosh": lambda m, y: torch.acosh(y.abs() + 1.5),
    "div": lambda m, y: y / (m.w * y.abs() + 1),
    "norm": lambda m, y: y * y.norm(dim=1, keepdim=True),
    "norm_all": lambda m, y: y / torch.linalg.vector_norm(y),
    "normalize": lambda m, y: F.normalize(y, dim=1),
    "cosine": lambda m, y: y.detach() * F.cosine_similarity(y, y.detach().flip(0))[:, None],
    "pairwise": lambda m, y: y * F.pairwise_distance(y, y.flip(0), keepdim=True),
}


@pytest.mark.parametrize("name", SEVERAL_KERNELS)
def test_gradients_of_several_kernels_round_in_each(lockstep, tmp_path, name):
    """Rounded once, they would be 0.001 to 0.009 of their bound away."""
    torch.manual_seed(0)
    model = Between(SEVERAL_KERNELS[name], **({"w": (32,)} if name == "div" else {}))
    _, gradients, line = judged(lockstep, tmp_path / "a.lscap.h5", model)
    assert gradients < 1e-4, line


def test_integers_do_not_widen_what_they_are_added_to(lockstep, tmp_path):
    torch.manual_seed(0)
    counts = torch.arange(1, 33)
    loss, gradients, line = judged(lockstep, tmp_path / "a.lscap.h5", Between(lambda m, y: y / counts + counts))
    assert loss < 1 / 64 and gradients < 1e-3, line


@pytest.mark.parametrize("loops", [None, torch.bfloat16])
def test_the_smallest_number_of_a_type_is_that_of_the_lane(lockstep, tmp_path, loops):
    """Fully masked rows: with an infinity in FP16 they would be NaN."""

    def f(m, y):
        mask = torch.zeros_like(y).masked_fill(torch.ones(32, dtype=torch.bool), torch.finfo(y.dtype).min)
        return (y * 0 + mask).softmax(-1).type_as(y) * y

    path, model = tmp_path / "a.lscap.h5", Between(f)
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        [torch.randn(8, 16)],
        lambda m, x: m(x).float().square().mean(),
        steps=1,
        autocast=loops,
    )
    said = lockstep(
        "replay", path, "--lanes", "fp32,torch-autocast-fp16,torch-autocast-bf16,pure-fp16", "-o", tmp_path / "a.h5"
    ).stdout
    assert "NaN" not in said and "non-finite" not in said.replace("No non-finite", ""), said


def test_a_norm_of_large_activations_does_not_overflow(lockstep, tmp_path):
    """Squares of 300 are beyond FP16; the norm is computed in FP32 by PyTorch."""
    path = captured(tmp_path / "a.lscap.h5", lambda y, m: m(F.normalize(y, dim=-1)), scale=600.0)
    said = lockstep(
        "replay", path, "--lanes", "fp32,torch-autocast-fp16,torch-autocast-fp16-cpu,pure-fp16", "-o", tmp_path / "a.h5"
    ).stdout
    assert "infinity" not in said and "non-finite" not in said.replace("No non-finite", "")


def test_every_node_is_read(tmp_path):
    """nll_loss reads log_softmax; of std_mean's two results one is asked for."""
    for f in (KERNELS["nll_loss"][0], KERNELS["std_mean"][0], lambda y, m: torch.std_mean(y, 1)[1]):
        path = captured(tmp_path / "a.lscap.h5", f, steps=1)
        with h5py.File(path) as file:
            graph = json.loads(bytes(file["graphs/0/json"][()]).decode())
        path.unlink()
        read = {name.partition(".")[0] for node in graph["nodes"] for name in node["in"]} | {graph["loss"]}
        assert [node for node in graph["nodes"] if node["id"] not in read] == []
        assert ("log_softmax" in {node["op"] for node in graph["nodes"]}) == (f is KERNELS["nll_loss"][0])
