"""Transformers: its Trainer trains a small Llama, with evaluation and checkpoints on the way."""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from report import report

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
)
sequences = [torch.randint(64, (16,)) for _ in range(40)]
examples = [{"input_ids": tokens, "labels": tokens} for tokens in sequences]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=8,
        per_device_train_batch_size=2,
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=4,
        save_steps=4,
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        report_to=[],
        seed=3,
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=examples,
        eval_dataset=examples[:10],
    )
    trainer.train()
    learned = sum(p.sum().item() for p in trainer.model.parameters())
    report(evaluated=trainer.evaluate()["eval_loss"], parameters=learned)
