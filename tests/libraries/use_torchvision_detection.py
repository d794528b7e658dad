"""A detector of objects learns two pictures with boxes, and finds boxes itself."""

import torch
from torchvision.models.detection import FasterRCNN, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.models.mobilenetv3 import mobilenet_v3_small
from torchvision.ops import MultiScaleRoIAlign, box_iou, nms

LIBRARY = "torchvision"


def train(device):
    backbone = mobilenet_v3_small(weights=None).features
    backbone.out_channels = 576
    model = FasterRCNN(
        backbone,
        num_classes=3,
        min_size=64,
        max_size=64,
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], output_size=3, sampling_ratio=2),
    ).to(device)
    pictures = [torch.rand(3, 64, 64).to(device) for _ in range(2)]
    targets = [
        {
            "boxes": torch.tensor([[4.0, 4.0, 40.0, 50.0]], device=device),
            "labels": torch.tensor([1], device=device),
        },
        {
            "boxes": torch.tensor([[9.0, 20.0, 60.0, 60.0]], device=device),
            "labels": torch.tensor([2], device=device),
        },
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    torch.manual_seed(1)
    losses = []
    for _ in range(2):
        parts = model(pictures, targets)
        loss = sum(parts.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append({name: part.item() for name, part in parts.items()})

    model.eval()
    lite = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).to(device).eval()
    with torch.no_grad():
        found, other = model(pictures), lite(pictures[:1])
    boxes = targets[0]["boxes"].repeat(3, 1) + torch.tensor([[0.0], [1.0], [30.0]], device=device)
    kept = nms(boxes, torch.tensor([0.9, 0.8, 0.7], device=device), 0.5)
    return losses, found, other, kept, box_iou(boxes, boxes)
