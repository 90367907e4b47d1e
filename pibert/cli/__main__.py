"""``python -m pibert.cli``."""

from pibert.cli import app

app(prog_name="pibert")
