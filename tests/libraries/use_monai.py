"""A network for volumes learns a segmentation, and is measured window by window."""

import torch
from monai.data import CacheDataset, DataLoader
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.metrics import DiceMetric, HausdorffDistanceMetric
from monai.networks.nets import UNet
from monai.transforms import AsDiscrete, Compose, EnsureChannelFirstd, EnsureTyped, RandFlipd, ScaleIntensityd
from monai.utils import set_determinism

LIBRARY = "monai"


def train(device):
    set_determinism(0)
    volumes = torch.rand(4, 16, 16, 16)
    changes = Compose(
        [
            EnsureChannelFirstd(["image", "label"], channel_dim="no_channel"),
            ScaleIntensityd("image"),
            EnsureTyped(["image", "label"], device=device),
            RandFlipd(["image", "label"], prob=0.5, spatial_axis=0),
        ]
    )
    data = [{"image": volume, "label": (volume > 0.5).float()} for volume in volumes]
    loader = DataLoader(CacheDataset(data, changes, progress=False), batch_size=2, num_workers=0)
    model = UNet(3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1).to(
        device
    )
    loss = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for batch in loader:
        assert batch["image"].device.type == device
        optimizer.zero_grad()
        value = loss(model(batch["image"]), batch["label"])
        value.backward()
        optimizer.step()
        losses.append(value.item())

    model.eval()
    dice, distance = DiceMetric(include_background=False), HausdorffDistanceMetric()
    with torch.no_grad():
        output = sliding_window_inference(batch["image"], (8, 8, 8), 4, model, overlap=0.25)
    found = torch.stack([AsDiscrete(argmax=True, to_onehot=2)(each) for each in output])
    wanted = torch.stack([AsDiscrete(to_onehot=2)(each) for each in batch["label"]])
    dice(found, wanted)
    distance(found, wanted)
    return losses, dice.aggregate(), distance.aggregate(), output.as_tensor()
