"""Stan programs: names and shapes, starts, errors, and children that are named or read from statements."""

import numpy as np
import pytest
import stanli
from c_libraries import at
from hierarchy_models import some_noncentring
from pymc.exceptions import SamplingError
from stan_programs import (
    BRMS,
    COUNTS,
    COUNTS_DATA,
    FORMS,
    FORMS_DATA,
    MIXTURE,
    OFFSETS,
    OFFSETS_DATA,
    REGRESSION,
    SCHOOLS,
    SCHOOLS_DATA,
    SCHOOLS_MEANS,
)

import pmm_mcmc as pmm
from pmm_mcmc.doors.stan import stan_program

RUN = {"draws": 40, "tune": 200, "chains": 2, "random_seed": 1, "progressbar": False}
RUN["compute_convergence_checks"] = False


def test_a_program_has_its_names_shapes_and_generated_quantities():
    model = stan_program(REGRESSION, None)[0]
    density = pmm.LogDensity.from_bridgestan(model)
    x = np.linspace(-1.0, 1.0, 8)
    value, gradient = at(density, x)
    expected = model.log_density_gradient(x)
    assert value == expected[0]
    np.testing.assert_array_equal(gradient, expected[1])
    dt = pmm.sample(model=density, **RUN)
    posterior, u = dt["posterior"], dt["sample_stats"]["unconstrained"]
    assert {n: a.shape[2:] for n, a in posterior.items()} == {"mu": (), "sigma": (), "b": (2, 3), "noise": ()}
    np.testing.assert_allclose(posterior["sigma"], np.exp(u[..., 1]), rtol=1e-14)
    columns = posterior["b"].transpose("chain", "draw", "b_dim_1", "b_dim_0").values.reshape(2, -1, 6)
    np.testing.assert_array_equal(columns, u[..., 2:])
    assert density.layout.names[2:4] == ["b[0, 0]", "b[1, 0]"]
    half = pmm.sample(model=density, **RUN | {"draws": 7})
    halves = pmm.extend(half, 33, model=density, progressbar=False)
    np.testing.assert_array_equal(halves["posterior"]["noise"], posterior["noise"])


def test_a_program_is_a_file_or_text_and_data_a_dict_or_a_file(tmp_path):
    (tmp_path / "schools.stan").write_text(SCHOOLS)
    (tmp_path / "schools.json").write_text(stanli._data_to_json(SCHOOLS_DATA))
    arrays = {name: np.asarray(value) for name, value in SCHOOLS_DATA.items()}
    made = [
        pmm.LogDensity.from_stan(program, data)
        for program, data in ((SCHOOLS, SCHOOLS_DATA), (tmp_path / "schools.stan", str(tmp_path / "schools.json")))
    ]
    made.append(pmm.LogDensity.from_stan(str(tmp_path / "schools.stan"), arrays))
    assert [density.d for density in made] == [10, 10, 10]
    for density in made[1:]:
        np.testing.assert_array_equal(at(density, np.linspace(-1, 1, 10))[1], at(made[0], np.linspace(-1, 1, 10))[1])
        assert list(density.children) == ["theta"]


