"""Networks that take more than an image or a text: prompts, sound with text, video."""

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import ints, labelled, normal
from ..registry import network


@network("several inputs", "transformers", quick=True)
def clap():
    from transformers import ClapConfig, ClapModel

    text = dict(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        projection_dim=16,
    )
    sound = dict(
        num_mel_bins=16,
        spec_size=64,
        patch_size=4,
        patch_stride=[4, 4],
        hidden_size=64,
        patch_embeds_hidden_size=16,
        depths=[1, 1, 1],
        num_hidden_layers=3,
        num_attention_heads=[1, 2, 4],
        window_size=4,
        projection_dim=16,
        enable_fusion=False,
        fusion_type=None,
    )

    def step(model, batch):
        tokens, spectra = batch
        is_longer = torch.zeros(len(tokens), 1, dtype=torch.bool)
        return model(input_ids=tokens, input_features=spectra, is_longer=is_longer, return_loss=True).loss

    model = ClapModel(ClapConfig(text_config=text, audio_config=sound, projection_dim=16))
    return model, step, lambda: (ints(60, 4, 8) + 3, normal(4, 1, 64, 16))


@network("several inputs", "transformers")
def segment_anything():
    from transformers import SamConfig, SamModel

    size = dict(image_size=64, patch_size=8)
    vision = size | dict(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        output_channels=16,
        window_size=4,
        global_attn_indexes=[1],
        mlp_dim=64,
        num_pos_feats=8,
    )
    prompts = size | dict(hidden_size=16, mask_input_channels=4)
    decoder = dict(hidden_size=16, mlp_dim=32, num_hidden_layers=2, num_attention_heads=2, iou_head_hidden_dim=16)

    def step(model, batch):
        pixels, points, masks = batch
        out = model(pixel_values=pixels, input_points=points, multimask_output=False)
        return F.binary_cross_entropy_with_logits(out.pred_masks[:, 0, 0], masks) + out.iou_scores.mean()

    model = SamModel(SamConfig(vision_config=vision, prompt_encoder_config=prompts, mask_decoder_config=decoder))
    return model, step, lambda: (normal(2, 3, 64, 64), torch.rand(2, 1, 2, 2) * 64, (normal(2, 32, 32) > 0).float())


@network("several inputs", "transformers")
def grounding_dino():
    from transformers import BertConfig, GroundingDinoConfig, GroundingDinoForObjectDetection, SwinConfig

    pixels = SwinConfig(
        embed_dim=16,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 2, 2],
        image_size=128,
        window_size=4,
        out_features=["stage2", "stage3", "stage4"],
    )
    text = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    heads = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    config = GroundingDinoConfig(
        backbone_config=pixels,
        text_config=text,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_queries=10,
        max_text_len=16,
        **heads,
    )

    def step(model, batch):
        images, tokens = batch
        mask = torch.ones_like(tokens)
        out = model(pixel_values=images, input_ids=tokens, attention_mask=mask, token_type_ids=torch.zeros_like(tokens))
        return out.pred_boxes.square().mean() + out.logits.clamp(-20, 20).sigmoid().mean()

    return GroundingDinoForObjectDetection(config), step, lambda: (normal(1, 3, 128, 128), ints(55, 1, 8) + 5)


@network("several inputs", "diffusers")
def cogvideox():
    from diffusers import CogVideoXTransformer3DModel

    model = CogVideoXTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        out_channels=4,
        time_embed_dim=8,
        text_embed_dim=16,
        num_layers=2,
        sample_width=8,
        sample_height=8,
        sample_frames=9,
        max_text_seq_length=8,
    )

    def step(model, batch):
        video, text, times, wanted = batch
        return F.mse_loss(model(hidden_states=video, encoder_hidden_states=text, timestep=times).sample, wanted)

    return model, step, lambda: (normal(1, 3, 4, 8, 8), normal(1, 8, 16), ints(1000, 1), normal(1, 3, 4, 8, 8))


@network("several inputs", "transformers")
def v_jepa_2():
    from transformers import VJEPA2Config, VJEPA2Model

    config = VJEPA2Config(
        patch_size=8,
        crop_size=32,
        frames_per_clip=4,
        hidden_size=48,
        num_attention_heads=2,
        num_hidden_layers=2,
        mlp_ratio=2,
        pred_hidden_size=24,
        pred_num_attention_heads=2,
        pred_num_hidden_layers=2,
        pred_num_mask_tokens=2,
    )

    def step(model, batch):
        out = model(pixel_values_videos=batch)
        seen, predicted = out.last_hidden_state, out.predictor_output.last_hidden_state
        return F.mse_loss(predicted, seen.detach()) + seen.square().mean()

    return VJEPA2Model(config), step, lambda: normal(1, 4, 3, 32, 32)


@network("several inputs")
def soft_mixture():
    """Slots of experts that every token feeds, and that feed every token."""

    class SoftMixture(nn.Module):
        def __init__(self, width=32, experts=4, slots=2):
            super().__init__()
            self.norm, self.scale = nn.LayerNorm(width), nn.Parameter(torch.ones(()))
            self.slots = nn.Parameter(torch.randn(width, experts * slots) / width**0.5)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)) for _ in range(experts)
            )

        def forward(self, x):
            x = self.norm(x)
            match = F.normalize(x, dim=-1) @ (self.scale * F.normalize(self.slots, dim=0))
            parts = (match.softmax(1).transpose(1, 2) @ x).chunk(len(self.experts), 1)
            return match.softmax(2) @ torch.cat([e(p) for e, p in zip(self.experts, parts, strict=True)], 1)

    model = nn.Sequential(nn.Linear(12, 32), *(SoftMixture() for _ in range(4)), nn.Flatten(), nn.Linear(32 * 16, 5))
    return model, labelled, lambda: (normal(8, 16, 12), ints(5, 8))


@network("several inputs", "torchvision")
def mobilenet_of_two_images():
    """The last batch norms see two numbers a channel, which FP64 hardly determines."""
    import torchvision

    return torchvision.models.mobilenet_v2(num_classes=10), labelled, lambda: (normal(2, 3, 32, 32), ints(10, 2))
