"""Factorisations, determinants, triangular systems and volumes that are sampled: graphs against PyTorch in FP64, and a
replay in the C++ program."""

import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import capture, check
from lockstep_capture.rules.inverses import MOST_ROWS
from test_capture_composed import ordered
from test_capture_ops import Weights, compare, x

nn = torch.nn
la = torch.linalg
MANY = 37  # above 32, and no power of two


def positive(t):
    """Symmetric, with eigenvalues of at least 1."""
    return t @ t.mT / t.shape[-1] + torch.eye(t.shape[-1])


def triangle(t):
    return t.tril() * 0.1 + 2 * torch.eye(t.shape[-1])


OF_A_MATRIX = {
    "solve_triangular": lambda t: la.solve_triangular(triangle(t), t[:, :2], upper=False),
    "solve_upper_unit_right": lambda t: la.solve_triangular(t * 0.1, t[:2], upper=True, left=False, unitriangular=True),
    "triangular_solve": lambda t: torch.triangular_solve(t[:, :2], triangle(t), upper=False, transpose=True)[0],
    "cholesky": lambda t: la.cholesky(positive(t)),
    "cholesky_upper": lambda t: torch.cholesky(positive(t), upper=True),
    "cholesky_ex": lambda t: la.cholesky_ex(positive(t))[0],
    "cholesky_solve": lambda t: torch.cholesky_solve(t[:, :2], la.cholesky(positive(t))),
    "cholesky_solve_upper": lambda t: torch.cholesky_solve(t[:, :2], triangle(t).T, upper=True),
    "cholesky_inverse": lambda t: torch.cholesky_inverse(triangle(t)),
    "cholesky_inverse_upper": lambda t: torch.cholesky_inverse(triangle(t).T, upper=True),
    "logdet": lambda t: torch.logdet(positive(t)) * t,
    "slogdet": lambda t: torch.slogdet(t)[1] * t,
    "slogdet_sign": lambda t: la.slogdet(t)[0] * t,
    "det": lambda t: la.det(t * 0.3 + torch.eye(len(t))) * t,
    "lu": lambda t: sum(ordered(part) for part in la.lu(t)),
    "solve_ex": lambda t: la.solve_ex(t + 3 * torch.eye(len(t)), t[:, :2])[0],
    "inverse": la.inv,
    "normal": lambda t: torch.distributions.MultivariateNormal(t[0], positive(t)).log_prob(t[-1]) * t,
}


@pytest.mark.parametrize("rows", [1, 2, 5, MANY])
@pytest.mark.parametrize("name", OF_A_MATRIX)
def test_factorisations(name, rows):
    compare(Weights((rows, rows)), lambda m, b: ordered(OF_A_MATRIX[name](m.w0 * 1.0)), ())


def test_stacks_of_matrices():
    """Signs of both kinds among them."""

    def loss(m, b):
        t = m.w0 * 1.0
        parts = (la.det(t), *la.slogdet(t), la.inv(t), la.cholesky(positive(t)), la.solve_triangular(t, t, upper=True))
        return sum(ordered(part) for part in parts)

    assert set(la.slogdet(Weights((2, 3, 4, 4)).w0)[0].reshape(-1).tolist()) == {1.0, -1.0}
    compare(Weights((2, 3, 4, 4)), loss, ())


def nodes_of(body, rows):
    found = check(Weights((rows, rows)), lambda m, b: ordered(body(m.w0 * 1.0)), ())
    assert found.ok, found
    return sum(found.ops.values())


def test_a_triangle_takes_a_few_nodes_for_each_doubling():
    counts = [nodes_of(OF_A_MATRIX["solve_triangular"], rows) for rows in (64, 128, 256, 512)]
    assert counts[3] - counts[2] == counts[2] - counts[1] == counts[1] - counts[0] < 20, counts


def test_an_elimination_takes_a_few_nodes_for_each_row():
    for name in ("cholesky", "inverse"):
        few, many = (nodes_of(OF_A_MATRIX[name], rows) for rows in (8, 16))
        assert few < many <= few + 8 * 25, name


def test_too_many_rows():
    said = str(check(Weights((MOST_ROWS + 1, 1)), lambda m, b: torch.logdet(positive(m.w0 * 1.0)), ()))
    assert f"at most {MOST_ROWS} rows" in said and f"this has {MOST_ROWS + 1}" in said


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_volumes(mode, padding, corners):
    """Places inside and outside of the volume, and on its border."""
    options = {"mode": mode, "padding_mode": padding, "align_corners": corners}

    def loss(m, b):
        places = torch.cat([m.w1.reshape(2, 24, 3), m.w1.reshape(2, 24, 3).detach().sign()], 1).reshape(2, 3, 4, 4, 3)
        return ordered(F.grid_sample(m.w0 * 1.0, places * 1.0, **options))

    compare(Weights((2, 3, 4, 5, 6), (2, 3, 4, 2, 3)), loss, ())


class Matrices(nn.Module):
    """A Gaussian process on features, and a volume moved by a learned matrix."""

    def __init__(self):
        super().__init__()
        self.features, self.noise = nn.Linear(3, 4), nn.Parameter(torch.zeros(()))
        self.moved = nn.Parameter(torch.eye(3, 4)[None] + 0.01)

    def forward(self, b):
        points, volume = b
        h = self.features(points)
        k = torch.exp(-torch.cdist(h, h).square()) + (0.1 + self.noise.exp()) * torch.eye(len(h))
        root = la.cholesky(k)
        fit = la.solve_triangular(root, points[:, :1], upper=False)
        places = F.affine_grid(self.moved, (1, 1, 4, 4, 4), align_corners=False)
        seen = F.grid_sample(volume, places, align_corners=False)
        rest = torch.logdet(k[:5, :5]) + la.solve(k, points).square().mean() + la.slogdet(k)[1]
        return fit.square().sum() + root.diagonal().log().sum() + (seen - volume.flip(2)).square().mean() + rest


def test_replays(lockstep, tmp_path):
    torch.manual_seed(0)
    model, path = Matrices(), tmp_path / "matrices.lscap.h5"
    batches = [(torch.randn(MANY, 3), torch.randn(1, 1, 4, 4, 4)) for _ in range(2)]
    capture(str(path), model, torch.optim.SGD(model.parameters(), 0.01), batches, lambda m, b: m(b), steps=2)
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and all(f"{gate}  PASS" in said for gate in ("V1", "V3", "V5")), said


WAYS_OUT = {
    "qr": (lambda t: la.qr(t)[0], lambda t: t @ la.inv(la.cholesky(t.mT @ t).mT)),
    "pinv": (la.pinv, lambda t: la.solve(t.mT @ t, t.mT)),
    "lstsq": (lambda t: la.lstsq(t, x(6, 2)).solution, lambda t: la.solve(t.mT @ t, t.mT @ x(6, 2))),
}


@pytest.mark.parametrize("name", WAYS_OUT)
def test_refused_ones_have_a_way_out(name):
    refused, instead = WAYS_OUT[name]
    said = check(Weights((6, 4)), lambda m, b: ordered(refused(m.w0 * 1.0)), ())
    assert not said.ok and "torch.linalg.solve(A.mT @ A, A.mT)" in str(said).replace("\n", " ")
    compare(Weights((6, 4)), lambda m, b: ordered(instead(m.w0 * 1.0)), ())
