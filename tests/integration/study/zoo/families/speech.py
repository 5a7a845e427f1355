"""Speech: CTC, sequence to sequence, conformers, vocoders."""

import torch
import torch.nn.functional as F
from torch import nn

from ..parts import ints, normal, own_loss
from ..registry import add, network

_CONVOLUTIONS = dict(
    conv_dim=(8, 8),
    conv_stride=(5, 4),
    conv_kernel=(10, 3),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=2,
)
_ENCODER = (
    dict(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        layerdrop=0.3,
        mask_time_length=2,
    )
    | _CONVOLUTIONS
)


def _waves():
    return {"input_values": normal(2, 800), "labels": ints(18, 2, 4) + 1}


def _ctc(kind, sizes):
    import transformers

    return getattr(transformers, f"{kind}ForCTC")(getattr(transformers, f"{kind}Config")(**sizes)), own_loss, _waves


for _name, _kind, _sizes in [
    ("wav2vec2", "Wav2Vec2", _ENCODER),
    ("hubert", "Hubert", _ENCODER),
    ("wavlm", "WavLM", _ENCODER),
    ("unispeech_sat", "UniSpeechSat", _ENCODER),
    ("data2vec_audio", "Data2VecAudio", _ENCODER | dict(num_conv_pos_embeddings=2, conv_pos_kernel_size=3)),
    ("sew", "SEW", _ENCODER | dict(squeeze_factor=2)),
    (
        "wav2vec2_conformer",
        "Wav2Vec2Conformer",
        _ENCODER | dict(position_embeddings_type="rotary", conv_depthwise_kernel_size=3),
    ),
]:
    add(_name, "speech", "transformers", lambda kind=_kind, sizes=_sizes: _ctc(kind, sizes), quick=_name == "wav2vec2")


