"""Autoencoders, adversarial networks, diffusion, flows."""

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import ints, normal
from ..registry import network


def pictures(size=16, channels=3, count=2):
    return lambda: normal(count, channels, size, size)


@network("VAE", "diffusers", quick=True)
def autoencoder_kl():
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        latent_channels=2,
    )

    def step(model, x):
        posterior = model.encode(x).latent_dist
        return F.mse_loss(model.decode(posterior.sample()).sample, x) + 1e-3 * posterior.kl().mean()

    return model, step, pictures()


@network("VAE", "diffusers")
def vq_model():
    from diffusers import VQModel

    model = VQModel(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        latent_channels=3,
        num_vq_embeddings=16,
    )

    def step(model, x):
        out = model(x)
        return F.mse_loss(out.sample, x) + out.commit_loss.mean()

    return model, step, pictures()


@network("VAE", "diffusers")
def autoencoder_tiny():
    from diffusers import AutoencoderTiny

    model = AutoencoderTiny(
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        num_encoder_blocks=(1, 1),
        num_decoder_blocks=(1, 1),
        upsampling_scaling_factor=2,
    )
    return model, lambda m, x: F.mse_loss(m(x).sample, x), pictures()


@network("VAE")
def beta_vae():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(12, 8), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 12))

        def forward(self, x):
            mean, log_variance = self.encode(x).chunk(2, -1)
            z = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
            kl = torch.distributions.kl_divergence(
                z, torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
            )
            return (
                -torch.distributions.Bernoulli(logits=self.decode(z.rsample())).log_prob(x).sum(-1).mean()
                + 4 * kl.sum(-1).mean()
            )

    return Net(), lambda m, x: m(x), lambda: torch.rand(5, 12).round()


@network("VAE")
def vq_vae():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.codes = nn.Conv2d(3, 8, 4, 2, 1), nn.Embedding(16, 8)
            self.decode = nn.ConvTranspose2d(8, 3, 4, 2, 1)

        def forward(self, x):
            z = self.encode(x).permute(0, 2, 3, 1)
            q = self.codes(torch.cdist(z.reshape(-1, 8), self.codes.weight).argmin(1)).view_as(z)
            commitment = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
            q = z + (q - z).detach()
            return F.mse_loss(self.decode(q.permute(0, 3, 1, 2)), x) + commitment

    return Net(), lambda m, x: m(x), pictures(8)


@network("VAE", "vector-quantize-pytorch")
def vector_quantize():
    from vector_quantize_pytorch import VectorQuantize

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(12, 8), nn.Linear(8, 12)
            self.quantise = VectorQuantize(8, codebook_size=16, decay=0.9)

        def forward(self, x):
            q, _, loss = self.quantise(self.encode(x))
            return F.mse_loss(self.decode(q), x) + loss.sum()

    return Net(), lambda m, x: m(x), lambda: normal(2, 6, 12)


@network("VAE", "vector-quantize-pytorch")
def residual_vq():
    from vector_quantize_pytorch import ResidualVQ

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(12, 8), nn.Linear(8, 12)
            self.quantise = ResidualVQ(dim=8, num_quantizers=2, codebook_size=8, kmeans_init=False)

        def forward(self, x):
            q, _, loss = self.quantise(self.encode(x))
            return F.mse_loss(self.decode(q), x) + loss.sum()

    return Net(), lambda m, x: m(x), lambda: normal(2, 6, 12)


@network("VAE", "vector-quantize-pytorch")
def finite_scalar_quantisation():
    from vector_quantize_pytorch import FSQ

    model = nn.ModuleDict({"a": nn.Linear(12, 3), "q": FSQ([8, 5, 5]), "b": nn.Linear(3, 12)})
    return model, lambda m, x: F.mse_loss(m["b"](m["q"](m["a"](x))[0]), x), lambda: normal(2, 6, 12)


@network("VAE", "vector-quantize-pytorch")
def lookup_free_quantisation():
    from vector_quantize_pytorch import LFQ

    model = nn.ModuleDict(
        {"a": nn.Linear(12, 4), "q": LFQ(dim=4, codebook_size=16, entropy_loss_weight=0.1), "b": nn.Linear(4, 12)}
    )

    def step(model, x):
        q, _, loss = model["q"](model["a"](x))
        return F.mse_loss(model["b"](q), x) + loss

    return model, step, lambda: normal(2, 6, 12)


@network("VAE", "monai")
def monai_vae():
    from monai.networks.nets import VarAutoEncoder

    model = VarAutoEncoder(2, (1, 16, 16), 1, 4, (4, 8), (2, 2))

    def step(model, x):
        y, mean, log_variance, _ = model(x)
        return F.mse_loss(y, x) - 1e-3 * (1 + log_variance - mean.square() - log_variance.exp()).mean()

    return model, step, pictures(16, 1)


