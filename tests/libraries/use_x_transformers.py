"""A decoder with rotary positions and an encoder-decoder learn sequences."""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper, XTransformer

LIBRARY = "x-transformers"


def train(device):
    model = AutoregressiveWrapper(
        TransformerWrapper(
            num_tokens=32,
            max_seq_len=24,
            attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, attn_flash=True, ff_glu=True),
        )
    ).to(device)
    pairs = XTransformer(
        dim=32,
        enc_num_tokens=16,
        enc_depth=1,
        enc_heads=2,
        enc_max_seq_len=12,
        dec_num_tokens=16,
        dec_depth=1,
        dec_heads=2,
        dec_max_seq_len=12,
        tie_token_emb=True,
    ).to(device)
    text = torch.randint(0, 32, (4, 20)).to(device)
    source, target = torch.randint(1, 16, (2, 10)).to(device), torch.randint(1, 16, (2, 12)).to(device)
    mask = torch.ones(2, 10, dtype=torch.bool, device=device)
    optimizer = torch.optim.Adam([*model.parameters(), *pairs.parameters()], lr=1e-3)
    losses = []
    for _ in range(3):
        loss = model(text) + pairs(source, target, mask=mask)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    torch.manual_seed(1)
    return losses, model.generate(text[:, :4], 6, temperature=0.8), pairs.generate(source, target[:, :1], 5)
