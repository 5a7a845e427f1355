"""Families with a few networks each: tables, time series, volumes, adapters, self-supervision, physics, several tasks."""

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import images, ints, labelled, normal, own_loss, squared
from ..registry import add, network


@network("tabular", "pytorch-tabnet")
def tabnet():
    from pytorch_tabnet.tab_network import TabNet

    model = TabNet(6, 3, n_d=4, n_a=4, n_steps=2, virtual_batch_size=4, group_attention_matrix=torch.eye(6))

    def step(model, batch):
        out, sparse = model(batch[0])
        return F.cross_entropy(out, batch[1]) - 1e-3 * sparse

    return model, step, lambda: (normal(8, 6), ints(3, 8))


@network("tabular", "rtdl-revisiting-models")
def ft_transformer():
    from rtdl_revisiting_models import FTTransformer

    model = FTTransformer(
        n_cont_features=4,
        cat_cardinalities=[3, 5],
        d_out=3,
        n_blocks=2,
        d_block=16,
        attention_n_heads=2,
        attention_dropout=0.1,
        ffn_d_hidden=None,
        ffn_d_hidden_multiplier=2.0,
        ffn_dropout=0.1,
        residual_dropout=0.0,
    )
    return model, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]), lambda: (normal(6, 4), ints(3, 6, 2), ints(3, 6))


@network("tabular", "rtdl-revisiting-models")
def tabular_resnet():
    from rtdl_revisiting_models import ResNet

    return (
        ResNet(
            d_in=6, d_out=3, n_blocks=2, d_block=8, d_hidden=16, d_hidden_multiplier=None, dropout1=0.1, dropout2=0.1
        ),
        labelled,
        lambda: (normal(8, 6), ints(3, 8)),
    )


@network("tabular", "tabm")
def tabm_ensemble():
    from tabm import TabM

    model = TabM.make(n_num_features=6, cat_cardinalities=[], d_out=3, n_blocks=2, d_block=8, dropout=0.1, k=4)
    return (
        model,
        lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 1), b[1].repeat_interleave(4)),
        lambda: (normal(8, 6), ints(3, 8)),
    )


@network("tabular", quick=True)
def neural_decision_forest():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.decide, self.leaves = nn.Linear(6, 3 * 7), nn.Parameter(torch.randn(3, 8, 4))

        def forward(self, x):
            d = self.decide(x).sigmoid().view(-1, 3, 7)
            reach = torch.ones(len(x), 3, 1)
            for depth in range(3):
                here = d[:, :, 2**depth - 1 : 2 ** (depth + 1) - 1]
                reach = torch.stack([reach * here, reach * (1 - here)], -1).flatten(-2)
            return torch.einsum("btl,tlc->bc", reach, self.leaves.softmax(-1)) / 3

    return Net(), lambda m, b: F.nll_loss(torch.log(m(b[0]) + 1e-9), b[1]), lambda: (normal(8, 6), ints(4, 8))


@network("time series", "transformers", quick=True)
def patch_tst():
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    model = PatchTSTForPrediction(
        PatchTSTConfig(
            num_input_channels=2,
            context_length=16,
            prediction_length=4,
            patch_length=4,
            patch_stride=4,
            d_model=16,
            num_attention_heads=2,
            num_hidden_layers=2,
            ffn_dim=32,
        )
    )
    return model, own_loss, lambda: {"past_values": normal(2, 16, 2), "future_values": normal(2, 4, 2)}


@network("time series", "transformers")
def patch_ts_mixer():
    from transformers import PatchTSMixerConfig, PatchTSMixerForPrediction

    model = PatchTSMixerForPrediction(
        PatchTSMixerConfig(
            num_input_channels=2,
            context_length=16,
            prediction_length=4,
            patch_length=4,
            patch_stride=4,
            d_model=8,
            num_layers=2,
        )
    )
    return model, own_loss, lambda: {"past_values": normal(2, 16, 2), "future_values": normal(2, 4, 2)}


def _series():
    return {
        "past_values": normal(2, 20).abs() + 0.1,
        "past_time_features": normal(2, 20, 1),
        "past_observed_mask": torch.ones(2, 20),
        "future_values": normal(2, 4).abs() + 0.1,
        "future_time_features": normal(2, 4, 1),
    }


