"""A small Mixtral sends each word to two of four experts."""

import torch
from transformers import MixtralConfig, MixtralForCausalLM

LIBRARY = "transformers"


def train(device):
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        output_router_logits=True,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = MixtralForCausalLM(config).to(device)
    text = torch.randint(2, 64, (4, 16)).to(device)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        output = model(input_ids=text, labels=text)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += [output.loss.item(), output.aux_loss.item()]
    with torch.no_grad():
        return losses, model.eval()(input_ids=text).logits
