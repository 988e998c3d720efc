"""Lightning's Trainer, with metrics of torchmetrics that are reduced over the ranks."""

import os
import tempfile

import lightning
import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Accuracy, MeanMetric

from report import report


class Classifier(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.accuracy = Accuracy(task="multiclass", num_classes=3)
        self.mean = MeanMetric()

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.layer(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        x, y = batch
        scores = self.layer(x)
        loss = nn.functional.cross_entropy(scores, y)
        self.accuracy(scores, y)
        self.mean(loss)
        self.log("accuracy", self.accuracy, on_epoch=True)
        self.log("mean_loss", self.mean, on_epoch=True)
        self.log("synchronised_loss", loss, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


lightning.seed_everything(2, verbose=False)
inputs = torch.randn(64, 8)
examples = TensorDataset(inputs, inputs[:, :3].argmax(1))
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=2,
        default_root_dir=folder,
        enable_model_summary=False,
        enable_progress_bar=False,
        logger=False,
    )
    model = Classifier()
    trainer.fit(model, DataLoader(examples, batch_size=4), DataLoader(examples, batch_size=4))
    (validated,) = trainer.validate(model, DataLoader(examples, batch_size=4), verbose=False)
report(**validated)
