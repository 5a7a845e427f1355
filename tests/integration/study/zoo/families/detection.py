"""Detectors: boxes matched to queries or anchors while the loss is computed."""

import torch

from ..parts import ints, normal, own_loss
from ..registry import add, network


def _boxes(count=2, size=32):
    def batch():
        labels = [{"class_labels": ints(5, 2), "boxes": torch.rand(2, 4) * 0.4 + 0.2} for _ in range(count)]
        return {"pixel_values": normal(count, 3, size, size), "labels": labels}

    return batch


def _backbone(stages=("stage2",)):
    from transformers import ResNetConfig

    return ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=list(stages),
    )


_DETR = dict(
    d_model=16,
    encoder_layers=1,
    decoder_layers=2,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    num_queries=6,
    num_labels=5,
)
_STAGES = dict(num_feature_levels=2, encoder_n_points=2, decoder_n_points=2)


def _detr(kind, sizes, stages):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone_config=_backbone(stages), **sizes
    )
    return getattr(transformers, f"{kind}ForObjectDetection")(config), own_loss, _boxes()


for _name, _kind, _sizes, _stages in [
    ("detr", "Detr", _DETR, ["stage2"]),
    ("detr_auxiliary", "Detr", _DETR | dict(auxiliary_loss=True), ["stage2"]),
    ("conditional_detr", "ConditionalDetr", _DETR, ["stage2"]),
    (
        "dab_detr",
        "DabDetr",
        dict(
            hidden_size=16,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_queries=6,
            num_labels=5,
        ),
        ["stage2"],
    ),
    ("deformable_detr", "DeformableDetr", _DETR | _STAGES | dict(d_model=32), ["stage2", "stage3"]),
]:
    add(
        _name,
        "detection",
        "transformers",
        lambda kind=_kind, sizes=_sizes, stages=_stages: _detr(kind, sizes, stages),
        quick=_name == "detr",
    )


@network("detection", "transformers")
def yolos():
    from transformers import YolosConfig, YolosForObjectDetection

    return (
        YolosForObjectDetection(
            YolosConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=[32, 32],
                patch_size=8,
                num_detection_tokens=6,
                num_labels=5,
            )
        ),
        own_loss,
        _boxes(),
    )


@network("detection", "transformers")
def rt_detr():
    from transformers import RTDetrConfig, RTDetrForObjectDetection, RTDetrResNetConfig

    backbone = RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    return (
        RTDetrForObjectDetection(
            RTDetrConfig(
                backbone_config=backbone,
                encoder_hidden_dim=16,
                encoder_in_channels=[16, 16, 16],
                feat_strides=[8, 16, 32],
                encoder_ffn_dim=32,
                encoder_attention_heads=2,
                d_model=16,
                num_queries=6,
                decoder_in_channels=[16, 16, 16],
                decoder_ffn_dim=32,
                decoder_layers=1,
                decoder_attention_heads=2,
                num_denoising=4,
                decoder_n_points=2,
                num_labels=5,
                eval_size=None,
            )
        ),
        own_loss,
        _boxes(size=64),
    )


def _targets(count=2, size=64, masks=False):
    def batch():
        corner = torch.rand(count, 2, 2) * 30
        boxes = torch.cat([corner, corner + 8 + torch.rand(count, 2, 2) * 20], -1)
        targets = [{"boxes": box, "labels": ints(3, 2) + 1} for box in boxes]
        for target in targets if masks else []:
            target["masks"] = ints(2, 2, size, size).to(torch.uint8)
        return [normal(3, size, size).sigmoid() for _ in range(count)], targets

    return batch


def _sum_of_losses(model, batch):
    return sum(model(*batch).values())


def _small_backbone():
    from torch import nn

    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
    body.out_channels = 8
    return body