_FORMER = dict(
    prediction_length=4,
    context_length=12,
    lags_sequence=[1, 2, 8],
    num_time_features=1,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=2,
    decoder_attention_heads=2,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
)
for _name, _kind, _more in [
    ("time_series_transformer", "TimeSeriesTransformer", {}),
    ("informer", "Informer", {}),
    ("autoformer", "Autoformer", dict(moving_average=3)),
]:

    def _former(kind=_kind, more=_more):
        import transformers

        return (
            getattr(transformers, f"{kind}ForPrediction")(getattr(transformers, f"{kind}Config")(**_FORMER, **more)),
            own_loss,
            _series,
        )

    add(_name, "time series", "transformers", _former)


@network("time series")
def n_beats():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 12 + 4))

        def forward(self, x):
            return self.net(x).split([12, 4], -1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([Block() for _ in range(3)])

        def forward(self, x):
            total = 0
            for block in self.blocks:
                back, forward = block(x)
                x, total = x - back, total + forward
            return total

    def step(model, batch):  # the symmetric relative error
        y = model(batch[0])
        return (2 * (y - batch[1]).abs() / (y.abs() + batch[1].abs() + 1e-6)).mean()

    return Net(), step, lambda: (normal(5, 12), normal(5, 4))


@network("time series")
def temporal_convolutions():
    from torch.nn.utils.parametrizations import weight_norm

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.conv, self.d = weight_norm(nn.Conv1d(4, 4, 3, dilation=d)), d

        def forward(self, x):
            return x + F.dropout(self.conv(F.pad(x, (2 * self.d, 0))).relu(), 0.1, self.training)

    model = nn.Sequential(nn.Conv1d(2, 4, 1), Block(1), Block(2), Block(4), nn.Conv1d(4, 2, 1))
    return model, squared, lambda: (normal(3, 2, 16), normal(3, 2, 16))


@network("time series")
def deep_ar_negative_binomial():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(1, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, x):
            mean, alpha = F.softplus(self.head(self.rnn(torch.log1p(x[:, :-1, None]))[0])).unbind(-1)
            r = 1 / (alpha + 1e-3)
            chosen = torch.distributions.NegativeBinomial(r, logits=torch.log(mean + 1e-3) - torch.log(r))
            return -chosen.log_prob(x[:, 1:]).mean()

    return Net(), lambda m, x: m(x), lambda: ints(9, 3, 8).float()


@network("time series")
def mixture_density():
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 9))

    def step(model, batch):
        weights, means, log_stds = model(batch[0]).chunk(3, -1)
        mixed = torch.distributions.MixtureSameFamily(
            torch.distributions.Categorical(logits=weights), torch.distributions.Normal(means, log_stds.exp())
        )
        return -mixed.log_prob(batch[1]).mean()

    return model, step, lambda: (normal(8, 4), normal(8))


@network("time series", "pytorch-forecasting")
def temporal_fusion_parts():
    from pytorch_forecasting.models.temporal_fusion_transformer.sub_modules import (
        GatedResidualNetwork,
        InterpretableMultiHeadAttention,
    )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.grn, self.rnn = GatedResidualNetwork(4, 8, 8, dropout=0.1), nn.LSTM(8, 8, batch_first=True)
            self.attend, self.head = InterpretableMultiHeadAttention(2, 8, dropout=0.1), nn.Linear(8, 3)

        def forward(self, x):
            y = self.rnn(self.grn(x))[0]
            return self.head(self.attend(y, y, y)[0][:, -1])

    def step(model, batch):
        y, q = model(batch[0]), torch.tensor([0.1, 0.5, 0.9])
        e = batch[1][:, None] - y
        return torch.maximum(q * e, (q - 1) * e).mean()

    return Net(), step, lambda: (normal(4, 6, 4), normal(4))


def _volumes(classes=3, size=16):
    return lambda: (normal(1, 1, size, size, size), ints(classes, 1, size, size, size))


@network("volumes", quick=True)
def conv3d_classifier():
    model = nn.Sequential(
        nn.Conv3d(2, 8, 3, 2, 1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.ConvTranspose3d(8, 4, 2, 2),
        nn.InstanceNorm3d(4, affine=True),
        nn.GELU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
    )
    return model, labelled, lambda: (normal(2, 2, 8, 8, 8), ints(5, 2))


@network("volumes", "torchvision")
def video_resnet():
    from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv2Plus1D, VideoResNet

    model = VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [1, 1, 1, 1], BasicStem, num_classes=5)
    model.layer3 = model.layer4 = nn.Identity()
    model.fc = nn.Linear(128, 5)
    return model, labelled, lambda: (normal(1, 3, 4, 16, 16), ints(5, 1))


