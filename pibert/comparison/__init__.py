"""The honest comparison: models under one protocol, judged once on data that decided nothing."""
