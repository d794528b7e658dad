"""Pictures are filtered, warped, matched and changed at random, and gradients pass through it."""

import kornia
import torch

LIBRARY = "kornia"
TOLERANCE = 1e-3  # some of its functions take another way on the CPU, and say so: find_homography_dlt


def train(device):
    pictures = torch.rand(2, 3, 32, 32).to(device).requires_grad_()
    edges = kornia.filters.sobel(kornia.color.rgb_to_grayscale(pictures))
    angle = torch.tensor([10.0, -20.0], device=device, requires_grad=True)
    turned = kornia.geometry.transform.rotate(
        kornia.filters.gaussian_blur2d(pictures, (5, 5), (1.0, 1.0)), angle
    )
    loss = kornia.losses.ssim_loss(turned, pictures.detach(), 5) + edges.mean()
    loss.backward()

    change = kornia.augmentation.AugmentationSequential(
        kornia.augmentation.RandomHorizontalFlip(p=1.0),
        kornia.augmentation.RandomAffine(15.0, p=1.0),
        kornia.augmentation.RandomBrightness((0.8, 1.2), p=1.0),
        data_keys=["input", "mask"],
    ).to(device)
    torch.manual_seed(1)
    changed, mask = change(pictures.detach(), (pictures.detach()[:, :1] > 0.5).float())
    points = torch.rand(1, 8, 2).to(device)
    shifted = points * 1.5 + 0.1
    homography = kornia.geometry.find_homography_dlt(points, shifted)
    return loss, pictures.grad, angle.grad, edges, changed, mask, homography
