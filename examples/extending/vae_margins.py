"""
A variational autoencoder with a classifier
===========================================

Learn an autoencoder in PyTorch jointly with a max-margin classifier. :doc:`/own_model` explains it.
"""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.svm import LinearSVC

if importlib.util.find_spec("torch") is None:
    print("skipped: needs PyTorch, pip install torch")
    sys.exit()

import torch
from torch import nn

from regbayes import MarginClassifier
from regbayes.adapters import fit, from_torch
from regbayes.adapters.torch import TorchModel


class VAE(nn.Module):
    """Gaussian features and rows, one hidden layer each way."""

    def __init__(self, n_inputs: int, n_features: int, dropout: float, n_hidden: int = 256, n_draws: int = 4) -> None:
        super().__init__()
        self.n_draws = n_draws
        self.hidden = nn.Linear(n_inputs, n_hidden)
        self.dropout = nn.Dropout(dropout)
        self.mean = nn.Linear(n_hidden, n_features)
        self.log_variance = nn.Linear(n_hidden, n_features)
        self.decoder = nn.Sequential(nn.Linear(n_features, n_hidden), nn.ReLU(), nn.Linear(n_hidden, n_inputs))

    def encode(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.dropout(torch.relu(self.hidden(rows)))
        return self.mean(hidden), self.log_variance(hidden)

    def loss(self, rows: torch.Tensor, mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
        z = mean + torch.exp(0.5 * log_variance) * torch.randn(self.n_draws, *mean.shape)
        divergence = 0.5 * (mean**2 + log_variance.exp() - log_variance - 1).sum(1)
        return 0.5 * ((rows - self.decoder(z)) ** 2).sum(2).mean(0) + divergence

    def encoder_norm(self) -> torch.Tensor:
        return sum(p.square().sum() for part in (self.hidden, self.mean) for p in part.parameters())

    def explained(self, X: np.ndarray) -> float:
        """Return the share of the samples' sum of squares that the features reconstruct."""
        rows = torch.as_tensor(X, dtype=torch.float32)
        with torch.no_grad():
            return float(1 - (rows - self.decoder(self.encode(rows)[0])).square().sum() / rows.square().sum())


def make_model(
    n_inputs: int, n_features: int, *, weight: float, decay: float, dropout: float, seed: int
) -> tuple[VAE, TorchModel]:
    torch.manual_seed(seed)
    vae = VAE(n_inputs, n_features, dropout)
    return vae, from_torch(vae.encode, vae.loss, weight=weight, prior=lambda: 0.5 * decay * vae.encoder_norm())


def main() -> None:
    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std()
    train, test = slice(None, None, 2), slice(1, None, 2)

    vae, model = make_model(X.shape[1], n_features=10, weight=0.003, decay=1.0, dropout=0.5, seed=0)
    together = MarginClassifier(
        model, multi_class="ovr", batch_size=100, learning_rate=2e-3, max_iter=60, random_state=0
    )
    together.fit(X[train], y[train])
    model.load(together.params_)
    vae.eval()
    print("                     accuracy  rows explained")
    print(f"together             {together.score(X[test], y[test]):8.3f}  {vae.explained(X[test]):14.2f}")

    vae, model = make_model(X.shape[1], n_features=10, weight=1.0, decay=0.0, dropout=0.0, seed=0)
    alone = fit(model, X[train], None, max_iter=60, batch_size=100, learning_rate=2e-3)
    model.load(alone.state.params)
    features = model.encode(X, alone.state.params)
    svm = LinearSVC(C=0.1, dual=False).fit(features[train], y[train])
    print(f"one after the other  {svm.score(features[test], y[test]):8.3f}  {vae.explained(X[test]):14.2f}")


if __name__ == "__main__":
    main()
