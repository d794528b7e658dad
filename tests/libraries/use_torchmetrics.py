"""Metrics of classes, numbers, pictures and rankings gather batches on the device."""

import torch
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassCalibrationError,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.detection import IntersectionOverUnion
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure
from torchmetrics.regression import PearsonCorrCoef, R2Score
from torchmetrics.retrieval import RetrievalMAP

LIBRARY = "torchmetrics"


def train(device):
    kinds = (
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassCalibrationError,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
    )
    classes = MetricCollection([kind(num_classes=3) for kind in kinds]).to(device)
    numbers = MetricCollection([PearsonCorrCoef(), R2Score()]).to(device)
    pictures = MetricCollection(
        [PeakSignalNoiseRatio(1.0), StructuralSimilarityIndexMeasure(data_range=1.0)]
    ).to(device)
    ranking, boxes, mean = (
        RetrievalMAP().to(device),
        IntersectionOverUnion().to(device),
        MeanMetric().to(device),
    )
    for _ in range(3):
        logits, labels = torch.randn(16, 3).to(device), torch.randint(3, (16,)).to(device)
        classes.update(logits, labels)
        numbers.update(logits[:, 0], logits[:, 1] + logits[:, 0])
        first, second = torch.rand(2, 3, 32, 32).to(device), torch.rand(2, 3, 32, 32).to(device)
        pictures.update(first, second)
        ranking.update(logits[:, 0], labels == 0, indexes=torch.arange(16, device=device) // 4)
        mean.update(logits.mean())
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]], device=device)
    label = torch.tensor([0], device=device)
    boxes.update([{"boxes": box, "labels": label}], [{"boxes": box + 2, "labels": label}])
    return [metric.compute() for metric in (classes, numbers, pictures, ranking, boxes, mean)]