@network("speech", "transformers")
def wav2vec2_pretraining():
    """Contrastive, with quantised targets chosen by a Gumbel softmax."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForPreTraining

    model = Wav2Vec2ForPreTraining(
        Wav2Vec2Config(
            **_ENCODER | dict(num_codevectors_per_group=4, codevector_dim=8, proj_codevector_dim=8, num_negatives=3)
        )
    )

    def batch():
        mask = torch.zeros(2, 40, dtype=torch.bool)
        mask[:, 5:15] = True
        return {
            "input_values": normal(2, 800),
            "mask_time_indices": mask,
            "sampled_negative_indices": ints(40, 2, 40, 3),
        }

    return model, own_loss, batch


@network("speech", "transformers")
def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return (
        WhisperForConditionalGeneration(
            WhisperConfig(
                vocab_size=64,
                d_model=16,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=2,
                decoder_attention_heads=2,
                encoder_ffn_dim=32,
                decoder_ffn_dim=32,
                num_mel_bins=8,
                max_source_positions=20,
                max_target_positions=20,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=1,
            )
        ),
        own_loss,
        lambda: {"input_features": normal(2, 8, 40), "labels": ints(64, 2, 5)},
    )


@network("speech", "transformers")
def speech_to_text():
    from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

    return (
        Speech2TextForConditionalGeneration(
            Speech2TextConfig(
                vocab_size=64,
                d_model=16,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=2,
                decoder_attention_heads=2,
                encoder_ffn_dim=32,
                decoder_ffn_dim=32,
                max_source_positions=64,
                max_target_positions=20,
                conv_channels=16,
                input_feat_per_channel=8,
                decoder_start_token_id=2,
            )
        ),
        own_loss,
        lambda: {"input_features": normal(2, 40, 8), "labels": ints(62, 2, 5) + 2},
    )


@network("speech", "transformers")
def audio_spectrogram_transformer():
    from transformers import ASTConfig, ASTForAudioClassification

    return (
        ASTForAudioClassification(
            ASTConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                intermediate_size=32,
                patch_size=8,
                max_length=32,
                num_mel_bins=16,
                num_labels=4,
                frequency_stride=8,
                time_stride=8,
            )
        ),
        own_loss,
        lambda: {"input_values": normal(2, 32, 16), "labels": ints(4, 2)},
    )


@network("speech", "transformers")
def vits_discriminator_like_univnet():
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    model = SpeechT5HifiGan(
        SpeechT5HifiGanConfig(
            model_in_dim=8,
            upsample_initial_channel=8,
            upsample_rates=[2, 2],
            upsample_kernel_sizes=[4, 4],
            resblock_kernel_sizes=[3],
            resblock_dilation_sizes=[[1, 3]],
        )
    )
    return model, lambda m, b: F.l1_loss(m(b[0]), b[1]), lambda: (normal(2, 6, 8), normal(2, 24))


@network("speech", "transformers")
def encodec():
    from transformers import EncodecConfig, EncodecModel

    model = EncodecModel(
        EncodecConfig(
            num_filters=4,
            hidden_size=8,
            codebook_size=16,
            codebook_dim=8,
            upsampling_ratios=[4, 2],
            num_residual_layers=1,
            num_lstm_layers=1,
            target_bandwidths=[24.0],
            kernel_size=3,
            last_kernel_size=3,
        )
    )

    def step(model, x):
        z = model.encoder(x)
        return F.l1_loss(model.decoder(z), x) + 0.1 * z.square().mean()

    return model, step, lambda: normal(2, 1, 64)


@network("speech", "torchaudio")
def conformer_ctc():
    import torchaudio

    class Recogniser(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torchaudio.models.Conformer(16, 2, 32, 2, 3)
            self.head = nn.Linear(16, 10)

        def forward(self, x, lengths):
            y, lengths = self.body(x, lengths)
            return self.head(y).log_softmax(-1).transpose(0, 1), lengths

    def step(model, batch):
        x, lengths, y, counts = batch
        out, lengths = model(x, lengths)
        return F.ctc_loss(out, y, lengths, counts)

    return (
        Recogniser(),
        step,
        lambda: (normal(3, 12, 16), torch.tensor([12, 9, 7]), ints(9, 3, 4) + 1, torch.tensor([4, 2, 3])),
    )


@network("speech", "torchaudio")
def conv_tasnet():
    import torchaudio

    model = torchaudio.models.ConvTasNet(
        2,
        enc_kernel_size=4,
        enc_num_feats=8,
        msk_kernel_size=3,
        msk_num_feats=8,
        msk_num_hidden_feats=8,
        msk_num_layers=2,
        msk_num_stacks=1,
    )
    return model, lambda m, b: F.l1_loss(m(b[0]), b[1]), lambda: (normal(2, 1, 40), normal(2, 2, 40))


@network("speech", "torchaudio")
def deepspeech():
    import torchaudio

    model = torchaudio.models.DeepSpeech(8, 16, 10)

    def step(model, batch):
        out = model(batch[0]).transpose(0, 1)
        return F.ctc_loss(out, batch[1], torch.tensor([12, 12]), torch.tensor([4, 3]))

    return model, step, lambda: (normal(2, 1, 12, 8), ints(9, 2, 4) + 1)


@network("speech", "torchaudio")
def wav2letter():
    import torchaudio

    model = torchaudio.models.WaveRNN(
        [2, 2, 2], 8, 8, n_res_block=1, n_rnn=8, n_fc=8, kernel_size=3, n_freq=4, n_hidden=8, n_output=8
    )
    return (
        model,
        lambda m, b: F.cross_entropy(m(b[0], b[1]).flatten(0, 2), b[2].flatten()),
        lambda: (normal(2, 1, 24), normal(2, 1, 4, 5), ints(8, 2, 1, 24)),
    )


@network("speech", "speechbrain")
def ecapa_tdnn():
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier

    body = ECAPA_TDNN(
        8,
        channels=[8, 8, 8, 8, 24],
        kernel_sizes=[3, 3, 3, 3, 1],
        dilations=[1, 2, 3, 4, 1],
        attention_channels=8,
        lin_neurons=8,
        res2net_scale=2,
        se_channels=8,
    )
    model = nn.ModuleDict({"body": body, "head": Classifier(8, out_neurons=4)})
    return (
        model,
        lambda m, b: F.cross_entropy(m["head"](m["body"](b[0]))[:, 0] * 10, b[1]),
        lambda: (normal(3, 20, 8), ints(4, 3)),
    )


@network("speech", "speechbrain")
def crdnn():
    from speechbrain.lobes.models.CRDNN import CRDNN

    model = CRDNN(
        input_shape=[None, None, 8],
        cnn_blocks=1,
        cnn_channels=(4,),
        rnn_layers=1,
        rnn_neurons=8,
        dnn_blocks=1,
        dnn_neurons=8,
        time_pooling=True,
        cnn_kernelsize=(3, 3),
    )
    return model, lambda m, b: F.cross_entropy(m(b[0]).mean(1), b[1]), lambda: (normal(2, 16, 8), ints(8, 2))


@network("speech", "speechbrain")
def branchformer():
    from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoder

    model = BranchformerEncoder(
        num_layers=1, d_model=16, nhead=2, csgu_linear_units=16, kernel_size=3, attention_type="regularMHA"
    )
    return model, lambda m, b: m(b)[0].square().mean(), lambda: normal(2, 10, 16)


@network("speech", "conformer")
def conformer_lucidrains():
    from conformer import Conformer

    model = nn.Sequential(Conformer(16, depth=2, dim_head=8, heads=2, conv_kernel_size=5), nn.Linear(16, 10))
    return (
        model,
        lambda m, b: F.ctc_loss(
            m(b[0]).log_softmax(-1).transpose(0, 1), b[1], torch.tensor([12, 12]), torch.tensor([4, 3])
        ),
        lambda: (normal(2, 12, 16), ints(9, 2, 4) + 1),
    )


@network("speech")
def mel_front_end():
    """A spectrogram without Fourier transforms: a fixed convolution, mel-like filters, log1p."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            angles = torch.arange(16)[None] * torch.arange(9)[:, None] * 2 * torch.pi / 16
            window = torch.hann_window(16)
            self.register_buffer("waves", torch.cat([angles.cos(), angles.sin()])[:, None] * window)
            self.register_buffer("filters", torch.rand(5, 9))
            self.rnn = nn.GRU(5, 8, batch_first=True, bidirectional=True)
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            spectrum = F.conv1d(x[:, None], self.waves, stride=8)
            power = spectrum[:, :9].square() + spectrum[:, 9:].square()
            mel = torch.log1p(10 * torch.einsum("mf,bft->btm", self.filters, power))
            return self.head(self.rnn((mel - mel.mean(1, keepdim=True)) / (mel.std(1, keepdim=True) + 1e-5))[0].mean(1))

    return Net(), lambda m, b: F.cross_entropy(m(b[0]), b[1]), lambda: (normal(3, 128), ints(4, 3))
