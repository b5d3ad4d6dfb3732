"""The models and what each learns from, known before torch is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from lab import data, texts


@dataclass(frozen=True)
class Model:
    summary: str
    dataset: str  # a key of lab.datasets.KINDS
    batch: int  # samples a worker and step, unless --batch says otherwise
    learning_rate: float
    optimizer: str = "sgd"  # with momentum 0.9; or adam


MODELS = {
    "cnn": Model("4.38 M parameters, most in two dense layers at the end", "images", 128, 0.05),
    "vgg": Model("2.53 M, wider and wider convolutions before dense layers", "images", 128, 0.05),
    "resnet": Model("0.70 M in 43 small tensors", "images", 64, 0.02),
    "resnet50": Model("ResNet-50: 23.5 M in 161 tensors", "images", 32, 0.02),
    "gpt": Model("0.83 M, a transformer that predicts the next character", "characters", 64, 0.001, "adam"),
    "words": Model("3.7 M, 3.1 M of them in the first layer; predicts the next word", "words", 128, 0.001, "adam"),
    "mlp": Model("tiny, for tests", "images", 128, 0.05),
}


def find_data(model: str, folder: str | None) -> None:
    """Raises MissingData if a model's files are not there; it says what to install."""
    (data if MODELS[model].dataset == "images" else texts).find(folder)
