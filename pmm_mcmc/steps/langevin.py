"""The step methods, one class each: what they are, what they cost, how biased they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm

from pmm_mcmc.methods import Settings
from pmm_mcmc.steps.base import LangevinStep

__all__ = ["MALA", "OLMC", "RLMC", "ULMC", "PoissonOLMC", "PoissonULMC"]


class PoissonULMC(LangevinStep):
    name = "poisson_ulmc"

    def __init__(
        self,
        vars: Any = None,
        *,
        K: int | str = "auto",
        step_size: float | str = "auto",
        friction: float | str = "auto",
        option: int = 2,
        grid: str = "left",
        scheme: str = "paper",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        settings = Settings.checked(
            "PoissonULMC",
            dynamics="underdamped",
            K=K,
            step_size=step_size,
            friction=friction,
            option=option,
            grid=grid,
            scheme=scheme,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
        )
        super().__init__(vars, settings, model=model, blocked=blocked, rng=rng)


class PoissonOLMC(LangevinStep):
    name = "poisson_olmc"
    stats_dtypes_shapes = {k: v for k, v in LangevinStep.stats_dtypes_shapes.items() if k != "friction"}

    def __init__(
        self,
        vars: Any = None,
        *,
        K: int | str = "auto",
        step_size: float | str = "auto",
        option: int = 2,
        grid: str = "left",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        settings = Settings.checked(
            "PoissonOLMC",
            dynamics="overdamped",
            K=K,
            step_size=step_size,
            option=option,
            grid=grid,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
        )
        super().__init__(vars, settings, model=model, blocked=blocked, rng=rng)


class ULMC(LangevinStep):
    name = "ulmc"

    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float | str = "auto",
        friction: float | str = "auto",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        settings = Settings.checked(
            "ULMC",
            dynamics="underdamped",
            step_size=step_size,
            friction=friction,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
        )
        super().__init__(vars, settings, model=model, blocked=blocked, rng=rng)


class OLMC(LangevinStep):
    name = "olmc"
    stats_dtypes_shapes = PoissonOLMC.stats_dtypes_shapes

    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float | str = "auto",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        settings = Settings.checked(
            "OLMC", dynamics="overdamped", step_size=step_size, steps_per_draw=steps_per_draw, scaling=scaling
        )
        super().__init__(vars, settings, model=model, blocked=blocked, rng=rng)


class RLMC(LangevinStep):
    name = "rlmc"

    def __init__(
        self,
        vars: Any = None,
        *,
        dynamics: str = "underdamped",
        step_size: float | str = "auto",
        friction: float | str = "auto",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        if dynamics == "overdamped" and friction != "auto":
            raise ValueError(f"friction={friction!r} does not apply to dynamics='overdamped', which has no velocity: leave it out")
        settings = Settings.checked(
            "RLMC",
            dynamics=dynamics,
            step_size=step_size,
            friction=friction,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
        )
        super().__init__(vars, settings, model=model, blocked=blocked, rng=rng)


class MALA(LangevinStep):
    name = "mala"
    stats_dtypes_shapes = {**PoissonOLMC.stats_dtypes_shapes, "acceptance_rate": (np.float64, [])}

    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float | str = "auto",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        settings = Settings.checked(
            "MALA", dynamics="overdamped", step_size=step_size, steps_per_draw=steps_per_draw, scaling=scaling
        )
        super().__init__(vars, settings, model=model, blocked=blocked, rng=rng)
