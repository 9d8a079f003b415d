r"""The map that straightens funnels: each sink is shifted and scaled by a function of its sources.

Coordinates that are nobody's sink are kept, :math:`x_j = z_j`.  Each sink ``i`` is

.. math:: x_i = l_i + e^{L_i} z_i, \qquad
    v_i = a_i + \sum_j B_{ij} x_j, \qquad L_i = -\tfrac12 \log(e^{-2 v_i} + e^{-2 t_i}), \qquad
    w_i = e^{2 (L_i - v_i)}, \qquad
    l_i = w_i \bigl(c_i + \sum_j C_{ij} x_j\bigr) + (1 - w_i) \bigl(e_i + \sum_j E_{ij} x_j\bigr),

sums over its sources.  That is the law of an effect given its mean and its log scale under a prior alone ("linear":
:math:`t_i = \infty`, so that ``L = v`` and ``w = 1``) or with a Gaussian likelihood of scale :math:`e^{t_i}` about
its anchor :math:`e_i + E_i x` ("saturating"): of a slope what the data say of it given the intercept.  Sources may be
sinks of other sources: sinks are in an order in which each comes after its sources, so that the map is triangular and
:math:`\log|\partial x / \partial z| = \sum_i L_i`.

One point takes a loop over the sinks, and a second, backwards, for the gradient
(:func:`pmm_mcmc.noncentring.loops.place` and ``pull_back`` there are these loops):

.. math:: g^z_i = g_i e^{L_i}, \qquad
    g_j \mathrel{+}= B_{ij} \bigl[w_i (1 + z_i g^z_i) - 2 w_i (1 - w_i)(c_i + C_i x - e_i - E_i x) g_i\bigr]
    + \bigl[w_i C_{ij} + (1 - w_i) E_{ij}\bigr] g_i.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from pmm_mcmc.noncentring.saturation import build_saturation

__all__ = ["FunnelMap"]

saturate = build_saturation(np, np.where)


class FunnelMap(NamedTuple):
    """The map from straight coordinates ``z`` to the model's ``x`` in flat arrays: ``m`` sinks, ``p`` sources in all.

    Attributes
    ----------
    sink : (m,) int64
        The coordinates that are mapped, each after its sources.
    start : (m + 1,) int64
        Sink ``k`` has the sources ``source[start[k]:start[k + 1]]``, at least one.
    source : (p,) int64
        Coordinates.
    slope, load, anchor_load : (p,)
        ``B``, ``C`` and ``E``: effect of a source on the log scale, on the location and on the anchor.
    log_scale, location : (m,)
        ``a`` and ``c``, both where the sources are 0.
    ceiling : (m,)
        ``t``, the log of the largest scale; infinite for a linear sink.
    anchor : (m,)
        ``e``, the location where the scale is at its ceiling and the sources are 0; like the loads of the anchor
        without effect on a linear sink.
    """

    sink: np.ndarray
    start: np.ndarray
    source: np.ndarray
    slope: np.ndarray
    load: np.ndarray
    anchor_load: np.ndarray
    log_scale: np.ndarray
    location: np.ndarray
    ceiling: np.ndarray
    anchor: np.ndarray

    @classmethod
    def none(cls) -> FunnelMap:
        """Return the map that changes nothing."""
        nothing = np.zeros(0)
        return cls(np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64), *(nothing,) * 7)

    def checked(self, d: int | None = None) -> FunnelMap:
        """Return the map with its arrays in the types that the engines take.

        Parameters
        ----------
        d
            Number of coordinates of the model, if it is known yet.

        Raises
        ------
        ValueError
            If the arrays do not fit together, a number is not finite, or a sink comes before one of its sources.
        """
        integers = tuple(np.ascontiguousarray(part, dtype=np.int64) for part in self[:3])
        floats = tuple(np.ascontiguousarray(part, dtype=np.float64) for part in self[3:])
        sink, start, source = integers
        m, p = len(sink), len(source)
        for name, part, length in zip(
            self._fields[1:], (*integers[1:], *floats), (m + 1, p, p, p, p, m, m, m, m), strict=True
        ):
            if part.shape != (length,):
                raise ValueError(f"map: {name} has shape {part.shape}, but for {m} sinks it must be ({length},)")
        for name, part in zip(self._fields[3:], floats, strict=True):
            good = np.isfinite(part) | ((part == np.inf) if name == "ceiling" else False)
            if not good.all():
                raise ValueError(f"map: {name}[{np.argmin(good)}]={part[np.argmin(good)]}: must be a finite number")
        for name, part in (("sink", sink), ("source", source)):
            outside = (part < 0) | (part >= (np.inf if d is None else d))
            if outside.any():
                raise ValueError(
                    f"map: {name}[{np.argmax(outside)}]={part[np.argmax(outside)]}: the model has {d} coordinates; "
                    "learn the map on this model"
                )
        if len(np.unique(sink)) < m:
            raise ValueError("map: a coordinate is twice in sink: each has one shift and one scale")
        if start[0] != 0 or start[-1] != p or (np.diff(start) < 1).any():
            raise ValueError(f"map: start={start.tolist()}: must rise from 0 to {p}, with a source for every sink")
        place = np.full(int(max([-1, *sink, *source])) + 1, -1)
        place[sink] = np.arange(m)
        late = place[source] >= np.repeat(np.arange(m), np.diff(start))
        if late.any():
            raise ValueError(
                f"map: coordinate {source[np.argmax(late)]} is a source of a sink that comes before it or is itself: "
                "order the sinks so that each comes after its sources"
            )
        return FunnelMap(*integers, *floats)

    def to_json(self) -> str:
        """Return the map as text; ``null`` stands for an infinite ceiling."""
        parts = {name: part.tolist() for name, part in self._asdict().items()}
        parts["ceiling"] = [None if t == np.inf else t for t in parts["ceiling"]]
        return json.dumps(parts)

    @classmethod
    def from_json(cls, text: str) -> FunnelMap:
        """Return the map that :meth:`to_json` made this text of."""
        parts = json.loads(text)
        # Texts from before there were any.
        parts.setdefault("anchor_load", [0.0] * len(parts["load"]))
        parts["ceiling"] = [np.inf if t is None else t for t in parts["ceiling"]]
        return cls(**{name: np.array(part) for name, part in parts.items()}).checked()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each sink, "linear" or "saturating"."""
        return tuple("linear" if t == np.inf else "saturating" for t in self.ceiling)

    def to_x(self, z: np.ndarray) -> np.ndarray:
        """Map straightened positions ``(..., d)`` to the model's."""
        x = z.reshape(-1, z.shape[-1]).copy()
        for level in self._levels(z.shape[-1]):
            at = level[0]
            shift, log_scale, *_ = self._shift_and_scale(x, *level)
            x[:, self.sink[at]] = shift + np.exp(log_scale) * x[:, self.sink[at]]
        return x.reshape(z.shape)

    def to_z(self, x: np.ndarray) -> np.ndarray:
        """Map the model's positions ``(..., d)`` to straightened ones."""
        flat = x.reshape(-1, x.shape[-1])
        z = flat.copy()
        for level in self._levels(x.shape[-1]):
            at = level[0]
            shift, log_scale, *_ = self._shift_and_scale(flat, *level)
            z[:, self.sink[at]] = (flat[:, self.sink[at]] - shift) * np.exp(-log_scale)
        return z.reshape(x.shape)

    def log_det(self, z: np.ndarray) -> np.ndarray:
        """Log of the determinant of the map's derivative at ``(..., d)`` straightened positions."""
        x = self.to_x(z).reshape(-1, z.shape[-1])
        total = np.zeros(len(x))
        for level in self._levels(z.shape[-1]):
            total += self._shift_and_scale(x, *level)[1].sum(axis=1)
        return total.reshape(z.shape[:-1])

    def pull_back(self, z: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Gradient of ``log p(x(z)) + log_det(z)`` at ``z`` from that of ``log p`` at ``x(z)``, all ``(..., d)``."""
        return self._carry(z, gradient, back=True)

    def push_forward(self, z: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Gradient of ``log p`` at ``x(z)`` from that of ``log p(x(z)) + log_det(z)``: undoes :meth:`pull_back`."""
        return self._carry(z, gradient, back=False)

    def _carry(self, z: np.ndarray, gradient: np.ndarray, back: bool) -> np.ndarray:
        d = z.shape[-1]
        x, flat, out = (part.reshape(-1, d) for part in (self.to_x(z), z, gradient.copy()))
        # Forwards a sink must be in its own units before the deeper levels' shares are taken off.
        for at, B, C, E in reversed(self._levels(d)) if back else self._levels(d):
            _, log_scale, w, apart = self._shift_and_scale(x, at, B, C, E)
            sink = self.sink[at]
            if back:
                g = out[:, sink].copy()
                out[:, sink] *= np.exp(log_scale)
                g_z = out[:, sink]
            else:
                g_z = out[:, sink].copy()
                out[:, sink] *= np.exp(-log_scale)
                g = out[:, sink]
            along = w * (1.0 + flat[:, sink] * g_z) - 2.0 * w * (1.0 - w) * apart * g
            change = (B.T @ along.T + C.T @ (w * g).T + E.T @ ((1.0 - w) * g).T).T
            out += change if back else -change
        return out.reshape(z.shape)

    def _shift_and_scale(
        self, x: np.ndarray, at: slice, B: csr_array, C: csr_array, E: csr_array
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return ``l``, ``L``, ``w`` and ``c + C x - e - E x`` of some sinks, ``(n, sinks)``."""
        v = self.log_scale[at] + (B @ x.T).T
        anchor = self.anchor[at] + (E @ x.T).T
        apart = self.location[at] + (C @ x.T).T - anchor
        log_scale, w = saturate(v, self.ceiling[at])
        return anchor + w * apart, log_scale, w, apart

    def levels(self) -> list[slice]:
        """Split the sinks into runs none of which holds a source of its own, each after the levels it depends on."""
        levels: list[slice] = []
        first, members = 0, set[int]()
        for k, sink in enumerate(self.sink.tolist()):
            if not members.isdisjoint(self.source[self.start[k] : self.start[k + 1]].tolist()):
                levels.append(slice(first, k))
                first, members = k, set()
            members.add(sink)
        return [*levels, slice(first, len(self.sink))] if len(self.sink) else []

    def rescaled(self, centre: np.ndarray, scale: np.ndarray) -> FunnelMap:
        """Return the map of ``x``, and of ``z`` on the scale as it is, from that of ``(x - centre) / scale``."""
        own, start = scale[self.sink], self.start[:-1]
        slope = self.slope / scale[self.source]
        each = np.repeat(own, np.diff(self.start))
        load, anchor_load = (part * each / scale[self.source] for part in (self.load, self.anchor_load))
        centred = centre[self.source]
        anchor = centre[self.sink] + own * self.anchor - np.add.reduceat(anchor_load * centred, start)
        return self._replace(
            slope=slope,
            load=load,
            anchor_load=anchor_load,
            log_scale=self.log_scale + np.log(own) - np.add.reduceat(slope * centred, start),
            location=centre[self.sink] + own * self.location - np.add.reduceat(load * centred, start),
            ceiling=self.ceiling + np.log(own),
            anchor=np.where(np.isinf(self.ceiling), 0.0, anchor),
        )

    def _levels(self, d: int) -> list[tuple[slice, csr_array, csr_array, csr_array]]:
        return [self._level(at, d) for at in self.levels()]

    def _level(self, at: slice, d: int) -> tuple[slice, csr_array, csr_array, csr_array]:
        start = self.start[at.start : at.stop + 1]
        inside = slice(start[0], start[-1])
        shape = (at.stop - at.start, d)
        B, C, E = (
            csr_array((values[inside], self.source[inside], start - start[0]), shape=shape)
            for values in (self.slope, self.load, self.anchor_load)
        )
        return at, B, C, E
