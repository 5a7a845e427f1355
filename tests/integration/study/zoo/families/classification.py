"""Image classifiers."""

from ..parts import images, ints, labelled, normal, own_loss
from ..registry import add, network

_TIMM = {
    "vit": ("vit_tiny_patch16_224", 32, dict(patch_size=8, embed_dim=24, depth=2, num_heads=2, drop_path_rate=0.3)),
    "deit3": ("deit3_small_patch16_224", 32, dict(patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "beit": ("beit_base_patch16_224", 32, dict(patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "eva02": ("eva02_tiny_patch14_224", 28, dict(embed_dim=24, depth=2, num_heads=2)),
    "cait": ("cait_xxs24_224", 32, dict(patch_size=8, embed_dim=24, depth=2, num_heads=2)),
    "swin": (
        "swin_tiny_patch4_window7_224",
        32,
        dict(window_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 2), drop_path_rate=0.3),
    ),
    "swin_v2": ("swinv2_tiny_window8_256", 32, dict(window_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 2))),
    "convnext": ("convnext_atto", 32, dict(depths=(1, 1, 1, 1), dims=(8, 16, 16, 16), drop_path_rate=0.2)),
    "convnext_v2": ("convnextv2_atto", 32, dict(depths=(1, 1, 1, 1), dims=(8, 16, 16, 16))),
    "regnet": ("regnetx_002", 64, {}),
    "resnet_bottleneck": ("resnet26", 32, {}),
    "seresnet": ("seresnet18", 64, {}),
    "efficientnet": ("efficientnet_es", 64, {}),
    "mobilenet_v3": ("mobilenetv3_small_050", 64, {}),
    "mobilevit": ("mobilevit_xxs", 64, {}),
    "ghostnet": ("ghostnet_050", 64, {}),
    "ghostnet_small": ("ghostnet_050", 32, {}),
    "repvgg": ("repvgg_a0", 64, {}),
    "coatnet": ("coatnet_nano_rw_224", 64, dict(img_size=64)),
    "maxvit": ("maxvit_rmlp_pico_rw_256", 64, dict(img_size=64)),
    "edgenext": ("edgenext_xx_small", 64, {}),
    "levit": ("levit_128s", 224, {}),
    "xcit": ("xcit_nano_12_p16_224", 32, dict(embed_dim=24, depth=2, num_heads=2)),
    "pvt_v2": ("pvt_v2_b0", 64, {}),
    "nfnet": ("nf_regnet_b0", 32, {}),
    "hrnet": ("hrnet_w18_small", 64, {}),
    "dla": ("dla46_c", 64, {}),
    "fastvit": ("fastvit_t8", 64, {}),
}
_BIG = {"resnet_bottleneck", "levit", "hrnet"}  # leave out while a smaller one does


def _timm(model, size, options):
    import timm

    made = timm.create_model(
        model,
        num_classes=5,
        **(dict(img_size=size) if "patch_size" in options or model.startswith(("swin", "eva")) else {}),
        **options,
    )
    return made, labelled, images(5, size, count=2 if size < 64 else 4)  # statistics of two values are noise


for _name, (_model, _size, _options) in _TIMM.items():
    if _name not in _BIG:
        add(
            f"timm_{_name}",
            "classification",
            "timm",
            lambda model=_model, size=_size, options=_options: _timm(model, size, options),
            quick=_name == "vit",
        )


def _mixer(block):
    import timm.models.mlp_mixer as mixers

    return (
        mixers.MlpMixer(
            num_classes=5,
            img_size=32,
            patch_size=8,
            num_blocks=2,
            embed_dim=16,
            block_layer=getattr(mixers, block),
            mlp_layer=mixers.Mlp,
            mlp_ratio=4 if block == "ResBlock" else (0.5, 4.0),
        ),
        labelled,
        images(),
    )


@network("classification", "timm")
def timm_poolformer():
    from timm.models.metaformer import GroupNorm1, MetaFormer

    return (
        MetaFormer(
            num_classes=5,
            depths=(1, 1),
            dims=(8, 16),
            downsample_norm=None,
            mlp_bias=True,
            norm_layers=GroupNorm1,
            use_mlp_head=False,
        ),
        labelled,
        images(),
    )


_TORCHVISION = {
    "alexnet": ("alexnet", 64, {}),
    "squeezenet": ("squeezenet1_1", 64, {}),
    "mobilenet_v2": ("mobilenet_v2", 32, dict(width_mult=0.25)),
    "shufflenet": ("shufflenet_v2_x0_5", 32, {}),
    "mnasnet": ("mnasnet0_5", 32, {}),
    "googlenet": ("googlenet", 64, dict(aux_logits=True, init_weights=False)),
    "densenet": ("DenseNet", 32, dict(growth_rate=4, block_config=(2, 2), num_init_features=8)),
}
_TORCHVISION.pop("alexnet")  # 57 M parameters


for _name, _block in [("timm_mlp_mixer", "MixerBlock"), ("timm_resmlp", "ResBlock")]:
    add(_name, "classification", "timm", lambda block=_block: _mixer(block))


def _torchvision(model, size, options):
    import torchvision

    return getattr(torchvision.models, model)(num_classes=5, **options), _with_auxiliary, images(5, size)


def _with_auxiliary(model, batch):
    out = model(batch[0])
    if not isinstance(out, tuple):
        return labelled(lambda _: out, batch)
    return sum(weight * labelled(lambda _: part, batch) for weight, part in zip((1.0, 0.3, 0.3), out))


for _name, (_model, _size, _options) in _TORCHVISION.items():
    add(
        f"torchvision_{_name}",
        "classification",
        "torchvision",
        lambda model=_model, size=_size, options=_options: _torchvision(model, size, options),
    )


@network("classification", "torchvision")
def torchvision_resnet18():
    import torchvision

    return torchvision.models.resnet18(num_classes=5), labelled, images()


_VIT_PYTORCH = {
    "simple": ("simple_vit", "SimpleViT", dict(mlp_dim=32, heads=2, depth=2, dim_head=8)),
    "deepvit": ("deepvit", "DeepViT", dict(mlp_dim=32, heads=2, depth=2)),
    "levit": ("levit", "LeViT", None),
    "t2t": ("t2t", "T2TViT", None),
    "cct": ("cct", "CCT", None),
    "patch_merger": (
        "vit_with_patch_merger",
        "ViT",
        dict(mlp_dim=32, heads=2, depth=4, patch_merge_layer=2, patch_merge_num_tokens=4),
    ),
    "patch_dropout": ("vit_with_patch_dropout", "ViT", dict(mlp_dim=32, heads=2, depth=2, patch_dropout=0.25)),
    "small_dataset": ("vit_for_small_dataset", "ViT", dict(mlp_dim=32, heads=2, depth=2)),
    "ats": ("ats_vit", "ViT", dict(mlp_dim=32, heads=2, depth=2, max_tokens_per_depth=(8, 4))),
    "normalized": ("normalized_vit", "nViT", dict(mlp_dim=32, heads=2, depth=2)),
}


def _vit_pytorch(module, model, options):
    import importlib

    kind = getattr(importlib.import_module(f"vit_pytorch.{module}"), model)
    if options is not None:
        made = kind(image_size=32, patch_size=8, num_classes=5, dim=16, **options)
    elif model == "LeViT":
        made = kind(
            image_size=64,
            num_classes=5,
            stages=2,
            dim=(16, 16),
            depth=1,
            heads=(2, 2),
            mlp_mult=2,
            dim_key=8,
            dim_value=8,
        )
        return made, labelled, images(5, 64)
    elif model == "T2TViT":
        made = kind(dim=16, image_size=32, depth=1, heads=2, mlp_dim=32, num_classes=5, t2t_layers=((7, 4), (3, 2)))
    else:
        made = kind(
            img_size=32, embedding_dim=16, n_conv_layers=1, num_layers=2, num_heads=2, mlp_ratio=2.0, num_classes=5
        )
    return made, labelled, images()


for _name, (_module, _model, _options) in _VIT_PYTORCH.items():
    add(
        f"vit_pytorch_{_name}",
        "classification",
        "vit-pytorch",
        lambda module=_module, model=_model, options=_options: _vit_pytorch(module, model, options),
    )


@network("classification", "efficientnet-pytorch")
def efficientnet_pytorch_b0():
    from efficientnet_pytorch import EfficientNet

    model = EfficientNet.from_name(
        "efficientnet-b0", num_classes=5, width_coefficient=0.25, depth_coefficient=0.2, image_size=32
    )
    return model, labelled, images()


_VISION = dict(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=32, patch_size=8
)
_TRANSFORMERS = {
    "dinov2": ("Dinov2", dict(_VISION)),
    "convnextv2": ("ConvNextV2", dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)),
    "focalnet": (
        "FocalNet",
        dict(
            image_size=32, embed_dim=8, hidden_sizes=[8, 16], depths=[1, 1], focal_levels=[1, 1], focal_windows=[3, 3]
        ),
    ),
    "resnet": ("ResNet", dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")),
    "cvt": ("Cvt", dict(embed_dim=[8, 16, 16], depth=[1, 1, 1], num_heads=[1, 2, 2])),
    "efficientformer_like_bit": ("Bit", dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_groups=4)),
}


def _transformers(kind, sizes):
    import transformers

    model = getattr(transformers, f"{kind}ForImageClassification")(
        getattr(transformers, f"{kind}Config")(num_labels=5, **sizes)
    )
    return model, own_loss, lambda: {"pixel_values": normal(2, 3, 32, 32), "labels": ints(5, 2)}


for _name, (_kind, _sizes) in _TRANSFORMERS.items():
    add(
        f"transformers_{_name}",
        "classification",
        "transformers",
        lambda kind=_kind, sizes=_sizes: _transformers(kind, sizes),
    )
