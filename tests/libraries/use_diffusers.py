"""A small UNet learns to remove noise, and denoises with two schedulers."""

import torch
from diffusers import DDIMPipeline, DDIMScheduler, DDPMPipeline, DDPMScheduler, UNet2DModel

LIBRARY = "diffusers"


def train(device):
    model = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).to(device)
    scheduler = DDPMScheduler(num_train_timesteps=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    clean = torch.rand(4, 1, 16, 16).to(device) * 2 - 1

    torch.manual_seed(1)  # from here on it draws on the device only
    losses = []
    for _ in range(2):
        noise = torch.randn_like(clean)
        steps = torch.randint(0, 100, (4,), device=device)
        noisy = scheduler.add_noise(clean, noise, steps)
        loss = torch.nn.functional.mse_loss(model(noisy, steps).sample, noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    pictures = []
    for pipeline in (
        DDPMPipeline(unet=model, scheduler=scheduler),
        DDIMPipeline(unet=model, scheduler=DDIMScheduler(num_train_timesteps=100)),
    ):
        pipeline.to(device).set_progress_bar_config(disable=True)
        generator = torch.Generator(device).manual_seed(2)
        made = pipeline(batch_size=2, generator=generator, num_inference_steps=3, output_type="np").images
        pictures.append(torch.from_numpy(made))
    return losses, pictures
