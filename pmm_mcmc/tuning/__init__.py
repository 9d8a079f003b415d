"""Warm-up: scale, step size, number of midpoints and transitions per draw, from positions and gradients alone."""
