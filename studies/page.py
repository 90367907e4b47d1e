"""docs/pretraining.md from the results of the studies."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from studies.filling import best_classical
from studies.filling_metrics import MODEL

HEAD = """# Measured effect of pretraining

`python -m studies` runs the studies on this page and writes it (on a GPU). `--only wakes` runs one
study; `--jet FILE` names the jet recording. Each study is an experiment in `configs/`, with its
results in `docs/pretraining/`. No choice used test data: the validation set selects the epoch, and
settings were chosen by hand before the first evaluation on the test set.

"""


def write(docs: Path) -> None:
    """Write the page from the parts that are there."""
    parts = {
        path.stem: json.loads(path.read_text()) for path in (docs / "pretraining").glob("*.json")
    }
    text = HEAD
    if "wakes" in parts or "jet" in parts:
        text += _filling(parts)
    if "consistency" in parts:
        text += _consistency(parts["consistency"])
    if "labels" in parts:
        text += _labels(parts["labels"])
    else:
        text += "## Fine-tuning with and without pretraining (RQ3)\n\nNot measured yet.\n\n"
    if "schedule" in parts:
        text += _schedule(parts["schedule"])
    (docs / "pretraining.md").write_text(text)


def _filling(parts: dict[str, Any]) -> str:
    text = """## Masked physics prediction: filling gaps

A model is pretrained only by masked physics prediction. It then fills hidden points (15 %) of
unseen fields. Four classical methods fill the same points: the mean of the field, a membrane
(`laplace`), piecewise cubic interpolation and a thin plate (`biharmonic`). The table has root mean
square errors at the hidden points over both components, in units of each component's standard
deviation in the training data. Smaller is better. *Ratio* is the error of the model over that of
the best interpolation.

The reconstruction starts from POD modes of the training fields (`model.options.fill_modes`), and
the transformer corrects it. `modes` is this start by itself (gappy POD); it learns from the same
fields as the model and does not count as interpolation. The difference between the first two
columns is what the transformer adds. For a simulated measurement the true flow is known. The
measurement itself has noise that neighbouring vectors share, which interpolation at single points
follows.

"""
    titles = {
        "wakes": "Wakes of the `demo` preset with a PIV model (noise 2 % of U, 1 % spurious and "
        "2 % missing vectors), at unseen Reynolds numbers (`configs/wakes-piv.toml`)",
        "jet": "Measured jet, after the training frames (`configs/jet-filling.toml`)",
    }
    for name, title in titles.items():
        if name not in parts:
            continue
        part = parts[name]
        rows = part["rows"]
        methods = list(dict.fromkeys(row["method"] for row in rows))
        table = []
        for mask, against in dict.fromkeys((row["mask"], row["against"]) for row in rows):
            found = {
                row["method"]: row["rms"]
                for row in rows
                if (row["mask"], row["against"]) == (mask, against)
            }
            ratio = found[MODEL] / best_classical(rows, mask, against)
            table.append(
                [mask, against, *(f"{found[method]:.3f}" for method in methods), f"**{ratio:.2f}**"]
            )
        text += f"**{title}.** {part['fields']} fields. "
        text += f"Trained on {part['trained_on']}. {_circumstances(part)}\n\n"
        text += _table(["hidden", "error against", *methods, "ratio"], table)
        best = min(float(row[-1].strip("*")) for row in table if "blocks" in row[0])
        if best > 0.5:
            text += "\nThe target, half the error of the best interpolation on blocks, is missed.\n"
        text += f"\n![Filled field](pretraining/{name}-filling.png)\n\n"
    return text


def _consistency(part: dict[str, Any]) -> str:
    text = f"""## Equation consistency prediction: which windows obey their equation

A model is pretrained on wakes with both objectives (`configs/wakes-consistency.toml`) and evaluated
on {part["trajectories"]} unseen trajectories. AUC is the probability that a valid window scores
higher than an invalid one; 0.5 is chance. The *probe* is a linear classifier that sees only the
mean, variance and spectrum of a window. Where its AUC is near 0.5, these statistics do not reveal
the negative.{_frame_probe(part)} {_circumstances(part)}

"""
    return text + _consistency_table(part) + "\n" + _unavailable(part)


def _frame_probe(part: dict[str, Any]) -> str:
    if not _has_frame_probe(part):
        return ""
    return """
