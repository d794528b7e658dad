"""A small GPT-2 learns a text, and goes on with it."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

LIBRARY = "transformers"


def train(device):
    config = GPT2Config(
        vocab_size=50,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config).to(device)
    text = torch.randint(1, 50, (4, 24)).to(device)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model(input_ids=text, labels=text).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    model.eval()
    begin = text[:2, :6]
    greedy = model.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=8, do_sample=False)
    torch.manual_seed(1)
    drawn = model.generate(
        begin, attention_mask=torch.ones_like(begin), max_new_tokens=8, do_sample=True, top_k=10
    )
    beams = model.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=5, num_beams=3)
    return losses, greedy, drawn, beams
