"""Pictures, boxes and masks are flipped, cropped and normalised on the device."""

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

LIBRARY = "torchvision"
TOLERANCE = 0.05  # pictures of whole numbers are resized by other kernels on the CPU, and a shade differs


def train(device):
    picture = tv_tensors.Image(torch.randint(256, (3, 40, 40), dtype=torch.uint8)).to(device)
    boxes = tv_tensors.BoundingBoxes(
        [[2, 3, 20, 21], [10, 10, 30, 39]], format="XYXY", canvas_size=(40, 40), device=device
    )
    mask = tv_tensors.Mask(torch.randint(2, (1, 40, 40), dtype=torch.uint8)).to(device)
    assert picture.device.type == boxes.device.type == device
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(32, antialias=True),
            v2.RandomHorizontalFlip(p=1.0),
            v2.RandomRotation(20),
            v2.ColorJitter(0.2, 0.2, 0.2, 0.1),
            v2.GaussianBlur(3),
            v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
            v2.Normalize([0.5] * 3, [0.25] * 3),
        ]
    )
    torch.manual_seed(1)
    changed = transform(picture, boxes, mask)
    assert all(each.device.type == device for each in changed)

    batch, labels = torch.rand(4, 3, 32, 32).to(device), torch.tensor([0, 1, 2, 3]).to(device)
    torch.manual_seed(2)
    mixed = v2.CutMix(num_classes=4)(batch, labels)
    return [torch.Tensor(each) for each in changed], mixed
