"""Targets of the diffusion benchmark: Gaussian mixtures, whose score at every level of noise is known, and digits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture
from sklearn.neural_network import MLPClassifier

from pmm_mcmc.diffusion import DiffusionSchedule


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """The 1797 digits of scikit-learn, 64 pixels between -1 and 1, in an order drawn once, and what they are."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.data[order] / 8.0 - 1.0, data.target[order]


@cache
def digit_features() -> tuple[np.ndarray, np.ndarray]:
    """Weights and offsets of 32 features: the hidden layer of a classifier of the digits."""
    classifier = MLPClassifier((32,), max_iter=400, random_state=0).fit(*digits())
    return classifier.coefs_[0], classifier.intercepts_[0]


@dataclass(frozen=True)
class Mixture:
    """Gaussians with weights ``(k,)``, means ``(k, d)`` and covariances by eigenvalues ``(k, d)`` and -vectors."""

    weights: np.ndarray
    means: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Exact draws."""
        component = rng.choice(len(self.weights), n, p=self.weights)
        z = np.sqrt(self.values[component]) * rng.standard_normal((n, self.means.shape[1]))
        x = self.means[component]
        for k, vectors in enumerate(self.vectors):
            x[component == k] += z[component == k] @ vectors.T
        return x

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Exact mean and covariance."""
        mean = self.weights @ self.means
        spread = np.einsum("k,kij,kj,klj->il", self.weights, self.vectors, self.values, self.vectors)
        return mean, spread + np.einsum("k,ki,kj->ij", self.weights, self.means - mean, self.means - mean)

    def nll(self, x: np.ndarray) -> float:
        """Mean negative log density."""
        logs = []
        for w, mean, values, vectors in zip(self.weights, self.means, self.values, self.vectors, strict=True):
            z = (x - mean) @ vectors
            logs.append(np.log(w) - 0.5 * np.sum(z**2 / values + np.log(2.0 * np.pi * values), axis=1))
        return -float(np.mean(np.logaddexp.reduce(logs, axis=0)))

    def network(self, schedule: DiffusionSchedule):
        """Exact prediction of the noise, a function of states and times."""
        k, d = self.means.shape
        signal = jnp.asarray(schedule.signal, jnp.float32)
        noise = jnp.asarray(schedule.noise, jnp.float32)
        into = jnp.asarray(self.vectors.transpose(1, 0, 2).reshape(d, k * d), jnp.float32)
        centre = jnp.asarray(np.einsum("kij,ki->kj", self.vectors, self.means), jnp.float32)
        values = jnp.asarray(self.values, jnp.float32)
        # Of the densities what depends on the level alone, the logarithms being the dearest part.
        logs = np.log(schedule.signal[:, None, None] * self.values + schedule.noise[:, None, None]).sum(axis=2)
        offset = jnp.asarray(np.log(self.weights) - 0.5 * logs, jnp.float32)

        def predict(x, t):
            s, left = signal[t + 1][:, None, None], noise[t + 1][:, None, None]
            z = (x @ into).reshape(-1, k, d) - jnp.sqrt(s) * centre
            scaled = z / (s * values + left)
            share = jax.nn.softmax(offset[t + 1] - 0.5 * jnp.sum(z * scaled, axis=2), axis=1)
            return jnp.sqrt(left[:, 0]) * ((share[:, :, None] * scaled).reshape(-1, k * d) @ into.T)

        return predict


def fitted(data: np.ndarray, components: int, seed: int = 0) -> Mixture:
    """A mixture fitted to data, with no variance below 0.001."""
    fit = GaussianMixture(components, reg_covar=1e-3, random_state=seed).fit(data)
    values, vectors = np.linalg.eigh(fit.covariances_)
    return Mixture(fit.weights_, fit.means_, np.maximum(values, 1e-3), vectors)