def _monai(kind, loss, **options):
    import monai.losses
    import monai.networks.nets

    model = getattr(monai.networks.nets, kind)(**options)
    criterion = getattr(monai.losses, loss)(to_onehot_y=True, softmax=True)
    return model, lambda m, b: criterion(m(b[0]), b[1][:, None]), _volumes(size=64 if kind == "SwinUNETR" else 16)


for _name, _kind, _loss, _options in [
    (
        "monai_unet",
        "UNet",
        "DiceLoss",
        dict(spatial_dims=3, in_channels=1, out_channels=3, channels=(4, 8, 8), strides=(2, 2), num_res_units=1),
    ),
    (
        "monai_segresnet",
        "SegResNet",
        "DiceCELoss",
        dict(
            spatial_dims=3,
            init_filters=8,
            in_channels=1,
            out_channels=3,
            blocks_down=(1, 1),
            blocks_up=(1,),
            dropout_prob=0.1,
        ),
    ),
    (
        "monai_unetr",
        "UNETR",
        "GeneralizedDiceLoss",
        dict(in_channels=1, out_channels=3, img_size=16, feature_size=4, hidden_size=16, mlp_dim=16, num_heads=2),
    ),
    (
        "monai_swin_unetr",
        "SwinUNETR",
        "DiceFocalLoss",
        dict(
            in_channels=1, out_channels=3, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1), window_size=2
        ),
    ),
    ("monai_vnet", "VNet", "TverskyLoss", dict(in_channels=1, out_channels=3)),
    (
        "monai_dynunet",
        "DynUNet",
        "DiceLoss",
        dict(
            spatial_dims=3,
            in_channels=1,
            out_channels=3,
            kernel_size=[3, 3, 3],
            strides=[1, 2, 2],
            upsample_kernel_size=[2, 2],
            filters=[4, 8, 8],
        ),
    ),
]:
    if _kind != "VNet":  # 45 M parameters
        add(_name, "volumes", "monai", lambda kind=_kind, loss=_loss, options=_options: _monai(kind, loss, **options))


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=32,
        )
    )


def _adapted(kind, **options):
    import peft

    from ..parts import next_tokens

    config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
    return peft.get_peft_model(_llama(), config), own_loss, next_tokens()


_PROJECTIONS = dict(target_modules=["q_proj", "v_proj"])
for _name, _kind, _options in [
    ("lora", "LoraConfig", dict(r=2, lora_dropout=0.1) | _PROJECTIONS),
    ("dora", "LoraConfig", dict(r=2, use_dora=True) | _PROJECTIONS),
    ("ia3", "IA3Config", dict(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])),
    ("adalora", "AdaLoraConfig", dict(init_r=3, target_r=2, total_step=10) | _PROJECTIONS),
    ("loha", "LoHaConfig", dict(r=2) | _PROJECTIONS),
    ("vera", "VeraConfig", dict(r=2) | _PROJECTIONS),
    ("prompt_tuning", "PromptTuningConfig", dict(num_virtual_tokens=3)),
    ("prefix_tuning", "PrefixTuningConfig", dict(num_virtual_tokens=3)),
    ("oft", "OFTConfig", dict(oft_block_size=4) | _PROJECTIONS),
    ("boft", "BOFTConfig", dict(boft_block_size=4) | _PROJECTIONS),
]:
    add(f"peft_{_name}", "adapters", "peft", lambda kind=_kind, options=_options: _adapted(kind, **options))


@network("adapters", quick=True)
def lora_by_hand():
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + 4 * self.up(self.down(F.dropout(x, 0.1, self.training)))

    return (
        nn.Sequential(Adapted(nn.Linear(6, 16)), nn.ReLU(), Adapted(nn.Linear(16, 5))),
        labelled,
        lambda: (normal(8, 6), ints(5, 8)),
    )


def _views(size=16):
    return lambda: (normal(4, 3, size, size), normal(4, 3, size, size))


class _Encoder(nn.Module):
    def __init__(self, out=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, out),
        )

    def forward(self, x):
        return self.net(x)


def _lightly(loss, **options):
    import lightly.loss

    criterion = getattr(lightly.loss, loss)(**options)
    return _Encoder(), lambda m, b: criterion(m(b[0]), m(b[1])), _views()


for _loss, _options in [
    ("NTXentLoss", {}),
    ("BarlowTwinsLoss", {}),
    ("VICRegLoss", {}),
    ("DCLLoss", {}),
    ("TiCoLoss", {}),
]:
    add(
        f"lightly_{_loss.lower()}",
        "self-supervision",
        "lightly",
        lambda loss=_loss, options=_options: _lightly(loss, **options),
    )


