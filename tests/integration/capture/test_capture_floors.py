"""What `lockstep verify` judges by a floor: gradients that FP32 does not determine, and how many there are."""

import json

import h5py
import numpy as np
import pytest
import tiny_capture as tiny
import torch
import torch.nn.functional as F
from capture_loops import Images, grads64, image_batches, image_loss, train
from lockstep_capture import Capture, capture

nn = torch.nn


def normalised(path, per_group, seed=0):
    """GroupNorm over two numbers gives +-1, and its input gradient is all cancellation."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(8 // per_group, 8), nn.Tanh(), nn.Linear(8, 3))
    batches = [(torch.randn(16, 6), torch.randint(3, (16,))) for _ in range(3)]
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        batches,
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        steps=3,
        verify=range(3),
    )
    return path


def verify(lockstep, path, code=0):
    """By gate: its line, and its counts of what was judged by a floor."""
    lines = {line[:2]: line for line in lockstep("verify", path, code=code).stdout.splitlines() if line[:1] == "V"}
    stored = json.loads((path.parent / f"{path.name}.verify.json").read_text())
    return lines, {gate["name"]: gate.get("floor", {}) for gate in stored["gates"]}


def change(path, dataset, factor):
    with h5py.File(path, "r+") as file:
        file[dataset][()] = file[dataset][()] * np.float32(factor)
    tiny.seal(path)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_that_fp32_does_not_determine_are_judged_by_one_ulp(lockstep, tmp_path, seed):
    path = normalised(tmp_path / "net.h5", 2, seed)
    with h5py.File(path) as file:  # PyTorch's FP32 is further from its own FP64 than V3's relative bound
        step = file["verify/000000"]
        single, double = step["ref32/grads/0.weight"][()], grads64(step)["0.weight"]
    assert seed == 2 or np.linalg.norm(single - double) > 1e-5 * np.linalg.norm(double)
    lines, floor = verify(lockstep, path)
    assert "PASS" in lines["V3"] and f"{floor['V3']['by_chaos']} of 18 by what one ulp moves" in lines["V3"]
    # Most layers after the normalisation are not among them (which, depends on PyTorch's kernels).
    assert 0 < floor["V3"]["by_chaos"] <= 9 and floor["V1"]["by_chaos"] == 0


@pytest.mark.parametrize("name, factor", [("3.weight", 1.0001), ("1.weight", 1.0001), ("0.weight", 1.01)])
def test_a_wrong_gradient_beside_them_fails(lockstep, tmp_path, name, factor):
    path = normalised(tmp_path / "net.h5", 2)
    change(path, f"verify/000000/ref32/grads/{name}", factor)
    assert "FAIL" in verify(lockstep, path, code=1)[0]["V3"]


def test_no_other_gradient_has_that_bound(lockstep, tmp_path):
    path = normalised(tmp_path / "net.h5", 4)
    lines, floor = verify(lockstep, path)
    assert "one ulp" not in lines["V3"] and floor["V3"]["by_chaos"] == 0
    change(path, "verify/000000/ref32/grads/0.weight", 1.0001)  # ten times the relative bound
    assert "FAIL" in verify(lockstep, path, code=1)[0]["V3"]


class Mirrored(nn.Module):
    """A batch norm whose batch holds every row and its negative: the true mean of each channel is zero."""

    def __init__(self):
        super().__init__()
        self.fc, self.bn, self.out = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.bn(self.fc(x))))


def mirrored(path):
    torch.manual_seed(0)
    model, batches = Mirrored(), []
    for _ in range(3):
        rows = torch.randn(256, 6)
        batches.append((torch.cat([rows, -rows])[torch.randperm(512)], torch.randint(3, (512,))))
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        batches,
        lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        steps=3,
        verify=range(3),
    )
    return path


def edit_graph(path, old, new):
    with h5py.File(path, "r+") as file:
        graph = file["graphs/0/json"]
        text = graph[()].tobytes()
        assert len(old) == len(new) and old.encode() in text
        graph[()] = np.frombuffer(text.replace(old.encode(), new.encode()), graph.dtype)
    tiny.seal(path)


def test_a_running_mean_that_cancels_is_judged_by_pytorchs_own_error(lockstep, tmp_path):
    path = mirrored(tmp_path / "net.h5")
    with h5py.File(path) as file:
        step = file["verify/000000"]
        single, double = (step[f"{ref}/post/buffers/bn.running_mean"][()] for ref in ("ref32", "ref64"))
        assert "bn.num_batches_tracked" not in step["ref64/post/buffers"]
    assert double.dtype == np.float64 and np.linalg.norm(double) < 1e-15 < 1e-10 < np.linalg.norm(single)
    lines, floor = verify(lockstep, path)
    assert "PASS" in lines["V4"] and floor["V4"]["by_torch"] >= 1
    assert f"judged by a floor: {floor['V4']['by_torch']} of 6 by the error of PyTorch's own FP32" in lines["V4"]
    with h5py.File(path, "r+") as file:  # as captures were before
        for step in file["verify"].values():
            del step["ref64/post"]
    tiny.seal(path)
    assert "FAIL" in verify(lockstep, path, code=1)[0]["V4"]


def test_a_running_mean_where_pytorchs_own_error_came_out_small(lockstep, tmp_path):
    """Then one ulp of the weights tells how far FP32 determines it."""
    path = mirrored(tmp_path / "net.h5")
    for step in range(3):
        change(path, f"verify/{step:06d}/ref32/post/buffers/bn.running_mean", 0.05)
    lines, floor = verify(lockstep, path)
    assert "PASS" in lines["V4"] and floor["V4"]["by_chaos"] >= 1
    edit_graph(path, '"momentum": 0.1', '"momentum": 0.2')
    assert "FAIL" in verify(lockstep, path, code=1)[0]["V4"]


def test_a_wrong_momentum_fails_all_the_same(lockstep, tmp_path):
    path = mirrored(tmp_path / "net.h5")
    edit_graph(path, '"momentum": 0.1', '"momentum": 0.2')
    lines, _ = verify(lockstep, path, code=1)
    assert "FAIL" in lines["V4"] and "bn.running_" in lines["V4"] and "PASS" in lines["V1"] and "PASS" in lines["V3"]


class Scaled(nn.Module):
    def __init__(self, terms):
        super().__init__()
        self.w = nn.Parameter(torch.full((terms,), 0.1))

    def forward(self, x):
        return self.w * x


def test_a_sum_of_thousands_of_terms_is_judged_by_the_larger_error(lockstep, tmp_path):
    """PyTorch's cumsum adds up in FP64 inside, a lane's in FP32: the two errors are far apart."""
    torch.manual_seed(1)
    path, terms = tmp_path / "net.h5", 40_000
    model = Scaled(terms)
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 1e-4),
        [(torch.rand(terms) + 0.1,) for _ in range(3)],
        lambda m, b: torch.cumsum(m(b[0]), 0)[-1] / terms,
        steps=3,
        verify=range(3),
    )
    line = verify(lockstep, path)[0]["V3"]
    assert "PASS" in line and "judged by a floor: 3 times the error of FP32 against FP64" in line
    assert float(line.split("loss ")[1].split()[0]) > 1e-6, "or the plain bound would do"
    with h5py.File(path, "r+") as file:
        file["verify/000000/ref32"].attrs["loss"] *= 1.001
    tiny.seal(path)
    assert "FAIL" in verify(lockstep, path, code=1)[0]["V3"]


def test_the_counts_are_those_of_the_file(lockstep, tmp_path):
    """A convolution's bias in front of a batch norm is noise; what is small is judged by the largest."""
    torch.manual_seed(3)
    path, model = tmp_path / "net.h5", Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    cap = Capture(path, model, optimizer, image_loss, autocast=torch.bfloat16, steps=4, verify=[0, 2, 3])
    train(model, optimizer, image_loss, image_batches(4), cap, dtype=torch.bfloat16)
    lines, floor = verify(lockstep, path)
    counts = ("tensors", "by_floor", "by_chaos", "by_torch", "by_terms", "elements", "noise")
    expected = {name: dict.fromkeys(counts, 0) for name in ("V1", "V3", "V5")}
    with h5py.File(path) as file:
        for step in file["verify"].values():
            noise = {
                name: np.unpackbits(bits[()])[: np.prod(bits.attrs["shape"], dtype=int)]
                for name, bits in step["noise"].items()
            }
            for gate, group, share in (("V1", "ref64", 1e-3), ("V3", "ref32", 1e-1)):  # absolute to relative bound
                found = grads64(step) if group == "ref64" else step["ref32/grads"]
                grads = {name: g[()].astype(np.float64).ravel() for name, g in found.items()}
                largest = max(np.linalg.norm(g) for g in grads.values())
                for name, g in grads.items():
                    left = noise.get(name, np.zeros(g.size)) == 0
                    expected[gate]["tensors"] += 1
                    expected[gate]["by_floor"] += int(share * largest > np.linalg.norm(g[left]))
                    expected[gate]["elements"] += g.size
                    expected[gate]["noise"] += int((~left).sum())
            for weight in step["ref32/post/params"].values():
                expected["V5"]["tensors"] += 1
                expected["V5"]["by_floor"] += int(2e-6 * np.linalg.norm(weight[()].astype(np.float64)) < 1e-7)
                expected["V5"]["elements"] += weight[()].size
    assert {gate: floor[gate] for gate in expected} == expected
    found = expected["V3"]
    assert 0 < found["noise"] < found["elements"] and 0 < found["by_floor"] < found["tensors"]
    for gate in ("V1", "V3"):
        e = expected[gate]
        assert (
            f"{e['by_floor']} of {e['tensors']} by the absolute floor, {e['noise']} of {e['elements']} elements"
            in lines[gate]
        )
    assert f"{floor['V7']['noise']} of {floor['V7']['elements']} elements left out as noise" in lines["V7"]
    assert floor["V4"]["by_torch"] == 0 and floor["V4"]["tensors"] == 6 and floor["V6"] == {}