The *frame probe* sees these statistics frame by frame, and so the frame order of a flow that decays
or grows."""


def _has_frame_probe(part: dict[str, Any]) -> bool:
    """Windows of one frame have none, nor have results of before there was one."""
    return any(row.get("frame_probe_auc") is not None for row in part["rows"])


def _consistency_table(part: dict[str, Any]) -> str:
    probes = {"probe_auc": "probe AUC"}
    if _has_frame_probe(part):
        probes["frame_probe_auc"] = "frame probe AUC"
    rows = [
        [
            row["kind"],
            "" if row["amplitude"] is None else f"{row['amplitude']:g}",
            f"**{row['auc']:.3f}**",
            f"{row['accuracy']:.3f}",
            *(_probe(row, name) for name in probes),
            str(row["n"]),
        ]
        for row in part["rows"]
    ]
    head = ["negative", "amplitude", "AUC", "accuracy", *probes.values(), "windows"]
    return _table(head, rows)


def _probe(row: dict[str, Any], name: str) -> str:
    """An en dash where a probe has nothing to say, as of wrong parameters of the same fields."""
    value = None if row["kind"] == "parameters" else row.get(name)
    return "\u2013" if value is None else f"{value:.3f}"


def _unavailable(part: dict[str, Any]) -> str:
    reasons = [f"{kind}: {reason}" for kind, reason in part["unavailable"].items()]
    return f"Not available here: {'; '.join(reasons)}.\n\n" if reasons else ""


def _labels(part: dict[str, Any]) -> str:
    rows = []
    for share in dict.fromkeys(row["share"] for row in part["rows"]):
        chosen = [row for row in part["rows"] if row["share"] == share]
        scratch, pretrained = (
            {row["seed"]: row["nmse"] for row in chosen if row["pretrained"] is flag}
            for flag in (False, True)
        )
        ratios = [pretrained[seed] / scratch[seed] for seed in scratch]
        rows.append(
            [
                f"{100 * share:g} %",
                _spread(scratch.values()),
                _spread(pretrained.values()),
                _spread(ratios, 2),
                f"{statistics.mean(row['persistence_nmse'] for row in chosen):.4f}",
            ]
        )
    return (
        f"""## Fine-tuning with and without pretraining (RQ3)

Pretraining uses all training trajectories; a share of them has labels (`configs/labels.toml`). Each
training takes about {part["steps"]} steps. Pretraining samples come on top of this budget, so a
ratio below 1 does not show that pretraining pays for itself. The validation trajectories select the
epoch. The table has the next-frame error on the test trajectories (NMSE: squared error over squared
field, standardised) as mean ± standard deviation over
{len({r["seed"] for r in part["rows"]})} seeds with the same labelled trajectories.
{_circumstances(part)}

"""
        + _table(["labelled", "from scratch", "pretrained", "ratio", "persistence"], rows)
        + "\n"
    )


def _schedule(part: dict[str, Any]) -> str:
    stages = part["stages"]
    names = list(dict.fromkeys(name for stage in stages.values() for name in stage["parts"]))
    rows = [
        [
            title,
            str(stage["epochs"]),
            str(stage["steps"]),
            f"{stage['seconds']:.0f} s",
            *(f"{100 * stage['parts'].get(name, 0.0) / stage['seconds']:.0f} %" for name in names),
        ]
        for title, stage in stages.items()
    ]
    test = part["test"]
    return (
        f"""## The paper's schedule end to end

`configs/wakes-base.toml` runs {stages["pretraining"]["epochs"]} epochs of pretraining and
{stages["training"]["epochs"]} of training on {part["pairs"]:,} pairs of 64 x 64 points, in batches
of 256 (micro-batches of 128). From data on disk to the best weights it takes
**{part["total_seconds"]:.0f} s**. The test NMSE of the next frame is {test["nmse"]:.4f};
persistence has {test["persistence_nmse"]:.4f}. {_circumstances(part)}

"""
        + _table(["stage", "epochs", "steps", "time", *names], rows)
        + "\nThe pretrained consistency head on the test trajectories of this data set:\n\n"
        + _consistency_table(part["consistency"])
        + "\n"
        + _unavailable(part["consistency"])
    )


def _spread(values: Iterable[float], digits: int = 4) -> str:
    found = list(values)
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.mean(found):.{digits}f} ± {spread:.{digits}f}"


def _circumstances(part: dict[str, Any]) -> str:
    measured = part["measured"]
    where = measured["device"]
    return f"Measured {measured['date']} on {where}, commit {str(measured['commit'])[:7]}."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