@network("self-supervision", "lightly")
def lightly_moco():
    import copy

    from lightly.loss import NTXentLoss

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = _Encoder()
            self.k = copy.deepcopy(self.q).requires_grad_(False)
            self.loss = NTXentLoss(memory_bank_size=(16, 8))

        def forward(self, a, b):
            with torch.no_grad():
                key = self.k(b)
            return self.loss(self.q(a), key)

    return Net(), lambda m, b: m(*b), _views()


@network("self-supervision", "lightly")
def lightly_swav():
    from lightly.loss import SwaVLoss
    from lightly.models.modules import SwaVPrototypes

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.prototypes, self.loss = _Encoder(), SwaVPrototypes(8, 6), SwaVLoss()

        def forward(self, a, b):
            a, b = (self.prototypes(F.normalize(self.body(x), dim=1)) for x in (a, b))
            return self.loss([a, b], [])

    return Net(), lambda m, b: m(*b), _views()


@network("self-supervision", "lightly")
def lightly_dino():
    from lightly.loss import DINOLoss
    from lightly.models.modules import DINOProjectionHead

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = _Encoder(), _Encoder().requires_grad_(False)
            self.a = DINOProjectionHead(8, 8, 4, 12, freeze_last_layer=-1)
            self.b = DINOProjectionHead(8, 8, 4, 12).requires_grad_(False)
            self.loss = DINOLoss(output_dim=12)

        def forward(self, x, y):
            with torch.no_grad():
                goals = [self.b(self.teacher(v)) for v in (x, y)]
            return self.loss(goals, [self.a(self.student(v)) for v in (x, y)], epoch=1)

    return Net(), lambda m, b: m(*b), _views()


@network("self-supervision", "transformers", quick=True)
def vit_mae():
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    return (
        ViTMAEForPreTraining(
            ViTMAEConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                decoder_num_attention_heads=2,
                decoder_hidden_size=16,
                decoder_num_hidden_layers=1,
                decoder_intermediate_size=32,
                image_size=16,
                patch_size=4,
            )
        ),
        own_loss,
        lambda: {"pixel_values": normal(2, 3, 16, 16)},
    )


@network("vision and language", "transformers", quick=True)
def clip():
    from transformers import CLIPConfig, CLIPModel

    config = CLIPConfig(
        text_config=dict(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
            eos_token_id=63,
            bos_token_id=0,
        ),
        vision_config=dict(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=16,
            patch_size=8,
        ),
        projection_dim=16,
    )
    return (
        CLIPModel(config),
        lambda m, b: m(**b, return_loss=True).loss,
        lambda: {"input_ids": ints(62, 3, 6), "pixel_values": normal(3, 3, 16, 16)},
    )


@network("vision and language", "open-clip-torch")
def open_clip():
    from open_clip import ClipLoss
    from open_clip.model import CLIP

    model = CLIP(
        8,
        dict(image_size=16, layers=1, width=16, head_width=8, patch_size=8),
        dict(context_length=8, vocab_size=64, width=16, heads=2, layers=1),
        output_dict=True,
    )
    loss = ClipLoss()
    return model, lambda m, b: loss(**m(*b)), lambda: (normal(3, 3, 16, 16), ints(63, 3, 8))


@network("vision and language", "open-clip-torch")
def coca():
    from open_clip import CoCaLoss
    from open_clip.coca_model import CoCa

    vision = dict(
        image_size=16,
        layers=1,
        width=16,
        head_width=8,
        patch_size=8,
        attentional_pool=True,
        attn_pooler_queries=4,
        attn_pooler_heads=2,
        output_tokens=True,
    )
    text = dict(context_length=8, vocab_size=64, width=16, heads=2, layers=1, embed_cls=True, output_tokens=True)
    model = CoCa(16, dict(context_length=8, vocab_size=64, width=16, heads=2, layers=1, mlp_ratio=2), text, vision)
    for weight in model.parameters():  # some have no initial values
        nn.init.normal_(weight, std=0.1)
    loss = CoCaLoss(caption_loss_weight=1.0, clip_loss_weight=1.0, pad_id=0)

    def step(model, batch):
        return sum(loss(**model(*batch), output_dict=True).values())

    return model, step, lambda: (normal(3, 3, 16, 16), ints(62, 3, 8) + 1)


