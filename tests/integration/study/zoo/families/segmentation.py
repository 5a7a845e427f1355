"""Segmentation of images."""

import torch.nn.functional as F

from ..parts import ints, normal, own_loss
from ..registry import add, network


def _pixels(model, batch):
    out = model(batch[0])
    out = out["out"] if isinstance(out, dict) else out
    return F.cross_entropy(out, batch[1])


def _maps(classes=4, size=32, count=2):
    return lambda: (normal(count, 3, size, size), ints(classes, count, size, size))


def _smp(kind, **options):
    import segmentation_models_pytorch as smp

    model = getattr(smp, kind)("mobilenet_v2", encoder_weights=None, classes=4, **options)
    return model, _pixels, _maps(size=64)


for _name, _options in {
    "Unet": dict(encoder_depth=3, decoder_channels=(16, 8, 8)),
    "UnetPlusPlus": dict(encoder_depth=3, decoder_channels=(16, 8, 8)),
    "MAnet": dict(encoder_depth=3, decoder_channels=(16, 8, 8), decoder_pab_channels=8),
    "Linknet": dict(encoder_depth=3),
    "FPN": dict(decoder_pyramid_channels=32, decoder_segmentation_channels=32),
    "PSPNet": dict(encoder_depth=3, psp_out_channels=16),
    "DeepLabV3Plus": dict(decoder_channels=16, decoder_atrous_rates=(2, 3, 4)),
    "UPerNet": dict(decoder_channels=16),
}.items():
    add(
        f"smp_{_name.lower()}",
        "segmentation",
        "segmentation-models-pytorch",
        lambda kind=_name, options=_options: _smp(kind, **options),
    )


def _smp_loss(name, mode):
    import segmentation_models_pytorch as smp
    from torch import nn

    classes = 4 if mode == "multiclass" else 1
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, classes, 1))
    loss = getattr(smp.losses, name)(mode)

    def batch():
        target = ints(max(classes, 2), 2, 16, 16)
        return normal(2, 3, 16, 16), target if classes > 1 else target[:, None].float()

    return model, lambda m, b: loss(m(b[0]), b[1]), batch


for _name, _mode in [
    ("DiceLoss", "multiclass"),
    ("FocalLoss", "multiclass"),
    ("LovaszLoss", "multiclass"),
    ("TverskyLoss", "binary"),
    ("JaccardLoss", "multiclass"),
]:
    add(
        f"smp_{_name.lower()}",
        "segmentation",
        "segmentation-models-pytorch",
        lambda name=_name, mode=_mode: _smp_loss(name, mode),
    )


@network("segmentation", "transformers", quick=True)
def segformer():
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    return (
        SegformerForSemanticSegmentation(
            SegformerConfig(
                num_encoder_blocks=2,
                depths=[1, 1],
                sr_ratios=[2, 1],
                hidden_sizes=[8, 16],
                patch_sizes=[3, 3],
                strides=[2, 2],
                num_attention_heads=[1, 2],
                mlp_ratios=[2, 2],
                decoder_hidden_size=16,
                num_labels=4,
            )
        ),
        own_loss,
        lambda: {"pixel_values": normal(2, 3, 16, 16), "labels": ints(4, 2, 16, 16)},
    )


@network("segmentation", "transformers")
def upernet():
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation

    backbone = ConvNextConfig(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    return (
        UperNetForSemanticSegmentation(
            UperNetConfig(
                backbone_config=backbone, hidden_size=16, num_labels=4, auxiliary_in_channels=16, auxiliary_channels=8
            )
        ),
        own_loss,
        lambda: {"pixel_values": normal(2, 3, 64, 64), "labels": ints(4, 2, 64, 64)},
    )


@network("segmentation", "transformers")
def mask2former():
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    config = Mask2FormerConfig(
        backbone_config=SwinConfig(
            image_size=32,
            embed_dim=8,
            depths=[1, 1, 1, 1],
            num_heads=[1, 1, 2, 2],
            window_size=2,
            patch_size=2,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        feature_size=32,
        mask_feature_size=32,
        hidden_dim=32,
        encoder_feedforward_dim=32,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        dim_feedforward=32,
        num_queries=5,
        num_labels=4,
        train_num_points=16,
    )

    def batch():
        return {
            "pixel_values": normal(2, 3, 32, 32),
            "mask_labels": [ints(2, 2, 32, 32).float() for _ in range(2)],
            "class_labels": [ints(4, 2) for _ in range(2)],
        }

    return Mask2FormerForUniversalSegmentation(config), own_loss, batch


@network("segmentation", "transformers")
def maskformer():
    from transformers import DetrConfig, MaskFormerConfig, MaskFormerForInstanceSegmentation, SwinConfig

    decoder = DetrConfig(
        d_model=16,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=32,
        num_queries=5,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
    )
    config = MaskFormerConfig(
        backbone_config=SwinConfig(
            image_size=32,
            embed_dim=8,
            depths=[1, 1, 1, 1],
            num_heads=[1, 1, 2, 2],
            window_size=2,
            patch_size=2,
            out_features=["stage1", "stage2", "stage3", "stage4"],
        ),
        decoder_config=decoder,
        fpn_feature_size=32,
        mask_feature_size=16,
        num_labels=4,
    )

    def batch():
        return {
            "pixel_values": normal(2, 3, 32, 32),
            "mask_labels": [ints(2, 2, 32, 32).float() for _ in range(2)],
            "class_labels": [ints(4, 2) for _ in range(2)],
        }

    return MaskFormerForInstanceSegmentation(config), own_loss, batch


@network("segmentation", "torchvision")
def fcn_torchvision():
    import torchvision
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    backbone = torchvision.models._utils.IntermediateLayerGetter(
        torchvision.models.mobilenet_v2(width_mult=0.25).features, {"6": "out"}
    )
    return FCN(backbone, FCNHead(8, 4)), _pixels, _maps(size=64)


@network("segmentation", "torchvision")
def deeplab_torchvision():
    import torchvision
    from torch import nn
    from torchvision.models.segmentation.deeplabv3 import ASPP, DeepLabV3

    backbone = torchvision.models._utils.IntermediateLayerGetter(
        torchvision.models.mobilenet_v2(width_mult=0.25).features, {"6": "out"}
    )
    return DeepLabV3(backbone, nn.Sequential(ASPP(8, [2, 3], 8), nn.Conv2d(8, 4, 1))), _pixels, _maps(size=64)


@network("segmentation", "monai")
def monai_attention_unet():
    from monai.networks.nets import AttentionUnet

    return AttentionUnet(2, 3, 4, (4, 8, 8), (2, 2)), _pixels, _maps()