class Difference(nn.Module):
    """A sum less nearly itself: one ulp of a weight moves the loss by 0.0002 of itself."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return (self.w * x).sum() - (2 + 2**-10)


@pytest.mark.parametrize("factor, passes", [(1 + 1e-4, True), (1.01, False)])
def test_a_loss_that_fp32_does_not_determine_is_judged_by_one_ulp(lockstep, tmp_path, factor, passes):
    """Both compute it exactly here: no error of theirs allows for PyTorch's other loss."""
    path, model = tmp_path / "net.h5", Difference()
    capture(
        str(path),
        model,
        torch.optim.SGD(model.parameters(), 1e-4),
        [(torch.ones(2),)] * 3,
        lambda m, b: m(b[0]).square(),
        steps=3,
        verify=[0],
    )
    with h5py.File(path, "r+") as file:
        file["verify/000000/ref32"].attrs["loss"] *= factor
    tiny.seal(path)
    line = verify(lockstep, path, code=not passes)[0]["V3"]
    assert ("PASS" if passes else "FAIL") in line
    assert ("judged by a floor: 4 times what one ulp moves in step 0" in line) == passes


class Cancels(nn.Module):
    """Sums of the same numbers in two orders: their difference is rounding alone, in FP64, too."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 501)

    def forward(self, x):
        y = self.fc(x)
        return y, (y.sum(1) - y.flip(1).sum(1)).mean()


def cancelling(path):
    torch.manual_seed(0)
    model = Cancels()
    batches = [(torch.randn(16, 6), torch.randn(16, 501)) for _ in range(3)]

    def loss_of(model, batch):
        y, nothing = model(batch[0])
        return F.mse_loss(y, batch[1]) + 1e5 * nothing

    capture(str(path), model, torch.optim.SGD(model.parameters(), 0.1), batches, loss_of, steps=3)
    return path


def test_a_loss_that_fp64_does_not_determine_is_judged_by_one_ulp(lockstep, tmp_path):
    path = cancelling(tmp_path / "net.h5")
    line = verify(lockstep, path)[0]["V1"]
    assert "PASS" in line and "4 times what one ulp moves" in line, line
    with h5py.File(path, "r+") as file:
        file["verify/000000/ref64"].attrs["loss"] *= 1 + 1e-6
    tiny.seal(path)
    assert "FAIL" in verify(lockstep, path, code=1)[0]["V1"]


class OneImage(nn.Module):
    """PyTorch 2.13's gradient of a batch norm is wrong if it comes back transposed and the batch is one image."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Linear(8, 5)
        self.token = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, x):
        places = self.bn(self.conv(x)).flatten(2).transpose(1, 2)
        return self.head(torch.cat([self.token.expand(len(x), -1, -1), places], 1).square()).mean(1)