@network("vision and language", "transformers")
def blip():
    from transformers import BlipConfig, BlipForConditionalGeneration

    config = BlipConfig(
        text_config=dict(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=16,
            encoder_hidden_size=16,
            bos_token_id=1,
            pad_token_id=0,
            sep_token_id=2,
        ),
        vision_config=dict(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=16,
            patch_size=8,
        ),
        projection_dim=16,
    )
    return (
        BlipForConditionalGeneration(config),
        own_loss,
        lambda: (lambda x: {"input_ids": x, "pixel_values": normal(2, 3, 16, 16), "labels": x})(ints(60, 2, 6) + 3),
    )


@network("vision and language", "transformers")
def llava():
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    vision = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8
    )
    text = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text, image_token_index=63))

    def batch():
        words = ints(60, 2, 6)
        tokens = torch.cat([torch.full((2, 4), 63), words], 1)
        return {
            "input_ids": tokens,
            "pixel_values": normal(2, 3, 16, 16),
            "attention_mask": torch.ones_like(tokens),
            "labels": torch.cat([torch.full((2, 4), -100), words], 1),
        }

    return model, own_loss, batch


@network("metric learning", "sentence-transformers")
def sentence_ranking():
    from sentence_transformers.util import cos_sim
    from transformers import BertConfig, BertModel

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = BertModel(
                BertConfig(
                    vocab_size=64,
                    hidden_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    intermediate_size=32,
                    max_position_embeddings=16,
                )
            )

        def forward(self, ids, mask):
            words = self.body(ids, attention_mask=mask).last_hidden_state
            return (words * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1e-9)

    def step(model, batch):
        a, b, mask = batch
        return F.cross_entropy(cos_sim(model(a, mask), model(b, mask)) * 20, torch.arange(len(a)))

    return (
        Net(),
        step,
        lambda: (ints(60, 3, 6), ints(60, 3, 6), torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]])),
    )


def _x_transformers(**options):
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    model = AutoregressiveWrapper(
        TransformerWrapper(
            num_tokens=32, max_seq_len=16, attn_layers=Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, **options)
        )
    )
    return model, lambda m, x: m(x), lambda: ints(32, 2, 9)


for _name, _options in {
    "plain": {},
    "rotary": dict(rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True),
    "alibi": dict(alibi_pos_bias=True, attn_qk_norm=True),
    "t5_bias": dict(rel_pos_bias=True, use_scalenorm=True),
    "talking_heads": dict(attn_pre_talking_heads=True, attn_flash=False, sandwich_norm=True),
    "memory": dict(attn_num_mem_kv=2, residual_attn=True),
    "sparse": dict(attn_sparse_topk=3, shift_tokens=1),
    "grouped": dict(attn_kv_heads=1, gate_residual=True),
    "macaron": dict(macaron=True, attn_gate_values=True, layer_dropout=0.2),
}.items():
    _way = (
        dict(way_out="run the model once before", tried_by="x_transformers_alibi_run_before")
        if _name == "alibi"
        else {}
    )
    add(
        f"x_transformers_{_name}",
        "decoder",
        "x-transformers",
        lambda options=_options: _x_transformers(**options),
        **_way,
    )


@network("decoder", "x-transformers")
def x_transformers_alibi_run_before():
    model, step, batch = _x_transformers(alibi_pos_bias=True, attn_qk_norm=True)
    step(model, batch())
    return model, step, batch


@network("state space", "mambapy")
def mamba_py():
    from mambapy.mamba import Mamba, MambaConfig

    return (
        Mamba(MambaConfig(d_model=8, n_layers=2, d_state=4, pscan=True)),
        squared,
        lambda: (normal(2, 8, 8), normal(2, 8, 8)),
    )


@network("state space", "mambapy")
def mamba_py_loop():
    from mambapy.mamba import Mamba, MambaConfig

    return (
        Mamba(MambaConfig(d_model=8, n_layers=2, d_state=4, pscan=False)),
        squared,
        lambda: (normal(2, 8, 8), normal(2, 8, 8)),
    )