@network("detection", "torchvision")
def faster_rcnn():
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    model = FasterRCNN(
        _small_backbone(),
        4,
        min_size=64,
        max_size=64,
        rpn_anchor_generator=AnchorGenerator(((8, 16, 32),), ((0.5, 1.0),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        rpn_pre_nms_top_n_train=50,
        rpn_post_nms_top_n_train=20,
        box_batch_size_per_image=16,
    )
    return model, _sum_of_losses, _targets()


@network("detection", "torchvision")
def mask_rcnn():
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.ops import MultiScaleRoIAlign

    model = MaskRCNN(
        _small_backbone(),
        None,
        min_size=64,
        max_size=64,
        rpn_anchor_generator=AnchorGenerator(((8, 16, 32),), ((0.5, 1.0),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        mask_roi_pool=MultiScaleRoIAlign(["0"], 4, 2),
        box_head=_box_head(),
        box_predictor=_box_predictor(),
        mask_head=MaskRCNNHeads(8, (8,), 1),
        mask_predictor=MaskRCNNPredictor(8, 8, 4),
        rpn_pre_nms_top_n_train=50,
        rpn_post_nms_top_n_train=20,
        box_batch_size_per_image=16,
    )
    return model, _sum_of_losses, _targets(masks=True)


def _box_head():
    from torchvision.models.detection.faster_rcnn import TwoMLPHead

    return TwoMLPHead(8 * 9, 16)


def _box_predictor():
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor

    return FastRCNNPredictor(16, 4)


@network("detection", "torchvision")
def retina_net():
    from torchvision.models.detection import RetinaNet
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.retinanet import RetinaNetHead

    backbone = _small_backbone()
    backbone.out_channels = 32
    backbone[2] = torch.nn.Conv2d(8, 32, 3, 2, 1)
    anchors = AnchorGenerator(((8, 16, 32),), ((0.5, 1.0),))
    return (
        RetinaNet(backbone, 4, min_size=64, max_size=64, anchor_generator=anchors, head=RetinaNetHead(32, 6, 4)),
        _sum_of_losses,
        _targets(),
    )


@network("detection", "torchvision")
def fcos():
    from torchvision.models.detection import FCOS
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    backbone = _small_backbone()
    backbone.out_channels = 32
    backbone[2] = torch.nn.Conv2d(8, 32, 3, 2, 1)
    return (
        FCOS(backbone, 4, min_size=64, max_size=64, anchor_generator=AnchorGenerator(((8,),), ((1.0,),))),
        _sum_of_losses,
        _targets(),
    )


@network("detection", "torchvision")
def ssd():
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD

    backbone = _small_backbone()
    backbone.out_channels = [8]
    return SSD(backbone, DefaultBoxGenerator([[2]], scales=[0.2, 0.4]), (64, 64), 4), _sum_of_losses, _targets()


@network("detection")
def yolo_v1_style():
    """A grid of boxes, the best of two per cell responsible, square roots of the sizes."""
    import torch.nn.functional as F
    from torch import nn

    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.BatchNorm2d(8),
        nn.LeakyReLU(0.1),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.LeakyReLU(0.1),
        nn.Conv2d(16, 13, 1),
    )

    def step(model, batch):
        images, truth, has = batch  # truth (B,4,S,S), has (B,S,S)
        out = model(images)
        boxes, classes = out[:, :10].unflatten(1, (2, 5)), out[:, 10:]
        place = boxes[:, :, :4].sigmoid()
        corners = torch.minimum(place[:, :, 2:], truth[:, None, 2:])
        overlap = corners.prod(2) / (place[:, :, 2:].prod(2) + truth[:, None, 2:].prod(2) - corners.prod(2))
        best = overlap.argmax(1, keepdim=True)
        chosen = place.gather(1, best[:, :, None].expand(-1, 1, 4, -1, -1))[:, 0]
        size = F.mse_loss(
            chosen[:, 2:].sqrt()[has[:, None].expand(-1, 2, -1, -1)],
            truth[:, 2:].sqrt()[has[:, None].expand(-1, 2, -1, -1)],
        )
        sure = boxes[:, :, 4].gather(1, best)[:, 0]
        return (
            size
            + F.mse_loss(chosen[:, :2], truth[:, :2])
            + F.binary_cross_entropy_with_logits(sure, has.float())
            + F.cross_entropy(classes, classes.detach().argmax(1))
        )

    return net, step, lambda: (normal(2, 3, 16, 16), torch.rand(2, 4, 4, 4) * 0.8 + 0.1, torch.rand(2, 4, 4) < 0.4)
