"""``regbayes fit``: a model from a file, or from documents."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regbayes.cli.errors import ExitCode, UserError
from regbayes.cli.options import Delimiter, Encoding, Format, Header, Json, Missing, Quiet, read_options
from regbayes.cli.output import Output

if TYPE_CHECKING:
    from regbayes.cli.modelfile import ModelFile
    from regbayes.cli.search import FitSettings
    from regbayes.cli.tables import ReadOptions
    from regbayes.cli.training import Wishes
    from regbayes.cli.words import WordWishes

__all__ = ["check_writable", "fit", "image_shape"]

EPILOG = """**Examples**

`regbayes fit iris.csv --target species --output iris.model`

`regbayes fit patients.parquet --target stroke --target diabetes --names id --output risk.model`

`regbayes fit pupils.csv --target score --task school --output school.model`

`regbayes fit yeast.arff --output yeast.model` (Mulan's XML file beside it says what the labels are)

`regbayes fit reviews.csv --text review --target stars --kind regressor --output reviews.model` (topics of documents)

`regbayes fit mails/ --output mails.model` (a folder of text files for each class)

`regbayes fit 20newsgroups:train --output news.model` (also `movie-reviews`)

Ctrl-C ends the search; the best settings so far are fitted and saved, and the exit code is 130."""

TARGET, DOCUMENTS, SEARCH = "Target and inputs", "Documents", "Settings and search"


class KindName(StrEnum):
    """What the target can ask for."""

    classifier = "classifier"
    multilabel = "multilabel"
    regressor = "regressor"


class ModelName(StrEnum):
    """The models that can be fitted."""

    ilsvm = "ilsvm"
    medlda = "medlda"


class InferenceName(StrEnum):
    """How MedLDA infers topics."""

    gibbs = "gibbs"
    variational = "variational"


def fit(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="CSV, Parquet, NPZ, ARFF or LIBSVM file, - for CSV from stdin, a folder of documents, or a text set.",
        ),
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
    model: Annotated[
        ModelName | None,
        typer.Option(
            "--model",
            help="ilsvm: features of rows; medlda: topics of documents, the default for text.",
            rich_help_panel=TARGET,
        ),
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
    text: Annotated[
        list[str] | None,
        typer.Option("--text", help="Column with the text; again for several.", rich_help_panel=DOCUMENTS),
    ] = None,
    min_df: Annotated[
        int | None,
        typer.Option(
            "--min-df", min=1, help="Documents that a word must occur in; 3, or 1 of few.", rich_help_panel=DOCUMENTS
        ),
    ] = None,
    max_words: Annotated[
        int | None,
        typer.Option("--max-words", min=2, help="Most words, the frequent ones; 50000.", rich_help_panel=DOCUMENTS),
    ] = None,
    stop_words: Annotated[
        str | None,
        typer.Option(
            "--stop-words", help="auto (by the language), english, none, or a file of words.", rich_help_panel=DOCUMENTS
        ),
    ] = None,
    inference: Annotated[
        InferenceName | None,
        typer.Option(
            "--inference", help="How topics are inferred: by sampling or by mean field.", rich_help_panel=DOCUMENTS
        ),
    ] = None,
    cv: Annotated[
        bool,
        typer.Option("--cv/--no-cv", help="Whether to choose settings by cross-validation.", rich_help_panel=SEARCH),
    ] = True,
    folds: Annotated[int, typer.Option("--folds", min=2, help="Parts of the rows.", rich_help_panel=SEARCH)] = 5,
    n_components: Annotated[
        list[int] | None,
        typer.Option(
            "--n-components",
            min=1,
            help="Most features; of documents the number of topics, again for values to try.",
            rich_help_panel=SEARCH,
        ),
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
    encoding: Encoding = "utf-8",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to a file or to documents, and save it.

    The target decides between a classifier, a multi-label classifier and a regressor. Settings are chosen by
    cross-validation. Missing values, text columns and columns that say nothing are taken care of. With --text, a folder
    or a text set the rows are documents, and the model finds topics in them.
    """
    from regbayes.cli.search import FitSettings
    from regbayes.cli.summaries import show_model, summary
    from regbayes.cli.training import Wishes
    from regbayes.cli.words import WordWishes

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
        n_components=tuple(sorted(set(n_components or ()))),
        C=tuple(sorted(set(C or ()))),
        temperature=tuple(temperature or ()),
        include_inputs=include_inputs,
        inference=None if inference is None else inference.value,
        max_iter=max_iter,
        folds=folds,
        cross_validate=cv,
        balanced=balanced,
        seed=seed,
        jobs=jobs or 1,
    )
    words = WordWishes(tuple(text or ()), min_df, max_words, stop_words or "auto")
    reading = read_options(format, delimiter, header, missing, encoding)
    if _wants_topics(model, data, words):
        fitted = _fit_documents(data, reading, wishes, words, settings, out)
    else:
        fitted = _fit_table(data, reading, wishes, words, settings, out)
    fitted.save(output)
    show_model(fitted, output, out)
    out.result({"command": "fit", "model": output, **summary(fitted)})
    if fitted.facts["interrupted"]:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _wants_topics(model: ModelName | None, data: str, words: WordWishes) -> bool:
    from regbayes.cli.documents import is_documents

    return model is ModelName.medlda if model is not None else bool(words.columns) or is_documents(data)


def _fit_table(
    data: str, reading: ReadOptions, wishes: Wishes, words: WordWishes, settings: FitSettings, out: Output
) -> ModelFile:
    from regbayes.cli.tables import read_table
    from regbayes.cli.training import train
    from regbayes.cli.words import WordWishes

    _refuse(
        "iLSVM; --model medlda finds topics of documents",
        {
            "--text": words.columns,
            "--min-df, --max-words and --stop-words": replace(words, columns=()) != WordWishes(),
            "--inference": settings.inference,
            "several --n-components": len(settings.n_components) > 1,
        },
    )
    return train(read_table(data, reading), wishes, settings, out)


def _fit_documents(
    data: str, reading: ReadOptions, wishes: Wishes, words: WordWishes, settings: FitSettings, out: Output
) -> ModelFile:
    from regbayes.cli.documents import read_documents
    from regbayes.cli.topics import train_documents

    _refuse(
        "MedLDA, which sees words alone",
        {
            "--task": wishes.task,
            "--categorical": wishes.categorical,
            "--no-standardize": not wishes.standardize,
            "--image": wishes.image_shape,
            "--temperature": settings.temperature,
            "--include-inputs and --features-only": settings.include_inputs is not None,
        },
    )
    return train_documents(read_documents(data, reading), wishes, words, settings, out)


def _refuse(model: str, given: dict[str, Any]) -> None:
    """Refuse options that the model has no use for."""
    for option, value in given.items():
        if value:
            raise UserError(f"{option}: nothing for {model}")


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