@network("state space")
def diagonal_state_space():
    """S4D: the kernel of a diagonal system, written in real numbers."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_dt, self.log_decay = nn.Parameter(torch.rand(4) - 3), nn.Parameter(torch.zeros(4, 6))
            self.angle, self.c, self.d = (
                nn.Parameter(torch.arange(6.0).repeat(4, 1)),
                nn.Parameter(torch.randn(4, 6, 2)),
                nn.Parameter(torch.ones(4)),
            )
            self.out = nn.Linear(4, 4)

        def forward(self, x):  # (B, L, C)
            L, dt = x.shape[1], self.log_dt.exp()[:, None, None]
            t = torch.arange(L) * dt
            size, turn = torch.exp(-self.log_decay.exp()[..., None] * t), self.angle[..., None] * t
            k = (size * (self.c[..., :1] * torch.cos(turn) - self.c[..., 1:] * torch.sin(turn))).sum(1)
            u = F.pad(x.transpose(1, 2), (L - 1, 0))
            y = F.conv1d(u, k.flip(-1)[:, None], groups=4) + self.d[:, None] * x.transpose(1, 2)
            return self.out(F.gelu(y.transpose(1, 2)))

    return Net(), squared, lambda: (normal(2, 10, 4), normal(2, 10, 4))


@network("mixture of experts")
def experts_top_2():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.route, self.out = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 3)
            self.experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])

        def forward(self, x):
            h = self.a(x)
            w, i = self.route(h).softmax(-1).topk(2, -1)
            y = torch.zeros_like(h)
            for n, expert in enumerate(self.experts):
                row, k = torch.where(i == n)
                if len(row):
                    y.index_add_(0, row, expert(h[row]) * w[row, k, None])
            return self.out(h + y)

    return Net(), labelled, lambda: (normal(12, 6), ints(3, 12))


@network("mixture of experts")
def expert_choice():
    """Experts choose their tokens; capacity is bounded, tokens may be dropped."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.route, self.w1, self.w2 = (
                nn.Linear(8, 4),
                nn.Parameter(torch.randn(4, 8, 16) * 0.3),
                nn.Parameter(torch.randn(4, 16, 8) * 0.2),
            )
            self.out = nn.Linear(8, 3)

        def forward(self, x):
            score, chosen = self.route(x).softmax(-1).T.topk(3, -1)
            y = torch.bmm(F.gelu(torch.bmm(x[chosen], self.w1)), self.w2) * score[..., None]
            return self.out(x.index_add(0, chosen.flatten(), y.flatten(0, 1)))

    return Net(), labelled, lambda: (normal(12, 8), ints(3, 12))


