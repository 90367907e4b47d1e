"""``python -m pibert``: the command ``pibert``."""

from pibert.cli import app

app(prog_name="pibert")
