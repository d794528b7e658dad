"""A small Llama, with rotary positions and grouped attention, learns and generates in bfloat16."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LIBRARY = "transformers"


def train(device):
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to(device)
    model.gradient_checkpointing_enable()
    text = torch.randint(2, 64, (4, 16), device="cpu").to(device)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = model(input_ids=text, labels=text).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    model.gradient_checkpointing_disable()
    model.eval().to(torch.bfloat16)
    begin = text[:, :5]
    written = model.generate(begin, attention_mask=torch.ones_like(begin), max_new_tokens=6, do_sample=False)
    return losses, written