def test_a_run_of_a_program_is_stored_resumed_judged_and_reported(tmp_path):
    def density():
        return pmm.LogDensity.from_stan(SCHOOLS, SCHOOLS_DATA)

    whole = pmm.sample(model=density(), **RUN)
    pmm.sample(model=density(), store=tmp_path / "run.zarr", **RUN | {"draws": 20})
    longer = pmm.sample(model=density(), store=tmp_path / "run.zarr", resume=True, **RUN)
    for name in ("mu", "tau", "theta", "log_lik"):
        np.testing.assert_array_equal(whole["posterior"][name], longer["posterior"][name])
    y, sigma, theta = SCHOOLS_DATA["y"], np.array(SCHOOLS_DATA["sigma"]), whole["posterior"]["theta"].values
    log_lik = -0.5 * ((y - theta) / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(whole["posterior"]["log_lik"], log_lik, rtol=1e-12)
    assert pmm.verdict(longer).state == pmm.verdict(whole).state
    assert list(pmm.summary(longer, ["tau", "theta"]).index) == ["tau", *(f"theta[{j}]" for j in range(8))]
    page = pmm.workbench.report(longer, tmp_path / "run.html").read_text()
    assert "tau" in page and "theta[3]" in page
    other = dict(SCHOOLS_DATA, y=[0.0] * 8)
    with pytest.raises(pmm.StoreError):
        pmm.sample(model=pmm.LogDensity.from_stan(SCHOOLS, other), store=tmp_path / "run.zarr", resume=True, **RUN)


def test_a_program_starts_where_its_parameters_are_given():
    density = pmm.LogDensity.from_stan(REGRESSION)
    b = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(density.start({"sigma": 2.0, "b": b}), [0.0, np.log(2.0), 0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
    still = {"tune": 0, "draws": 1, "step": pmm.PoissonULMC(step_size=1e-9, friction=1.0, K=1, steps_per_draw=1)}
    dt = pmm.sample(model=density, initvals=[{"mu": 0.5}, {"mu": -0.5, "sigma": 3.0}], **RUN | still)
    np.testing.assert_allclose(dt["posterior"]["mu"][:, 0], [0.5, -0.5], atol=1e-6)
    np.testing.assert_allclose(dt["posterior"]["sigma"][:, 0], [1.0, 3.0], atol=1e-6)
    for given, message in (
        ({"nu": 1.0}, "initvals: 'nu' is no variable of the Stan model, which has mu, sigma, b"),
        ({"b": np.zeros((3, 2))}, r"(?s)initvals\['b'\]=.*: must be numbers of shape \(2, 3\)"),
        ({"sigma": -1.0}, "initvals="),
    ):
        with pytest.raises(ValueError, match=message):
            pmm.sample(model=density, initvals=given, **RUN)


def test_errors_of_a_program_are_told_and_lose_no_draws(caplog):
    nowhere = "parameters { real x; } model { x ~ normal(0, 1); target += log(-1 - square(x)); }"
    with pytest.raises(SamplingError, match=r"chain 0 starts .*Give initvals="):
        pmm.sample(model=pmm.LogDensity.from_stan(nowhere), **RUN)
    broken = REGRESSION.replace("normal_rng(mu, sigma)", "normal_rng(mu, -sigma)")
    dt = pmm.sample(model=pmm.LogDensity.from_stan(broken), **RUN)
    assert np.isnan(dt["posterior"]["noise"]).all() and np.isfinite(dt["sample_stats"]["unconstrained"]).all()
    said = [r.getMessage() for r in caplog.records if "NaN" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith("Variables of a draw are NaN, since Stan could not compute them:")


@pytest.mark.parametrize(
    "program, data, message",
    [
        ("nowhere.stan", None, r"program='nowhere.stan': there is no such file"),
        ("parameters { real x }", None, r"(?s)Stan refuses the program or its data: .*"),
        (SCHOOLS, None, "Stan refuses the program or its data"),
        (SCHOOLS, SCHOOLS_DATA | {"J": 3}, "Stan refuses the program or its data"),
        (SCHOOLS, 3, "data=3: must be a dict, or the path of a JSON file"),
        (3, None, "program=3: must be the path of a Stan file, or the program as a string"),
        ("model { }", None, "the Stan model has no parameters"),
    ],
)
def test_programs_and_data_that_stan_refuses(program, data, message):
    with pytest.raises(ValueError, match=message):
        pmm.LogDensity.from_stan(program, data)


@pytest.mark.parametrize("given", [None, "model.stan", object()])
def test_what_is_no_stan_model_is_refused(given):
    with pytest.raises(ValueError, match=r"must be a bridgestan.StanModel, such as"):
        pmm.LogDensity.from_bridgestan(given)


def test_threads_are_read_from_how_a_model_was_compiled(monkeypatch):
    model = stan_program(REGRESSION, None)[0]
    assert pmm.LogDensity.from_bridgestan(model).thread_safe
    monkeypatch.setattr(model, "model_info", lambda: "STAN_THREADS=false")
    assert not pmm.LogDensity.from_bridgestan(model).thread_safe


# -- children ----------------------------------------------------------------------------------------------------------


def test_children_are_read_from_the_statements_of_a_program():
    density = pmm.LogDensity.from_stan(FORMS, FORMS_DATA)
    names = {name: (variable.child.location, variable.child.scale) for name, variable in density.children.items()}
    assert names == {
        "plain": (("mu",), ("tau",)), "grouped": (("level",), ("above",)), "both": (("mu",), ("within",)),
        "by_variance": ((), ("precision",)), "by_log": ((), ("log_sd",)), "added": (("mu",), ("tau",)),
        "looped": (("level",), ("tau",)), "child": (("plain",), ("below",)),
    }  # fmt: skip


def test_locations_and_scales_are_those_of_the_program():
    density = pmm.LogDensity.from_stan(FORMS, FORMS_DATA)
    composed = density.noncentred({}).composed
    x = np.random.default_rng(1).normal(size=density.d)
    values = {name: value[0, 0] for name, value in density.layout.values(x[None, None]).items()}
    laws = composed.structure._scales(x[None])
    v, level = values, values["level"][[0, 1, 1]]
    expected = {
        "plain": (3 * v["mu"] - 1, v["tau"]),
        "grouped": (level, 1.4 * v["above"]),
        "both": (v["mu"], v["within"]),
        "by_variance": (0.0, v["precision"] ** -0.5),
        "by_log": (0.7, np.exp(2 * v["log_sd"])),
        "added": (v["mu"], 0.7 * np.sqrt(v["tau"])),
        "looped": (level, v["tau"]),
        "child": (v["plain"], v["below"] ** 2 + 1),
    }
    for child, law in zip(composed.structure.children, laws, strict=True):
        for part, value in zip(law, expected[child.name], strict=True):
            np.testing.assert_allclose(part[0], np.broadcast_to(value, child.size), rtol=1e-12)


def test_offsets_are_read_with_the_effects_that_a_program_makes_of_them():
    density = pmm.LogDensity.from_stan(OFFSETS, OFFSETS_DATA)
    names = {name: (variable.child.location, variable.child.scale) for name, variable in density.children.items()}
    assert names == {
        "plain": (("mu",), ("tau",)), "backwards": (("mu",), ("mu",)), "looped": ((), ("wide",)), "rows": ((), ("sd",)),
        "together": ((), ("sds", "L")),
    }  # fmt: skip
    assert all(variable.child.is_offset for variable in density.children.values())
    assert density.layout.names[17:20] == ["rows[0, 0]", "rows[0, 1]", "rows[0, 2]"]
    x = np.random.default_rng(1).normal(size=(2, density.d))
    values = {name: value[0] for name, value in density.layout.values(x[None]).items()}
    structure = density.noncentred({}).composed.structure
    *_, draws = structure._to_z(x, structure.initial_noncentring())
    effects = {
        "plain": values["theta"], "backwards": values["back"], "looped": values["loop"],
        "rows": np.concatenate([values["first"], values["second"]], axis=1), "together": values["r"].reshape(2, -1),
    }  # fmt: skip
    for child, of_child in zip(structure.children, draws, strict=True):
        np.testing.assert_allclose(of_child.x, effects[child.name], rtol=1e-12)


def test_offsets_are_as_they_are_written_at_one_end_and_effects_at_the_other():
    composed = pmm.LogDensity.from_stan(OFFSETS, OFFSETS_DATA).noncentred({}).composed
    structure = composed.structure
    x = np.random.default_rng(1).normal(size=(2, structure.d))
    none = structure.initial_noncentring()
    np.testing.assert_allclose(structure.to_x(x, none), x, rtol=1e-12)
    wholly, h = none.copy(), 1e12
    for child, indices in zip(structure.children, structure._places.children, strict=True):
        m = child.size
        held = np.full(m, h) if child.kind == "elementwise" else h * np.tile(np.eye(3).ravel(), m // 3)
        wholly[indices][m : m + len(held)] = held
    z, _, draws = structure._to_z(x, wholly)
    for child, of_child in zip(structure.children, draws, strict=True):
        np.testing.assert_allclose(z[:, child.at] / np.sqrt(h), of_child.x, rtol=1e-6, atol=1e-6)


def test_groups_whose_curvatures_leave_no_digit_begin_as_they_are_written():
    density = pmm.LogDensity.from_stan(COUNTS, COUNTS_DATA)
    far = {"sd": [7.0, 7.0], "z": np.full((2, 6), 2.0)}
    dt = pmm.sample(model=density, initvals=far, **RUN)
    assert np.isfinite(dt["posterior"]["z"]).all()


@pytest.mark.parametrize("which", ["none", "some"])
@pytest.mark.parametrize("program, data", [(FORMS, FORMS_DATA), (OFFSETS, OFFSETS_DATA)], ids=["forms", "offsets"])
def test_the_composed_density_is_that_of_the_change_of_variables(program, data, which):
    density = pmm.LogDensity.from_stan(program, data)
    composed = density.noncentred({}).composed
    structure, rng = composed.structure, np.random.default_rng(2)
    noncentring = some_noncentring(structure, rng, which == "none")
    z = rng.normal(size=density.d)
    value, evaluation = at(composed, z, noncentring=noncentring)
    d = density.d
    slope, x, gradient, log_det = evaluation[:d], evaluation[d : 2 * d], evaluation[2 * d : 3 * d], evaluation[3 * d]
    lp, of_x = at(density, x)
    np.testing.assert_allclose(value, lp + log_det, rtol=1e-13)
    np.testing.assert_array_equal(gradient, of_x)
    # The inverse, in NumPy, is that of PyMC's and JAX's children too.
    back, again = structure.to_z(x, noncentring)
    np.testing.assert_allclose(back, z, rtol=1e-10)
    np.testing.assert_allclose(again, log_det, rtol=1e-10, atol=1e-14)
    steps = 1e-6 * np.eye(d)
    numeric = [
        (at(composed, z + s, noncentring=noncentring)[0] - at(composed, z - s, noncentring=noncentring)[0]) / 2e-6
        for s in steps
    ]
    np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-5)
    of_position, pulled = structure.pull_back(z, gradient, noncentring)
    np.testing.assert_allclose(of_position, x, rtol=1e-12)
    np.testing.assert_allclose(pulled, slope, rtol=1e-12)
    alone = at(composed, z, "gradient", noncentring)[1]
    np.testing.assert_array_equal(alone[:d], slope)
    assert np.isnan(alone[d:]).all()


def test_where_stan_has_no_value_the_composed_density_has_none():
    program = SCHOOLS.replace("model {", 'model { if (mu > 1) reject("beyond"); ')
    composed = pmm.LogDensity.from_stan(program, SCHOOLS_DATA).noncentred({}).composed
    assert np.isnan(at(composed, np.full(10, 1.5))[0]) and np.isfinite(at(composed, np.full(10, 0.5))[0])


def test_schools_are_right_and_trusted_as_they_are_written():
    dt = pmm.sample(model=pmm.LogDensity.from_stan(SCHOOLS, SCHOOLS_DATA), random_seed=2, progressbar=False)
    assert pmm.verdict(dt).state == "trusted"
    assert dt["posterior"].attrs["reparametrisation"] == "theta is sampled non-centred about mu, scaled by tau"
    for name, value in SCHOOLS_MEANS.items():
        assert abs(float(dt["posterior"][name].mean()) - value) < 0.05 * float(dt["posterior"][name].std())


def test_another_labelling_is_seen_where_there_is_no_prior_to_draw_from():
    rng = np.random.default_rng(1)
    y = np.where(rng.random(1000) < 0.3, -8.0, 6.0) + rng.normal(size=1000)
    dt = pmm.sample(model=pmm.LogDensity.from_stan(MIXTURE, {"N": 1000, "y": y}), random_seed=1, progressbar=False)
    said = pmm.verdict(dt)
    assert said.state == "not trusted"
    # Chains are in one labelling and have not seen the other, or are in both and stay there.
    assert {reason.code for reason in said.reasons} & {"modes", "r_hat"}


def test_children_are_named_as_the_program_writes_them():
    model = stan_program(SCHOOLS, SCHOOLS_DATA)[0]
    read = pmm.LogDensity.from_stan(SCHOOLS, SCHOOLS_DATA).noncentred({}).composed
    named = pmm.LogDensity.from_bridgestan(model, children={"theta": ("mu", "tau")}).noncentred({}).composed
    z = np.linspace(-1.0, 1.0, 10)
    np.testing.assert_array_equal(at(read, z)[1], at(named, z)[1])
    assert not pmm.LogDensity.from_bridgestan(model).children
    assert not pmm.LogDensity.from_stan(SCHOOLS, SCHOOLS_DATA, children={}).children
    assert pmm.LogDensity.from_stan(SCHOOLS, SCHOOLS_DATA).noncentred({"theta": "centred"}).structure.is_identity
    with pytest.raises(ValueError, match="reparametrise: 'mu' is none of the children of the LogDensity: theta"):
        pmm.LogDensity.from_stan(SCHOOLS, SCHOOLS_DATA).noncentred({"mu": "centred"})


@pytest.mark.parametrize(
    "children, message",
    [
        ({"nu": ("mu", "tau")}, "children: 'nu' is none of the parameters of the Stan model: mu, tau, theta"),
        ({"theta": "mu"}, r"children\['theta'\]='mu': must be a dict such as"),
        (["theta"], r"children=\['theta'\]: must be a dict"),
        ({"tau": ("mu", 1)}, r"children\['tau'\]=.*: tau must be a parameter without bounds"),
        ({"theta": ("mu * tau", 1)}, r"children\['theta'\]=.*: theta must be"),
        ({"theta": ("nu", 1)}, r"children\['theta'\]="),
        ({"theta": ("theta", "tau")}, "children: theta depend on themselves"),
        ({"theta": ("mu", "tau"), "mu": ("theta[1]", 1)}, "children: theta, mu depend on themselves"),
    ],
)
def test_children_that_cannot_be(children, message):
    with pytest.raises(ValueError, match=message):
        pmm.LogDensity.from_stan(SCHOOLS, SCHOOLS_DATA, children=children)


def test_a_program_of_brms_is_sampled_as_it_is_written():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(12), 10)
    x = rng.normal(size=120)
    effect = 0.6 * rng.normal(size=12)
    data = {
        "N": 120, "Y": rng.poisson(np.exp(1.0 + 0.4 * x + effect[group])), "K": 2, "Kc": 1, "N_1": 12, "M_1": 1,
        "X": np.column_stack([np.ones(120), x]), "J_1": group + 1, "Z_1_1": np.ones(120), "prior_only": 0,
    }  # fmt: skip
    dt = pmm.sample(model=pmm.LogDensity.from_stan(BRMS, data), progressbar=False, random_seed=1)
    assert pmm.verdict(dt).state == "trusted"
    posterior = dt["posterior"]
    assert {"b", "Intercept", "sd_1", "z_1", "r_1_1", "b_Intercept"} <= set(posterior)
    assert posterior.attrs["reparametrisation"] == "z_1 is sampled partly non-centred, scaled by sd_1"
    # Three standard deviations of the posterior.
    assert abs(float(posterior["b"].mean()) - 0.4) < 3.0 * float(posterior["b"].std())
    np.testing.assert_allclose(posterior["r_1_1"].mean(("chain", "draw")) - effect, 0.0, atol=0.6)
