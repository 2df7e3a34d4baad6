"""``regbayes fit``: a model from a file."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regbayes.cli.errors import ExitCode, UserError, counted
from regbayes.cli.options import Delimiter, Format, Header, Json, Missing, Quiet, read_options
from regbayes.cli.output import Output

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile

__all__ = ["fit", "show_model", "summary"]

EPILOG = """**Examples**

`regbayes fit iris.csv --target species --output iris.model`

`regbayes fit patients.parquet --target stroke --target diabetes --names id --output risk.model`

`regbayes fit pupils.csv --target score --task school --output school.model`

`regbayes fit yeast.arff --output yeast.model` (Mulan's XML file beside it says what the labels are)

Ctrl-C ends the search; the best settings so far are fitted and saved, and the exit code is 130."""

TARGET, SEARCH = "Target and inputs", "Settings and search"


class KindName(StrEnum):
    """What the target can ask for."""

    classifier = "classifier"
    multilabel = "multilabel"
    regressor = "regressor"


def fit(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="CSV, Parquet, NPZ, ARFF or LIBSVM file; - is CSV from stdin.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="The model file to write.", show_default=False)],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="Column to predict; again for several.", rich_help_panel=TARGET),
    ] = None,
    kind: Annotated[
        KindName | None,
        typer.Option("--kind", help="What to fit, if not what the target looks like.", rich_help_panel=TARGET),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Column that says which group a row belongs to.", rich_help_panel=TARGET),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", help="Column that is no input.", rich_help_panel=TARGET)
    ] = None,
    categorical: Annotated[
        list[str] | None,
        typer.Option("--categorical", help="Column whose numbers are names of categories.", rich_help_panel=TARGET),
    ] = None,
    names: Annotated[
        str | None,
        typer.Option("--names", help="Column that names rows on the page; no input.", rich_help_panel=TARGET),
    ] = None,
    standardize: Annotated[
        bool,
        typer.Option(
            "--standardize/--no-standardize",
            help="Whether numbers are scaled to unit variance.",
            rich_help_panel=TARGET,
        ),
    ] = True,
    balanced: Annotated[
        bool,
        typer.Option("--balanced", help="Rare classes count as much as frequent ones.", rich_help_panel=TARGET),
    ] = False,
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="HEIGHTxWIDTH",
            help="The inputs are pixels of a picture: taken as they are, and shown as pictures.",
            rich_help_panel=TARGET,
        ),
    ] = None,
    cv: Annotated[
        bool,
        typer.Option("--cv/--no-cv", help="Whether to choose settings by cross-validation.", rich_help_panel=SEARCH),
    ] = True,
    folds: Annotated[int, typer.Option("--folds", min=2, help="Parts of the rows.", rich_help_panel=SEARCH)] = 5,
    n_components: Annotated[
        int | None, typer.Option("--n-components", min=1, help="Most features.", rich_help_panel=SEARCH)
    ] = None,
    C: Annotated[
        list[float] | None,
        typer.Option("--C", help="Price of a margin violation; again for values to try.", rich_help_panel=SEARCH),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature",
            help="0.02 for features to read, 0.2 for predicting; again for values to try.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    include_inputs: Annotated[
        bool | None,
        typer.Option(
            "--include-inputs/--features-only",
            help="Whether predictions use the inputs beside the features.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    max_iter: Annotated[
        int | None, typer.Option("--max-iter", min=1, help="Most iterations of a fit.", rich_help_panel=SEARCH)
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="For the starts and the folds.", rich_help_panel=SEARCH)
    ] = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", min=-1, help="Processes; -1 is one per core.", rich_help_panel=SEARCH)
    ] = 1,
    format: Format = None,  # noqa: A002 - the option's name
    delimiter: Delimiter = None,
    header: Header = True,
    missing: Missing = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to a file, and save it.

    The target decides between a classifier, a multi-label classifier and a regressor. Settings are chosen by
    cross-validation. Missing values, text columns and columns that say nothing are taken care of.
    """
    from regbayes.cli.search import FitSettings
    from regbayes.cli.tables import read_table
    from regbayes.cli.training import Wishes, train

    out = Output(json=json, quiet=quiet)
    check_writable(output)
    for option, values in (("--C", C), ("--temperature", temperature)):
        if any(not value >= 0 or (option == "--C" and value == 0) for value in values or ()):
            raise UserError(f"{option} must be positive, got {min(values or ())}")
    wishes = Wishes(
        targets=tuple(target or ()),
        kind=None if kind is None else kind.value,
        task=task,
        ignore=tuple(ignore or ()),
        categorical=tuple(categorical or ()),
        names=names,
        standardize=standardize,
        image_shape=None if image is None else image_shape(image),
    )
    settings = FitSettings(
        n_components=n_components,
        C=tuple(sorted(set(C or ()))),
        temperature=tuple(temperature or ()),
        include_inputs=include_inputs,
        max_iter=max_iter,
        folds=folds,
        cross_validate=cv,
        balanced=balanced,
        seed=seed,
        jobs=jobs or 1,
    )
    table = read_table(data, read_options(format, delimiter, header, missing))
    model = train(table, wishes, settings, out)
    model.save(output)
    show_model(model, output, out)
    out.result({"command": "fit", "model": output, **summary(model)})
    if model.facts["interrupted"]:
        raise typer.Exit(ExitCode.INTERRUPTED)


def check_writable(path: str) -> None:
    """Refuse a place that cannot be written before hours are spent."""
    import os

    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise UserError(f"--output {path}: there is no folder {folder}")
    if os.path.isdir(path):
        raise UserError(f"--output {path} is a folder; name a file")
    if not os.access(folder, os.W_OK):
        raise UserError(f"--output {path}: the folder {folder} cannot be written")


def image_shape(text: str) -> tuple[int, int]:
    """Read HEIGHTxWIDTH."""
    height, _, width = text.lower().partition("x")
    if not (height.isdigit() and width.isdigit()) or 0 in (int(height), int(width)):
        raise UserError(f"--image must be HEIGHTxWIDTH, 8x8 for instance; got {text!r}")
    return int(height), int(width)


def summary(model: ModelFile) -> dict[str, Any]:
    """Return what a fitted model is, for JSON."""
    estimator, search = model.estimator, model.search
    found = {
        "estimator": type(estimator).__name__,
        "kind": model.target.kind,
        "targets": list(model.target.names),
        "task": model.target.task,
        "rows": model.facts["rows"],
        "inputs": model.facts["inputs"],
        "settings": search.chosen if search is not None else {"C": getattr(estimator, "C_", estimator.C)},
        "n_components": estimator.n_components,
        "n_components_in_use": estimator.n_components_,
        "seconds": model.facts["seconds"],
        "interrupted": model.facts["interrupted"],
        "baseline_score": model.facts["baseline"],
        "cross_validation": None,
    }
    if search is not None:
        found["cross_validation"] = {
            "metric": model.facts["metric"],
            "mean": search.mean[search.best],
            "std": search.deviation[search.best],
            "folds": search.n_folds,
            "candidates": [
                {**candidate, "mean": mean, "std": deviation}
                for candidate, mean, deviation in zip(search.candidates, search.mean, search.deviation, strict=True)
            ],
        }
    return found


def show_model(model: ModelFile, path: str, out: Output) -> None:
    """Print what was found, and what can be done next."""
    found = summary(model)
    settings = ", ".join(f"{name}={value}" for name, value in found["settings"].items())
    facts = {"model": f"{found['estimator']}, {settings}"}
    nothing = "the mean" if model.target.kind == "regressor" else "the most frequent class"
    baseline = f"always {nothing}: {found['baseline_score']:.3f}"
    if (cv := found["cross_validation"]) is not None:
        score = f"{model.facts['metric']} {cv['mean']:.3f} ± {cv['std']:.3f}"
        facts["score"] = f"{score} over {counted(cv['folds'], 'fold')} ({baseline})"
    else:
        facts["score"] = f"not cross-validated ({model.facts['metric']} of {baseline})"
    in_use = found["n_components_in_use"]
    nobody = "" if in_use else ": predictions rest on the inputs alone, or are all alike"
    facts["features"] = f"{in_use} of {found['n_components']} in use{nobody}"
    facts["time"] = f"{found['seconds']:.1f} s"
    facts["saved"] = path
    facts["next"] = f"regbayes report {path} --output report.html"
    facts[""] = f"regbayes predict {path} NEW_DATA"
    out.facts(facts)
