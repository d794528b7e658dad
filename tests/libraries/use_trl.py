"""A language model is trained on texts, and then to prefer one answer to another."""

from copy import deepcopy

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

LIBRARY = "trl"
WORDS = ["<pad>", "<unk>", "<end>", "is", "it", "red", "blue", "yes", "no", "?", "the", "sky"]


def train(device):
    tokens = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", unk_token="<unk>", eos_token="<end>"
    )
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    common = {
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "bf16": False,
        "use_cpu": device == "cpu",
    }
    texts = Dataset.from_dict(
        {"text": ["the sky is blue", "is it red ? no", "it is blue", "is it blue ? yes"]}
    )
    first = SFTTrainer(
        model, args=SFTConfig("sft", max_length=16, **common), train_dataset=texts, processing_class=tokens
    )
    first.train()
    answers = Dataset.from_dict(
        {"prompt": ["is it red ?", "is it blue ?"], "chosen": [" no", " yes"], "rejected": [" yes", " no"]}
    )
    second = DPOTrainer(
        model,
        ref_model=deepcopy(model),
        args=DPOConfig("dpo", max_length=16, **common),
        train_dataset=answers,
        processing_class=tokens,
    )
    second.train()
    assert model.device.type == device
    history = first.state.log_history + second.state.log_history
    return [entry["loss"] for entry in history if "loss" in entry], model.state_dict()
