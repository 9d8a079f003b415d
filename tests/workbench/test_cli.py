"""The command line: what it writes, its exit codes, and a sentence for every wrong argument."""

import subprocess
import sys
import warnings

import pytest
import report_pages as pages
import zarr

from pmm_mcmc.workbench import cli
from pmm_mcmc.workbench.report import run_page

pytest_plugins = ["store_fixtures"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a run that is to be trusted and one that is not, as xarray writes them, and other things."""
    folder = tmp_path_factory.mktemp("runs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", zarr.errors.ZarrUserWarning)  # of what the format does not specify yet
        pages.good().to_zarr(folder / "good.zarr")
        pages.off().to_zarr(folder / "off.zarr")
    (folder / "empty.zarr").mkdir()
    (folder / "file.zarr").write_text("no store")
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys):
    def run(*words):
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def wrong(result, *words):
    """Assert that it was refused in one sentence that has these words."""
    code, out, err = result
    assert code == 2 and out == "" and "Traceback" not in err, result
    assert err.startswith(("error: ", "usage: ")), err
    for word in words:
        assert word in err, (word, err)


def test_report(runs, call, here):
    code, out, err = call("report", runs / "good.zarr", "-o", here / "r.html")
    assert code == 0 and err == ""
    assert out.splitlines()[0] == f"{here / 'r.html'}: Trusted."
    assert "All corrected means are within" in out.splitlines()[1]
    assert (here / "r.html").read_text(encoding="utf-8") == run_page(pages.good(), "Report on good.zarr")


def test_report_on_a_run_that_is_not_to_be_trusted(runs, call, here):
    code, out, _ = call("report", f"{runs / 'off.zarr'}/")
    assert code == 1 and "Not trusted" in out and "E[x dF/dx]" in out
    assert "Not trusted" in (here / "off.html").read_text(encoding="utf-8")


def test_report_on_a_store(whole, call, here):
    code, out, err = call("report", whole, "-o", "r.html")
    assert code == 0 and "Undecided" in out and "is known to 0.12 posterior sd only" in out and err == ""
    html = (here / "r.html").read_text(encoding="utf-8")
    assert "theta[Bé]" in html and ">odd<" in html and "Report on run.zarr" in html


def test_a_file_that_is_there_is_replaced_only_when_asked_for(runs, call, here):
    (here / "r.html").write_text("mine")
    wrong(call("report", runs / "good.zarr", "-o", "r.html"), "r.html: is there already", "--force")
    assert (here / "r.html").read_text() == "mine"
    assert call("report", runs / "good.zarr", "-o", "r.html", "--force")[0] == 0
    assert (here / "r.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_wrong_stores(runs, call, here):
    wrong(call("report", runs / "god.zarr"), "there is nothing of that name", f"did you mean {runs / 'good.zarr'}?")
    wrong(call("report", here / "x" / "y.zarr"), "there is nothing of that name")
    wrong(call("report", runs / "file.zarr"), "is a file, and a store is a folder")
    wrong(call("report", runs / "empty.zarr"), "no run is stored there")
    wrong(call("report", "nowhere://x/y.zarr"), "nowhere")
    assert list(here.iterdir()) == []


def test_a_store_without_draws_or_with_damaged_ones(half, copy, call, here):
    chunk = min((copy / "posterior" / "mu").glob("c*"))
    chunk.write_bytes(b"damaged" + chunk.read_bytes())
    wrong(call("report", copy), "damaged")
    (copy / "zarr.json").write_text("{")
    wrong(call("report", copy), "metadata are damaged")
    assert list(here.glob("*.html")) == []


def test_wrong_places_to_write_to(runs, call, here):
    wrong(call("report", runs / "good.zarr", "-o", here), "is a folder")
    wrong(call("report", runs / "good.zarr", "-o", "none/r.html"), "there is no folder none")
    wrong(call("compare", "galaxies", "-o", "none/r.html"), "there is no folder none")


def test_a_place_that_turns_out_not_to_be_writable(runs, call, here, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    wrong(call("report", runs / "good.zarr"), "-o good.html: could not be written", "No space left")
    assert list(here.iterdir()) == []


def test_targets(call):
    from pmm_mcmc.workbench import targets

    code, out, err = call("targets")
    assert code == 0 and err == ""
    assert [line.split()[0] for line in out.splitlines()] == list(targets.list())
    assert [int(line.split()[1]) for line in out.splitlines()] == [targets.get(n).ndim for n in targets.list()]
    code, out, _ = call("targets", "funnel")
    assert code == 0 and targets.get("funnel").title in out and targets.get("funnel").note[:30] in out
    wrong(call("targets", "funel"), "there is no such target", "did you mean funnel?")


@pytest.fixture
def compared(monkeypatch):
    """What the comparison was asked for, which is not made."""
    asked = {}

    def compare(target, samplers, **options):
        asked.update(target=target, samplers=samplers, **options)
        if options["n_grad"] < 1000:
            raise ValueError(f"n_grad={options['n_grad']}: must be at least 1000")
        return pages.Comparison()

    monkeypatch.setattr("pmm_mcmc.workbench.cli.compare", compare)
    return asked


def test_compare(compared, call, here):
    code, out, err = call("compare", "funnel", "--n-grad", "2e5", "-o", "c.html")
    assert code == 0 and err == ""
    assert out.splitlines()[0] == "c.html: Samplers on galaxies" and pages.Comparison.__name__ not in out
    assert compared["target"].name == "funnel" and compared["n_grad"] == 200_000 and compared["random_seed"] == 1
    assert isinstance(compared["n_grad"], int) and compared["step_multiples"] == ()
    names = [s if isinstance(s, str) else type(s).__name__ for s in compared["samplers"]]
    assert names == ["default", "PoissonULMC", "PoissonULMC", "ULMC", "OLMC", "nuts"]
    assert "Samplers on galaxies" in (here / "c.html").read_text(encoding="utf-8")


def test_samplers_named_by_words(compared, call, here):
    given = ("PoissonULMC(scheme=recycled, friction=2)", "nutpie", " ULMC(step_size=.1)")
    words = [word for sampler in given for word in ("--sampler", sampler)]
    assert call("compare", "funnel", *words, "--random-seed", "7")[0] == 0
    first, second, third = compared["samplers"]
    assert second == "nutpie" and "scheme='recycled'" in first.settings and "friction=2" in first.settings
    assert "'ULMC'" in third.settings and "step_size=0.1" in third.settings
    assert call("compare", "funnel", "--steps", "--force")[0] == 0 and compared["step_multiples"] == (0.25, 0.5, 2.0)
    assert call("compare", "funnel", *words, "--random-seed", "7", "--force")[0] == 0
    assert compared["random_seed"] == 7 and (here / "funnel.html").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["galaxis"], ["galaxis: there is no such target", "did you mean"]),
        (["funnel", "--n-grad", "many"], ["--n-grad", "'many' must be a whole number"]),
        (["funnel", "--n-grad", "0.5"], ["whole number of at least 1"]),
        (["funnel", "--n-grad", "nan"], ["whole number of at least 1"]),
        (["funnel", "--n-grad", "10"], ["n_grad=10: must be at least 1000"]),
        (["funnel", "--random-seed", "-1"], ["--random-seed"]),
        (["funnel", "--sampler", "ulmc"], ["there is no such sampler", "did you mean ULMC?"]),
        (["funnel", "--sampler", "PoissonULMC(K=zero)"], ["PoissonULMC(K=zero)", "K="]),
        (["funnel", "--sampler", "ULMC(q=1)"], ["ULMC(q=1)", "'q'"]),
        (["funnel", "--sampler", "__import__('os').system('true')"], ["must be a name with arguments"]),
        (["funnel", "--sampler", "ULMC(16)"], ["must be a name with arguments"]),
        ([], ["TARGET"]),
    ],
)
def test_wrong_arguments_of_compare(compared, call, here, words, said):
    wrong(call("compare", *words), *said)
    assert list(here.iterdir()) == []


def test_help_has_examples(call):
    for command in ("report", "compare", "targets"):
        code, out, _ = call(command, "--help")
        assert code == 0 and f"python -m pmm_mcmc {command}" in out.split("examples:")[1] and "exit codes" in out
    assert "report" in call("--help")[1]
    wrong(call(), "COMMAND")
    wrong(call("repot", "x"), "repot")


def test_what_nobody_foresaw(runs, call, here, monkeypatch):
    def fails(*_):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("pmm_mcmc.workbench.cli.page_of", fails)
    code, _, err = call("report", runs / "good.zarr")
    assert code == 3 and "unforeseen" in err and "mistake of pmm_mcmc" in err

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pmm_mcmc.workbench.cli.page_of", interrupted)
    code, _, err = call("report", runs / "good.zarr")
    assert code == 130 and "nothing is written" in err and list(here.iterdir()) == []


@pytest.mark.process
def test_it_is_a_module_to_be_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pmm_mcmc", "targets", "nothing-like-it"],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.startswith("error: nothing-like-it: there is no such target")
    assert done.stdout == ""