@network("mixture of experts")
def switch_with_capacity():
    """One-hot dispatch and combine tensors, a place in each expert by cumulative sums, balance loss."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.route, self.experts, self.out = (
                nn.Linear(8, 4, bias=False),
                nn.Parameter(torch.randn(4, 8, 8) * 0.3),
                nn.Linear(8, 3),
            )

        def forward(self, x):
            p = self.route(x).softmax(-1)
            hot = F.one_hot(p.argmax(-1), 4).float()
            place = (hot.cumsum(0) - 1) * hot
            keep = hot * (place < 4)
            dispatch = keep[..., None] * F.one_hot(place.sum(-1).long().clamp(max=3), 4).float()[:, None]
            y = torch.einsum("ecm,emn->ecn", torch.einsum("sec,sm->ecm", dispatch, x), self.experts).relu()
            y = torch.einsum("sec,ecm->sm", dispatch * p[..., None], y)
            return self.out(x + y), 4 * (hot.mean(0) * p.mean(0)).sum()

    def step(model, batch):
        out, balance = model(batch[0])
        return F.cross_entropy(out, batch[1]) + 0.01 * balance

    return Net(), step, lambda: (normal(12, 8), ints(3, 12))


@network("physics-informed", quick=True)
def poisson_residual():
    """Second derivatives by autograd inside the loss."""
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def step(model, x):
        x = x.clone().requires_grad_()
        u = model(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        return (ddu + torch.sin(torch.pi * x.detach()) * torch.pi**2).square().mean() + model(
            torch.tensor([[0.0], [1.0]])
        ).square().mean()

    return model, step, lambda: torch.rand(10, 1)


@network("physics-informed")
def finite_difference_heat():
    """The residual by differences, which needs no second backward pass."""
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def step(model, batch):
        h = 0.05
        dx, dt = torch.tensor([h, 0.0]), torch.tensor([0.0, h])
        u = model(batch)
        second = (model(batch + dx) - 2 * u + model(batch - dx)) / h**2
        return ((model(batch + dt) - u) / h - 0.1 * second).square().mean()

    return model, step, lambda: torch.rand(10, 2)


@network("physics-informed")
def deep_operator_network():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.branch, self.trunk = (
                nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 6)),
                nn.Sequential(nn.Linear(1, 16), nn.GELU(), nn.Linear(16, 6)),
            )

        def forward(self, u, y):
            return torch.einsum("bk,pk->bp", self.branch(u), self.trunk(y))

    return Net(), lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]), lambda: (normal(4, 8), torch.rand(5, 1), normal(4, 5))


@network("physics-informed")
def fourier_neural_operator():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.weight = (
                nn.Linear(1, 4),
                nn.Linear(4, 1),
                nn.Parameter(torch.randn(4, 4, 3, 2) * 0.2),
            )

        def forward(self, x):
            h = self.up(x).transpose(1, 2)
            spectrum = torch.einsum("bik,iok->bok", torch.fft.rfft(h)[..., :3], torch.view_as_complex(self.weight))
            return self.down(F.gelu(h + torch.fft.irfft(spectrum, n=h.shape[-1])).transpose(1, 2))

    return Net(), squared, lambda: (normal(2, 8, 1), normal(2, 8, 1))


@network("several tasks", quick=True)
def uncertainty_weighted():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.classes, self.depth = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(16, 1)
            self.weights = nn.Parameter(torch.zeros(2))

    def step(model, batch):
        h = model.body(batch[0]).relu()
        losses = torch.stack(
            [F.cross_entropy(model.classes(h), batch[1]), F.huber_loss(model.depth(h)[:, 0], batch[2])]
        )
        return (losses * torch.exp(-model.weights) + model.weights).sum()

    return Net(), step, lambda: (normal(8, 6), ints(4, 8), normal(8))


@network("several tasks")
def cross_stitch():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.mix = (
                nn.Linear(6, 8),
                nn.Linear(6, 8),
                nn.Parameter(torch.tensor([[0.9, 0.1], [0.1, 0.9]])),
            )
            self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 2)])

        def forward(self, x):
            both = torch.stack([self.a(x), self.b(x)]).relu()
            mixed = torch.einsum("ij,jbc->ibc", self.mix, both)
            return [head(part) for head, part in zip(self.heads, mixed)]

    def step(model, batch):
        one, two = model(batch[0])
        return F.cross_entropy(one, batch[1], label_smoothing=0.1) + F.multi_margin_loss(two, batch[2])

    return Net(), step, lambda: (normal(8, 6), ints(3, 8), ints(2, 8))


@network("several tasks")
def distillation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = (
                nn.Linear(6, 4),
                nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).requires_grad_(False),
            )

    def step(model, batch):
        s, t = model.student(batch[0]), model.teacher(batch[0])
        soft = F.kl_div(F.log_softmax(s / 2, -1), F.log_softmax(t / 2, -1), log_target=True, reduction="batchmean") * 4
        return 0.5 * soft + 0.5 * F.cross_entropy(s, batch[1])

    return Net(), step, lambda: (normal(8, 6), ints(4, 8))


@network("normalised weights", quick=True)
def weight_normed():
    norm = nn.utils.parametrizations.weight_norm
    return (
        nn.Sequential(norm(nn.Linear(6, 16)), nn.ELU(), norm(nn.Linear(16, 5))),
        labelled,
        lambda: (normal(8, 6), ints(5, 8)),
    )


@network("normalised weights")
def weight_normed_hooks():
    norm = nn.utils.weight_norm
    return (
        nn.Sequential(norm(nn.Linear(6, 16)), nn.ELU(), norm(nn.Linear(16, 5))),
        labelled,
        lambda: (normal(8, 6), ints(5, 8)),
    )


@network("normalised weights")
def spectral_normed():
    norm = nn.utils.parametrizations.spectral_norm
    return (
        nn.Sequential(norm(nn.Conv2d(3, 8, 3)), nn.ReLU(), nn.Flatten(), norm(nn.Linear(8 * 36, 5))),
        labelled,
        images(5, 8),
    )


@network("normalised weights")
def orthogonal():
    return (
        nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 5)),
        labelled,
        lambda: (normal(8, 6), ints(5, 8)),
    )


@network("normalised weights")
def standardised_convolutions():
    class Conv(nn.Conv2d):
        def forward(self, x):
            w = self.weight
            w = (w - w.mean([1, 2, 3], keepdim=True)) / (w.std([1, 2, 3], keepdim=True) + 1e-5)
            return F.conv2d(x, w, self.bias, self.stride, self.padding)

    return (
        nn.Sequential(
            Conv(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
        ),
        labelled,
        images(),
    )


def _low(dtype):
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5)).to(dtype)
    return model, lambda m, b: F.cross_entropy(m(b[0]).float(), b[1]), lambda: (normal(8, 6).to(dtype), ints(5, 8))


@network("low precision", quick=True, fp32_only="its weights are BF16")
def pure_bfloat16():
    return _low(torch.bfloat16)


@network("low precision", fp32_only="its weights are FP16")
def pure_half():
    return _low(torch.float16)


@network("low precision", "transformers", fp32_only="its weights are BF16")
def llama_bfloat16():
    from ..parts import next_tokens

    return _llama().bfloat16(), own_loss, next_tokens()


@network("low precision", "timm", fp32_only="its weights are BF16")
def vit_bfloat16():
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, num_classes=5
    ).bfloat16()
    return model, lambda m, b: F.cross_entropy(m(b[0].bfloat16()).float(), b[1]), images()


@network("low precision", fp32_only="its weights are BF16")
def mixed_islands():
    """BF16 weights but for the norms, which stay FP32."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(6, 16).bfloat16(), nn.LayerNorm(16), nn.Linear(16, 5).bfloat16()

        def forward(self, x):
            return self.b(self.norm(self.a(x.bfloat16()).float()).bfloat16()).float()

    return Net(), labelled, lambda: (normal(8, 6), ints(5, 8))


