"""Sentences become vectors, and a model learns which of them belong together."""

import torch
from sentence_transformers import InputExample, SentenceTransformer, losses, util
from sentence_transformers.models import Normalize, Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

LIBRARY = "sentence-transformers"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "red", "blue", "car", "train", "drives", "stops", "fast"]


def train(device):
    tokens = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained("model")
    BertModel(
        BertConfig(
            vocab_size=len(WORDS),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    ).save_pretrained("model")
    words = Transformer("model", max_seq_length=16)
    model = SentenceTransformer(modules=[words, Pooling(16, "mean"), Normalize()], device=device)
    assert model.device.type == device

    pairs = [("a red car drives", "red car fast"), ("a blue train stops", "blue train")]
    loss = losses.MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for _ in range(3):
        batch = model.smart_batching_collate([InputExample(texts=list(pair)) for pair in pairs])[0]
        batch = [util.batch_to_device(features, model.device) for features in batch]
        value = loss(batch, None)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(value.item())
    vectors = model.encode(["a car", "a train stops fast"], convert_to_tensor=True)
    return found, vectors, model.similarity(vectors, vectors), util.semantic_search(vectors, vectors, top_k=1)
