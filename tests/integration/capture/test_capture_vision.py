"""torchvision's ops: loss and gradients of their graphs against PyTorch's, and replays in the C++ program."""

import pytest
import torch
from lockstep_capture import Capture, capture
from test_capture_composed import IMAGE, ordered
from test_capture_ops import Weights, compare, x
from torchvision_ops import torchvision_ops

nn = torch.nn


@pytest.fixture(scope="module")
def ops():
    return torchvision_ops()


# Inside, across the borders, far outside, inverted, narrower than a pixel.
BOXES = torch.tensor(
    [
        [1, 0.3, 0.7, 4.2, 3.1],
        [0, -2, -3, 3, 2.5],
        [1, 2, 1, 9, 8],
        [0, 20, 20, 30, 25],
        [1, 3, 3, 2, 1],
        [0, 1, 2, 1.2, 2.1],
    ]
)


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("sampling", [2, 0])
def test_roi_align(ops, sampling, aligned):
    boxes = BOXES if aligned is False else BOXES[[0, 1, 2, 3, 5]]  # without a size, an aligned box has no place
    compare(Weights(IMAGE), lambda m, b: ordered(ops.roi_align(m.w0 * 1.0, boxes, (2, 3), 0.7, sampling, aligned)), ())


def test_boxes_that_the_network_computes(ops):
    """Each lane reads at its own; they get no gradient."""

    def step(m, b):
        boxes = torch.cat([torch.tensor([[0.0], [1.0]]), m.w1.sigmoid().cumsum(1) * 2], 1)
        return ordered(ops.roi_align(m.w0 * 1.0, boxes, 2, 1.0, 2)) + m.w1.sum()

    graph = compare(Weights(IMAGE, (2, 4)), step, ())
    assert sum(node["op"] == "roi_align" for node in graph["nodes"]) == 1


@pytest.mark.parametrize("name", ["plain", "mask", "groups", "offset_groups", "strided"])
def test_deformable_convolution(ops, name):
    groups, offsets = 2 if name == "groups" else 1, 2 if name in ("offset_groups", "strided") else 1
    more = dict(stride=(2, 1), padding=(1, 2), dilation=(1, 2)) if name == "strided" else dict(padding=1)
    image, kernel = (2, 4, 5, 6), (2, 3)
    w = x(6, 4 // groups, *kernel)
    with torch.no_grad():
        height, width = nn.functional.conv2d(x(*image), w, groups=groups, **more).shape[2:]

    def step(m, b):
        places = m.w1[:, :, :height, :width] * 1.5
        mask = m.w1[:, : 6 * offsets, :height, :width].sigmoid() if name == "mask" else None
        return ordered(ops.deform_conv2d(m.w0 * 1.0, places, m.w2 * 1.0, mask=mask, **more))

    compare(Weights(image, (2, 12 * offsets, 9, 9), w.shape), step, ())


class Many(nn.Module):
    """Boxes from a layer, and places that another one learns."""

    def __init__(self, ops):
        super().__init__()
        self.roi_align, self.features, self.boxes = ops.roi_align, nn.Conv2d(3, 4, 3, padding=1), nn.Linear(6, 4)
        self.offset, self.moved = nn.Conv2d(3, 18, 3, padding=1), ops.DeformConv2d(3, 4, 3, padding=1)

    def forward(self, b):
        images, numbers = b
        with torch.no_grad():
            corner, size = self.boxes(numbers).float().sigmoid().split(2, 1)
            boxes = torch.cat([corner * 4, corner * 4 + size * 6 + 1], 1)
        read = self.roi_align(self.features(images), [boxes[:2], boxes[2:]], 3, sampling_ratio=2)
        with torch.autocast("cpu", enabled=False):  # torchvision has no BF16 kernel of it
            moved = self.moved(images, self.offset(images))
        return read.float().square().mean() + moved.square().mean()


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_replays(ops, lockstep, tmp_path, autocast):
    torch.manual_seed(0)
    model, path = Many(ops), tmp_path / "many.lscap.h5"
    batches = [(torch.randn(2, 3, 7, 8), torch.randn(4, 6)) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    capture(str(path), model, optimizer, batches, lambda m, b: m(b), steps=2, autocast=autocast)
    said = lockstep("verify", path).stdout
    assert "FAIL" not in said and all(f"{gate}  PASS" in said for gate in ("V1", "V3")), said
    if autocast is not None:
        assert "V7  PASS" in said


def test_anchors_that_take_the_type_of_the_first_batch(tmp_path):
    """Under autocast a module keeps its constants in BF16 from its first batch on."""

    class Anchored(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.anchors = nn.Linear(3, 4), [torch.tensor([1.0, 2, 3, 4])]

        def forward(self, b):
            y = self.layer(b)
            self.anchors = [anchor.to(y.dtype) for anchor in self.anchors]
            return ((y + self.anchors[0]) ** 2).float().mean()

    model, path = Anchored(), tmp_path / "anchored.lscap.h5"
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    cap = Capture(str(path), model, optimizer, lambda m, b: m(b), steps=3, autocast=torch.bfloat16)
    for _ in range(3):
        b = torch.randn(2, 3)
        with cap.step(b):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert path.exists() and model.anchors[0].dtype == torch.bfloat16
