"""docs/pretraining.md from the results of the studies."""

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pibert.evaluation.filling import MODEL
from studies.filling import best_classical

HEAD = """# What pretraining is worth, measured

`python -m studies` runs everything on this page and writes it (for a GPU); `--only wakes` one part,
`--jet FILE` names the jet recording. Each part is an experiment in `configs/`; the results are in
`docs/pretraining/`. Test data decided nothing: the epoch is chosen on the validation part, settings
were chosen by hand before the test part was looked at.

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

A model is pretrained by masked physics prediction alone and then fills points of fields that it has
not seen (15 % of them hidden); the same points are filled by the mean of the field, a membrane
(`laplace`), piecewise cubic interpolation and a thin plate (`biharmonic`). Root mean square errors
at the hidden points, over both components, in units of each component's standard deviation in the
training data. Smaller is better; *ratio* is the error over that of the best interpolation. The
reconstruction starts from the principal modes of the training fields (`model.options.fill_modes`)
and the transformer corrects it; `modes` is that start by itself (gappy POD), which has learned from
the same fields as the model and is no interpolation. What the transformer adds is the difference of
the first two columns. Of a simulated measurement the true flow is known; the measurement itself has
noise that neighbours share, which an interpolation of single points follows.

"""
    titles = {
        "wakes": "Wakes of the `demo` preset through a PIV model (noise 2 % of U, 1 % spurious and "
        "2 % missing vectors), on Reynolds numbers not trained on (`configs/wakes-piv.toml`)",
        "jet": "Measured jet, later in time than all training (`configs/jet-filling.toml`)",
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
            text += (
                "\nThe aim, half the error of the best interpolation on blocks, is not reached.\n"
            )
        text += f"\n![Filled field](pretraining/{name}-filling.png)\n\n"
    return text


def _consistency(part: dict[str, Any]) -> str:
    text = f"""## Equation consistency prediction: which windows obey their equation

A model is pretrained by both objectives on wakes (`configs/wakes-consistency.toml`) and judged on
{part["trajectories"]} trajectories that it has not seen. AUC is the chance that a valid window gets
a higher score than an invalid one; 0.5 is guessing. The *probe* is a linear classifier that sees
only mean, variance and spectrum of a window: where it is near 0.5, such statistics do not give the
negative away.{_frame_probe(part)} {_circumstances(part)}

"""
    return text + _consistency_table(part) + "\n" + _unavailable(part)


def _frame_probe(part: dict[str, Any]) -> str:
    if not _has_frame_probe(part):
        return ""
    return """
The *frame probe* sees these statistics of each frame apart, and with them the order of frames of a
flow that decays or grows."""


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

All training trajectories are used for pretraining; a share of them has labels
(`configs/labels.toml`). Each training takes about {part["steps"]} steps. Pretraining comes on
top: its samples are not taken from this budget, so a ratio below 1 does not say that pretraining
pays for itself. The validation trajectories choose the epoch. Error of the next frame on the test
trajectories (NMSE: squared error over squared field, standardised), mean ± standard deviation over
{len({r["seed"] for r in part["rows"]})} seeds, which have the same labelled
trajectories. {_circumstances(part)}

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

`configs/wakes-base.toml`, {stages["pretraining"]["epochs"]} epochs of pretraining and
{stages["training"]["epochs"]} of training, batches of 256 in micro-batches of 128,
{part["pairs"]:,} pairs on 64 x 64 points, from data on the disk to the best weights in
**{part["total_seconds"]:.0f} s**. Test NMSE of the next frame {test["nmse"]:.4f}, persistence
{test["persistence_nmse"]:.4f}. {_circumstances(part)}

"""
        + _table(["stage", "epochs", "steps", "time", *names], rows)
        + "\nThe pretrained consistency head on the test trajectories of this set:\n\n"
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
