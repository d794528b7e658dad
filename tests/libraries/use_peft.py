"""Low-rank adapters are trained beside a frozen GPT-2, and merged into it."""

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

LIBRARY = "peft"


def train(device):
    config = GPT2Config(
        vocab_size=50,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True
    )
    model = get_peft_model(GPT2LMHeadModel(config), lora).to(device)
    text = torch.randint(50, (4, 16)).to(device)

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) == 4
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(4):
        loss = model(input_ids=text, labels=text).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        adapted = model(input_ids=text).logits
        with model.disable_adapter():
            frozen = model(input_ids=text).logits
        merged = model.merge_and_unload()(input_ids=text).logits
    return losses, adapted, frozen, merged