@network("transformations", quick=True)
def spatial_transformer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.place, self.conv, self.head = nn.Linear(3 * 64, 6), nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
            self.place.bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))

        def forward(self, x):
            grid = F.affine_grid(self.place(x.flatten(1)).view(-1, 2, 3), list(x.shape), align_corners=False)
            return self.head(self.conv(F.grid_sample(x, grid, align_corners=False)).relu().mean((2, 3)))

    return Net(), labelled, images(5, 8)


@network("transformations", "kornia")
def kornia_blur_and_ssim():
    import kornia

    model = nn.Conv2d(3, 3, 3, padding=1)

    def step(model, batch):
        y = kornia.filters.gaussian_blur2d(model(batch[0]), (3, 3), (1.0, 1.0))
        return kornia.losses.ssim_loss(y, batch[1], 5) + kornia.losses.total_variation(y).mean() * 1e-4

    return model, step, lambda: (torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16))


@network("transformations", "kornia")
def kornia_warp():
    import kornia

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.angle, self.shift = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, 2))

        def forward(self, x):
            return kornia.geometry.translate(kornia.geometry.rotate(x, self.angle), self.shift)

    return Net(), squared, lambda: (torch.rand(2, 3, 16, 16), torch.rand(2, 3, 16, 16))


@network("transformations", "kornia")
def kornia_augmented():
    import kornia.augmentation as K

    model = nn.Sequential(
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.2, 0.2, 0.2, 0.1),
        K.RandomErasing(),
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    return model, labelled, lambda: (torch.rand(2, 3, 16, 16), ints(5, 2))


@network("transformations", "torchvision")
def deformable_convolution():
    from torchvision.ops import DeformConv2d

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.offset, self.conv, self.head = (
                nn.Conv2d(3, 18, 3, padding=1),
                DeformConv2d(3, 8, 3, padding=1),
                nn.Linear(8, 5),
            )

        def forward(self, x):
            return self.head(self.conv(x, self.offset(x)).relu().mean((2, 3)))

    return Net(), labelled, images(5, 8)


@network("transformations")
def optical_flow():
    """Warping by a predicted flow, correlation of windows, a smoothness term."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features, self.flow = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(9 + 4, 2, 3, padding=1)

        def forward(self, a, b):
            fa, fb = self.features(a), self.features(b)
            windows = F.unfold(fb, 3, padding=1).view(len(a), 4, 9, *a.shape[2:])
            flow = self.flow(torch.cat([(fa[:, :, None] * windows).mean(1), fa], 1))
            y, x = torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij")
            grid = torch.stack([x, y], -1) + flow.permute(0, 2, 3, 1) * 0.1
            return F.grid_sample(b, grid, align_corners=True, padding_mode="border"), flow

    def step(model, batch):
        warped, flow = model(*batch)
        return (warped - batch[0]).abs().mean() + 0.1 * flow.diff(dim=-1).abs().mean()

    return Net(), step, lambda: (torch.rand(2, 3, 8, 8), torch.rand(2, 3, 8, 8))


@network("transformations")
def super_resolution():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"),
        nn.PReLU(8),
        nn.Conv2d(8, 12, 3, padding=1),
        nn.PixelShuffle(2),
    )

    def step(model, batch):
        y = model(batch[0]) + F.interpolate(batch[0], scale_factor=2, mode="bicubic", align_corners=False)
        return torch.sqrt((y - batch[1]).square() + 1e-6).mean()

    return model, step, lambda: (torch.rand(2, 3, 8, 8), torch.rand(2, 3, 16, 16))
