"""Movement, normalisation, embedding, pools, resizing, convolution: op by op against PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from op_tool import OpError, compare_with_torch, distance, random_arrays, run_op


def check(op, reference, inputs, attrs=None, **more):
    worst = compare_with_torch(op, reference, inputs, attrs, **more)
    print(f"{op} {attrs}: {worst:.3f} of the bound")


@pytest.mark.parametrize(
    "shape,dims",
    [((3, 4, 5), (2, 0, 1)), ((2, 5, 3, 4), (0, 2, 1, 3)), ((37, 19), (1, 0)), ((2, 3, 4, 5, 6), (-1, 0, 3, -4, 2))],
)
def test_permute(shape, dims):
    (x,) = random_arrays(1, shape)
    check("permute", lambda t: t.permute(dims), [x], {"dims": dims})


def test_expand():
    (x,) = random_arrays(2, (3, 1, 4))
    check("expand", lambda t: t.expand(2, 3, 5, 4), [x], {"shape": (2, 3, 5, 4)})
    check("expand", lambda t: t.expand(-1, 6, -1), [x], {"shape": (-1, 6, -1)})


@pytest.mark.parametrize("dim,start,end,step", [(0, 1, 3, 1), (1, -4, -1, 1), (-1, 0, 1000, 3), (1, 2, 6, 2)])
def test_slice(dim, start, end, step):
    (x,) = random_arrays(3, (4, 7, 10))
    index = [slice(None)] * 3
    index[dim] = slice(start, end, step)
    check("slice", lambda t: t[tuple(index)], [x], {"dim": dim, "start": start, "end": end, "step": step})


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(dim):
    shapes = [[2, 3, 4] for _ in range(3)]
    for i, shape in enumerate(shapes):
        shape[dim] += i
    check("cat", lambda *t: torch.cat(t, dim), random_arrays(4, *map(tuple, shapes)), {"dim": dim})


def test_cat_of_one_value_twice_and_of_many():
    arrays = random_arrays(5, *[(2, 3)] * 40)
    check("cat", lambda *t: torch.cat(t, 1), arrays, {"dim": 1})


@pytest.mark.parametrize(
    "pads,value", [((1, 2), 0.0), ((1, 2, 0, 3), 0.5), ((-1, 2, 3, -2), -1.5), ((0, 0, -1, -1), 0.0), ((-4, 8), 2.0)]
)
def test_pad(pads, value):
    (x,) = random_arrays(6, (2, 5, 6))
    check("pad", lambda t: F.pad(t, pads, value=value), [x], {"pads": pads, "value": value})


def test_pixel_shuffle():
    (x,) = random_arrays(7, (2, 18, 3, 4))
    check("pixel_shuffle", lambda t: F.pixel_shuffle(t, 3), [x], {"factor": 3})
    (x,) = random_arrays(7, (2, 2, 6, 4))
    check("pixel_unshuffle", lambda t: F.pixel_unshuffle(t, 2), [x], {"factor": 2})


@pytest.mark.parametrize("dim,shape", [(0, (9, 5, 3)), (1, (4, 11, 3)), (-1, (2, 4, 6))])
def test_gather(dim, shape):
    (x,) = random_arrays(8, (4, 5, 3))
    index = np.random.default_rng(8).integers(0, x.shape[dim], shape)
    check("gather", lambda t, i: t.gather(dim, i), [x, index], {"dim": dim})


@pytest.mark.parametrize("dim,shape", [(0, (9, 5, 3)), (1, (4, 2, 3)), (-1, (2, 4, 6))])
def test_scatter_add(dim, shape):
    """Places that none, one and several elements go to."""
    (x,) = random_arrays(8, (4, 5, 3))
    index = np.random.default_rng(8).integers(0, shape[dim], (min(4, shape[0]), min(5, shape[1]), 3)[:3])
    x = x[tuple(slice(0, extent) for extent in index.shape)].copy()
    check(
        "scatter_add",
        lambda t, i: torch.zeros(shape, dtype=t.dtype).scatter_add(dim, i, t),
        [x, index],
        {"dim": dim, "shape": shape},
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_add(dim):
    (x,) = random_arrays(9, (4, 5, 6))
    index = np.random.default_rng(9).integers(0, 3, x.shape[dim])
    shape = list(x.shape)
    shape[dim] = 3
    check(
        "index_add",
        lambda t, i: torch.zeros(shape, dtype=t.dtype).index_add(dim, i, t),
        [x, index],
        {"dim": dim, "shape": shape},
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_select(dim):
    (x,) = random_arrays(9, (4, 5, 6))
    index = np.random.default_rng(9).integers(0, x.shape[dim], 17)
    check("index_select", lambda t, i: t.index_select(dim, i), [x, index], {"dim": dim})


def test_embedding():
    (weight,) = random_arrays(10, (11, 6))
    index = np.random.default_rng(10).integers(0, 11, (4, 9))
    check("embedding", lambda w, i: F.embedding(i, w), [weight, index])
    # The padding row is read, and gets no gradient.
    index[0, 0] = 3
    check("embedding", lambda w, i: F.embedding(i, w, padding_idx=3), [weight, index], {"padding_idx": 3})


@pytest.mark.parametrize(
    "shape,ndim,operands",
    [((6, 33), 1, 3), ((2, 3, 64), 1, 2), ((4, 5, 6), 2, 3), ((3, 7), 2, 1), ((2, 5000), 1, 3), ((5000, 3), 1, 3)],
)
def test_layer_norm(shape, ndim, operands):
    arrays = random_arrays(11, shape, shape[-ndim:], shape[-ndim:])[:operands]
    arrays[0] += 0.5
    check("layer_norm", lambda x, *wb: F.layer_norm(x, shape[-ndim:], *wb), arrays, {"normalized_ndim": ndim})
    check(
        "layer_norm",
        lambda x, *wb: F.layer_norm(x, shape[-ndim:], *wb, eps=1e-12),
        arrays,
        {"normalized_ndim": ndim, "eps": 1e-12},
    )


@pytest.mark.parametrize("shape,ndim,operands", [((6, 33), 1, 2), ((4, 5, 6), 2, 2), ((5, 48), 1, 1)])
def test_rms_norm(shape, ndim, operands):
    arrays = random_arrays(12, shape, shape[-ndim:])[:operands]
    check(
        "rms_norm",
        lambda x, *w: F.rms_norm(x, shape[-ndim:], *w, eps=1e-6),
        arrays,
        {"normalized_ndim": ndim, "eps": 1e-6},
    )


@pytest.mark.parametrize(
    "shape,groups,operands", [((3, 6, 4, 5), 2, 3), ((2, 8, 3), 8, 3), ((4, 12), 3, 3), ((2, 4, 3, 3), 1, 1)]
)
def test_group_norm(shape, groups, operands):
    arrays = random_arrays(13, shape, shape[1:2], shape[1:2])[:operands]
    check("group_norm", lambda x, *wb: F.group_norm(x, groups, *wb), arrays, {"groups": groups})


def test_batch_norm_in_evaluation_mode_has_a_gradient():
    x, w, b, mean = random_arrays(14, (3, 4, 5, 5), (4,), (4,), (4,))
    var = np.array([0.5, 1.0, 2.0, 3.0])
    check(
        "batch_norm",
        lambda x, w, b, m, v: F.batch_norm(x, m.detach(), v.detach(), w, b),
        [x, w, b, mean, var],
        {"training": False},
        differentiable=[0, 1, 2],
    )


MAX_POOLS = [
    dict(kernel=2),
    dict(kernel=3, stride=2, padding=1),
    dict(kernel=3, stride=1, padding=1),
    dict(kernel=(3, 2), stride=(2, 1), padding=(1, 0), dilation=(2, 3)),
    dict(kernel=2, stride=2, ceil_mode=True),
    dict(kernel=3, stride=2, padding=1, ceil_mode=True),
    dict(kernel=2, stride=3, dilation=2, ceil_mode=True),
    dict(kernel=3, stride=4, padding=1),
]


@pytest.mark.parametrize("attrs", MAX_POOLS)
@pytest.mark.parametrize("size", [(11, 13), (8, 70), (9, 9)])
def test_max_pool2d(attrs, size):
    x = np.random.default_rng(15).integers(-4, 5, (2, 3, *size)).astype(np.float64)  # many ties

    def reference(t):
        more = dict(attrs)
        return F.max_pool2d(t, more.pop("kernel"), return_indices=True, **more)

    check("max_pool2d", reference, [x], attrs)


def test_max_pool2d_takes_nan_and_never_padding():
    x = np.full((1, 1, 4, 40), -np.inf)
    x[0, 0, 1, 3] = x[0, 0, 3, 37] = np.nan
    for dtype in ("fp32", "fp64"):
        attrs = dict(kernel=3, stride=1, padding=1)
        (y, argmax), _ = run_op("max_pool2d", [x], attrs, np.zeros(x.shape), dtype)
        expected, index = F.max_pool2d(torch.tensor(x), 3, 1, 1, return_indices=True)
        assert np.array_equal(y, expected.numpy(), equal_nan=True)
        assert np.array_equal(argmax, index.numpy())


@pytest.mark.parametrize(
    "attrs",
    [
        dict(kernel=2),
        dict(kernel=3, stride=2, padding=1),
        dict(kernel=3, stride=2, padding=1, count_include_pad=False),
        dict(kernel=3, stride=2, padding=1, ceil_mode=True),
        dict(kernel=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
        dict(kernel=(2, 3), stride=(1, 2), divisor_override=5),
    ],
)
@pytest.mark.parametrize("size", [(8, 10), (7, 9)])
def test_avg_pool2d(attrs, size):
    (x,) = random_arrays(16, (2, 3, *size))

    def reference(t):
        more = dict(attrs)
        return F.avg_pool2d(t, more.pop("kernel"), **more)

    check("avg_pool2d", reference, [x], attrs)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (7, 9), (10, 12)])
def test_adaptive_avg_pool2d(size):
    (x,) = random_arrays(17, (2, 3, 7, 9))
    check("adaptive_avg_pool2d", lambda t: F.adaptive_avg_pool2d(t, size), [x], {"size": size})


@pytest.mark.parametrize(
    "attrs",
    [dict(size=(8, 10)), dict(size=(3, 4)), dict(size=(13, 5)), dict(scale=2), dict(scale=1.7), dict(scale=0.6)],
)
def test_upsample_nearest2d(attrs):
    (x,) = random_arrays(18, (2, 3, 5, 7))
    more = {"size": attrs.get("size"), "scale_factor": attrs.get("scale")}
    check("upsample_nearest2d", lambda t: F.interpolate(t, **more), [x], attrs)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(
    "attrs",
    [
        dict(size=(8, 10)),
        dict(size=(3, 4)),
        dict(size=(1, 9)),
        dict(size=(5, 7)),
        dict(scale=2),
        dict(scale=1.7),
        dict(scale=0.6),
    ],
)
def test_upsample_bilinear2d(attrs, align):
    (x,) = random_arrays(19, (2, 3, 5, 7))
    more = {"size": attrs.get("size"), "scale_factor": attrs.get("scale")}
    check(
        "upsample_bilinear2d",
        lambda t: F.interpolate(t, mode="bilinear", align_corners=align, **more),
        [x],
        {**attrs, "align_corners": align},
    )


@pytest.mark.parametrize(
    "attrs,channels",
    [
        (dict(groups=2), (4, 6)),
        (dict(groups=4, padding=1, stride=2), (4, 8)),
        (dict(groups=6, padding=(1, 2), dilation=(1, 2)), (6, 6)),
    ],
)
def test_conv2d_in_groups(attrs, channels):
    cin, cout = channels
    arrays = random_arrays(20, (3, cin, 9, 8), (cout, cin // attrs["groups"], 3, 2), (cout,))
    check("conv2d", lambda x, w, b: F.conv2d(x, w, b, **attrs), arrays, attrs)


def test_conv2d_with_four_paddings():
    x, w = random_arrays(21, (2, 3, 7, 6), (4, 3, 4, 2))
    top, bottom, left, right = pads = (1, 2, 0, 1)
    check(
        "conv2d",
        lambda x, w: F.conv2d(F.pad(x, (left, right, top, bottom)), w, stride=2),
        [x, w],
        {"padding": pads, "stride": 2},
    )
    check("conv2d", lambda x, w: F.conv2d(x, w, padding="same"), [x, w], {"padding": (1, 2, 0, 1)})


@pytest.mark.parametrize(
    "attrs,channels",
    [
        (dict(), (3, 5)),
        (dict(stride=2, padding=1, output_padding=1), (4, 3)),
        (dict(stride=(2, 3), padding=(0, 1), dilation=(2, 1)), (2, 4)),
        (dict(stride=2, groups=2), (4, 6)),
        (dict(dilation=3, output_padding=2, groups=3), (3, 3)),
    ],
)
def test_conv_transpose2d(attrs, channels):
    cin, cout = channels
    arrays = random_arrays(22, (2, cin, 5, 4), (cin, cout // attrs.get("groups", 1), 3, 3), (cout,))
    check("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, **attrs), arrays, attrs)


@pytest.mark.parametrize(
    "op,inputs,attrs,shape,part",
    [
        ("gather", [np.ones((3, 2)), np.full((1, 2), 3)], {}, (1, 2), "index 3 at position 0"),
        ("embedding", [np.ones((3, 2)), np.array([0, -1])], {}, (2, 2), "must be in [0, 3)"),
        ("index_select", [np.ones((3, 2)), np.array([0, 2])], {"dim": 1}, (3, 2), "must be in [0, 2)"),
    ],
)
def test_an_index_out_of_range_is_refused(op, inputs, attrs, shape, part):
    with pytest.raises(OpError) as error:
        run_op(op, inputs, attrs, np.ones(shape))
    assert part in str(error.value)


@pytest.mark.parametrize("policy", ["pure-fp16", "torch-autocast-fp16", "torch-autocast-bf16"])
def test_narrow_lanes_come_close_to_fp32(policy):
    """Every kind of op lowers and runs, forward and backward, within a few units of 2^-8 (BF16)."""
    index = np.random.default_rng(23).integers(0, 4, 9)
    x, w, g, b, k, kt = random_arrays(23, (2, 4, 6, 6), (4, 5), (4,), (4,), (4, 2, 3, 3), (4, 2, 2, 2))
    cases = [
        ("permute", [x], {"dims": (3, 1, 0, 2)}, (6, 4, 2, 6)),
        ("expand", [x], {"shape": (2, 2, 4, 6, 6)}, (2, 2, 4, 6, 6)),
        ("slice", [x], {"dim": 2, "start": 1}, (2, 4, 5, 6)),
        ("cat", [x, x + 1], {"dim": 1}, (2, 8, 6, 6)),
        ("pad", [x], {"pads": (1, 2), "value": 0.3}, (2, 4, 6, 9)),
        ("pixel_shuffle", [x], {"factor": 2}, (2, 1, 12, 12)),
        ("gather", [w, index.reshape(9, 1)], {"dim": 0}, (9, 1)),
        ("index_select", [w, index], {}, (9, 5)),
        ("embedding", [w, index], {}, (9, 5)),
        ("layer_norm", [x.transpose(0, 2, 3, 1), g, b], {}, (2, 6, 6, 4)),
        ("rms_norm", [x.transpose(0, 2, 3, 1), g], {}, (2, 6, 6, 4)),
        ("group_norm", [x, g, b], {"groups": 2}, x.shape),
        ("max_pool2d", [x], {"kernel": 2}, (2, 4, 3, 3)),
        ("avg_pool2d", [x], {"kernel": 2}, (2, 4, 3, 3)),
        ("adaptive_avg_pool2d", [x], {"size": (1, 1)}, (2, 4, 1, 1)),
        ("upsample_nearest2d", [x], {"scale": 2}, (2, 4, 12, 12)),
        ("upsample_bilinear2d", [x], {"scale": 2}, (2, 4, 12, 12)),
        ("conv2d", [x, k, b], {"groups": 2}, (2, 4, 4, 4)),
        ("conv_transpose2d", [x, kt], {"stride": 2}, (2, 2, 12, 12)),
    ]
    for op, inputs, attrs, shape in cases:
        dy = np.random.default_rng(24).standard_normal(shape)
        (want, *_), expected = run_op(op, inputs, attrs, dy, "fp32")
        (y, *_), gradients = run_op(op, inputs, attrs, dy, "fp32", policy)
        assert distance(y, want) <= 4 * 2**-8, op
        for ours, reference in zip(gradients, expected):
            assert (ours is None) == (reference is None), op
            assert ours is None or distance(ours, reference) <= 4 * 2**-8, op
