"""A small CLIP learns which text belongs to which picture."""

import torch
from open_clip import CLIP, ClipLoss, SimpleTokenizer
from open_clip.model import CLIPTextCfg, CLIPVisionCfg

LIBRARY = "open_clip_torch"


def train(device):
    model = CLIP(
        embed_dim=16,
        vision_cfg=CLIPVisionCfg(layers=2, width=32, head_width=16, patch_size=8, image_size=32),
        text_cfg=CLIPTextCfg(context_length=8, width=32, heads=2, layers=2),
    ).to(device)
    texts = SimpleTokenizer(context_length=8)(["a cat", "a red car", "two trees", "the sea"]).to(device)
    pictures = torch.randn(4, 3, 32, 32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    loss = ClipLoss()
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        value = loss(*model(pictures, texts))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    model.eval()
    with torch.no_grad():
        seen, read = model.encode_image(pictures, normalize=True), model.encode_text(texts, normalize=True)
    return losses, (100 * seen @ read.T).softmax(-1)
