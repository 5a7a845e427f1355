"""Loss and every gradient in FP64 against PyTorch FP64, same weights, same batch.

Bounds: loss to 1e-12 relative, each parameter's gradient ||delta|| <= 1e-9 ||g|| + 1e-12 max_q ||g_q||.
The second term is for gradients that are zero in exact arithmetic (a bias in front of batch_norm).
"""

import subprocess

import numpy as np
import pytest
import torch

nn = torch.nn

BATCH = 16


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 128), nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class Lenet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 6, 5, padding=2), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        pool = nn.functional.max_pool2d
        x = pool(torch.relu(self.bn1(self.conv1(x))), 2)
        x = pool(torch.relu(self.bn2(self.conv2(x))), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


@pytest.mark.parametrize("name,make", [("mlp", Mlp), ("lenet", Lenet)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_step_equals_torch(binary_dir, tmp_path, name, make, seed):
    torch.manual_seed(seed)
    model = make().double()
    model.train()
    images = torch.randn(BATCH, 1, 28, 28, dtype=torch.float64)
    labels = torch.randint(0, 10, (BATCH,))
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()

    parameters = dict(model.named_parameters())
    for parameter, value in parameters.items():
        value.detach().numpy().astype("<f8").tofile(tmp_path / f"p_{parameter}.f64")
    images.numpy().astype("<f8").tofile(tmp_path / "images.f64")
    labels.numpy().astype("<i4").tofile(tmp_path / "labels.i32")
    tool = str(binary_dir / "lockstep_step_tool")
    done = subprocess.run([tool, name, str(BATCH), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    ours = float((tmp_path / "loss.txt").read_text())
    assert abs(ours - loss.item()) <= 1e-12 * abs(loss.item())
    largest = max(np.linalg.norm(p.grad.numpy()) for p in parameters.values())
    worst = 0.0
    for parameter, value in parameters.items():
        expected = value.grad.numpy()
        got = np.fromfile(tmp_path / f"g_{parameter}.f64", dtype="<f8").reshape(expected.shape)
        delta = np.linalg.norm(got - expected)
        bound = 1e-9 * np.linalg.norm(expected) + 1e-12 * largest
        assert delta <= bound, f"{parameter}: {delta:.3e} > {bound:.3e}"
        worst = max(worst, delta / bound)
    print(f"{name} seed {seed}: loss off by {abs(ours / loss.item() - 1):.1e} relative, "
          f"worst gradient at {worst:.1e} of its bound")