@network("GAN", quick=True)
def dcgan_generator():
    """The generator's step: the discriminator is fixed."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.make = nn.Sequential(
                nn.ConvTranspose2d(8, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()
            )
            self.judge = nn.Sequential(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4)).requires_grad_(
                False
            )

    return Net(), lambda m, z: F.softplus(-m.judge(m.make(z))).mean(), lambda: normal(4, 8, 1, 1)


@network("GAN")
def hinge_discriminator():
    """The discriminator's step, with spectral norm."""
    spectral = nn.utils.parametrizations.spectral_norm
    model = nn.Sequential(spectral(nn.Conv2d(3, 8, 4, 2, 1)), nn.LeakyReLU(0.2), spectral(nn.Conv2d(8, 1, 4)))
    return (
        model,
        lambda m, b: (1 - m(b[0])).relu().mean() + (1 + m(b[1])).relu().mean(),
        lambda: (normal(2, 3, 8, 8), normal(2, 3, 8, 8)),
    )


@network("GAN", "monai")
def patch_gan():
    from monai.networks.nets import PatchDiscriminator

    model = PatchDiscriminator(spatial_dims=2, channels=4, in_channels=3, num_layers_d=2)
    return model, lambda m, x: F.mse_loss(m(x)[-1], torch.ones_like(m(x)[-1])), pictures()


@network("GAN")
def style_gan_block():
    """Modulated and demodulated convolution, noise, equalised learning rate."""

    class Block(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.style, self.weight = nn.Linear(8, n), nn.Parameter(torch.randn(n, n, 3, 3))
            self.strength = nn.Parameter(torch.zeros(1))

        def forward(self, x, w):
            B, C, H, W = x.shape
            weight = self.weight * (C * 9) ** -0.5 * (self.style(w) + 1)[:, None, :, None, None]
            weight = weight * torch.rsqrt(weight.square().sum([2, 3, 4], keepdim=True) + 1e-8)
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            y = F.conv2d(x.reshape(1, -1, 2 * H, 2 * W), weight.flatten(0, 1), padding=1, groups=B).view(
                B, C, 2 * H, 2 * W
            )
            return F.leaky_relu(y + self.strength * torch.randn(B, 1, 2 * H, 2 * W), 0.2) * 2**0.5

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8))
            self.start, self.blocks = nn.Parameter(torch.randn(1, 8, 4, 4)), nn.ModuleList([Block(8), Block(8)])
            self.colour = nn.Conv2d(8, 3, 1)

        def forward(self, z):
            w = self.map(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8))
            x = self.start.expand(len(z), -1, -1, -1)
            for block in self.blocks:
                x = block(x, w)
            return self.colour(x)

    return Net(), lambda m, b: F.mse_loss(m(b[0]), b[1]), lambda: (normal(2, 8), normal(2, 3, 16, 16))


@network("GAN", "monai")
def spade():
    from monai.networks.blocks.spade_norm import SPADE

    model = SPADE(4, 8, norm="INSTANCE", hidden_channels=8)
    return model, lambda m, b: m(b[0], b[1]).square().mean(), lambda: (normal(2, 8, 8, 8), normal(2, 4, 16, 16))


def _denoising(size=16, channels=3):
    from diffusers import DDPMScheduler

    schedule = DDPMScheduler()

    def step(model, x):
        noise, t = torch.randn_like(x), torch.randint(0, 1000, (len(x),))
        return F.mse_loss(model(schedule.add_noise(x, noise, t), t).sample, noise)

    return step, pictures(size, channels)


@network("diffusion", "diffusers", quick=True)
def unet_2d():
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=16,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        layers_per_block=1,
        attention_head_dim=4,
    ), *_denoising()


@network("diffusion", "diffusers")
def unet_2d_condition():
    from diffusers import DDPMScheduler, UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        cross_attention_dim=8,
        norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        layers_per_block=1,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=4,
    )
    schedule = DDPMScheduler()

    def step(model, batch):
        x, words = batch
        noise, t = torch.randn_like(x), torch.randint(0, 1000, (len(x),))
        return F.mse_loss(model(schedule.add_noise(x, noise, t), t, words).sample, noise)

    return model, step, lambda: (normal(2, 4, 8, 8), normal(2, 5, 8))


@network("diffusion", "diffusers")
def unet_1d():
    from diffusers import DDPMScheduler, UNet1DModel

    model = UNet1DModel(
        in_channels=2,
        out_channels=2,
        block_out_channels=(8, 16),
        norm_num_groups=4,
        layers_per_block=1,
        down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
        up_block_types=("UpResnetBlock1D",),
        mid_block_type="MidResTemporalBlock1D",
        out_block_type="OutConv1DBlock",
        use_timestep_embedding=True,
        act_fn="mish",
        time_embedding_type="positional",
    )
    schedule = DDPMScheduler()

    def step(model, x):
        noise, t = torch.randn_like(x), torch.randint(0, 1000, (len(x),))
        return F.mse_loss(model(schedule.add_noise(x, noise, t), t).sample, noise)

    return model, step, lambda: normal(2, 2, 16)