@pytest.mark.parametrize("images", [1, 2])
def test_a_wrong_gradient_of_pytorch_is_named_as_such(lockstep, tmp_path, images):
    torch.manual_seed(0)
    model = OneImage()
    batches = [(torch.randn(images, 3, 16, 16), torch.randint(5, (images,))) for _ in range(2)]
    path = tmp_path / "net.h5"
    loss_of = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])
    capture(str(path), model, torch.optim.SGD(model.parameters(), 0.1), batches, loss_of, steps=2)
    wrong = images == 1
    said = lockstep("verify", path, code=1 if wrong else 0).stdout
    assert ("PyTorch's own backward pass is wrong here" in said) == wrong, said
    assert (" the replay is wrong" in said) is False


@pytest.mark.parametrize("rows", [2000, 20000])
def test_long_batches_are_judged_by_their_number_of_rows(lockstep, tmp_path, rows):
    """A lane adds the rows' gradients one after the other; PyTorch adds in blocks, and is nearer to FP64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(64, 16), nn.LayerNorm(16), nn.Linear(16, 64))
    loader = [(ids, ids.roll(-1)) for ids in (torch.randint(0, 64, (rows,)) for _ in range(2))]
    optimizer, path = torch.optim.SGD(model.parameters(), 0.1), tmp_path / "rows.h5"
    capture(str(path), model, optimizer, loader, lambda m, b: F.cross_entropy(m(b[0]), b[1]), steps=2)
    lines, floor = verify(lockstep, path)
    assert "PASS" in lines["V3"] and floor["V3"]["by_terms"] == (rows == 20000)
    assert ("by the number of terms" in lines["V3"]) == (rows == 20000)
    assert floor["V1"]["by_terms"] == 0
