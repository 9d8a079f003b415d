"""Pipelines of SD3 and FLUX type with random weights, small enough to run in a test; prompts are passed embedded."""

import torch
from diffusers import (
    AutoencoderKL,
    FluxImg2ImgPipeline,
    FluxPipeline,
    FluxTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3Pipeline,
)

__all__ = ["flux", "sd3"]

_TEXT = 5


def _autoencoder():
    torch.manual_seed(2)
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=4, sample_size=16, layers_per_block=1, norm_num_groups=2,
        block_out_channels=(4, 4), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, use_quant_conv=False,
        use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5,
    ).eval()  # fmt: skip


def _embedded(size, channels, pooled):
    generator = torch.Generator().manual_seed(4)
    return {
        "prompt_embeds": torch.randn((size, _TEXT, channels), generator=generator),
        "pooled_prompt_embeds": torch.randn((size, pooled), generator=generator),
    }


def _made(kind, scheduler, transformer, encoders):
    return kind(scheduler=scheduler, transformer=transformer, vae=_autoencoder(), **dict.fromkeys(encoders))


def sd3(scheduler, image_to_image=False):
    """Return a pipeline of SD3 type and what it is called with."""
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, out_channels=4, num_layers=1, attention_head_dim=8,
        num_attention_heads=2, caption_projection_dim=16, joint_attention_dim=16, pooled_projection_dim=12,
    ).eval()  # fmt: skip
    encoders = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2", "text_encoder_3", "tokenizer_3")
    kind = StableDiffusion3Img2ImgPipeline if image_to_image else StableDiffusion3Pipeline
    words = {**_embedded(2, 16, 12), "guidance_scale": 1.0}
    return _made(kind, scheduler, transformer, encoders), words


def flux(scheduler, image_to_image=False):
    """Return a pipeline of FLUX type and what it is called with."""
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=12, axes_dims_rope=(4, 2, 2), guidance_embeds=True,
    ).eval()  # fmt: skip
    encoders = ("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2")
    kind = FluxImg2ImgPipeline if image_to_image else FluxPipeline
    return _made(kind, scheduler, transformer, encoders), _embedded(2, 16, 12)