@network("diffusion", "diffusers")
def diffusion_transformer():
    from diffusers import DDPMScheduler, DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=8,
        in_channels=3,
        num_layers=2,
        sample_size=8,
        norm_num_groups=4,
        num_embeds_ada_norm=10,
    )
    schedule = DDPMScheduler()

    def step(model, batch):
        x, y = batch
        noise, t = torch.randn_like(x), torch.randint(0, 1000, (len(x),))
        return F.mse_loss(model(schedule.add_noise(x, noise, t), t, y).sample, noise)

    return model, step, lambda: (normal(2, 3, 8, 8), ints(10, 2))


@network("diffusion", "diffusers")
def sd3_transformer():
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=8,
        caption_projection_dim=16,
        pooled_projection_dim=8,
        out_channels=4,
    )

    def step(model, batch):
        x, words, pooled = batch
        noise, u = torch.randn_like(x), torch.rand(len(x))
        mixed = (1 - u)[:, None, None, None] * x + u[:, None, None, None] * noise
        out = model(mixed, encoder_hidden_states=words, pooled_projections=pooled, timestep=u * 1000).sample
        return F.mse_loss(out, noise - x)

    return model, step, lambda: (normal(2, 4, 8, 8), normal(2, 5, 8), normal(2, 8))


@network("diffusion", "denoising-diffusion-pytorch")
def gaussian_diffusion():
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    model = GaussianDiffusion(Unet(8, dim_mults=(1, 2), flash_attn=False), image_size=16, timesteps=20)
    return model, lambda m, x: m(x), lambda: torch.rand(2, 3, 16, 16)


@network("diffusion", "denoising-diffusion-pytorch")
def elucidated_diffusion():
    from denoising_diffusion_pytorch import ElucidatedDiffusion, Unet

    model = ElucidatedDiffusion(
        Unet(8, dim_mults=(1, 2), flash_attn=False, learned_sinusoidal_cond=True), image_size=16, num_sample_steps=4
    )
    return model, lambda m, x: m(x), lambda: torch.rand(2, 3, 16, 16)


@network("diffusion", "monai")
def monai_diffusion_unet():
    from monai.networks.nets import DiffusionModelUNet

    model = DiffusionModelUNet(
        2,
        1,
        1,
        num_res_blocks=1,
        channels=(8, 8),
        attention_levels=(False, True),
        norm_num_groups=4,
        num_head_channels=4,
    )
    return (
        model,
        lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]),
        lambda: (normal(2, 1, 16, 16), ints(1000, 2), normal(2, 1, 16, 16)),
    )


@network("flow", quick=True)
def real_nvp():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(4)])

        def forward(self, x):
            logdet = 0.0
            for part in self.parts:
                a, b = x.chunk(2, -1)
                s, t = part(a).chunk(2, -1)
                s = s.tanh()
                x, logdet = torch.cat([b * s.exp() + t, a], -1), logdet + s.sum(-1)
            return torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(-1) + logdet

    return Net(), lambda m, x: -m(x).mean(), lambda: normal(8, 4)


@network("flow", "nflows")
def masked_autoregressive_flow():
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedAffineAutoregressiveTransform
    from nflows.transforms.base import CompositeTransform
    from nflows.transforms.permutations import ReversePermutation

    parts = [part for _ in range(2) for part in (ReversePermutation(4), MaskedAffineAutoregressiveTransform(4, 8))]
    return (
        Flow(CompositeTransform(parts), StandardNormal([4])),
        lambda m, x: -m.log_prob(x).mean(),
        lambda: normal(8, 4),
    )


@network("flow", "nflows")
def neural_spline_flow():
    from nflows.distributions.normal import StandardNormal
    from nflows.flows.base import Flow
    from nflows.transforms.autoregressive import MaskedPiecewiseRationalQuadraticAutoregressiveTransform

    transform = MaskedPiecewiseRationalQuadraticAutoregressiveTransform(
        4, 8, num_bins=4, tails="linear", tail_bound=3.0
    )
    return Flow(transform, StandardNormal([4])), lambda m, x: -m.log_prob(x).mean(), lambda: normal(8, 4)


@network("flow", "torchdiffeq")
def neural_ode():
    from torchdiffeq import odeint

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, t, y):
            return self.net(y**3)

    return (
        Field(),
        lambda m, b: (odeint(m, b[0], torch.linspace(0, 1, 4), method="rk4") - b[1]).abs().mean(),
        lambda: (normal(3, 2), normal(4, 3, 2)),
    )
